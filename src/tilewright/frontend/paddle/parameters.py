"""The numbers of a PaddlePaddle model: tensors one after the other in a file, or one a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.frontend.core.scopes import Lazy, TensorValue
from tilewright.frontend.paddle.schema import SCHEMA, TYPES
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_MOST_DIMENSIONS = 64


class _Reader:
    """Takes bytes from the front of a file."""

    def __init__(self, content: bytes, source: str) -> None:
        self.content = memoryview(content)
        self.source = source
        self.at = 0

    def take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self.content) - self.at:
            raise UserError(
                f"{self.source} ends within a tensor: {count} bytes are wanted, {len(self.content) - self.at} are left",
                hint="is it the file of this model? download or export it again",
            )
        self.at += count
        return self.content[self.at - count : self.at]

    def whole(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def tensor(self, name: str) -> Lazy:
        """The next tensor: a version, lengths of sequences, a version, a description, the numbers."""
        version = self.whole(4)
        levels = self.whole(8)
        if version or levels > 8:
            raise UserError(f"{self.source} holds no tensor for '{name}'", hint="is it the file of this model?")
        for _ in range(levels):
            self.take(self.whole(8))
        if self.whole(4):
            raise UserError(f"{self.source} holds no tensor for '{name}'", hint="is it the file of this model?")
        described = SCHEMA.read("TensorDesc", bytes(self.take(self.whole(4))), self.source)
        shape = tuple(int(size) for size in described.dims)
        if described.data_type not in TYPES:
            raise UnsupportedError(f"a parameter '{name}' of data type number {described.data_type}", where=self.source)
        if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
            raise UserError(f"the parameter '{name}' has the shape {shape}", where=self.source)
        dtype = DataType.of(TYPES[described.data_type])
        data = self.take(math.prod(shape) * dtype.itemsize)
        return partial(_decoded, data, shape, dtype)


def _decoded(data: memoryview, shape: tuple[int, ...], dtype: DataType) -> TensorValue:
    return TensorValue(np.frombuffer(data, dtype.numpy()).reshape(shape), dtype)


def read_combined(content: bytes, names: Sequence[str], source: str) -> dict[str, Lazy]:
    """The tensors of a file that holds all parameters, which it does in the order of their names."""
    reader = _Reader(content, source)
    found = {name: reader.tensor(name) for name in sorted(names)}
    if reader.at != len(content):
        raise UserError(
            f"{source} has {len(content) - reader.at} bytes more than the parameters of the model take",
            hint="is it the file of this model?",
        )
    return found


def read_separate(folder: Path, names: Sequence[str]) -> dict[str, Lazy]:
    """The tensors of files named after the parameters."""
    found: dict[str, Lazy] = {}
    for name in names:
        path = folder / name
        if path.resolve().parent != folder.resolve() or not path.is_file():
            raise UserError(
                f"the parameter '{name}' has no file in {folder}",
                hint="the files of parameters belong in the folder of the model",
            )
        found[name] = _Reader(path.read_bytes(), str(path)).tensor(name)
    return found
