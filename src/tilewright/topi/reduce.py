"""Reductions, softmax, layer normalisation, argmax and running sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold
from math import prod
from typing import Any

from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INT64, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, compute_many, reduce_axis
from tilewright.te.tensor import Axis, Tensor
from tilewright.topi.elementwise import broadcast_index
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape

Reducer = Callable[[ExprLike, "list[Axis]"], PrimExpr]
Join = Callable[[ExprLike, ExprLike], PrimExpr]
ValueMap = Callable[[PrimExpr], PrimExpr]

_MANY = 1024
"""Elements from which a sum of one after the other loses digits that matter."""


def accumulator_type(dtype: DataType) -> DataType:
    """The type in which values of a type are summed: float32 for the narrow floats."""
    return FLOAT32 if dtype.is_float and dtype.bits < 32 else dtype


def mean_type(dtype: DataType) -> DataType:
    """The type in which values of a type are summed for an average: int64 for integers, so that they do not wrap."""
    return INT64 if dtype.is_integer else accumulator_type(dtype)


def _reduced(
    x: Tensor,
    axes: tuple[int, ...],
    reducer: Reducer,
    name: str,
    element: Callable[[PrimExpr, tuple[ExprLike, ...]], PrimExpr] = lambda value, _: value,
) -> Tensor:
    """x reduced over axes, which are dropped from the result; `element` maps each value first."""
    reduced = [reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in axes]
    kept = [n for n in range(x.ndim) if n not in axes]

    def value(*i: ExprLike) -> PrimExpr:
        indices: list[ExprLike] = [0] * x.ndim
        for position, axis in enumerate(kept):
            indices[axis] = i[position]
        for axis, item in zip(axes, reduced, strict=True):
            indices[axis] = item
        return reducer(element(x[tuple(indices)], tuple(i)), reduced)

    return compute(tuple(x.shape[n] for n in kept), value, name)


def _spread(indices: tuple[ExprLike, ...], axes: tuple[int, ...]) -> tuple[ExprLike, ...]:
    return tuple(index for n, index in enumerate(indices) if n not in axes)


def _finish(
    reduced: Tensor,
    axes: tuple[int, ...],
    keepdims: bool,
    result: Type,
    map_value: ValueMap | None,
) -> Tensor:
    """The reduced tensor with unit dimensions put back and a last map applied; itself if neither is needed."""
    if not keepdims and map_value is None:
        return reduced
    shape = result_shape(result)
    change = map_value or (lambda value: value)
    drop = axes if keepdims else ()
    return compute(shape, lambda *i: change(reduced[_spread(i, drop)]), f"{reduced.name}_out")


def _plain(name: str, reducer: Reducer) -> None:
    def reduced_by(x: Tensor, attributes: Any, result: Type, *, by_lines: bool) -> Tensor:
        axes = tuple(attributes.axes)
        total = mean_type(x.dtype) if name == "mean" else accumulator_type(x.dtype)
        if name not in ("sum", "mean", "prod"):
            total = x.dtype
        if by_lines:
            lines = _reduced(x, axes[-1:], reducer, f"{name}_line", lambda value, _: cast(value, total))
            reduced = _reduced(lines, axes[:-1], reducer, name)
        else:
            reduced = _reduced(x, axes, reducer, name, lambda value, _: cast(value, total))
        last: ValueMap | None = None
        if name == "mean":
            count = fold(build.mul, [x.shape[axis] for axis in axes], const(1))
            last = lambda value: cast(_divide_mean(value, count, total), x.dtype)  # noqa: E731
        elif total is not x.dtype:
            last = lambda value: cast(value, x.dtype)  # noqa: E731
        return _finish(reduced, axes, attributes.keepdims, result, last)

    @compute_of(name)
    def _compute(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        return reduced_by(inputs[0], attributes, result, by_lines=False)

    if name in ("sum", "mean"):

        @compute_on_cpus(name)
        def _compute_by_lines(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
            if not loses_digits(inputs[0], tuple(attributes.axes)):
                return None
            return reduced_by(inputs[0], attributes, result, by_lines=True)


def loses_digits(x: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether one sum after the other of all pixels of a channel would lose digits that sums of lines keep.

    Where the last axis is reduced too, vectors hold partial sums anyway.
    """
    sizes = [const_value(x.shape[axis]) for axis in axes]
    known = [int(size) for size in sizes if size is not None]
    many = len(known) < len(sizes) or prod(known) >= _MANY
    in_order = list(axes) == sorted(axes) and len(axes) > 1 and axes[-1] < x.ndim - 1
    return x.dtype.is_float and in_order and many and 0 not in known


def _divide_mean(value: PrimExpr, count: PrimExpr, dtype: DataType) -> PrimExpr:
    if dtype.is_float:
        return build.mul(value, build.div(const(1.0, dtype), cast(count, dtype)))
    return build.div(value, cast(count, dtype))


_REDUCERS: dict[str, Reducer] = {
    "sum": reduction.sum,
    "mean": reduction.sum,
    "max": reduction.max,
    "min": reduction.min,
    "prod": reduction.prod,
    "all": reduction.all,
    "any": reduction.any,
}
for _name, _reducer in _REDUCERS.items():
    _plain(_name, _reducer)


def _arg(name: str, pairs: Callable[[tuple[ExprLike, ExprLike], list[Axis]], tuple[PrimExpr, PrimExpr]]) -> None:
    @compute_of(name)
    def _compute(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        (x,) = inputs
        axis = attributes.axis
        size = x.shape[axis]
        k = reduce_axis((0, size), "k")
        kept = tuple(dim for n, dim in enumerate(x.shape) if n != axis)
        last = bool(attributes.select_last)

        def pair(*i: ExprLike) -> tuple[PrimExpr, PrimExpr]:
            position = k.as_prim_expr()
            # The last of equal values is the first when positions are counted from the end.
            label = size - 1 - position if last else position
            return pairs((label, x[(*i[:axis], position, *i[axis:])]), [k])

        index = compute_many(kept, pair, name)[0]
        turn: ValueMap | None = (lambda value: size - 1 - value) if last else None
        return _finish(index, (axis,), attributes.keepdims, result, turn)


_arg("argmax", reduction.argmax)
_arg("argmin", reduction.argmin)


def _softmax(log: bool) -> Callable[[list[Tensor], Any, Type], Tensor]:
    def softmax(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        (x,) = inputs
        axes = (attributes.axis,)
        wide = accumulator_type(x.dtype)
        largest = _reduced(x, axes, reduction.max, "softmax_max")
        shape = result_shape(result)

        def shifted(*i: ExprLike) -> PrimExpr:
            return cast(x[i], wide) - cast(largest[_spread(i, axes)], wide)

        exponentials = compute(shape, lambda *i: intrinsics.exp(shifted(*i)), "softmax_exp")
        total = _reduced(exponentials, axes, reduction.sum, "softmax_sum")
        if log:
            return compute(
                shape, lambda *i: cast(shifted(*i) - intrinsics.log(total[_spread(i, axes)]), x.dtype), "log_softmax"
            )
        # One division a row; the sum is at least 1, so that its inverse is exact enough.
        factor = compute(total.shape, lambda *i: const(1.0, wide) / total[i], "softmax_factor")
        return compute(shape, lambda *i: cast(exponentials[i] * factor[_spread(i, axes)], x.dtype), "softmax")

    return softmax


compute_of("nn.softmax")(_softmax(False))
compute_of("nn.log_softmax")(_softmax(True))


@compute_of("nn.layer_norm")
def _layer_norm(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    x, scale = inputs[0], inputs[1]
    bias = inputs[2] if len(inputs) > 2 else None
    shape = result_shape(result)
    axes = tuple(range(attributes.axis, x.ndim))
    wide = accumulator_type(x.dtype)
    count = cast(fold(build.mul, [x.shape[axis] for axis in axes], const(1)), wide)
    inverse = build.div(const(1.0, wide), count)
    total = _reduced(x, axes, reduction.sum, "norm_sum", lambda value, _: cast(value, wide))
    mean = compute(total.shape, lambda *i: total[i] * inverse, "norm_mean")

    def squared(value: PrimExpr, outer: tuple[ExprLike, ...]) -> PrimExpr:
        centred = cast(value, wide) - mean[outer]
        return centred * centred

    squares = _reduced(x, axes, reduction.sum, "norm_squares", squared)
    factor = compute(
        total.shape,
        lambda *i: intrinsics.rsqrt(squares[i] * inverse + const(attributes.epsilon, wide)),
        "norm_factor",
    )

    def element(*i: ExprLike) -> PrimExpr:
        outer = _spread(i, axes)
        value = (cast(x[i], wide) - mean[outer]) * factor[outer] * cast(scale[broadcast_index(scale, shape, i)], wide)
        if bias is not None:
            value = value + cast(bias[broadcast_index(bias, shape, i)], wide)
        return cast(value, x.dtype)

    return compute(shape, element, "layer_norm")


@compute_of("nn.rms_norm")
def _rms_norm(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    x, scale = inputs
    shape = result_shape(result)
    axes = tuple(range(attributes.axis, x.ndim))
    wide = accumulator_type(x.dtype)
    count = cast(fold(build.mul, [x.shape[axis] for axis in axes], const(1)), wide)
    inverse = build.div(const(1.0, wide), count)
    squares = _reduced(x, axes, reduction.sum, "norm_squares", lambda value, _: cast(value, wide) * cast(value, wide))
    factor = compute(
        squares.shape,
        lambda *i: intrinsics.rsqrt(squares[i] * inverse + const(attributes.epsilon, wide)),
        "norm_factor",
    )

    def element(*i: ExprLike) -> PrimExpr:
        scaled = cast(x[i], wide) * factor[_spread(i, axes)]
        return cast(scaled * cast(scale[broadcast_index(scale, shape, i)], wide), x.dtype)

    return compute(shape, element, "rms_norm")


@compute_of("nn.layer_norm_gradient")
def _layer_norm_gradient(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Two more sums of each row: of the gradient times the scale, and of its products with the normalised data."""
    x, scale, gradient, mean, factor = inputs
    shape = result_shape(result)
    axes = tuple(range(attributes.axis, x.ndim))
    wide = accumulator_type(x.dtype)
    count = cast(fold(build.mul, [x.shape[axis] for axis in axes], const(1)), wide)
    inverse = build.div(const(1.0, wide), count)

    def of_row(statistic: Tensor, i: tuple[ExprLike, ...]) -> PrimExpr:
        return cast(statistic[tuple(0 if n in axes else place for n, place in enumerate(i))], wide)

    def given(i: tuple[ExprLike, ...]) -> PrimExpr:
        return cast(gradient[i], wide) * cast(scale[broadcast_index(scale, shape, i)], wide)

    def centred(i: tuple[ExprLike, ...]) -> PrimExpr:
        return cast(x[i], wide) - of_row(mean, i)

    def summed(name: str, element: Callable[[tuple[ExprLike, ...]], PrimExpr]) -> Tensor:
        reduced = dict(zip(axes, (reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in axes), strict=True))

        def value(*i: ExprLike) -> PrimExpr:
            kept = iter(i)
            place = tuple(reduced[n] if n in reduced else next(kept) for n in range(x.ndim))
            return reduction.sum(element(place), list(reduced.values()))

        return compute(x.shape[: attributes.axis], value, name)

    total = summed("norm_given", given)
    product = summed("norm_product", lambda i: given(i) * centred(i))

    def element(*i: ExprLike) -> PrimExpr:
        row = _spread(i, axes)
        scaled = of_row(factor, i)
        # What is the same for a row is computed once for it.
        along = centred(i) * (scaled * scaled * (product[row] * inverse))
        return cast((given(i) - total[row] * inverse - along) * scaled, x.dtype)

    return compute(shape, element, "layer_norm_gradient")
