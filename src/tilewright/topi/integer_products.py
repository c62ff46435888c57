"""Products of integers of 8 or 16 bits, or 8-bit floats, in 32 bits: matrix product and channels-last convolutions."""

from __future__ import annotations

from typing import Any

from tilewright.graph.ops.quantize import product_type
from tilewright.ir.build import all_of, as_expr, cast, const, le, lt, select
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.registry import compute_of, result_shape

_VECTOR_BYTES = 16
"""Bytes of the narrowest vectors."""


@compute_of("qnn.matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = inputs
    k = reduce_axis((0, a.shape[-1]), "k")
    total = product_type(a.dtype, b.dtype)

    def element(*i: ExprLike) -> PrimExpr:
        *rows, column = i
        return reduction.sum(cast(a[(*rows, k)], total) * cast(b[(*rows[: b.ndim - 2], k, column)], total), [k])

    return compute(result_shape(result), element, "matmul", ANCHOR.entry(Anchor.MATMUL))


def _padded(data: Tensor, zero: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    """Images, channels (and perhaps groups of them) last, with a border around them."""
    top, left, bottom, right = padding
    if not any(padding):
        return data
    n, height, width, *channels = data.shape

    def element(b: ExprLike, y: ExprLike, x: ExprLike, *c: ExprLike) -> PrimExpr:
        row, column = as_expr(y) - top, as_expr(x) - left
        inside = all_of([le(0, row), lt(row, height), le(0, column), lt(column, width)])
        return select(inside, data[(b, row, column, *c)], zero[(0,) * zero.ndim])

    return compute((n, height + top + bottom, width + left + right, *channels), element, "pad_data")


@compute_of("qnn.conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    padded = _padded(data, zero, tuple(attributes.padding))
    kh, kw = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "kw")
    ic = reduce_axis((0, weight.shape[2]), "ic")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    total = product_type(data.dtype, weight.dtype)

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        value = padded[b, as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw, ic]
        return reduction.sum(cast(value, total) * cast(weight[kh, kw, ic, c], total), [kh, kw, ic])

    return compute(result_shape(result), element, "conv2d", ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))


@compute_of("qnn.grouped_conv2d")
def _grouped_conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    padded = _padded(data, zero, tuple(attributes.padding))
    kh, kw = reduce_axis((0, weight.shape[1]), "kh"), reduce_axis((0, weight.shape[2]), "kw")
    ic = reduce_axis((0, weight.shape[3]), "ic")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation

    def element(b: ExprLike, y: ExprLike, x: ExprLike, g: ExprLike, c: ExprLike) -> PrimExpr:
        value = padded[b, as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw, g, ic]
        return reduction.sum(cast(value, INT32) * cast(weight[g, kh, kw, ic, c], INT32), [kh, kw, ic])

    return compute(result_shape(result), element, "conv2d", ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))


@compute_of("qnn.conv2d_transpose")
def _conv2d_transpose(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    strides, taps = weight.shape[1:3], weight.shape[3:5]
    before, after = [], []
    for axis in range(2):
        stride, count, size = (const_value(sizes[axis]) for sizes in (strides, taps, data.shape[1:3]))
        assert isinstance(stride, int) and isinstance(count, int) and isinstance(size, int)
        first, last = (attributes.first(phase, axis, stride, count) for phase in (0, stride - 1))
        before.append(max(0, -first))
        after.append(max(0, attributes.steps[axis] - 1 + last + count - size))
    padded = _padded(data, zero, (before[0], before[1], after[0], after[1]))
    kh, kw, ic = (reduce_axis((0, weight.shape[axis]), name) for axis, name in ((3, "kh"), (4, "kw"), (5, "ic")))

    def element(b: ExprLike, y: ExprLike, p: ExprLike, x: ExprLike, q: ExprLike, g: ExprLike, c: ExprLike) -> PrimExpr:
        row, column = (
            as_expr(step)
            + (as_expr(phase) + attributes.padding[axis]) // strides[axis]
            - (taps[axis] - 1)
            + before[axis]
            for axis, (step, phase) in enumerate(((y, p), (x, q)))
        )
        value = padded[b, row + kh, column + kw, g, ic]
        return reduction.sum(cast(value, INT32) * cast(weight[g, p, q, kh, kw, ic, c], INT32), [kh, kw, ic])

    return compute(result_shape(result), element, "conv2d", ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))


@compute_of("qnn.depthwise_conv2d")
def _depthwise_conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Sums over the taps that lie in the image: there is nothing to add where windows reach past it."""
    data, weight = inputs
    kh, kw = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "kw")
    shape = result_shape(result)
    each = shape[3] // data.shape[3]

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        places, inside = [], []
        for axis, (start, tap) in enumerate(((y, kh), (x, kw))):
            before, after = attributes.padding[axis], attributes.padding[axis + 2]
            place = as_expr(start) * attributes.strides[axis] + tap * attributes.dilation[axis] - before
            inside += [le(0, place)] if before else []
            inside += [lt(place, data.shape[axis + 1])] if after else []
            places.append(place)
        value = cast(data[b, places[0], places[1], as_expr(c) // each], INT32)
        if attributes.zero:
            value = value - const(attributes.zero, INT32)
        return reduction.sum(value * cast(weight[kh, kw, 0, c], INT32), [kh, kw], all_of(inside))

    notes = ANCHOR.entry(Anchor.DEPTHWISE_CONV2D) | LAYOUT.entry(Layout.NHWC)
    return compute(shape, element, "depthwise_conv2d", notes)


@compute_of("qnn.line_conv2d")
def _line_conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    top, left, bottom, right = attributes.padding
    n, lines, length = data.shape

    def bordered(b: ExprLike, y: ExprLike, j: ExprLike) -> PrimExpr:
        row, place = as_expr(y) - top, as_expr(j) - left
        inside = all_of([le(0, row), lt(row, lines), le(0, place), lt(place, length)])
        return select(inside, data[b, row, place], zero[(0,) * zero.ndim])

    padded = data
    if any(attributes.padding):
        # Whole vectors and one more, so that what is loaded of a line for several windows ends in it.
        line = (length + (left + right + 2 * _VECTOR_BYTES - 1)) // _VECTOR_BYTES * _VECTOR_BYTES
        padded = compute((n, lines + top + bottom, line), bordered, "pad_data")
    kh, k = reduce_axis((0, weight.shape[0]), "kh"), reduce_axis((0, weight.shape[1]), "k")
    down, across = attributes.strides

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        value = padded[b, as_expr(y) * down + kh, as_expr(x) * across + k]
        return reduction.sum(cast(value, INT32) * cast(weight[kh, k, c], INT32), [kh, k])

    return compute(result_shape(result), element, "conv2d", ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC))
