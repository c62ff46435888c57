"""GGUF files: a header, values by name, descriptions of tensors, and their data."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.frontend.sample import Sample
from tilewright.frontend.weights.gguf_blocks import BLOCKS
from tilewright.frontend.weights.weight import Weight
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_PLAIN = {
    0: ("F32", "float32"),
    1: ("F16", "float16"),
    24: ("I8", "int8"),
    25: ("I16", "int16"),
    26: ("I32", "int32"),
    27: ("I64", "int64"),
    28: ("F64", "float64"),
    30: ("BF16", "bfloat16"),
}
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 8


def read_gguf(sample: Sample) -> dict[str, Weight]:
    """The tensors of a GGUF file by name, in the order of the file. Shapes are those of numpy: rows come first."""
    data = _bytes_of(sample)
    reader = _Reader(data, str(sample))
    if reader.take(4) != b"GGUF":
        raise reader.damaged("it does not begin with 'GGUF'")
    version = reader.number("<I")
    if version not in _VERSIONS:
        raise UnsupportedError(f"{sample} is a GGUF file of version {version}; versions 2 and 3 are read")
    tensors, values = reader.number("<Q"), reader.number("<Q")
    alignment = 32
    for _ in range(reader.count(values, 13)):
        key, value = reader.text(), reader.value(reader.number("<I"), 0)
        if key == "general.alignment":
            alignment = value
    if not isinstance(alignment, int) or alignment < 1:
        raise reader.damaged(f"an alignment of {alignment}")
    infos = [_info(reader) for _ in range(reader.count(tensors, 24))]
    start = -(-reader.at // alignment) * alignment
    found: dict[str, Weight] = {}
    for name, shape, kind, offset in infos:
        if name in found:
            raise reader.damaged(f"two tensors are named '{name}'")
        found[name] = _weight(reader, name, shape, kind, start + offset)
    return found


def _bytes_of(sample: Sample) -> npt.NDArray[np.uint8]:
    """All bytes of a file, mapped and not read."""
    if isinstance(sample.source, bytes):
        return np.frombuffer(sample.source, np.uint8)
    path = sample.path
    assert path is not None
    return mapped(path)


def mapped(path: Path) -> npt.NDArray[np.uint8]:
    """A file as bytes that are read when they are used."""
    try:
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty")
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _info(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, rank = reader.text(), reader.number("<I")
    if rank > _MOST_DIMENSIONS:
        raise reader.damaged(f"the tensor '{name}' has {rank} dimensions")
    dims = [reader.number("<Q") for _ in range(rank)]
    return name, tuple(reversed(dims)), reader.number("<I"), reader.number("<Q")


def _weight(reader: _Reader, name: str, shape: tuple[int, ...], kind: int, start: int) -> Weight:
    count = math.prod(shape)
    if kind in _PLAIN:
        title, dtype = _PLAIN[kind][0], DataType.of(_PLAIN[kind][1])
        stored = reader.part(start, count * dtype.numpy().itemsize, name).view(dtype.numpy())
        return Weight(name, shape, title, stored, dtype)
    if kind not in BLOCKS:
        raise UnsupportedError(f"the tensor '{name}' of {reader.where} has the type number {kind}, which is not known")
    blocks = BLOCKS[kind]
    if not shape or shape[-1] % blocks.elements:
        raise reader.damaged(f"the tensor '{name}' of shape {shape} is no whole blocks of {blocks.elements}")
    stored = reader.part(start, count // blocks.elements * blocks.bytes, name)
    return Weight(name, shape, blocks.name, stored.reshape(-1, blocks.bytes), None, blocks)


class _Reader:
    """Reads from a place in the data on; every length is checked against what is left."""

    def __init__(self, data: npt.NDArray[np.uint8], where: str) -> None:
        self.data, self.where, self.at = data, where, 0

    def damaged(self, why: str) -> UserError:
        """The error for data that makes no sense."""
        return UserError(f"{self.where} is no GGUF file, or it is damaged: {why}", hint="download it again")

    def part(self, start: int, size: int, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor."""
        if start + size > len(self.data):
            raise self.damaged(f"the data of the tensor '{name}' lies beyond the end of the file")
        # Types want places that are multiples of their size.
        found = self.data[start : start + size]
        return found if start % 8 == 0 else found.copy()

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.damaged(f"{count} bytes are wanted, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, number: int, least: int) -> int:
        """A number of items of so many bytes at least: no more than the file can hold."""
        if number * least > len(self.data) - self.at:
            raise self.damaged(f"it says that it has {number} items")
        return number

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind == _LIST and depth < 4:
            inner = self.number("<I")
            return [self.value(inner, depth + 1) for _ in range(self.count(self.number("<Q"), 1))]
        raise self.damaged(f"a value of the type number {kind}")
