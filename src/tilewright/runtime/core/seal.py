"""The seal of an exported library: a checksum behind its content, and a signature where one was asked for.

The system's loader does not look there. A library is code. One that lost a bit on its way would load all the same, and
then give wrong answers or end the process: the checksum finds that. It says nothing about who made the library; the
signature does.

    content | "TWSIGN1\\n" public key (64 bytes) signature (64 bytes) | "TWSEAL1\\n" CRC-32 of all before

Libraries from before there were seals, and those that a tool such as `strip` has written again, have none and are taken
as they are, unless a seal is required. Anything else behind the content is damage.
"""

from __future__ import annotations

import hashlib
import mmap
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.core.keys import PublicKey, SigningKey
from tilewright.support.errors import UserError
from tilewright.support.processors import usable_cpus

_MAGIC = b"TWSEAL1\n"
SEAL_BYTES = len(_MAGIC) + 4
"""The length of a seal without a signature."""
_SIGNED_MAGIC = b"TWSIGN1\n"
SIGNATURE_BYTES = len(_SIGNED_MAGIC) + 64 + 64
"""The length of a signature with its key."""
_PURPOSE = b"tilewright library 1\0"
"""Hashed first: a signature of a library is of nothing else."""
_PART = 2 << 20
"""What a thread takes at a time: more than a millisecond's work, where it starts in a tenth of one."""
_MOST_THREADS = 8
"""More share the bandwidth of memory without gain."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What stands behind a library's content: nothing, a checksum, or a signature and a checksum."""

    start: int
    """Where the content ends."""
    is_sealed: bool = False
    key: PublicKey | None = None
    """Who has signed it, as the seal says: `is_signed_by` finds out whether that is true."""
    signature: bytes = b""

    def is_signed_by(self, content: memoryview, keys: list[PublicKey]) -> bool:
        """Whether one of the keys has signed the content."""
        if self.key is None or self.key not in keys:
            return False
        return self.key.signed(_digest(content[: self.start]), self.signature)


def seal(file: Path, key: SigningKey | None = None) -> None:
    """Append the seal of what the file holds, signed where a key is given."""
    with open(file, "r+b") as stream:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole, memoryview(whole) as content:
            signature = b""
            if key is not None:
                signature = _SIGNED_MAGIC + key.public.content + key.sign(_digest(content))
            checksum = zlib.crc32(signature, _checksum(content))
        stream.seek(0, 2)
        stream.write(signature + _MAGIC + checksum.to_bytes(4, "little"))


def read_seal(content: memoryview, where: str) -> Seal:
    """The seal at the end of a library, if any; a UserError where the content does not fit it."""
    body = len(content) - SEAL_BYTES
    if body < 0 or bytes(content[body : body + len(_MAGIC)]) != _MAGIC:
        return Seal(len(content))
    if _checksum(content[:body]).to_bytes(4, "little") != bytes(content[body + len(_MAGIC) :]):
        raise UserError(
            "the library is damaged: its content does not fit its checksum",
            where=where,
            hint="export or copy it again",
        )
    start = body - SIGNATURE_BYTES
    if start < 0 or bytes(content[start : start + len(_SIGNED_MAGIC)]) != _SIGNED_MAGIC:
        return Seal(body, is_sealed=True)
    key, signature = bytes(content[start + 8 : start + 72]), bytes(content[start + 72 : body])
    return Seal(start, True, PublicKey(key), signature)


def check_end(seal: Seal, end: int, where: str) -> None:
    """Refuse what stands behind a library's content, which ends at `end`, and is no seal."""
    if seal.start < end or (seal.start > end and not seal.is_sealed):
        raise UserError(
            "the seal of the library is damaged: what stands behind its content is none",
            where=where,
            hint="export or copy it again",
        )


def _digest(content: memoryview) -> bytes:
    digest = hashlib.sha256(_PURPOSE)
    digest.update(content)
    return digest.digest()


def _checksum(content: memoryview) -> int:
    """The CRC-32 of the content, by parts that several threads take one after another."""
    value = 0
    size = len(content)
    shift = _shift_by(_PART)
    for start, part in sorted(_checksums_of_parts(content).items()):
        value = _times(value, shift if start + _PART <= size else _shift_by(size - start)) ^ part
    return value


def _checksums_of_parts(content: memoryview) -> dict[int, int]:
    """The CRC-32 of each part, by where it starts. zlib lets go of Python's lock, so that threads help."""
    starts = range(0, len(content), _PART)
    waiting = iter(starts)
    checksums: dict[int, int] = {}

    def take_parts() -> None:
        for start in waiting:
            with content[start : start + _PART] as part:
                checksums[start] = zlib.crc32(part)

    threads = min(_MOST_THREADS, len(usable_cpus()), len(starts))
    helpers = [threading.Thread(target=take_parts) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    take_parts()
    for helper in helpers:
        helper.join()
    return checksums


# A CRC is a remainder of polynomials over the bits, so that of a whole follows from those of its parts: the first one's
# is moved up by the length of the second, and both are added. A polynomial lies in 32 bits, its constant term highest.
_ONE = 1 << 31
_POLYNOMIAL = 0xEDB88320


def _times(left: int, right: int) -> int:
    """The product of two polynomials, modulo that of CRC-32."""
    product = 0
    while right:
        if right & _ONE:
            product ^= left
        right = right << 1 & 0xFFFFFFFF
        left = left >> 1 ^ (_POLYNOMIAL if left & 1 else 0)
    return product


def _shift_by(count: int) -> int:
    """The polynomial that moves a CRC up by a number of bytes: x to the power of their bits."""
    power, factor = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _times(power, factor)
        factor = _times(factor, factor)
        count >>= 1
    return power
