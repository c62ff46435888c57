"""Tiles of products at the edge of open sizes, a few rows at a time: small code, and no tests in the sums.

    acc = alloc((13, 8))                                 for piece in range(4):
    for i in unroll(13), j in range(8):                      acc = alloc((4, 8))
        if x*13 + i < w: acc[i, j] = 0.0           ->        for i in unroll(4), j in range(8):
    for k, for i in unroll(13), j in range(8):                   if x*13 + piece*4 + i < w: acc[i, j] = 0.0
        if x*13 + i < w: acc[i, j] += ...                    ...
    for i in unroll(13), j in range(8):
        if x*13 + i < w: B[x*13 + i, j] = acc[i, j]

What a whole tile does in registers, all rows written out, a piece does with as many rows as keep the arithmetic units
busy. Rows of a product do not know of each other, so pieces may be computed one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from tilewright.ir.build import add, lt, mul
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var, const_value
from tilewright.ir.visit import uses_any
from tilewright.tir.annotations import REDUCTION, ROLLED
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind, SeqStmt, Stmt

LEAST_SUMS: Final = 8
"""Vectors of sums in a piece: fewer would wait for each other (two units of a latency of four)."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One nest of a tile: the loops around its only store, outermost first, and the one over the tile's rows."""

    loops: tuple[For, ...]
    row: For
    store: BufferStore

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return const_value(self.row.extent) or 0

    @property
    def vectors(self) -> int:
        """Vectors of sums in a row."""
        copied = [loop for loop in self.loops if loop.kind is LoopKind.UNROLLED and not REDUCTION.of(loop)]
        return prod(const_value(loop.extent) or 1 for loop in copied if loop is not self.row)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tile in pieces: the loops around it, outermost first, and the loop over its pieces."""

    outer: tuple[For, ...]
    loop: For


def in_pieces(stmt: Stmt) -> Pieces | None:
    """A guarded tile as a loop over pieces of its rows; None for what is no tile of a product, or has few rows."""
    outer: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL:
        outer.append(stmt)
        stmt = stmt.body
    tiles: list[Buffer] = []
    body = stmt
    while isinstance(body, Allocate) and body.buffer.scope == "local" and not body.buffer.strides:
        tiles.append(body.buffer)
        body = body.body
    if not tiles or not isinstance(body, SeqStmt):
        return None
    stages = [stage for item in body.stmts if (stage := _stage(item, tiles)) is not None]
    if len(stages) != len(body.stmts) or len({stage.rows for stage in stages}) != 1:
        return None
    dimensions = _row_dimensions(stages, tiles)
    rows, size = stages[0].rows, -(-LEAST_SUMS // max(stage.vectors for stage in stages))
    if dimensions is None or 2 * size > rows or not _are_apart(stages):
        return None
    piece = Var("piece")
    cut = _Cut(piece, {stage.row.var for stage in stages}, dimensions, rows, size)
    loop = For(piece, ZERO, IntImm(-(-rows // size)), LoopKind.SERIAL, cut.stmt(stmt))
    return Pieces(tuple(outer), ROLLED.put(loop, True))


def _stage(stmt: Stmt, tiles: list[Buffer]) -> _Stage | None:
    """A nest of loops and conditions around one store; of a tile's rows is a loop that conditions are about."""
    loops: list[For] = []
    conditions: list[PrimExpr] = []
    while not isinstance(stmt, BufferStore):
        match stmt:
            case For():
                loops.append(stmt)
                stmt = stmt.body
            case IfThenElse(else_body=None):
                conditions.append(stmt.condition)
                stmt = stmt.then_body
            case _:
                return None
    places = {index for access in _accesses(stmt) if access.buffer in tiles for index in access.indices}
    copied = [loop for loop in loops if loop.kind is LoopKind.UNROLLED and loop.var in places]
    rows = [loop for loop in copied if any(uses_any(condition, [loop.var]) for condition in conditions)]
    if len(rows) != 1 or const_value(rows[0].min) != 0 or const_value(rows[0].extent) is None or REDUCTION.of(rows[0]):
        return None
    return _Stage(tuple(loops), rows[0], stmt)


def _accesses(store: BufferStore) -> list[BufferLoad]:
    """What a store reads, and the place that it writes."""
    return [*loads_in(store.value), BufferLoad(store.buffer, store.indices)]


def _row_dimensions(stages: list[_Stage], tiles: list[Buffer]) -> dict[Buffer, int] | None:
    """The dimension of each tile that its rows are; None if anything reads or writes other rows than its own."""
    dimensions: dict[Buffer, int] = {}
    for stage in stages:
        for access in _accesses(stage.store):
            if access.buffer not in tiles:
                continue
            places = [n for n, index in enumerate(access.indices) if uses_any(index, [stage.row.var])]
            if len(places) != 1 or access.indices[places[0]] is not stage.row.var:
                return None
            if dimensions.setdefault(access.buffer, places[0]) != places[0]:
                return None
    is_whole = all(const_value(buffer.shape[n]) == stages[0].rows for buffer, n in dimensions.items())
    return dimensions if is_whole and len(dimensions) == len(tiles) else None


def _are_apart(stages: list[_Stage]) -> bool:
    """Whether the tile reads nothing that it writes outside itself: pieces then may come one after the other."""
    written = {stage.store.buffer for stage in stages if stage.store.buffer.scope != "local"}
    return not any(load.buffer in written for stage in stages for load in loads_in(stage.store.value))


class _Cut(StmtRewriter):
    """Makes a tile one of its pieces: `i` of all rows becomes `piece * size + i`, and the tile has `size` rows."""

    def __init__(self, piece: Var, rows: set[Var], dimensions: dict[Buffer, int], count: int, size: int) -> None:
        self._places: dict[Var, PrimExpr] = {row: add(mul(piece, size), row) for row in rows}
        self._rows = {place: row for row, place in self._places.items()}
        self._dimensions = dimensions
        self._count = count
        self._size = IntImm(size)
        self._inside: Var | None = None
        self._tiles = {
            tile: tile.replace(shape=tuple(self._size if n == row else dim for n, dim in enumerate(tile.shape)))
            for tile, row in dimensions.items()
        }
        self.expr = ExprRewriter(self._placed)  # type: ignore[method-assign]

    def _placed(self, expr: PrimExpr) -> PrimExpr | None:
        if type(expr) is Var:
            return self._places.get(expr)
        if type(expr) is BufferLoad and expr.buffer in self._tiles:
            return BufferLoad(self._tiles[expr.buffer], self._in_tile(expr.buffer, expr.indices))
        return None

    def _in_tile(self, tile: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """Indices of a tile: its rows count from the piece's first one."""
        row = self._dimensions[tile]
        return tuple(self._rows[index] if n == row else index for n, index in enumerate(indices))

    def visit_for(self, loop: For) -> Stmt:
        if loop.var not in self._places:
            return super().visit_for(loop)
        self._inside = loop.var
        return loop.replace(extent=self._size, body=self.stmt(loop.body))

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        return stmt.replace(buffer=self._tiles[stmt.buffer], body=self.stmt(stmt.body))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        buffer = stmt.buffer
        if buffer in self._tiles:
            buffer, indices = self._tiles[buffer], self._in_tile(buffer, indices)
        assert self._inside is not None
        result: Stmt = stmt.replace(buffer=buffer, indices=indices, value=value)
        if self._count % self._size.value:
            # The last piece reaches past the tile.
            result = IfThenElse(lt(self._places[self._inside], self._count), result)
        return result
