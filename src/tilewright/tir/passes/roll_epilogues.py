"""Mathematics on a tile of registers is written once a row, not once an element: the tile goes to memory first.

    acc = allocate((6, 16), scope="local")            acc = allocate((6, 16), scope="local")
    ...                                               ...
    for i in unroll(6):                               rows = allocate((6, 16), scope="local")
        for j in unroll(4):                           for i in unroll(6):
            for l in vectorized(4):             ->        for j in unroll(4):
                B[i, j*4 + l] = exp(acc[...])                 for l in vectorized(4): rows[i, j*4 + l] = acc[...]
                                                      for i in serial(6, annotations={"rolled": True}):
                                                          for j in unroll(4): ... = exp(rows[i, j*4 + l])

Where a guard keeps the loops inside a tile that is smaller than they are, the copy is guarded as well.

A function is some thirty instructions: 24 copies of it are most of a kernel's code, and of the time to compile it. A
row at a time keeps the processor as busy, and a store and a load of each element are nothing beside a function.
"""

from __future__ import annotations

from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import le, lt
from tilewright.ir.expr import ZERO, Call, IntImm, Range
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import ROLLED
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, fresh_copy
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LoopKind, Stmt, seq

_LEAST_COPIES: Final = 8
"""Copies of a function that are worth a loop."""
_FUNCTIONS: Final = frozenset(
    "exp exp2 expm1 log log2 log10 log1p tanh sigmoid erf sinh cosh asinh acosh atanh".split()
    + "sin cos tan asin acos atan pow".split()
)


def roll_epilogues(func: PrimFunc) -> PrimFunc:
    """The function with loops around mathematics on tiles of registers."""
    return func.replace(body=_Roll().stmt(func.body))


class _Roll(StmtRewriter):
    def __init__(self) -> None:
        self._tiles: set[Buffer] = set()

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        if stmt.buffer.scope == "local":
            self._tiles.add(stmt.buffer)
        return super().visit_allocate(stmt)

    def visit_for(self, loop: For) -> Stmt:
        nest = _nest(loop)
        if loop.kind is not LoopKind.UNROLLED or nest is None:
            return super().visit_for(loop)
        levels, store = nest
        loops = [item for item in levels if isinstance(item, For)]
        loads = [load for load in loads_in(store.value) if load.buffer in self._tiles]
        if len(loads) != 1 or store.buffer in self._tiles or not _is_worth_it(loops, store, loads[0]):
            return super().visit_for(loop)
        (load,) = loads
        rows = load.buffer.replace(name=f"{load.buffer.name}_rows")
        copy: Stmt = BufferStore(rows, load.indices, load)
        is_whole = _lies_inside(load, loops)
        for item in reversed(levels):
            if isinstance(item, For):
                copy = item.replace(body=copy)
            elif not is_whole:
                copy = item.replace(then_body=copy)
        read = ExprRewriter(lambda expr: BufferLoad(rows, load.indices) if expr is load else None)
        rolled = ROLLED.put(loop.replace(kind=LoopKind.SERIAL, body=_Reads(read).stmt(loop.body)), True)
        return Allocate(rows, seq(fresh_copy(copy, {}), rolled))


class _Reads(StmtRewriter):
    def __init__(self, rewriter: ExprRewriter) -> None:
        self.expr = rewriter  # type: ignore[method-assign]


def _nest(loop: For) -> tuple[list[For | IfThenElse], BufferStore] | None:
    """The loops and guards around a single store, outermost first; None if they are no such nest."""
    levels: list[For | IfThenElse] = []
    stmt: Stmt = loop
    while not isinstance(stmt, BufferStore):
        if isinstance(stmt, For) and isinstance(stmt.min, IntImm) and isinstance(stmt.extent, IntImm):
            levels.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, IfThenElse) and stmt.else_body is None:
            levels.append(stmt)
            stmt = stmt.then_body
        else:
            return None
    return levels, stmt


def _lies_inside(load: BufferLoad, loops: list[For]) -> bool:
    """Whether a load is inside its buffer in every iteration, also those that guards leave out."""
    analyzer = Analyzer()
    for loop in loops:
        analyzer.bind(loop.var, Range(loop.min, loop.extent))
    pairs = zip(load.indices, load.buffer.shape, strict=True)
    return all(analyzer.prove(le(ZERO, index)) and analyzer.prove(lt(index, size)) for index, size in pairs)


def _is_worth_it(loops: list[For], store: BufferStore, load: BufferLoad) -> bool:
    """Whether there would be many copies of a function, each with elements of its own."""
    if not any(item.name in _FUNCTIONS for item in find_all(store.value, Call)):
        return False
    copies = 1
    for loop in loops:
        if loop.kind is LoopKind.UNROLLED:
            assert isinstance(loop.extent, IntImm)
            copies *= loop.extent.value
        elif loop.kind is not LoopKind.VECTORIZED:
            return False
    return copies >= _LEAST_COPIES and all(uses_any(load, [loop.var]) for loop in loops)
