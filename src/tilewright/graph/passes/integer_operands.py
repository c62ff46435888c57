"""Operands of integer products: data with its zero point, constant weights, and what corrects the sums.

With x = a - za and w constant, `sum(x * w) = sum(a * w) - za * sum(w)`. Processors without products of bytes multiply
integers of 16 bits: bytes less their zero points, with nothing left to correct. Where memory is short,
bytes stay bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Size, Sizes, add, as_size, multiply
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import known_sizes, make, static_shape
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.passes.quantized_products import MOST_MOVES, has_byte_products, known_value
from tilewright.ir.dtype import INT8, INT16, INT32, UINT8, DataType
from tilewright.ir.expr import const_value
from tilewright.target import Target

Array = npt.NDArray[Any]
_FLIP = 128
_MOST_SHORT = (1 << 15) - 1
GROUP = 4
"""Bytes of a reduction that an instruction multiplies at once."""
_PAIR = 2
"""Integers of 16 bits that an instruction of x86 multiplies at once."""


@dataclass(frozen=True, slots=True)
class ShiftedBytes:
    """`int32(data) - zero`: bytes, and their zero point as a single int32 (None for 0)."""

    data: GraphExpr
    zero: GraphExpr | None


def shifted_bytes(item: GraphExpr, moves: int = MOST_MOVES) -> ShiftedBytes | None:
    """An int32 expression as bytes and a zero point; rearrangements move to the bytes."""
    if not moves or not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not INT32:
        return None
    if is_call_to(item, "transpose") or is_call_to(item, "reshape"):
        below = shifted_bytes(item.args[0], moves - 1)
        if below is None:
            return None
        moved = Call(item.callee, (below.data,), item.attributes)
        moved.span = item.span
        fill_type(moved)
        return ShiftedBytes(moved, below.zero)
    if is_call_to(item, "subtract"):
        below, zero = shifted_bytes(item.args[0], moves - 1), item.args[1]
        size = static_shape(zero)
        if below is None or below.zero is not None or size is None or any(dim != 1 for dim in size):
            return None
        if not _is_byte(zero, below.data.tensor_type.dtype):
            return None
        return ShiftedBytes(below.data, zero if size == () else make("reshape", zero, shape=()))
    if is_call_to(item, "cast") and item.args[0].tensor_type.dtype in (INT8, UINT8):
        return ShiftedBytes(item.args[0], None)
    return None


def _is_byte(zero: GraphExpr, dtype: DataType) -> bool:
    """Whether a single int32 is one of the numbers of a type of bytes, as zero points of bytes are."""
    value = known_value(zero)
    if value is not None:
        return bool(dtype.min_value() <= value.reshape(()) <= dtype.max_value())
    while isinstance(zero, Call) and any(is_call_to(zero, name) for name in ("reshape", "cast")):
        zero = zero.args[0]
        if zero.tensor_type.dtype is dtype:
            return True
    return False


def flipped(item: ShiftedBytes) -> ShiftedBytes:
    """The same numbers as bytes of the other sign: moved by 128, and their zero point with them."""
    dtype, step = (UINT8, _FLIP) if item.data.tensor_type.dtype is INT8 else (INT8, -_FLIP)
    moved = make("add", make("cast", item.data, dtype=INT32), constant(np.int32(step)))
    zero: GraphExpr = constant(np.int32(step))
    if item.zero is not None:
        zero = folded(make("add", item.zero, zero))
    return ShiftedBytes(make("cast", moved, dtype=dtype), zero)


def shorts(item: ShiftedBytes) -> ShiftedBytes:
    """The numbers that bytes stand for, as integers of 16 bits."""
    wide: GraphExpr = make("cast", item.data, dtype=INT32)
    if item.zero is not None:
        wide = make("subtract", wide, item.zero)
    return ShiftedBytes(make("cast", wide, dtype=INT16), None)


def border_byte(data: ShiftedBytes) -> GraphExpr:
    """The byte that stands for zero."""
    dtype = data.data.tensor_type.dtype
    if data.zero is None:
        return constant(np.zeros((), dtype.numpy()))
    return folded(make("cast", data.zero, dtype=dtype))


@dataclass(frozen=True, slots=True)
class ByteWeights:
    """Constant int32 weights: signed bytes plus an offset, which meets the sums of rows."""

    values: Array
    offset: int


@dataclass(frozen=True, slots=True)
class Operands:
    """What a processor takes for the operands of integer products."""

    rows: tuple[DataType, ...]
    columns: DataType
    group: int
    """Steps of a reduction that an instruction multiplies at once."""
    lanes: int
    """Columns of a vector of sums; 1 on GPUs, whose tiles have edges of their own."""
    load: int
    """Steps of a row that are best loaded at once."""

    @classmethod
    def of(cls, target: Target) -> Operands:
        """Those of a processor."""
        lanes = target.lanes(32) if target.is_cpu else 1
        if target.capabilities.little_memory:
            # Products of words are of signed bytes. Nothing is padded for them: that takes memory.
            return cls((INT8,) if target.has_dot4 else (INT8, UINT8), INT8, 1, 1, 1)
        if not has_byte_products(target):
            group = _PAIR if target.has_pair_products else 1
            return cls((INT16,), INT16, group, lanes, group)
        # Instructions of ARM take any of the groups that one load gives.
        load = GROUP * GROUP if target.is_cpu and target.has_dotprod else GROUP
        # x86 multiplies unsigned rows with signed columns. ARM takes signed ones, unsigned too with the i8mm extension,
        # and tensor cores take any; the words of other GPUs are of signed bytes.
        takes_both = target.has_i8mm or target.has_byte_tensor_cores
        rows = (UINT8,) if target.has_vnni else (INT8, UINT8) if takes_both else (INT8,)
        return cls(rows, INT8, GROUP, lanes, load)

    def suited(self, item: ShiftedBytes) -> ShiftedBytes:
        """Data of a type that the processor multiplies: bytes moved by 128 to the other sign, or without zero point."""
        if item.data.tensor_type.dtype in self.rows:
            return item
        return shorts(item) if INT16 in self.rows else flipped(item)

    def weights(self, values: Array | None) -> ByteWeights | None:
        """Constant int32 values as numbers that fit the type of columns, and an offset if need be."""
        if self.columns is INT8:
            return byte_weights(values)
        if values is None or values.dtype != np.int32 or values.size == 0 or np.abs(values).max() > _MOST_SHORT:
            return None
        return ByteWeights(values, 0)

    def stored(self, weights: Array) -> Constant:
        """Weights as a constant of the type of columns."""
        return constant(np.ascontiguousarray(weights.astype(self.columns.numpy())))


def byte_weights(values: Array | None) -> ByteWeights | None:
    """Constant int32 values that fit a signed byte, less an offset if need be."""
    if values is None or values.dtype != np.int32 or values.size == 0:
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > 255:
        return None
    offset = 0 if low >= -128 and high <= 127 else low + 128
    return ByteWeights(values - np.int32(offset) if offset else values, offset)


def pad_depth(data: GraphExpr, extra: int) -> GraphExpr:
    """Data with more elements along its last axis, which meet weights of zero."""
    rank = data.tensor_type.rank
    if not extra or rank is None:
        return data
    return make("pad", data, before=(0,) * rank, after=(*(0,) * (rank - 1), extra))


def first_columns(product: GraphExpr, columns: int) -> GraphExpr:
    """The columns that are not padding."""
    shape = product.tensor_type.shape
    assert shape is not None
    *outer, last = shape
    if last is None or const_value(last) == columns:
        return product
    end = (*(as_size(dim) for dim in outer if dim is not None), columns)
    return _of_sizes(make("slice", product, begin=(0,) * len(shape), end=end, strides=(1,) * len(shape)), end)


def _of_sizes(value: GraphExpr, sizes: Sizes) -> GraphExpr:
    """A slice of the sizes it is known to have: its type allows for some below zero, which a run refuses."""
    return value if known_sizes(value) == sizes else make("assume_shape", value, shape=sizes)


def window_sums(convolution: Call, height: int, width: int, groups: int = 1) -> GraphExpr:
    """The sums of all that a convolution multiplies with the weights of an output: (..., 1), or (..., groups, 1).

    Channels are added up first, then the rows of windows, then their columns: that is little work beside the products.
    """
    attributes = convolution.attributes
    assert isinstance(attributes, Conv2dAttributes)
    top, left, bottom, right = attributes.padding
    data = convolution.args[0]
    apart: tuple[int, ...] = ()
    if groups > 1:
        sizes = known_sizes(data)
        assert sizes is not None and isinstance(sizes[3], int)
        data, apart = make("reshape", data, shape=(*sizes[:3], groups, sizes[3] // groups)), (groups,)
    # Without the axis of channels, so that vectors are of pixels.
    sums: GraphExpr = make("sum", data, axes=(3 + len(apart),), keepdims=False)
    # Strides are whole with what is added below and to the right.
    below, beside = (stride - 1 for stride in attributes.strides)
    rest = (0,) * len(apart)
    if any((*attributes.padding, below, beside)):
        sums = make("pad", sums, before=(0, top, left, *rest), after=(0, bottom + below, right + beside, *rest))
    result = known_sizes(convolution)
    assert result is not None
    for axis, taps, stride, step in zip((1, 2), (height, width), attributes.strides, attributes.dilation, strict=True):
        sums = _added_taps(sums, axis, [tap * step for tap in range(taps)], stride, result[axis])
    shape = (*result[:3], *apart)
    return make("reshape", _of_sizes(sums, shape), shape=(*shape, 1))


def _added_taps(data: GraphExpr, axis: int, taps: Sequence[int], stride: int, count: Size) -> GraphExpr:
    """The sums of `count` windows along an axis: of the elements at some places from every `stride`-th one on."""
    sizes = known_sizes(data)
    assert sizes is not None
    total: GraphExpr | None = None
    for tap in taps:
        begin = [0] * len(sizes)
        end = list(sizes)
        steps = [1] * len(sizes)
        begin[axis], steps[axis] = tap, stride
        end[axis] = add(tap, multiply(count, stride))
        part = make("slice", data, begin=tuple(begin), end=tuple(end), strides=tuple(steps))
        total = part if total is None else make("add", total, part)
    assert total is not None
    return total


def folded(item: GraphExpr) -> GraphExpr:
    """An expression, as a constant if it is one."""
    value = known_value(item)
    return item if value is None else constant(value)


def corrected(product: GraphExpr, zero: GraphExpr | None, sums: Array) -> GraphExpr:
    """The product of shifted data, from that of the data as they are and the sums of the weights of each output."""
    if zero is None:
        return product
    sums = sums.astype(np.int32)
    value = known_value(zero)
    if value is not None:
        if not value.any():
            return product
        with np.errstate(over="ignore"):
            return make("subtract", product, constant(sums * np.int32(value.reshape(()))))
    return make("subtract", product, make("multiply", constant(sums), zero))


def column_sums(weights: Array) -> Array:
    """The sums of the weights of each output, which lie along the last axis."""
    return np.asarray(weights.sum(axis=tuple(range(weights.ndim - 1)), dtype=np.int64))
