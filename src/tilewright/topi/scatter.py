"""Writing at places that are data: every element of the result looks for the updates that name its place.

CPUs write one update after the other instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, extern, reduce_axis
from tilewright.te.tensor import Axis, Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape
from tilewright.topi.statements import let, put, repeat, when


@compute_of("scatter")
def _scatter(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, places, updates = inputs
    shape = result_shape(result)
    count = places.shape[0]
    update = reduce_axis((0, count), "u")

    def here(place: ExprLike) -> PrimExpr:
        return build.eq(cast(places[update], INDEX), place)

    if attributes.reduction == "none":

        def last(place: ExprLike) -> PrimExpr:
            return reduction.max(build.select(here(place), update.as_prim_expr(), const(-1, INDEX)), [update])

        latest = compute((shape[0],), last, "scatter_last")

        def chosen(*i: ExprLike) -> PrimExpr:
            source = latest[i[0]]
            safe = build.maximum(build.minimum(source, count - 1), 0)
            return build.select(build.le(0, source), updates[(safe, *i[1:])], data[i])

        return compute(shape, chosen, "scatter")

    reducer, neutral, combine = _REDUCTIONS[attributes.reduction]
    wide = accumulator_type(data.dtype) if attributes.reduction in ("add", "mul") else data.dtype

    def total(*i: ExprLike) -> PrimExpr:
        value = cast(updates[(update, *i[1:])], wide)
        return reducer(build.select(here(i[0]), value, neutral(wide)), [update])

    totals = compute(shape, total, "scatter_total")
    return compute(shape, lambda *i: cast(combine(cast(data[i], wide), totals[i]), data.dtype), "scatter")


_Reducer = Callable[[ExprLike, list[Axis]], PrimExpr]
_REDUCTIONS: dict[str, tuple[_Reducer, Callable[[DataType], PrimExpr], Callable[[ExprLike, ExprLike], PrimExpr]]] = {
    "add": (reduction.sum, lambda dtype: const(0, dtype), build.add),
    "mul": (reduction.prod, lambda dtype: const(1, dtype), build.mul),
    "max": (reduction.max, reduction.min_value, build.maximum),
    "min": (reduction.min, reduction.max_value, build.minimum),
}
"""How several updates combine, what stands for none, and how they combine with the data."""


@compute_on_cpus("scatter")
def _scatter_in_order(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    data = inputs[0]
    if attributes.reduction in ("add", "mul") and accumulator_type(data.dtype) is not data.dtype:
        # Sums of narrow types are wider than what the result holds.
        return None

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        given, where, update = sources
        (target,) = results

        def over_row(row: Callable[[tuple[PrimExpr, ...]], Stmt], extents: tuple[PrimExpr, ...]) -> Stmt:
            if not extents:
                return row(())
            return repeat(extents[0], lambda i: over_row(lambda rest: row((i, *rest)), extents[1:]))

        def written(number: Var) -> Stmt:
            def at(place: Var) -> Stmt:
                def element(rest: tuple[PrimExpr, ...]) -> Stmt:
                    value: PrimExpr = update[(number, *rest)]
                    if attributes.reduction != "none":
                        value = _REDUCTIONS[attributes.reduction][2](target[(place, *rest)], value)
                    return put(target, (place, *rest), value)

                if attributes.inside:
                    return over_row(element, target.shape[1:])
                inside = build.logical_and(build.le(0, place), build.lt(place, target.shape[0]))
                return when(inside, over_row(element, target.shape[1:]))

            return let(cast(where[number], INDEX), at, "place")

        return seq(
            over_row(lambda i: put(target, i, given[i]), target.shape),
            repeat(where.shape[0], written, "u"),
        )

    scattered = extern(result_shape(result), inputs, statement, "scatter", data.dtype)
    assert isinstance(scattered, Tensor)
    return scattered


@compute_of("scatter_elements")
def _scatter_elements(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Every element of the result looks along the axis for the updates that name it."""
    data, indices, updates = inputs
    shape, axis = result_shape(result), attributes.axis
    count = indices.shape[axis]
    update = reduce_axis((0, count), "u")

    def at(i: tuple[ExprLike, ...], step: ExprLike) -> tuple[ExprLike, ...]:
        """The place of an update, inside the updates also where the element is beyond them."""
        nearest = [
            x if _fits(size, given) else build.minimum(x, given - 1)
            for x, size, given in zip(i, shape, indices.shape, strict=True)
        ]
        return (*nearest[:axis], step, *nearest[axis + 1 :])

    def names(i: tuple[ExprLike, ...]) -> PrimExpr:
        """Whether an update names an element."""
        index = _wrapped(cast(indices[at(i, update)], INDEX), shape[axis])
        return build.all_of([*_beside(i, shape, indices.shape, axis), build.eq(index, i[axis])])

    if attributes.reduction == "none":

        def last(*i: ExprLike) -> PrimExpr:
            return reduction.max(build.select(names(i), update.as_prim_expr(), const(-1, INDEX)), [update])

        latest = compute(shape, last, "scatter_last")

        def chosen(*i: ExprLike) -> PrimExpr:
            source = latest[i]
            safe = build.maximum(build.minimum(source, count - 1), 0)
            return build.select(build.le(0, source), updates[at(i, safe)], data[i])

        return compute(shape, chosen, "scatter_elements")

    reducer, neutral, combine = _REDUCTIONS[attributes.reduction]
    wide = accumulator_type(data.dtype) if attributes.reduction in ("add", "mul") else data.dtype

    def total(*i: ExprLike) -> PrimExpr:
        value = cast(updates[at(i, update)], wide)
        return reducer(build.select(names(i), value, neutral(wide)), [update])

    totals = compute(shape, total, "scatter_total")
    return compute(shape, lambda *i: cast(combine(cast(data[i], wide), totals[i]), data.dtype), "scatter_elements")


def _fits(size: PrimExpr, limit: PrimExpr) -> bool:
    """Whether a size is known to be at most another."""
    known, most = const_value(size), const_value(limit)
    return size is limit or (known is not None and most is not None and known <= most)


def _wrapped(index: PrimExpr, size: ExprLike) -> PrimExpr:
    """An index, from the start where it counts from the end."""
    return build.select(build.lt(index, 0), index + size, index)


def _beside(
    i: tuple[ExprLike, ...], shape: tuple[PrimExpr, ...], limits: tuple[PrimExpr, ...], axis: int
) -> list[PrimExpr]:
    """Conditions that a place in a shape is also inside limits, along all axes but one."""
    return [
        build.lt(x, limit)
        for at, (x, size, limit) in enumerate(zip(i, shape, limits, strict=True))
        if at != axis and not _fits(size, limit)
    ]


@compute_on_cpus("scatter_elements")
def _scatter_elements_in_order(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    data, axis = inputs[0], attributes.axis
    if attributes.reduction in ("add", "mul") and accumulator_type(data.dtype) is not data.dtype:
        return None

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        given, indices, updates = sources
        (target,) = results

        def nest(body: Callable[[tuple[PrimExpr, ...]], Stmt], extents: tuple[PrimExpr, ...]) -> Stmt:
            if not extents:
                return body(())
            return repeat(extents[0], lambda i: nest(lambda rest: body((i, *rest)), extents[1:]))

        def written(i: tuple[PrimExpr, ...]) -> Stmt:
            def at(place: Var) -> Stmt:
                where = (*i[:axis], place, *i[axis + 1 :])
                value: PrimExpr = updates[i]
                if attributes.reduction != "none":
                    value = _REDUCTIONS[attributes.reduction][2](target[where], value)
                conditions = _beside(i, indices.shape, target.shape, axis)
                if not attributes.inside:
                    conditions += [build.le(0, place), build.lt(place, target.shape[axis])]
                stored = put(target, where, value)
                return when(build.all_of(conditions), stored) if conditions else stored

            return let(_wrapped(cast(indices[i], INDEX), target.shape[axis]), at, "place")

        return seq(nest(lambda i: put(target, i, given[i]), target.shape), nest(written, indices.shape))

    scattered = extern(result_shape(result), inputs, statement, "scatter_elements", data.dtype)
    assert isinstance(scattered, Tensor)
    return scattered
