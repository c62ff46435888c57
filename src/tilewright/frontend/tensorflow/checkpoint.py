"""Checkpoints: tensors by name, in a bundle (an index and shards of data) or in one file of slices (the older form)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE
from tilewright.frontend.tensorflow.schema import SCHEMA
from tilewright.frontend.tensorflow.table import entries_of
from tilewright.frontend.tensorflow.tensors import array_of, shape_dims, text_of, type_name
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_HEADER = b""
_AGAIN = "copy or save the checkpoint again"


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint; their bytes are read when they are asked for."""

    where: str
    entries: dict[str, Any]
    """What the index says of each tensor."""
    shards: tuple[Path, ...]
    whole: dict[str, tuple[Array, str]] = field(default_factory=dict)
    """Tensors of the older form, which is read at once."""

    def tensor(self, name: str) -> tuple[Array, str]:
        """The elements of a tensor, and the name of its type."""
        if name in self.whole:
            return self.whole[name]
        entry = self.entries.get(name)
        if entry is None:
            raise UserError(
                f"the checkpoint has no tensor '{name}'",
                where=self.where,
                hint="it belongs to another version of the model",
            )
        kind = type_name(entry.dtype)
        shape = self._shape(entry, name)
        if len(entry.slices):
            return self._sliced(entry, name, shape), kind
        content = self._bytes(entry, name)
        if kind == "string":
            return _texts(content, math.prod(shape), self.where).reshape(shape), kind
        holder = _holder(kind)
        if len(content) != math.prod(shape) * holder.itemsize:
            raise UserError(f"the tensor '{name}' has {len(content)} bytes, not those of {shape}", where=self.where)
        return np.frombuffer(content, holder).reshape(shape), kind

    def _shape(self, entry: Any, name: str) -> tuple[int, ...]:
        dims = shape_dims(entry.shape)
        if dims is None or None in dims:
            raise UserError(f"the tensor '{name}' has no shape", where=self.where, hint=_AGAIN)
        return tuple(size for size in dims if size is not None)

    def _bytes(self, entry: Any, name: str) -> bytes:
        if not 0 <= entry.shard_id < len(self.shards) or entry.offset < 0 or entry.size < 0:
            raise UserError(f"the tensor '{name}' lies outside of the checkpoint", where=self.where, hint=_AGAIN)
        shard = self.shards[entry.shard_id]
        try:
            if entry.offset + entry.size > shard.stat().st_size:
                raise UserError(
                    f"the tensor '{name}' lies behind the end of {shard.name}", where=self.where, hint=_AGAIN
                )
            with shard.open("rb") as stream:
                stream.seek(entry.offset)
                content: bytes = stream.read(entry.size)
                return content
        except OSError as error:
            raise UserError(f"cannot read {shard}: {error.strerror or error}", where=self.where, hint=_AGAIN) from error

    def _sliced(self, entry: Any, name: str, shape: tuple[int, ...]) -> Array:
        """A variable that was kept in parts: each is an entry whose key says where it lies."""
        kind = type_name(entry.dtype)
        if kind == "string":
            raise UnsupportedError(f"the tensor '{name}' is texts in parts", where=self.where)
        result = np.zeros(shape, _holder(kind))
        for part in entry.slices:
            inner = self.entries.get(_slice_key(name, part))
            if inner is None:
                raise UserError(f"a part of the tensor '{name}' is missing", where=self.where, hint=_AGAIN)
            _put(result, part, np.frombuffer(self._bytes(inner, name), result.dtype), name, self.where)
        return result


def _put(whole: Array, part: Any, values: Array, name: str, where: str) -> None:
    """Write a part of a tensor at its place."""
    places: list[slice] = []
    for extent, size in zip(part.extent, whole.shape, strict=False):
        length = extent.length if extent.HasField("length") else size - extent.start
        if not 0 <= extent.start <= extent.start + length <= size:
            raise UserError(f"a part of the tensor '{name}' lies outside of it", where=where, hint=_AGAIN)
        places.append(slice(extent.start, extent.start + length))
    into = whole[tuple(places)]
    if values.size != into.size or len(part.extent) != whole.ndim:
        raise UserError(f"a part of the tensor '{name}' has another size", where=where, hint=_AGAIN)
    whole[tuple(places)] = values.reshape(into.shape)


def _holder(kind: str) -> np.dtype[Any]:
    """What holds the elements of a type in a file."""
    if kind in ("resource", "variant"):
        raise UnsupportedError(f"a tensor of type {kind} in a checkpoint")
    plain = kind.removeprefix("q")
    if plain.startswith("float8") or plain in ("int4", "uint4"):
        return np.dtype(np.uint8 if plain != "int4" else np.int8)
    return np.dtype(np.uint16 if plain == "bfloat16" else plain)


def _texts(content: bytes, count: int, where: str) -> Array:
    """Texts in a bundle: all their lengths as varints, a checksum of those, then all their bytes."""
    lengths: list[int] = []
    at = 0
    for _ in range(count):
        value = shift = 0
        while True:
            if at >= len(content) or shift > 63:
                raise UserError("texts of the checkpoint are damaged", where=where, hint=_AGAIN)
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        lengths.append(value)
    at += 4
    if at + sum(lengths) > len(content):
        raise UserError("texts of the checkpoint are damaged", where=where, hint=_AGAIN)
    texts: list[str] = []
    for length in lengths:
        texts.append(text_of(content[at : at + length]))
        at += length
    return np.array(texts, object)


def _slice_key(name: str, part: Any) -> str:
    """The key of a part: bytes that keep the order of (0, name, extents), here as text of those bytes."""
    return (
        name
        + "\0"
        + ";".join(f"{extent.start},{extent.length if extent.HasField('length') else -1}" for extent in part.extent)
    )


def _ordered_slice(key: bytes) -> str | None:
    """The key of a part from its ordered code; None if it is none."""
    if not key.startswith(b"\0"):
        return None
    try:
        number, at = _ordered_number(key, 0)
        end = key.index(b"\0\1", at)
        name = key[at:end].replace(b"\0\xff", b"\0").replace(b"\xff\0", b"\xff")
        rank, at = _ordered_number(key, end + 2)
        extents: list[str] = []
        for _ in range(rank):
            start, at = _signed(key, at)
            length, at = _signed(key, at)
            extents.append(f"{start},{length}")
    except (ValueError, IndexError):
        return None
    return None if number else text_of(name) + "\0" + ";".join(extents)


def _ordered_number(key: bytes, at: int) -> tuple[int, int]:
    length = key[at]
    return int.from_bytes(key[at + 1 : at + 1 + length], "big"), at + 1 + length


def _signed(key: bytes, at: int) -> tuple[int, int]:
    """A signed number of the ordered code: as many ones as bytes, then (inverted for negative ones) the number."""
    first = key[at]
    is_negative = not first & 0x80
    flipped = first ^ 0xFF if is_negative else first
    length = 1
    while length < 8 and flipped & (0x80 >> length):
        length += 1
    if length >= 8:
        raise ValueError("a long number")
    content = bytes(byte ^ 0xFF for byte in key[at : at + length]) if is_negative else key[at : at + length]
    if len(content) != length:
        raise ValueError("a number is cut off")
    value = int.from_bytes(content, "big") & ((1 << (7 * length - 1)) - 1)
    return (~value if is_negative else value), at + length


def read_checkpoint(prefix: Path) -> Checkpoint:
    """The checkpoint of a prefix (`variables/variables`): with `.index` and shards, or one file of slices."""
    index = prefix.with_name(prefix.name + ".index")
    where = str(index if index.exists() else prefix)
    try:
        content = (index if index.exists() else prefix).read_bytes()
    except OSError as error:
        raise UserError(
            f"the variables of the model are not there: cannot read {where}",
            hint="copy the whole folder of the model, with its variables",
        ) from error
    if not index.exists():
        return _of_slices(content, where)
    entries: dict[str, Any] = {}
    count = 1
    for key, value in entries_of(content, where):
        if key == _HEADER:
            header = SCHEMA.read("BundleHeader", value, where)
            if header.endianness:
                raise UnsupportedError(
                    "a checkpoint of a machine whose numbers begin with their highest byte", where=where
                )
            count = header.num_shards
            continue
        entries[_ordered_slice(key) or text_of(key)] = SCHEMA.read("BundleEntry", value, where)
    if not 0 < count < 1 << 16:
        raise UserError(f"the checkpoint has {count} shards", where=where, hint=_AGAIN)
    shards = tuple(prefix.with_name(f"{prefix.name}.data-{at:05d}-of-{count:05d}") for at in range(count))
    return Checkpoint(where, entries, shards)


def _of_slices(content: bytes, where: str) -> Checkpoint:
    """The older form: a table whose first entry lists the tensors, and whose others are slices with their data."""
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, int] = {}
    whole: dict[str, tuple[Array, str]] = {}
    for key, value in entries_of(content, where):
        message = SCHEMA.read("SavedSlices", value, where)
        if key == _HEADER:
            for item in message.meta.tensor:
                dims = shape_dims(item.shape) or ()
                shapes[item.name], types[item.name] = tuple(size or 0 for size in dims), item.type
            continue
        name, saved = message.data.name, message.data
        if name not in shapes or math.prod(shapes[name]) > LARGEST_MADE:
            raise UserError(f"the checkpoint has a part of '{name}', which it does not list", where=where, hint=_AGAIN)
        count = _part_size(saved.slice, shapes[name])
        saved.data.dtype = types[name]
        saved.data.tensor_shape.Clear()
        saved.data.tensor_shape.dim.add(size=count)
        values, kind = array_of(saved.data, f"the tensor '{name}'")
        into, _ = whole.setdefault(name, (np.zeros(shapes[name], values.dtype), kind))
        _put(into, saved.slice, values, name, where)
    return Checkpoint(where, {}, (), whole)


def _part_size(part: Any, shape: tuple[int, ...]) -> int:
    """How many elements a part of a tensor has."""
    sizes = zip(part.extent, shape, strict=False)
    return math.prod(extent.length if extent.HasField("length") else size for extent, size in sizes)
