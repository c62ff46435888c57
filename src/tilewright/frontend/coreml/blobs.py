"""Values of Core ML's programs: written in the program, or blobs of a file of weights beside it.

A file of weights begins with 64 bytes (count, version 2). A blob is 64 bytes that say its type, its size and where its
data begins, and the data; a program names the place of these 64 bytes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.coreml.types import BLOBS, PACKED, type_name, value_dtype
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

_SENTINEL = 0xDEADBEEF
_ROOT = "@model_path/"
_FIELDS = (
    ("floats", np.float32),
    ("ints", np.int32),
    ("bools", np.bool_),
    ("longInts", np.int64),
    ("doubles", np.float64),
)


def unpacked(content: bytes, bits: int, count: int) -> Array:
    """Integers of few bits, packed from the lowest bit of the first byte on, as bytes."""
    if len(content) * 8 < count * bits:
        raise UserError(f"{count} integers of {bits} bits need more than {len(content)} bytes")
    flat = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[: count * bits]
    weights = (1 << np.arange(bits)).astype(np.uint8)
    result: Array = (flat.reshape(count, bits) * weights).sum(axis=1, dtype=np.uint8)
    return result


def _numbers(content: bytes, name: str, shape: tuple[int, ...]) -> Array:
    """Bytes as numbers of a type in a shape."""
    count = math.prod(shape)
    if name in PACKED:
        values = unpacked(content, PACKED[name], count)
        if name == "int4":
            values = ((values ^ 8).astype(np.int8) - 8).astype(np.int8)
        return values.reshape(shape)
    if name == "bfloat16":
        raise UserError("weights of the type bfloat16 are not supported")
    dtype = np.dtype(value_dtype(name).numpy())
    if len(content) < count * dtype.itemsize:
        raise UserError(f"{count} numbers of type {name} need more than {len(content)} bytes")
    return np.frombuffer(content, dtype.newbyteorder("<"), count).astype(dtype).reshape(shape)


class Weights:
    """The files of weights beside a program, which are read when a value needs one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[str, bytes] = {}

    def read(self, blob: Any, name: str, shape: tuple[int, ...]) -> Array:
        """The blob that a value refers to."""
        content = self._file(blob.fileName)
        offset = int(blob.offset)
        if offset + 64 > len(content):
            raise UserError(f"there is no blob at byte {offset} of {blob.fileName}", hint="the file was cut short")
        sentinel, kind, size, start = struct.unpack_from("<IIQQ", content, offset)
        if sentinel != _SENTINEL or start + size > len(content):
            raise UserError(f"the blob at byte {offset} of {blob.fileName} is damaged")
        if BLOBS.get(kind) != name and not (kind == 3 and name in ("bool", *PACKED)):
            raise UserError(f"the blob at byte {offset} holds {BLOBS.get(kind, kind)}, {name} is wanted")
        return _numbers(content[start : start + size], name, shape)

    def _file(self, name: str) -> bytes:
        if name in self._files:
            return self._files[name]
        if self._folder is None:
            raise UserError(
                f"the program needs its file of weights {name}",
                hint="pass the path of the .mlpackage folder, not the bytes of a file in it",
            )
        inside = Path(name.removeprefix(_ROOT))
        path = self._folder / inside
        if inside.is_absolute() or ".." in inside.parts:
            raise UserError(f"the program refers to a file outside of its package: {name}")
        try:
            self._files[name] = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read the weights {path}: {error.strerror or error}",
                hint="the folder 'weights' belongs to the package",
            ) from error
        return self._files[name]


def shape_of_type(kind: Any) -> tuple[int, ...]:
    """The shape of a tensor whose dimensions are all known."""
    if any(not dim.HasField("constant") for dim in kind.dimensions):
        raise UserError("a value in the program has dimensions that are not known")
    shape = tuple(int(dim.constant.size) for dim in kind.dimensions)
    if math.prod(shape) > 1 << 33:
        raise UserError(f"a value of shape {shape} is too large")
    return shape


def read_value(value: Any, weights: Weights) -> Array | str | list[Any]:
    """A value of a program: an array, a text, or a list of values."""
    if not value.type.HasField("tensorType"):
        given = value.immediateValue
        parts = given.tuple.values if given.HasField("tuple") else given.list.values
        return [read_value(item, weights) for item in parts]
    name = type_name(value.type.tensorType.dataType)
    shape = shape_of_type(value.type.tensorType)
    if value.HasField("blobFileValue"):
        return weights.read(value.blobFileValue, name, shape)
    tensor = value.immediateValue.tensor
    if name == "string":
        texts = list(tensor.strings.values)
        return texts[0] if not shape and texts else texts
    if tensor.HasField("bytes"):
        return _numbers(tensor.bytes.values, name, shape)
    for field, dtype in _FIELDS:
        if tensor.HasField(field):
            numbers = np.array(getattr(tensor, field).values, dtype)
            if numbers.size != math.prod(shape):
                raise UserError(f"a value of shape {shape} has {numbers.size} numbers")
            return numbers.reshape(shape).astype(value_dtype(name).numpy())
    if math.prod(shape) == 0:
        return np.zeros(shape, value_dtype(name).numpy())
    raise UserError(f"a value of type {name} and shape {shape} has no numbers")
