"""Reductions: commutative reducers over one or several values, and `sum`, `max`, `min`, `prod`, `argmax`, `argmin`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from tilewright.ir import build
from tilewright.ir.build import as_expr, const
from tilewright.ir.dtype import BOOL, INT64, DataType
from tilewright.ir.expr import TRUE, ExprLike, PrimExpr, Var
from tilewright.ir.node import Node, node
from tilewright.ir.visit import uses_any
from tilewright.support.errors import UserError
from tilewright.te.tensor import Axis


@node()
class Reducer(Node):
    """A commutative, associative combination of tuples of values with an identity.

    `left` and `right` are the variables standing for two partial results; `results` combine them.
    """

    left: tuple[Var, ...]
    right: tuple[Var, ...]
    results: tuple[PrimExpr, ...]
    identity: tuple[PrimExpr, ...]


@node()
class Reduce(PrimExpr):
    """The value `index` of a reduction of `sources` over axes. Only allowed as the whole body of a computation."""

    reducer: Reducer
    sources: tuple[PrimExpr, ...]
    axes: tuple[Axis, ...]
    condition: PrimExpr
    index: int
    _slots: ClassVar[tuple[str, ...]] = ()

    def _post_init(self) -> None:
        self.dtype = self.sources[self.index].dtype


ReducerBuilder = Callable[..., "PrimExpr | tuple[PrimExpr, ...]"]


def _axes(axis: Axis | Sequence[Axis]) -> tuple[Axis, ...]:
    axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
    for item in axes:
        if not isinstance(item, Axis) or item.kind.value != "reduce":
            raise UserError("a reduction runs over axes made by te.reduce_axis")
    return axes


def comm_reducer(
    combine: Callable[[object, object], object],
    identity: Callable[..., object],
    name: str = "reduce",
) -> ReducerBuilder:
    """A reducer from `combine(lhs, rhs)` and `identity(*dtypes)`, over single values or tuples of values.

    `argmax = comm_reducer(lambda l, r: (select(l[1] >= r[1], l[0], r[0]), max(l[1], r[1])), lambda i, v: (-1, min(v)))`
    then `argmax((index, value), axis=k)` gives a tuple of expressions.
    """

    def reduce(
        sources: ExprLike | tuple[ExprLike, ...], axis: Axis | Sequence[Axis], where: ExprLike = True
    ) -> PrimExpr | tuple[PrimExpr, ...]:
        many = isinstance(sources, tuple)
        values = tuple(as_expr(source) for source in (sources if isinstance(sources, tuple) else (sources,)))
        left = tuple(Var(f"{name}_l{i}", value.dtype) for i, value in enumerate(values))
        right = tuple(Var(f"{name}_r{i}", value.dtype) for i, value in enumerate(values))
        combined = combine(left, right) if many else combine(left[0], right[0])
        start = identity(*(value.dtype for value in values))
        results = _convert(combined if isinstance(combined, tuple) else (combined,), values)
        identities = _convert(start if isinstance(start, tuple) else (start,), values)
        reducer = Reducer(left, right, results, identities)
        condition = build.all_of([as_expr(where, BOOL)]) if where is not True else TRUE
        axes = _axes(axis)
        _check_identity(identities, axes)
        nodes = tuple(Reduce(reducer, values, axes, condition, i) for i in range(len(values)))
        return nodes if many else nodes[0]

    return reduce


def _check_identity(identities: Sequence[PrimExpr], axes: Sequence[Axis]) -> None:
    """What a reduction starts from may depend on the element that it makes, not on its steps."""
    for item in axes:
        if builtins.any(uses_any(identity, [item.var]) for identity in identities):
            raise UserError(
                f"the identity of a reducer uses the axis {item.name} that it reduces",
                hint="it may use the axes of the result: there is one start for all steps",
            )


def _convert(items: tuple[object, ...], values: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
    if len(items) != len(values):
        raise UserError(f"a reducer of {len(values)} values must give {len(values)} results, not {len(items)}")
    return tuple(
        build.cast(as_expr(item, value.dtype), value.dtype)  # type: ignore[arg-type]
        for item, value in zip(items, values, strict=True)
    )


def min_value(dtype: DataType | str) -> PrimExpr:
    """The least value of a type (minus infinity of floats)."""
    dtype = DataType.of(dtype)
    if dtype.is_float:
        return const(float("-inf"), dtype)
    return const(0 if dtype.is_bool else dtype.min_value(), dtype)


def max_value(dtype: DataType | str) -> PrimExpr:
    """The greatest value of a type (infinity of floats)."""
    dtype = DataType.of(dtype)
    if dtype.is_float:
        return const(float("inf"), dtype)
    return const(1 if dtype.is_bool else dtype.max_value(), dtype)


class SingleReducer(Protocol):
    """A reduction of one value."""

    def __call__(self, expr: ExprLike, axis: Axis | Sequence[Axis], where: ExprLike = True) -> PrimExpr:
        """The reduction of an expression over reduce axes, where the condition holds."""


def _single(
    combine: Callable[[PrimExpr, PrimExpr], PrimExpr], identity: Callable[[DataType], PrimExpr], name: str
) -> SingleReducer:
    reducer = comm_reducer(combine, identity, name)  # type: ignore[arg-type]

    def reduce(expr: ExprLike, axis: Axis | Sequence[Axis], where: ExprLike = True) -> PrimExpr:
        result = reducer(expr, axis, where)
        assert isinstance(result, PrimExpr)
        return result

    reduce.__doc__ = f"The {name} of an expression over reduce axes, where the condition holds."
    reduce.__name__ = name
    return reduce


sum = _single(build.add, lambda dtype: const(0, dtype), "sum")
prod = _single(build.mul, lambda dtype: const(1, dtype), "prod")
max = _single(build.maximum, min_value, "max")
min = _single(build.minimum, max_value, "min")
all = _single(build.logical_and, lambda dtype: const(True, dtype), "all")
any = _single(build.logical_or, lambda dtype: const(False, dtype), "any")


def _arg_reducer(
    better: Callable[[PrimExpr, PrimExpr], PrimExpr], worst: Callable[[DataType], PrimExpr]
) -> ReducerBuilder:
    """The reducer of (index, value) pairs that keeps the better value; of equal ones the smaller index.

    NaN is better than any number, as in numpy. The identity has index -1, which loses to every real index.
    """

    def wins(left: tuple[PrimExpr, PrimExpr], right: tuple[PrimExpr, PrimExpr]) -> PrimExpr:
        (i, a), (j, b) = left, right
        beats = build.logical_or(better(a, b), build.logical_and(build.eq(a, b), build.lt(i, j)))
        if a.dtype.is_float:
            nan_a, nan_b = build.ne(a, a), build.ne(b, b)
            both = build.logical_and(nan_b, build.lt(i, j))
            beats = build.logical_or(
                build.logical_and(nan_a, build.logical_or(build.logical_not(nan_b), both)),
                build.logical_and(build.logical_not(nan_b), beats),
            )
        real = build.logical_or(build.lt(j, 0), beats)
        return build.logical_and(build.le(0, i), real)

    def combine(left: object, right: object) -> object:
        assert isinstance(left, tuple) and isinstance(right, tuple)
        take = wins(left, right)
        return build.select(take, left[0], right[0]), build.select(take, left[1], right[1])

    return comm_reducer(combine, lambda i, v: (const(-1, i), worst(v)), "arg")


argmax_pairs = _arg_reducer(build.gt, min_value)
argmin_pairs = _arg_reducer(build.lt, max_value)


def argmax(pair: tuple[ExprLike, ExprLike], axis: Axis | Sequence[Axis]) -> tuple[PrimExpr, PrimExpr]:
    """(index, value) of the greatest value over the axes; the first of equal ones."""
    return _pair(argmax_pairs, pair, axis)


def argmin(pair: tuple[ExprLike, ExprLike], axis: Axis | Sequence[Axis]) -> tuple[PrimExpr, PrimExpr]:
    """(index, value) of the least value over the axes; the first of equal ones."""
    return _pair(argmin_pairs, pair, axis)


def _pair(
    reducer: ReducerBuilder, pair: tuple[ExprLike, ExprLike], axis: Axis | Sequence[Axis]
) -> tuple[PrimExpr, PrimExpr]:
    index = build.cast(pair[0], INT64)
    result = reducer((index, pair[1]), axis)
    assert isinstance(result, tuple)
    return result[0], result[1]
