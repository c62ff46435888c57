"""Perfect nests of loops with constant extents around one statement: what becomes one instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.arith.linear import Linear
from tilewright.ir.build import const
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.stmt import For, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops, outermost first, and the statement inside them."""

    loops: tuple[For, ...]
    leaf: Stmt

    @property
    def variables(self) -> frozenset[Var]:
        """The variables of the loops."""
        return frozenset(loop.var for loop in self.loops)


def nest_of(stmt: Stmt) -> Nest:
    """The loops around a statement that are one inside the other, run in order and have constant extents."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and const_value(stmt.extent) is not None:
        loops.append(stmt)
        stmt = stmt.body
    return Nest(tuple(loops), stmt)


def extent_of(loop: For) -> int:
    """The extent of a loop of a nest."""
    extent = const_value(loop.extent)
    assert extent is not None
    return int(extent)


@dataclass(frozen=True, slots=True)
class Steps:
    """An index in a nest: where it is at the loops' first iterations, and what each of them adds."""

    start: PrimExpr
    by_loop: tuple[int, ...]


def steps_of(index: PrimExpr, loops: Sequence[For]) -> Steps | None:
    """How an index goes through a nest; None where it is not linear in its loops."""
    form = linear(index)
    variables = {loop.var for loop in loops}
    rest: dict[PrimExpr, int] = {}
    for term, coefficient in form.terms.items():
        if type(term) is Var and term in variables:
            continue
        if mentions(term, variables):
            return None
        rest[term] = coefficient
    by_loop = tuple(form.terms.get(loop.var, 0) for loop in loops)
    start = Linear(rest, form.constant)
    result: PrimExpr | None = None
    for term, coefficient in start.terms.items():
        item = term if coefficient == 1 else term * const(coefficient)
        result = item if result is None else result + item
    base = const(start.constant) if result is None else result + start.constant if start.constant else result
    for loop, step in zip(loops, by_loop, strict=True):
        if const_value(loop.min) != 0:
            base = base + loop.min * step
    return Steps(base, by_loop)
