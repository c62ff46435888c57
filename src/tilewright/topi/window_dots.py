"""Depthwise convolutions by dot products of four neighbouring pixels of a channel.

runs[y, xo, g, c, k] = data[y, xo * several * stride + 4 g + k, c]              pixels of a channel side by side
sums[y, x, c]       += runs[y * stride + kh, x // several, g, c, k] * weight[x % several, kh, g, c, k]
"""

from __future__ import annotations

from typing import Any

from tilewright.graph.ops.window_dots import GROUP
from tilewright.ir.build import all_of, as_expr, cast, le, lt, select
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, KEPT, LAYOUT, Anchor, Layout
from tilewright.topi.registry import compute_of, result_shape


@compute_of("qnn.window_dots")
def _window_dots(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, zero = inputs
    several, height, groups, channels, _ = weight.shape
    shape = result_shape(result)
    down, across = attributes.strides
    batch, rows, columns, _ = shape
    lines, runs = (rows - 1) * down + height, (columns + several - 1) // several
    pixels = (runs - 1) * several * across + groups * GROUP
    needed, width = const_value(as_expr(pixels)), const_value(data.shape[2])
    is_whole = isinstance(needed, int) and isinstance(width, int) and needed <= width
    padded = (
        data if is_whole and not any(attributes.padding[:3]) else _padded(data, zero, attributes.padding, lines, pixels)
    )

    def run(b: ExprLike, y: ExprLike, x: ExprLike, g: ExprLike, c: ExprLike, k: ExprLike) -> PrimExpr:
        return padded[b, y, as_expr(x) * (several * across) + as_expr(g) * GROUP + k, c]

    side_by_side = compute((batch, lines, runs, groups, channels, GROUP), run, "runs", KEPT.entry(True))
    kh, g, k = reduce_axis((0, height), "kh"), reduce_axis((0, groups), "g"), reduce_axis((0, GROUP), "k")

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        value = side_by_side[b, as_expr(y) * down + kh, as_expr(x) // several, g, c, k]
        factor = weight[as_expr(x) % several, kh, g, c, k]
        return reduction.sum(cast(value, INT32) * cast(factor, INT32), [kh, g, k])

    notes = ANCHOR.entry(Anchor.WINDOW_DOTS) | LAYOUT.entry(Layout.NHWC)
    return compute(shape, element, "window_dots", notes)


def _padded(
    data: Tensor, zero: Tensor, padding: tuple[int, int, int, int], lines: PrimExpr, pixels: PrimExpr
) -> Tensor:
    """As many lines and pixels of an image as are read, with its border."""
    top, left, _, _ = padding
    batch, height, width, channels = data.shape

    def element(b: ExprLike, y: ExprLike, x: ExprLike, c: ExprLike) -> PrimExpr:
        row, column = as_expr(y) - top, as_expr(x) - left
        inside = all_of([le(0, row), lt(row, height), le(0, column), lt(column, width)])
        return select(inside, data[b, row, column, c], zero[(0,) * zero.ndim])

    return compute((batch, lines, pixels, channels), element, "pad_data")
