"""Sorted tables of keys and values, as LevelDB writes them: what checkpoints of TensorFlow are indexed by."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.support.errors import UserError

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
"""Bytes behind each block: how it is compressed, and its checksum."""
_NOT_COMPRESSED, _SNAPPY = 0, 1
_LARGEST_BLOCK = 1 << 28


def looks_like_table(end_of_file: bytes) -> bool:
    """Whether a file that ends so is such a table."""
    return len(end_of_file) >= 8 and int.from_bytes(end_of_file[-8:], "little") == _MAGIC


def entries_of(content: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    if len(content) < _FOOTER or not looks_like_table(content):
        raise UserError("this is no index of a checkpoint", where=where, hint="copy or save the checkpoint again")
    try:
        footer = content[-_FOOTER:]
        _, _, at = _handle(footer, 0)
        offset, size, _ = _handle(footer, at)
        for _, handle in _block_entries(_block(content, offset, size)):
            start, length, _ = _handle(handle, 0)
            yield from _block_entries(_block(content, start, length))
    except (IndexError, ValueError) as error:
        raise UserError(
            f"the index of the checkpoint is damaged: {error}", where=where, hint="copy or save the checkpoint again"
        ) from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Place and size of a block, and where the next thing begins."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _block(content: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER > len(content):
        raise ValueError("a block lies outside of the file")
    block, kind = content[offset : offset + size], content[offset + size]
    if kind == _SNAPPY:
        return _decompressed(block)
    if kind != _NOT_COMPRESSED:
        raise ValueError(f"a block is compressed by the method {kind}")
    return block


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys share their beginnings with the key before, but at places that are listed behind the entries."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise ValueError("a block has no end")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise ValueError("an entry lies outside of its block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _decompressed(data: bytes) -> bytes:
    """A block as Snappy's raw format has it: bytes as they are, and copies of bytes before."""
    size, at = _varint(data, 0)
    if size > _LARGEST_BLOCK:
        raise ValueError("a block is too large")
    result = bytearray()
    while at < len(data) and len(result) < size:
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                length = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            result += data[at : at + length]
            at += length
            continue
        if tag & 3 == 1:
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, offset = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
            at += width
        if not 0 < offset <= len(result):
            raise ValueError("a copy of bytes that are not there")
        for _ in range(length):
            result.append(result[-offset])
    if len(result) != size:
        raise ValueError("a compressed block has another length than it says")
    return bytes(result)
