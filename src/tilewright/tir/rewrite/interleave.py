"""Interleaving: two statements that do not depend on each other, a share of the second in each step of the first.

    for k in range(8): multiply(k)            for k in range(8):
    for r in range(32): finish(r)       ->        multiply(k)
                                                  for r in range(4): finish(k * 4 + r)

A processor that takes in a few hundred instructions at a time overlaps long and short ones only where they lie side
by side. Stages of a software pipeline are such statements: what they exchange was complete an iteration ago.

Matrix tiles have no room for the sums of two iterations. A second stage that begins with writing them to memory does so
tile by tile, each just before it starts anew; what the first product needs is under way by then:

    store(t0); store(t1)                      for k in range(8):
    zero(t0); zero(t1)                            load(a, k); load(b, k)
    for k in range(8):                            if k == 0: store(t0); zero(t0)
        load(a, k); load(b, k)          ->        t0 += a * b
        t0 += a * b                               if k == 0: store(t1); zero(t1)
        t1 += a * b                               t1 += a * b
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from tilewright.ir.build import add, const, eq, lt, mul, sub
from tilewright.ir.expr import Call, IntImm, PrimExpr, StringImm, Var, const_value
from tilewright.ir.visit import pre_order
from tilewright.tir.annotations import WHOLE
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.machine import TILE_SCOPE
from tilewright.tir.rewrite.statements import StmtRewriter, fresh_copy, substitute_stmt
from tilewright.tir.stmt import Allocate, Evaluate, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq

_MOST_UNROLLED: Final = 8
"""Iterations that are written out between two steps: counting them would cost as much as they do."""

Tile = tuple[Buffer, tuple[int | None, ...]]
"""A matrix tile: its buffer and the place of its first element."""


def interleaved(first: Sequence[Stmt], second: Sequence[Stmt]) -> Stmt:
    """Statements of two stages, in an order that both allow; one after the other where nothing can be interleaved."""
    front = _drained(first, [part for part in second if _touches_tiles(part)])
    back = [part for part in second if not _touches_tiles(part)]
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


def _drained(first: Sequence[Stmt], drains: Sequence[Stmt]) -> list[Stmt]:
    """The statements of a stage on matrix tiles, with what writes the tiles' old contents to memory.

    That is in front of them, unless it is clear which tile each of them means.
    """
    plain = [*drains, *first]
    if not drains:
        return plain
    *starts, nest = first
    loops = _nest(nest)
    steps, stores = _calls(loops[-1].body if loops else nest), _by_tile(drains, "r")
    if steps is None or stores is None:
        return plain
    if _steps(nest) == 1:
        # A product of one step starts its sums itself.
        starts += [call for call in steps if not stores.keys().isdisjoint(_tiles(call, "w"))]
        steps = [call for call in steps if stores.keys().isdisjoint(_tiles(call, "w"))]
    zeros = _by_tile(starts, "w")
    if zeros is None or stores.keys() != zeros.keys():
        return plain
    body: list[Stmt] = []
    for call in steps:
        for tile in _tiles(call, "rw"):
            if tile in zeros:
                again = seq(stores[tile], zeros.pop(tile))
                body.append(IfThenElse(eq(_number(loops), const(0)), again) if loops else again)
        body.append(call)
    return plain if zeros else [_renest(loops, seq(*body))]


def _by_tile(parts: Sequence[Stmt], mode: str) -> dict[Tile, Stmt] | None:
    """Calls by the tile that they read or write; None where there is anything else, or a tile has several."""
    by_tile: dict[Tile, Stmt] = {}
    for part in parts:
        calls = _calls(part)
        for call in calls or ():
            tiles = _tiles(call, mode)
            if len(tiles) != 1 or tiles[0] in by_tile or None in tiles[0][1]:
                return None
            by_tile[tiles[0]] = call
        if calls is None:
            return None
    return by_tile


def _calls(stmt: Stmt) -> list[Evaluate] | None:
    """The calls that a statement is made of, also in loops of one step; None if there is anything else."""
    if isinstance(stmt, Evaluate):
        return [stmt]
    if isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and isinstance(stmt.extent, IntImm):
        return _calls(substitute_stmt(stmt.body, {stmt.var: stmt.min})) if stmt.extent.value == 1 else None
    if not isinstance(stmt, SeqStmt):
        return None
    parts = [_calls(part) for part in stmt.stmts]
    return [call for part in parts if part is not None for call in part] if None not in parts else None


def _tiles(call: Evaluate, mode: str) -> list[Tile]:
    """The tiles that a call uses in a way ("r", "w" or "rw")."""
    tiles: list[Tile] = []
    for item in pre_order(call.value):
        if isinstance(item, Call) and item.name == "access_ptr" and isinstance(item.args[1], BufferLoad):
            first, way = item.args[1], item.args[0]
            places = tuple(const_value(index) for index in first.indices)
            if first.buffer.scope == TILE_SCOPE and isinstance(way, StringImm) and way.value == mode:
                tiles.append((first.buffer, places))
    return tiles


def _touches_tiles(stmt: Stmt) -> bool:
    return any(isinstance(item, BufferLoad) and item.buffer.scope == TILE_SCOPE for item in pre_order(stmt))


def _nest(stmt: Stmt) -> list[For]:
    """The serial loops of constant extents that are one inside the other."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and isinstance(stmt.extent, IntImm):
        loops.append(stmt)
        stmt = stmt.body
    return loops


def _extent(loop: For) -> int:
    assert isinstance(loop.extent, IntImm)
    return loop.extent.value


def _steps(stmt: Stmt) -> int:
    return prod(_extent(loop) for loop in _nest(stmt))


def _with_shares(nest: Stmt, rows: For, share: int, full: int) -> Stmt:
    """A nest of loops with a share of the rows at the end of each of its first steps."""
    loops = _nest(nest)
    step = _number(loops)
    some = _some(rows, mul(step, const(share)), share)
    if full < _steps(nest):
        some = IfThenElse(lt(step, const(full)), some)
        if _touches_tiles(nest):
            # A test is nothing beside a step of tiles, which would be written out again for each part of each loop.
            loops = [loop.replace(annotations={**loop.annotations, **WHOLE.entry(True)}) for loop in loops]
    return _renest(loops, seq(loops[-1].body, some))


def _number(loops: Sequence[For]) -> PrimExpr:
    """The number of an iteration of a nest of loops."""
    step: PrimExpr = const(0)
    for loop in loops:
        step = add(mul(step, loop.extent), sub(loop.var, loop.min))
    return step


def _renest(loops: Sequence[For], body: Stmt) -> Stmt:
    """Loops around another body."""
    for loop in reversed(loops):
        body = loop.replace(body=body)
    return body


def _some(rows: For, start: PrimExpr, count: int) -> Stmt:
    """Some iterations of a loop."""
    number = Var(rows.var.name, rows.var.dtype)
    body = fresh_copy(rows.body, {rows.var: add(add(rows.min, start), number)})
    kind = LoopKind.UNROLLED if count <= _MOST_UNROLLED else rows.kind
    return rows.replace(var=number, min=const(0), extent=const(count), body=body, kind=kind)


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
