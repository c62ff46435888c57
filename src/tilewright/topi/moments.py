"""Two sums of the same elements in one read: mean and variance, and those of a batch normalisation's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any, Final

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te.language import compute_many, reduce_axis
from tilewright.te.reduction import comm_reducer
from tilewright.te.tensor import Tensor
from tilewright.topi.reduce import accumulator_type, loses_digits
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape

Pair = tuple[PrimExpr, PrimExpr]
Element = Callable[[tuple[ExprLike, ...]], Pair]
"""The two values that an element of the data gives."""


def _added(left: Any, right: Any) -> Pair:
    return left[0] + right[0], left[1] + right[1]


_SUMS: Final = comm_reducer(_added, lambda *dtypes: tuple(const(0.0, dtype) for dtype in dtypes), "sums")


def _summed(shape: Sequence[PrimExpr], axes: Sequence[int], element: Element, name: str) -> list[Tensor]:
    """The two sums over axes of a shape, which are dropped from the results."""
    reduced = {axis: reduce_axis((0, shape[axis]), f"r{axis}") for axis in axes}

    def value(*i: ExprLike) -> Pair:
        kept = iter(i)
        place = tuple(reduced[axis] if axis in reduced else next(kept) for axis in range(len(shape)))
        if not reduced:
            return element(place)
        first, second = _SUMS(element(place), list(reduced.values()))
        return first, second

    kept_shape = tuple(size for axis, size in enumerate(shape) if axis not in reduced)
    return list(compute_many(kept_shape, value, name))


def _sums(x: Tensor, axes: Sequence[int], element: Element, *, by_lines: bool) -> list[Tensor]:
    if not by_lines:
        return _summed(x.shape, axes, element, "sums")
    first, second = _summed(x.shape, axes[-1:], element, "line_sums")
    return _summed(first.shape, axes[:-1], lambda i: (first[i], second[i]), "sums")


def _moments(inputs: list[Tensor], attributes: Any, result: Type, *, by_lines: bool) -> list[Tensor]:
    """With d the distance of an element from one in the middle: mean(d) and mean(d * d) - mean(d) ** 2.

    No distance is lost in the size of the elements. That one is an element itself: it is at most sqrt(count) deviations
    from their mean, so that the difference of the two is never of numbers more than `count` times as large.
    """
    (x,) = inputs
    axes = tuple(attributes.axes)
    wide = accumulator_type(x.dtype)
    sizes = [x.shape[axis] for axis in axes]
    is_open = any(const_value(size) is None for size in sizes)

    def middle(kept: Sequence[ExprLike]) -> PrimExpr:
        rest = iter(kept)
        place = tuple(build.floordiv(x.shape[axis], 2) if axis in axes else next(rest) for axis in range(x.ndim))
        found = cast(x[place], wide)
        # Axes of open sizes may be empty: there is no element then.
        return build.select(build.gt(fold(build.mul, sizes), 0), found, const(0.0, wide)) if is_open else found

    def element(i: tuple[ExprLike, ...]) -> Pair:
        distance = cast(x[i], wide) - middle([place for axis, place in enumerate(i) if axis not in axes])
        return distance, distance * distance

    first, second = _sums(x, axes, element, by_lines=by_lines)
    share = build.div(const(1.0, wide), cast(fold(build.mul, sizes, const(1)), wide))

    def both(*i: ExprLike) -> Pair:
        kept = tuple(i) if not attributes.keepdims else tuple(at for axis, at in enumerate(i) if axis not in axes)
        distance = first[kept] * share
        return middle(kept) + distance, build.maximum(second[kept] * share - distance * distance, const(0.0, wide))

    return list(compute_many(result_shape(result), both, "moments"))


def _batch_norm_sums(inputs: list[Tensor], attributes: Any, result: Type, *, by_lines: bool) -> list[Tensor]:
    x, mean, gradient = inputs
    wide = accumulator_type(x.dtype)
    axes = _all_but(attributes.axis, x.ndim)

    def element(i: tuple[ExprLike, ...]) -> Pair:
        given = cast(gradient[i], wide)
        return given, given * (cast(x[i], wide) - mean[i[attributes.axis]])

    first, second = _sums(x, axes, element, by_lines=by_lines)
    return list(compute_many(result_shape(result), lambda i: (first[i], second[i]), "batch_norm_sums"))


def _all_but(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(at for at in range(rank) if at != axis)


@compute_of("moments")
def _moments_at_once(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    return _moments(inputs, attributes, result, by_lines=False)


@compute_on_cpus("moments")
def _moments_by_lines(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    return _moments(inputs, attributes, result, by_lines=loses_digits(inputs[0], tuple(attributes.axes)))


@compute_of("nn.batch_norm_sums")
def _batch_norm_sums_at_once(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    return _batch_norm_sums(inputs, attributes, result, by_lines=False)


@compute_on_cpus("nn.batch_norm_sums")
def _batch_norm_sums_by_lines(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    by_lines = loses_digits(inputs[0], _all_but(attributes.axis, inputs[0].ndim))
    return _batch_norm_sums(inputs, attributes, result, by_lines=by_lines)
