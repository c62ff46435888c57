"""Converters of reductions: sums, extremes, truth, moments, norms, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.core.arithmetic import Number
from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, DataType
from tilewright.support.errors import UserError

Axes = int | Sequence[int] | None


def _sum_like(name: str) -> Converter:
    def convert(
        b: TorchBuilder, x: GraphExpr, dim: Axes = None, keepdim: bool = False, dtype: DataType | None = None
    ) -> GraphExpr:
        value = b.cast(x, b.dtype)
        return b.reduce(name, value, b.axes(dim, rank_of(x)), keepdim)

    convert.__doc__ = f"The {name} over axes, in the type asked for."
    return convert


converter("sum")(_sum_like("sum"))
converter("prod")(_sum_like("prod"))


@converter("mean")
def mean(
    b: TorchBuilder, x: GraphExpr, dim: Axes = None, keepdim: bool = False, dtype: DataType | None = None
) -> GraphExpr:
    """The mean over axes; of nothing, NaN."""
    axes = b.axes(dim, rank_of(x))
    value = b.cast(x, b.dtype)
    if not axes or any(sizes_of(x)[axis] == 0 for axis in axes):
        return b.divide(b.reduce("sum", value, axes, keepdim), _count(b, x, axes))
    return b.reduce("mean", value, axes, keepdim)


def _count(b: TorchBuilder, x: GraphExpr, axes: Sequence[int]) -> float | GraphExpr:
    """How many elements there are along axes."""
    found = dimensions.product([sizes_of(x)[axis] for axis in axes])
    return float(found) if isinstance(found, int) else b.cast(b.operand(b.size(found), INT64), dtype_of(x))


@converter("nansum")
def nansum(
    b: TorchBuilder, x: GraphExpr, dim: Axes = None, keepdim: bool = False, dtype: DataType | None = None
) -> GraphExpr:
    """The sum of what is not NaN."""
    value = b.cast(x, b.dtype)
    if b.dtype.is_float:
        value = b.where(b.call("isnan", value), 0, value)
    return b.reduce("sum", value, b.axes(dim, rank_of(x)), keepdim)


def _extreme(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: Axes = (), keepdim: bool = False) -> GraphExpr:
        return extreme(b, name, x, b.axes(dim, rank_of(x)), keepdim)

    convert.__doc__ = f"The {name} over axes."
    return convert


def extreme(b: TorchBuilder, name: str, x: GraphExpr, axes: Sequence[int], keepdims: bool) -> GraphExpr:
    """The greatest or least over axes; truth values reduce by any and all."""
    if dtype_of(x).is_bool:
        return b.reduce("any" if name == "max" else "all", x, axes, keepdims)
    return b.reduce(name, x, axes, keepdims)


converter("amax", "max")(_extreme("max"))
converter("amin", "min")(_extreme("min"))


def _with_place(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: int, keepdim: bool = False) -> tuple[GraphExpr, GraphExpr]:
        axis = b.axis(dim, rank_of(x))
        place = position(b, f"arg{name}", x, axis, keepdim)
        return extreme(b, name, x, (axis,) if rank_of(x) else (), keepdim), place

    convert.__doc__ = f"The {name} along an axis, and where it is."
    return convert


def position(b: TorchBuilder, name: str, x: GraphExpr, axis: int, keepdims: bool) -> GraphExpr:
    """Where the extreme is along an axis; NaN counts as extreme."""
    value = b.cast(x, "int8") if dtype_of(x).is_bool else x
    if not rank_of(value):
        return b.scalar(0, INT64)
    if dtype_of(value).is_float:
        # The first NaN wins: with ones for NaN and zeros for numbers it is a maximum of its own.
        odd = b.call("isnan", value)
        first = b.call("argmax", b.cast(odd, "int8"), axis=axis, keepdims=keepdims)
        found = b.call(name, b.where(odd, 0.0, value), axis=axis, keepdims=keepdims)
        return b.where(b.call("any", odd, axes=(axis,), keepdims=keepdims), first, found)
    return b.call(name, value, axis=axis, keepdims=keepdims)


converter("max.dim")(_with_place("max"))
converter("min.dim")(_with_place("min"))


def _position(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: int | None = None, keepdim: bool = False) -> GraphExpr:
        if dim is None:
            found = position(b, name, b.flatten(x), 0, False)
            return b.reshape(found, (1,) * rank_of(x)) if keepdim else found
        return position(b, name, x, b.axis(dim, rank_of(x)), keepdim)

    convert.__doc__ = f"{name} along an axis, or over all elements."
    return convert


converter("argmax")(_position("argmax"))
converter("argmin")(_position("argmin"))


@converter("aminmax")
def aminmax(b: TorchBuilder, x: GraphExpr, dim: int | None = None, keepdim: bool = False) -> tuple[GraphExpr, ...]:
    """Both extremes."""
    axes = b.axes(dim, rank_of(x))
    return extreme(b, "min", x, axes, keepdim), extreme(b, "max", x, axes, keepdim)


def _truth(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: Axes = None, keepdim: bool = False) -> GraphExpr:
        return b.cast(b.reduce(name, b.truth(x), b.axes(dim, rank_of(x)), keepdim), b.dtype)

    convert.__doc__ = f"Whether {name} over axes are not zero."
    return convert


converter("any", "_is_any_true")(_truth("any"))
converter("all", "_is_all_true")(_truth("all"))


def _variance(
    b: TorchBuilder, x: GraphExpr, axes: Sequence[int], correction: Number | None, keepdims: bool
) -> GraphExpr:
    """The mean square distance from the mean."""
    count = _count(b, x, axes)
    center = b.divide(b.reduce("sum", x, axes, True), count)
    distance = b.subtract(x, center)
    total = b.reduce("sum", b.multiply(distance, distance), axes, keepdims)
    spare = 1.0 if correction is None else float(correction)
    if isinstance(count, GraphExpr):
        return b.divide(total, b.call("maximum", *b.operands(b.subtract(count, spare), 0.0, dtype=dtype_of(count))))
    return b.divide(total, max(0.0, count - spare))


def _moments(root: bool, with_mean: bool) -> Converter:
    def convert(
        b: TorchBuilder,
        x: GraphExpr,
        dim: Axes = None,
        unbiased: bool = True,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> GraphExpr | tuple[GraphExpr, GraphExpr]:
        axes = b.axes(dim, rank_of(x))
        spare = correction if correction is not None else float(unbiased)
        spread = _variance(b, x, axes, spare, keepdim)
        if root:
            spread = b.call("sqrt", spread)
        if not with_mean:
            return spread
        return spread, b.divide(b.reduce("sum", x, axes, keepdim), _count(b, x, axes))

    convert.__doc__ = "The spread over axes, as a variance or a deviation, perhaps with the mean."
    return convert


for _torch_name, _root, _with_mean in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    converter(_torch_name)(_moments(_root, _with_mean))


@converter("linalg_vector_norm")
def vector_norm(
    b: TorchBuilder,
    x: GraphExpr,
    ord: Number = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: DataType | None = None,
) -> GraphExpr:
    """The norm of order `ord` over axes."""
    value = b.call("abs", b.cast(x, b.dtype))
    axes = b.axes(dim, rank_of(x))
    order = float(ord)
    if order == math.inf:
        return b.reduce("max", value, axes, keepdim)
    if order == -math.inf:
        return b.reduce("min", value, axes, keepdim)
    if order == 0:
        return b.reduce("sum", b.cast(b.compare("not_equal", value, 0), b.dtype), axes, keepdim)
    if order == 1:
        return b.reduce("sum", value, axes, keepdim)
    if not axes:
        return value
    if order == 2:
        return b.call("sqrt", b.reduce("sum", b.multiply(value, value), axes, keepdim))
    total = b.reduce("sum", b.call("power", value, b.scalar(order, b.dtype)), axes, keepdim)
    return b.call("power", total, b.scalar(1 / order, b.dtype))


@converter("logsumexp")
def logsumexp(b: TorchBuilder, x: GraphExpr, dim: Axes = None, keepdim: bool = False) -> GraphExpr:
    """log of the sum of exp, shifted by the greatest."""
    axes = b.axes(dim, rank_of(x))
    value = b.cast(x, b.dtype)
    if any(sizes_of(x)[axis] == 0 for axis in axes):
        return b.call("log", b.reduce("sum", b.call("exp", value), axes, keepdim))
    if not axes:
        return value
    top = b.reduce("max", value, axes, True)
    top = b.where(b.call("isinf", top), 0.0, top)
    total = b.call("log", b.reduce("sum", b.call("exp", b.subtract(value, top)), axes, keepdim))
    return b.add(total, b.reshape(top, sizes_of(total)))


# Running totals


def _running(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: int, dtype: DataType | None = None) -> GraphExpr:
        value = b.cast(x, b.dtype)
        if not rank_of(x):
            return value
        return b.call(name, value, axis=b.axis(dim, rank_of(x)))

    convert.__doc__ = f"The {name} along an axis."
    return convert


converter("cumsum")(_running("cumsum"))
converter("cumprod")(_running("cumprod"))

_LONGEST_SCAN = 1 << 12
"""The longest axis of a running extreme: every step compares it with what came before at doubling distances."""


def running(b: TorchBuilder, values: Sequence[GraphExpr], axis: int, combine: object) -> list[GraphExpr]:
    """A running combination along an axis, at doubling distances: each step joins what lies 1, 2, 4 ... before.

    `combine(earlier, later)` takes and gives lists of values.
    """
    assert callable(combine)
    state = list(values)
    size = size_at(state[0], axis)
    if size > _LONGEST_SCAN:
        raise UserError(f"a running extreme along an axis of {size} elements, at most {_LONGEST_SCAN} are supported")
    step = 1
    while step < size:
        earlier = [b.slice_axis(value, axis, 0, size - step) for value in state]
        later = [b.slice_axis(value, axis, step, size) for value in state]
        joined = combine(earlier, later)
        state = [
            b.concatenate([b.slice_axis(value, axis, 0, step), part], axis)
            for value, part in zip(state, joined, strict=True)
        ]
        step *= 2
    return state


def _running_extreme(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, dim: int) -> tuple[GraphExpr, GraphExpr]:
        if not rank_of(x):
            return x, b.scalar(0, INT64)
        axis = b.axis(dim, rank_of(x))
        if 0 in sizes_of(x):
            return x, b.empty(shape_of(x), INT64)
        value = b.cast(x, "int8") if dtype_of(x).is_bool else x
        places = b.broadcast_to(b.positions(sizes_of(x), axis), sizes_of(x))

        def combine(earlier: list[GraphExpr], later: list[GraphExpr]) -> list[GraphExpr]:
            # The later of equal elements stays, and NaN is more extreme than any number.
            keep = b.call(name, earlier[0], later[0])
            if dtype_of(value).is_float:
                odd = b.call(
                    "logical_and", b.call("isnan", earlier[0]), b.call("logical_not", b.call("isnan", later[0]))
                )
                keep = b.call("logical_or", keep, odd)
            return [b.where(keep, first, second) for first, second in zip(earlier, later, strict=True)]

        found, place = running(b, [value, places], axis, combine)
        return b.cast(found, dtype_of(x)), place

    convert.__doc__ = "The extreme so far along an axis, and where it is."
    return convert


converter("cummax")(_running_extreme("greater"))
converter("cummin")(_running_extreme("less"))


@converter("logcumsumexp")
def logcumsumexp(b: TorchBuilder, x: GraphExpr, dim: int) -> GraphExpr:
    """The log of running sums of exp."""
    if not rank_of(x) or 0 in sizes_of(x):
        return x

    def combine(earlier: list[GraphExpr], later: list[GraphExpr]) -> list[GraphExpr]:
        first, second = earlier[0], later[0]
        gap = b.call("negative", b.call("abs", b.subtract(first, second)))
        total = b.add(b.call("maximum", first, second), b.call("log1p", b.call("exp", gap)))
        same = b.call("logical_and", b.call("isinf", first), b.call("equal", first, second))
        return [b.where(same, first, total)]

    return running(b, [x], b.axis(dim, rank_of(x)), combine)[0]


@converter("count_nonzero")
def count_nonzero(b: TorchBuilder, x: GraphExpr, dim: Axes = None) -> GraphExpr:
    """How many elements are not zero."""
    return b.reduce("sum", b.cast(b.truth(x), INT64), b.axes(dim, rank_of(x)))
