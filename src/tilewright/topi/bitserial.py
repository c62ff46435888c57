"""Bit-serial products: packing of bit planes, product and convolution by counting ones.

Each pair of planes has a sum of its own; the total shifts and adds them. So the inner loop is the same for any number
of bits: three instructions on a vector (meet, count, add).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.graph.ops.bitserial import bit_planes
from tilewright.graph.ops.words import WORD
from tilewright.ir.build import (
    all_of,
    as_expr,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cast,
    const,
    eq,
    le,
    lt,
    select,
    shift_left,
    shift_right,
)
from tilewright.ir.dtype import INT32, UINT8
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.intrinsics import popcount, word
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Axis, Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.registry import apply_operator, compute_of, result_shape
from tilewright.topi.word_products import bordered_words, in_words

__all__ = ["bit_planes", "bitpack", "conv2d", "dense"]


def bitpack(data: Tensor, bits: int = 1) -> Tensor:
    """The lowest bits of bytes (..., channels) as planes (..., bits, bytes); `bit_planes` does it to arrays."""
    return apply_operator("nn.bitpack", [data], bits=bits)[0]


def dense(data: Tensor, weight: Tensor, mode: str = "and", signed: bool = False) -> Tensor:
    """Planes (..., A, bytes) times planes (B, bytes, columns) in 32 bits."""
    return apply_operator("nn.bitserial_dense", [data, weight], mode=mode, signed=signed)[0]


def conv2d(data: Tensor, weight: Tensor, mode: str = "and", signed: bool = False, **window: object) -> Tensor:
    """The convolution of planes (N, H, W, A, bytes) with planes (KH, KW, B, bytes, outputs) in 32 bits.

    `window` are the other attributes of `nn.bitserial_conv2d`: strides, padding, dilation, border, channels.
    """
    return apply_operator("nn.bitserial_conv2d", [data, weight], mode=mode, signed=signed, **window)[0]


@compute_of("nn.bitpack")
def _bitpack(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (data,) = inputs
    shape = result_shape(result)
    channels, size = data.shape[-1], shape[-1]

    def element(*i: ExprLike) -> PrimExpr:
        *outer, plane, byte = i
        packed: PrimExpr = const(0, UINT8)
        for bit in range(8):
            channel = as_expr(byte) + size * bit
            level = data[(*outer, channel)]
            digit = bitwise_and(shift_right(level, cast(as_expr(plane), UINT8)), const(1, UINT8))
            placed = shift_left(digit, const(bit, UINT8))
            packed = bitwise_or(packed, select(lt(channel, channels), placed, const(0, UINT8)))
        return packed

    return compute(shape, element, "bitpack")


@compute_of("nn.bitserial_dense")
def _dense(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    if weight.dtype is INT32:
        return _dense_by_words(in_words(data), weight, attributes, result)
    k = reduce_axis((0, weight.shape[1]), "k")

    def ones(left: PrimExpr, right: PrimExpr, *i: ExprLike) -> PrimExpr:
        *rows, column = i
        return _counted(data[(*rows, left, k)], weight[right, k, column], attributes.mode, [k])

    return _total(data.shape[-2], weight.shape[0], result, attributes.signed, ones, "bitserial_dense")


@compute_of("nn.bitserial_conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    if weight.dtype is INT32:
        return _conv2d_by_words(data, weight, attributes, result)
    padded = _padded(data, attributes)
    kh, kw = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "kw")
    k = reduce_axis((0, weight.shape[3]), "k")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation

    def ones(left: PrimExpr, right: PrimExpr, *i: ExprLike) -> PrimExpr:
        n, y, x, c = i
        value = padded[n, as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw, left, k]
        return _counted(value, weight[kh, kw, right, k, c], attributes.mode, [kh, kw, k])

    return _total(data.shape[3], weight.shape[2], result, attributes.signed, ones, "bitserial_conv2d")


def _dense_by_words(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> Tensor:
    pairs = _Pairs.of(data.shape[-2], weight.shape[0])
    k = reduce_axis((0, weight.shape[1]), "k")

    def element(*i: ExprLike) -> PrimExpr:
        *rows, column = i
        value, factor = data[(*rows, pairs.left, k)], weight[pairs.right, k, column]
        return _shifted_sum(value, factor, attributes, pairs, [k])

    return compute(result_shape(result), element, "bitserial_dense", ANCHOR.entry(Anchor.MATMUL))


def _conv2d_by_words(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> Tensor:
    size = data.shape[-1]

    def border(plane: ExprLike, number: ExprLike) -> PrimExpr:
        first = as_expr(number) * WORD
        return word(*(_border(attributes, as_expr(plane), first + place, size) for place in range(WORD)))

    padded = bordered_words(data, border, attributes.padding)
    pairs = _Pairs.of(data.shape[3], weight.shape[2])
    kh, kw = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "kw")
    k = reduce_axis((0, weight.shape[3]), "k")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation

    def element(n: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        value = padded[n, as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw, pairs.left, k]
        return _shifted_sum(value, weight[kh, kw, pairs.right, k, c], attributes, pairs, [kh, kw, k])

    notes = ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC)
    return compute(result_shape(result), element, "bitserial_conv2d", notes)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """All pairs of planes, as steps of a reduction."""

    axis: Axis
    count: int
    planes: int
    """Planes of the weights."""

    @staticmethod
    def of(left_planes: PrimExpr, right_planes: PrimExpr) -> _Pairs:
        left, right = _known_planes(left_planes, right_planes)
        return _Pairs(reduce_axis((0, left * right), "pair"), left * right, right)

    @property
    def left(self) -> PrimExpr:
        """The plane of the data."""
        return as_expr(self.axis) // self.planes

    @property
    def right(self) -> PrimExpr:
        """The plane of the weights: of a single one too by the pair, so that pairs are steps of both operands."""
        return as_expr(self.axis) % self.planes if self.planes > 1 else as_expr(self.axis) // self.count


def _shifted_sum(value: PrimExpr, factor: PrimExpr, attributes: Any, pairs: _Pairs, axes: list[Axis]) -> PrimExpr:
    """The sum over all pairs of planes at once, each count times what its pair stands for."""
    met = bitwise_and(value, factor) if attributes.mode == "and" else bitwise_xor(value, factor)
    unit = shift_left(const(1, INT32), cast(pairs.left + pairs.right, INT32))
    if attributes.signed:
        unit = select(eq(pairs.right, pairs.planes - 1), -unit, unit)
    return reduction.sum(popcount(met) * unit, [pairs.axis, *axes])


def _known_planes(left_planes: PrimExpr, right_planes: PrimExpr) -> tuple[int, int]:
    left, right = const_value(left_planes), const_value(right_planes)
    if left is None or right is None:
        raise UnsupportedError("the number of bit planes must be known when a model is compiled")
    return int(left), int(right)


def _counted(value: PrimExpr, factor: PrimExpr, mode: str, axes: list[Axis]) -> PrimExpr:
    """How many bits of two planes meet."""
    met = bitwise_and(value, factor) if mode == "and" else bitwise_xor(value, factor)
    return reduction.sum(cast(popcount(met), INT32), axes)


def _padded(data: Tensor, attributes: Any) -> Tensor:
    """The planes of an image, with those of the border around it."""
    top, left, bottom, right = attributes.padding
    if not any(attributes.padding):
        return data
    n, height, width, planes, size = data.shape

    def element(b: ExprLike, y: ExprLike, x: ExprLike, plane: ExprLike, byte: ExprLike) -> PrimExpr:
        row, column = as_expr(y) - top, as_expr(x) - left
        inside = all_of([le(0, row), lt(row, height), le(0, column), lt(column, width)])
        return select(
            inside, data[b, row, column, plane, byte], _border(attributes, as_expr(plane), as_expr(byte), size)
        )

    return compute((n, height + top + bottom, width + left + right, planes, size), element, "pad_data")


def _border(attributes: Any, plane: PrimExpr, byte: PrimExpr, size: PrimExpr) -> PrimExpr:
    """A byte of the border's plane: the same bit for all channels that there are."""
    if not attributes.border:
        return const(0, UINT8)
    channels, count = attributes.channels, const_value(size)
    if count is None:
        raise UnsupportedError("a border of ones needs planes of a known size")
    full, more = divmod(channels or 8 * count, count)
    mask: PrimExpr = const((1 << full) - 1, UINT8)
    if more:
        mask = select(lt(byte, more), const((1 << (full + 1)) - 1, UINT8), mask)
    digit = bitwise_and(shift_right(const(attributes.border, UINT8), cast(plane, UINT8)), const(1, UINT8))
    return select(eq(digit, const(1, UINT8)), mask, const(0, UINT8))


def _total(
    left_planes: PrimExpr,
    right_planes: PrimExpr,
    result: Type,
    signed: bool,
    ones: Callable[..., PrimExpr],
    name: str,
) -> Tensor:
    """The sums of all pairs of planes, shifted and added up."""
    shape = result_shape(result)
    left, right = _known_planes(left_planes, right_planes)
    planes = right
    sums = compute(
        (left * right, *shape),
        lambda pair, *i: ones(as_expr(pair) // planes, as_expr(pair) % planes, *i),
        "bit_sums",
        ANCHOR.entry(Anchor.BITSERIAL),
    )
    if left * right == 1:
        return compute(shape, lambda *i: -sums[(0, *i)] if signed else sums[(0, *i)], name)
    pair = reduce_axis((0, left * right), "pair")

    def total(*i: ExprLike) -> PrimExpr:
        shifted = shift_left(sums[(pair, *i)], cast(pair // planes + pair % planes, INT32))
        value = select(eq(pair % planes, planes - 1), -shifted, shifted) if signed else shifted
        return reduction.sum(value, [pair])

    totals = compute(shape, total, "bit_total", ANCHOR.entry(Anchor.BITSERIAL_TOTAL))
    return compute(shape, lambda *i: totals[i], name)
