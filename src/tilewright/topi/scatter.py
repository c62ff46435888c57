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

_Indices = tuple[ExprLike, ...]
_Reducer = Callable[[ExprLike, list[Axis]], PrimExpr]
_REDUCTIONS: dict[str, tuple[_Reducer, Callable[[DataType], PrimExpr], Callable[[ExprLike, ExprLike], PrimExpr]]] = {
    "add": (reduction.sum, lambda dtype: const(0, dtype), build.add),
    "mul": (reduction.prod, lambda dtype: const(1, dtype), build.mul),
    "max": (reduction.max, reduction.min_value, build.maximum),
    "min": (reduction.min, reduction.max_value, build.minimum),
}
"""How several updates combine, what stands for none, and how they combine with the data."""


def _looked_up(
    name: str,
    inputs: list[Tensor],
    how: str,
    named: int,
    update: Axis,
    names: Callable[[_Indices], PrimExpr],
    at: Callable[[_Indices, ExprLike], _Indices],
) -> Tensor:
    """The data with updates: each element looks for those that name it.

    `names` says whether the update at hand names an element, which its first `named` indices decide; `at` is where in
    the updates a step's value for an element is.
    """
    data, _, updates = inputs
    shape = data.shape
    if how == "none":

        def last(*i: ExprLike) -> PrimExpr:
            return reduction.max(build.select(names(i), update.as_prim_expr(), const(-1, INDEX)), [update])

        latest = compute(shape[:named], last, "scatter_last")

        def chosen(*i: ExprLike) -> PrimExpr:
            source = latest[i[:named]]
            safe = build.maximum(build.minimum(source, update.domain.extent - 1), 0)
            return build.select(build.le(0, source), updates[at(i, safe)], data[i])

        return compute(shape, chosen, name)

    reducer, neutral, combine = _REDUCTIONS[how]
    wide = accumulator_type(data.dtype) if how in ("add", "mul") else data.dtype

    def total(*i: ExprLike) -> PrimExpr:
        value = cast(updates[at(i, update)], wide)
        return reducer(build.select(names(i), value, neutral(wide)), [update])

    totals = compute(shape, total, "scatter_total")
    return compute(shape, lambda *i: cast(combine(cast(data[i], wide), totals[i]), data.dtype), name)


@compute_of("scatter")
def _scatter(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    places = inputs[1]
    update = reduce_axis((0, places.shape[0]), "u")
    return _looked_up(
        "scatter",
        inputs,
        attributes.reduction,
        1,
        update,
        names=lambda i: build.eq(cast(places[update], INDEX), i[0]),
        at=lambda i, step: (step, *i[1:]),
    )


@compute_of("scatter_elements")
def _scatter_elements(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    indices, axis = inputs[1], attributes.axis
    shape = result_shape(result)
    update = reduce_axis((0, indices.shape[axis]), "u")

    def at(i: _Indices, step: ExprLike) -> _Indices:
        """The place of an update, inside the updates also where the element is beyond them."""
        nearest = [
            x if _fits(size, given) else build.minimum(x, given - 1)
            for x, size, given in zip(i, shape, indices.shape, strict=True)
        ]
        return (*nearest[:axis], step, *nearest[axis + 1 :])

    def names(i: _Indices) -> PrimExpr:
        index = _wrapped(cast(indices[at(i, update)], INDEX), shape[axis])
        return build.all_of([*_beside(i, shape, indices.shape, axis), build.eq(index, i[axis])])

    return _looked_up("scatter_elements", inputs, attributes.reduction, len(shape), update, names, at)


def _fits(size: PrimExpr, limit: PrimExpr) -> bool:
    """Whether a size is known to be at most another."""
    known, most = const_value(size), const_value(limit)
    return size is limit or (known is not None and most is not None and known <= most)


def _wrapped(index: PrimExpr, size: ExprLike) -> PrimExpr:
    """An index, from the start where it counts from the end."""
    return build.select(build.lt(index, 0), index + size, index)


def _beside(i: _Indices, shape: tuple[PrimExpr, ...], limits: tuple[PrimExpr, ...], axis: int) -> list[PrimExpr]:
    """Conditions that a place in a shape is also inside limits, along all axes but one."""
    return [
        build.lt(x, limit)
        for at, (x, size, limit) in enumerate(zip(i, shape, limits, strict=True))
        if at != axis and not _fits(size, limit)
    ]


_Written = Callable[[Buffer, Buffer, Buffer, tuple[PrimExpr, ...]], Stmt]
"""The statement that writes one update: of the result, the places, the updates and the place of the update's place."""


def _in_order(name: str, inputs: list[Tensor], how: str, result: Type, written: _Written) -> Tensor | None:
    """The data with one update written after the other; None for sums that are wider than what the result holds."""
    data = inputs[0]
    if how in ("add", "mul") and accumulator_type(data.dtype) is not data.dtype:
        return None

    def statement(sources: list[Buffer], results: list[Buffer]) -> Stmt:
        given, places, updates = sources
        (target,) = results
        return seq(
            nest(target.shape, lambda i: put(target, i, given[i])),
            nest(places.shape, lambda i: written(target, places, updates, i), "u"),
        )

    found = extern(result_shape(result), inputs, statement, name, data.dtype)
    assert isinstance(found, Tensor)
    return found


def nest(extents: tuple[PrimExpr, ...], body: Callable[[tuple[PrimExpr, ...]], Stmt], name: str = "i") -> Stmt:
    """Loops over a shape."""
    if not extents:
        return body(())
    return repeat(extents[0], lambda i: nest(extents[1:], lambda rest: body((i, *rest)), name), name)


def _update(target: Buffer, where: tuple[PrimExpr, ...], value: PrimExpr, how: str) -> Stmt:
    """One element written, or combined with what is there."""
    return put(target, where, value if how == "none" else _REDUCTIONS[how][2](target[where], value))


def inside(place: PrimExpr, size: PrimExpr) -> list[PrimExpr]:
    """Conditions that a place is one of so many."""
    return [build.le(0, place), build.lt(place, size)]


@compute_on_cpus("scatter")
def _scatter_in_order(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    how = attributes.reduction

    def written(target: Buffer, places: Buffer, updates: Buffer, i: tuple[PrimExpr, ...]) -> Stmt:
        def at(place: Var) -> Stmt:
            row = nest(target.shape[1:], lambda rest: _update(target, (place, *rest), updates[(*i, *rest)], how))
            return row if attributes.inside else when(build.all_of(inside(place, target.shape[0])), row)

        return let(cast(places[i], INDEX), at, "place")

    return _in_order("scatter", inputs, how, result, written)


@compute_on_cpus("scatter_elements")
def _scatter_elements_in_order(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    how, axis = attributes.reduction, attributes.axis

    def written(target: Buffer, indices: Buffer, updates: Buffer, i: tuple[PrimExpr, ...]) -> Stmt:
        def at(place: Var) -> Stmt:
            conditions = _beside(i, indices.shape, target.shape, axis)
            if not attributes.inside:
                conditions += inside(place, target.shape[axis])
            stored = _update(target, (*i[:axis], place, *i[axis + 1 :]), updates[i], how)
            return when(build.all_of(conditions), stored) if conditions else stored

        return let(_wrapped(cast(indices[i], INDEX), target.shape[axis]), at, "place")

    return _in_order("scatter_elements", inputs, how, result, written)
