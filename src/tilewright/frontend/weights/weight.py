"""One tensor of a file of weights, as it is stored: plain numbers, or blocks of few bits with scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Constant, GraphExpr, constant
from tilewright.graph.ir.op import call
from tilewright.ir import small_floats
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class BlockType:
    """Blocks of elements along the last axis, each of so many bytes."""

    name: str
    elements: int
    bytes: int
    numbers: Callable[[Array], Array] | None
    """From bytes (blocks, bytes) to float32 (blocks, elements), exactly; None if that is not known here."""
    codes: Callable[[Array], tuple[Array, Array]] | None = None
    """The codes as whole numbers (blocks, groups, elements of a group) and the scale of each group."""
    code_type: str = "int8"


@dataclass(frozen=True)
class Weight:
    """A named tensor; `stored` is a view of the file, read when it is used."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """The type by the file's own name: F16, Q4_K."""
    stored: Array
    """Elements as numpy stores them (bfloat16 as uint16), or the bytes of blocks (blocks, bytes)."""
    dtype: DataType | None = None
    """The type of plain numbers; None for blocks."""
    blocks: BlockType | None = None

    def numbers(self) -> Array:
        """The tensor as an array: of its own type (bfloat16 and floats of 8 bits as float32), blocks as float32."""
        if self.blocks is not None:
            if self.blocks.numbers is None:
                raise UnsupportedError(f"the tensor '{self.name}' has blocks of the type {self.kind}, not read here")
            if not len(self.stored):
                return np.zeros(self.shape, np.float32)
            # Scales may be infinite or NaN in a damaged file, and so may the numbers then.
            with np.errstate(all="ignore"):
                return self.blocks.numbers(np.asarray(self.stored)).reshape(self.shape)
        assert self.dtype is not None
        if self.dtype.name == "bfloat16":
            bits: Array = np.asarray(self.stored).astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32).reshape(self.shape)
        if self.dtype.is_small_float:
            values: Array = small_floats.values_of(self.dtype.name)[np.asarray(self.stored)]
            return values.reshape(self.shape)
        return np.asarray(self.stored).reshape(self.shape)

    def expression(self) -> GraphExpr:
        """The tensor in a graph, in its own bits where the graph has them: integers with a scale for each group."""
        if self.blocks is None:
            assert self.dtype is not None
            return Constant(np.asarray(self.stored).reshape(self.shape), self.dtype)
        if self.blocks.codes is None or not len(self.stored):
            return constant(self.numbers())
        codes, scales = self.blocks.codes(np.asarray(self.stored))
        groups, length = codes.shape[-2:]
        per_row = self.shape[-1] // self.blocks.elements * groups
        grouped = (*self.shape[:-1], per_row, length)
        integers = constant(codes.reshape(grouped), self.blocks.code_type)
        scale = constant(scales.astype(np.float32).reshape(*grouped[:-1], 1))
        zero = constant(np.zeros(1, np.int8), self.blocks.code_type)
        return call("reshape", call("qnn.dequantize", integers, scale, zero), shape=self.shape)
