"""Weaving: two statements that do not depend on each other, a share of the second in each step of the first.

    for k in range(8): multiply(k)            for k in range(8):
    for r in range(32): finish(r)       ->        multiply(k)
                                                  for r in range(4): finish(k * 4 + r)

A processor that takes in a few hundred instructions at a time overlaps long and short ones only where they lie side
by side. Stages of a software pipeline are such statements: what they exchange was complete an iteration ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from tilewright.ir.build import add, const, lt, mul, sub
from tilewright.ir.expr import IntImm, PrimExpr, Var
from tilewright.tir.buffer import Buffer
from tilewright.tir.machine import TILE_SCOPE
from tilewright.tir.passes.rewriting import StmtRewriter, fresh_copy
from tilewright.tir.stmt import Allocate, For, IfThenElse, LoopKind, Stmt, seq

WOVEN: Final = "software_pipeline_woven"
"""The note on a pipelined loop of two stages: the second's statements go between the steps of the first's loop."""


def woven(first: Sequence[Stmt], second: Sequence[Stmt]) -> Stmt:
    """Statements of two stages, in an order that both allow; one after the other where there is nothing to weave."""
    front, back = list(first), list(second)
    place = next((n for n, part in enumerate(front) if _steps(part) > 1), None)
    rows = back[0] if len(back) == 1 else None
    if place is None or not isinstance(rows, For) or not _nest(rows):
        return seq(*front, *back)
    count, steps = _extent(rows), _steps(front[place])
    share = -(-count // steps)
    full = count // share
    front[place] = _with_shares(front[place], rows, share, full)
    return seq(*front, *([_some(rows, const(full * share), count - full * share)] if full * share < count else []))


def without_tiles(stmt: Stmt) -> tuple[Stmt, list[Buffer]]:
    """A statement without its allocations of matrix tiles, and those: copies of it use the same registers."""
    lift = _LiftTiles()
    return lift.stmt(stmt), lift.buffers


def _nest(stmt: Stmt) -> list[For]:
    """The serial loops of constant extents that are one inside the other."""
    found: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and isinstance(stmt.extent, IntImm):
        found.append(stmt)
        stmt = stmt.body
    return found


def _extent(loop: For) -> int:
    assert isinstance(loop.extent, IntImm)
    return loop.extent.value


def _steps(stmt: Stmt) -> int:
    return prod(_extent(loop) for loop in _nest(stmt))


def _with_shares(nest: Stmt, rows: For, share: int, full: int) -> Stmt:
    """A nest of loops with a share of the rows at the end of each of its first steps."""
    loops = _nest(nest)
    step: PrimExpr = const(0)
    for loop in loops:
        step = add(mul(step, loop.extent), sub(loop.var, loop.min))
    some = _some(rows, mul(step, const(share)), share)
    if full < _steps(nest):
        some = IfThenElse(lt(step, const(full)), some)
    result: Stmt = seq(loops[-1].body, some)
    for loop in reversed(loops):
        result = loop.replace(body=result)
    return result


def _some(rows: For, start: PrimExpr, count: int) -> Stmt:
    """Some iterations of a loop."""
    number = Var(rows.var.name, rows.var.dtype)
    body = fresh_copy(rows.body, {rows.var: add(add(rows.min, start), number)})
    return rows.replace(var=number, min=const(0), extent=const(count), body=body)


class _LiftTiles(StmtRewriter):
    """Takes allocations of matrix tiles out."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        body = self.stmt(stmt.body)
        if stmt.buffer.scope != TILE_SCOPE:
            return stmt.replace(body=body)
        self.buffers.append(stmt.buffer)
        return body
