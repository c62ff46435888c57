"""Gradients of pooling: every element of the data looks for the windows that it is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.pooling import Window, misses_data, window_count
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, result_shape

_Share = Callable[[tuple[ExprLike, ...], PrimExpr, PrimExpr], PrimExpr]
"""What a window (by its place in the gradient) gives to the element at a tap of it (row, column)."""


def _gathered(name: str, gradient: Tensor, attributes: Any, result: Type, share: _Share) -> Tensor:
    """The sums of what all windows that an element is in give it.

    Where taps are neighbours, these are the windows that begin at most a window before it: rows // stride and the ones
    before. Otherwise each tap of the window is tried, which meets the element where the stride divides the distance.
    """
    layout: str = attributes.layout
    wide = accumulator_type(gradient.dtype)
    close = [step == 1 for step in attributes.dilation]
    counts = [
        -(-size // stride) if near else size
        for size, stride, near in zip(attributes.kernel, attributes.strides, close, strict=True)
    ]
    steps = [reduce_axis((0, count), f"k{axis}") for count, axis in zip(counts, "hw", strict=True)]

    def met(axis: int, place: ExprLike) -> tuple[PrimExpr, PrimExpr, list[PrimExpr]]:
        """Along an axis: the window, the tap, and when there is such a window."""
        stride, spacing, size = attributes.strides[axis], attributes.dilation[axis], attributes.kernel[axis]
        windows = gradient.shape[layout.index("HW"[axis])]
        position = build.add(place, attributes.padding[axis])
        step = steps[axis].as_prim_expr()
        if close[axis]:
            window = build.floordiv(position, stride) - step
            tap = position - window * stride
            # Only the last of the windows may end before the element.
            conditions = [build.lt(tap, size)] if size % stride else []
        else:
            tap = step
            distance = position - tap * spacing
            window = build.floordiv(distance, stride)
            conditions = [build.eq(build.floormod(distance, stride), 0)] if stride > 1 else []
        return window, tap, [build.le(0, window), build.lt(window, windows), *conditions]

    def element(*i: ExprLike) -> PrimExpr:
        at = dict(zip(layout, i, strict=True))
        row, tap_row, in_rows = met(0, at["H"])
        column, tap_column, in_columns = met(1, at["W"])
        place: dict[str, ExprLike] = {**at, "H": row, "W": column}
        value = share(tuple(place[c] for c in layout), tap_row, tap_column)
        return reduction.sum(build.select(build.all_of([*in_rows, *in_columns]), value, const(0, wide)), steps)

    total = compute(
        result_shape(result), element, name, ANCHOR.entry(Anchor.POOL2D) | LAYOUT.entry(Layout(attributes.layout))
    )
    if wide is gradient.dtype:
        return total
    return compute(total.shape, lambda *i: cast(total[i], gradient.dtype), f"{name}_out")


@compute_of("nn.max_pool2d_gradient")
def _max_pool2d_gradient(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """First the greatest element of each window, then which tap has it first, then who takes the gradient."""
    data, gradient = inputs
    width = attributes.kernel[1]
    least = reduction.min_value(data.dtype)
    notes = ANCHOR.entry(Anchor.POOL2D) | LAYOUT.entry(Layout(attributes.layout))
    window = Window(data, attributes)
    greatest = compute(
        gradient.shape, lambda *i: reduction.max(window.load(i, least), window.axes), "pool_greatest", notes
    )
    again = Window(data, attributes)
    beyond = const(attributes.kernel[0] * width, INT32)

    def first(*i: ExprLike) -> PrimExpr:
        value = again.load(i, least)
        # The greatest of elements with NaN among them is NaN.
        same = build.logical_or(build.eq(value, greatest[i]), build.ne(value, value))
        tap = cast(again.kh * width + again.kw, INT32)
        own = build.logical_and(again.inside(i), same) if any(attributes.padding) else same
        return reduction.min(build.select(own, tap, beyond), again.axes)

    winners = compute(gradient.shape, first, "pool_winners", notes)
    wide = accumulator_type(gradient.dtype)

    def share(place: tuple[ExprLike, ...], row: PrimExpr, column: PrimExpr) -> PrimExpr:
        wins = build.eq(winners[place], cast(row * width + column, INT32))
        return build.select(wins, cast(gradient[place], wide), const(0, wide))

    return _gathered("max_pool2d_gradient", gradient, attributes, result, share)


@compute_of("nn.avg_pool2d_gradient")
def _avg_pool2d_gradient(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (gradient,) = inputs
    layout: str = attributes.layout
    wide = accumulator_type(gradient.dtype)
    sizes = [const(size) for size in attributes.size]

    def share(place: tuple[ExprLike, ...], row: PrimExpr, column: PrimExpr) -> PrimExpr:
        counts = [window_count(attributes, place[layout.index("HW"[axis])], axis, sizes[axis]) for axis in range(2)]
        number = counts[0] * counts[1]
        if misses_data(attributes):
            number = build.maximum(number, 1)
        return cast(gradient[place], wide) / cast(number, wide)

    return _gathered("avg_pool2d_gradient", gradient, attributes, result, share)
