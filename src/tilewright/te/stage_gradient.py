"""What one computation gives to the gradients of the tensors that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.build import const
from tilewright.ir.expr import TRUE, PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute
from tilewright.support.errors import UserError
from tilewright.te import reduction
from tilewright.te.contributions import Contribution
from tilewright.te.derivatives import Guard, derivatives
from tilewright.te.language import compute, tensors_in
from tilewright.te.reduction import Reduce, SingleReducer
from tilewright.te.tensor import Axis, ComputeOp, Tensor

Reader = Callable[[tuple[PrimExpr, ...]], PrimExpr]
"""The gradient of a tensor's element at a place."""


def contributions_of(
    op: ComputeOp, gradients: Sequence[Reader | None], moving: set[Tensor]
) -> dict[Tensor, list[Contribution]]:
    """What a computation gives to the gradients of those of some tensors that it reads, from those of its outputs."""
    place = tuple(axis.as_prim_expr() for axis in op.axis)
    found: dict[Tensor, list[Contribution]] = {}
    domain = (*op.axis, *op.reduce_axis)
    for number, own in enumerate(gradients):
        if own is None:
            continue
        body = op.body[number]
        terms: list[_Seeded] = [((), body, own(place))]
        if isinstance(body, Reduce):
            terms = _reduced(op, body, own(place))
        for outer, value, seed in terms:
            for load, parts in derivatives(value, seed, lambda item: item.tensor in moving).items():
                items = found.setdefault(load.tensor, [])
                items += [Contribution(domain, load.indices, (*outer, *guard), part) for guard, part in parts.items()]
    return found


_Seeded = tuple[Guard, PrimExpr, PrimExpr]
"""When a step of a reduction counts, the value that it takes in, and the gradient for that."""


def _reduced(op: ComputeOp, body: Reduce, own: PrimExpr) -> list[_Seeded]:
    """What a step of a reduction takes in, and the gradient for it."""
    reducer = body.reducer
    kind = type(reducer.results[0]) if len(reducer.results) == 1 else None
    known = kind is not None and {*reducer.results[0].children()} == {*reducer.left, *reducer.right}
    rule = _REDUCERS.get(kind) if kind is not None and known else None
    if rule is None or tensors_in(reducer.identity):
        raise UserError(
            f"te.gradient: the reducer of {op.name} has no known derivative",
            hint="te.sum, te.max, te.min and te.prod of one value have one",
        )
    guard: Guard = () if body.condition is TRUE else (body.condition,)
    return [rule(op, guard, body.sources[0], own)]


def _sum(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    return guard, source, own


def _extremum(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    """Steps that give the result share its gradient evenly."""
    result = op.outputs[0]
    dtype = result.dtype
    equal = build.eq(source, result[_place(op)])
    count = _again(
        op, lambda value, at: build.select(build.eq(value, result[at]), const(1.0, dtype), const(0.0, dtype))
    )
    return (*guard, equal), source, own / count[_place(op)]


def _product(op: ComputeOp, guard: Guard, source: PrimExpr, own: PrimExpr) -> _Seeded:
    """The product of the other steps' values: that of all by the own one, unless there are zeros among them."""
    dtype = op.outputs[0].dtype
    zero, one = const(0.0, dtype), const(1.0, dtype)
    zeros = _again(op, lambda value, _: build.select(build.eq(value, zero), one, zero))[_place(op)]
    others = _again(op, lambda value, _: build.select(build.eq(value, zero), one, value), reduction.prod)[_place(op)]
    alone = build.select(build.eq(zeros, one), others, zero)
    factor = build.select(build.eq(zeros, zero), others / source, zero)
    return guard, source, own * build.select(build.eq(source, zero), alone, factor)


_REDUCERS: dict[type[Node], Callable[[ComputeOp, Guard, PrimExpr, PrimExpr], _Seeded]] = {
    e.Add: _sum,
    e.Max: _extremum,
    e.Min: _extremum,
    e.Mul: _product,
}


def _place(op: ComputeOp) -> tuple[PrimExpr, ...]:
    return tuple(axis.as_prim_expr() for axis in op.axis)


def _again(
    op: ComputeOp,
    element: Callable[[PrimExpr, tuple[PrimExpr, ...]], PrimExpr],
    reducer: SingleReducer = reduction.sum,
) -> Tensor:
    """The steps of a reduction once more, each as something else: of its value and the place of the result."""
    body = op.body[0]
    assert isinstance(body, Reduce)
    axes = [Axis(Var(axis.name), axis.domain, axis.kind) for axis in body.axes]

    def again(*i: Axis) -> PrimExpr:
        place = tuple(axis.as_prim_expr() for axis in i)
        renamed = {axis.var: index for axis, index in zip(op.axis, place, strict=True)}
        renamed |= {old.var: new.var for old, new in zip(body.axes, axes, strict=True)}
        value, condition = (substitute(item, renamed) for item in (body.sources[0], body.condition))
        return reducer(element(value, place), axes, condition if condition is not TRUE else True)

    return compute(op.outputs[0].shape, again, f"{op.name}_again")
