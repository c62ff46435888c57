"""Tiles at the edge of open sizes, computed whole and without branches: rows past the end are thrown away.

    if y*4 + i < h:                                      acc[i] = 0.0
        acc[i] = 0.0                                     x = A[max(min(y*4 + i - 1, h - 1), 0)]
    if y*4 + i < h:                               ->     acc[i] = acc[i] + (x if 1 <= y*4 + i else 0.0)
        acc[i] = acc[i] + (A[y*4 + i - 1] if 1 <= y*4 + i else 0.0)
    if y*4 + i < h:                                      if y*4 + i < h:
        B[y*4 + i] = acc[i]                                  B[y*4 + i] = acc[i]

What all stores to a tile of registers are guarded by is tested where results leave it, and nowhere else: elements for
which it does not hold are written by nobody now, and read by nobody then. What is read in vain is read at the nearest
place that exists, so sizes must be at least one: `Whole.sizes` are those for which that is not proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import add, all_of, ge, le, lt, maximum, minimum, mul, sub
from tilewright.ir.expr import ONE, ZERO, Add, FloatImm, IntImm, Mul, PrimExpr, Select, Var
from tilewright.ir.visit import find_all, substitute, uses_any
from tilewright.tir.annotations import REDUCTION, ROLLED
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.rewrite.statements import (
    ExprRewriter,
    StmtRewriter,
    all_statements,
    inner_statements,
    inside_loop,
)
from tilewright.tir.rewrite.windows import assume_held, guards_below, solve
from tilewright.tir.stmt import (
    Allocate,
    Assert,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    LoopKind,
    Stmt,
    While,
)

_PLACES: Final = tuple(Var(f"place{n}") for n in range(16))
"""What stands for the indices of an element, by dimension: conditions of stores to one buffer are compared with it."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A tile computed whole, and the sizes that must be at least one for it."""

    stmt: Stmt
    sizes: tuple[PrimExpr, ...]


def compute_whole(stmt: Stmt, analyzer: Analyzer) -> Whole | None:
    """A guarded tile without branches in its sums; None where it has statements of other kinds, or wide guards."""
    if any(isinstance(item, (Evaluate, Assert, While)) for item in all_statements(stmt)):
        return None
    if any(isinstance(item, IfThenElse) and item.else_body is not None for item in all_statements(stmt)):
        return None
    rewriter = _Speculate(analyzer, _common_guards(stmt))
    try:
        result = rewriter.stmt(stmt)
    except _MustStayGuardedError:
        return None
    return Whole(result, tuple(rewriter.sizes))


def rolled(stmt: Stmt, *, by_rows: bool = False) -> Stmt:
    """A tile with its unrolled loops as loops: small code for what hardly ever runs.

    `by_rows` leaves the innermost unrolled loops: one row of a window is written out.
    """
    return _Roll(by_rows).stmt(stmt)


class _Roll(StmtRewriter):
    def __init__(self, by_rows: bool) -> None:
        self._by_rows = by_rows

    def visit_for(self, loop: For) -> Stmt:
        if loop.kind is LoopKind.UNROLLED and not (self._by_rows and _is_innermost(loop)):
            loop = loop.replace(kind=LoopKind.SERIAL)
        if loop.kind is LoopKind.SERIAL:
            loop = ROLLED.put(loop, True)
        return super().visit_for(loop)


def rows_rolled(stmt: Stmt, var: Var, conditions: Sequence[PrimExpr]) -> Stmt:
    """A body with sums over rows of windows as loops, where some of the conditions on `var` say which rows there are.

    All of a row runs, or nothing of it.
    """
    return _RollRows(stmt, [part for part in conditions if uses_any(part, [var])]).stmt(stmt)


class _RollRows(StmtRewriter):
    def __init__(self, stmt: Stmt, conditions: list[PrimExpr]) -> None:
        self._inner = {item.var for item in all_statements(stmt) if isinstance(item, For)}
        self._conditions = conditions

    def visit_for(self, loop: For) -> Stmt:
        own = [part for part in self._conditions if uses_any(part, [loop.var])]
        is_written_out = loop.kind is LoopKind.UNROLLED and REDUCTION.of(loop)
        if not is_written_out or not own or any(uses_any(part, self._inner - {loop.var}) for part in own):
            return super().visit_for(loop)
        if not all(set(own).issubset(guards) for guards, _ in guards_below(loop.body)):
            return super().visit_for(loop)
        row = IfThenElse(all_of(own), assume_held(loop.body, own))
        return ROLLED.put(loop.replace(kind=LoopKind.SERIAL, body=row), True)


def _is_innermost(loop: For) -> bool:
    """Whether no other loop below is unrolled."""
    return not any(isinstance(item, For) and item.kind is LoopKind.UNROLLED for item in all_statements(loop.body))


class _MustStayGuardedError(Exception):
    """Something cannot be read in vain."""


def _common_guards(stmt: Stmt) -> dict[Buffer, frozenset[PrimExpr]]:
    """For each tile of registers, the conditions that guard every store to it, over the places of its elements."""
    tiles = {
        item.buffer for item in all_statements(stmt) if isinstance(item, Allocate) and item.buffer.scope == "local"
    }
    common: dict[Buffer, frozenset[PrimExpr]] = {}

    def visit(item: Stmt, guards: tuple[PrimExpr, ...], inner: tuple[Var, ...]) -> None:
        match item:
            case IfThenElse():
                visit(item.then_body, (*guards, *conjuncts(item.condition)), inner)
            case For() | LetStmt():
                visit(item.body, guards, (*inner, item.var))
            case BufferStore() if item.buffer in tiles:
                own = frozenset() if _reads_others(item) else frozenset(_at_places(item, guards, inner))
                common[item.buffer] = common.get(item.buffer, own) & own
            case _:
                for child in inner_statements(item):
                    visit(child, guards, inner)

    visit(stmt, (), ())
    return common


def _reads_others(store: BufferStore) -> bool:
    """Whether an element is computed from other elements of its tile, which may be among those that nobody wrote."""
    loads = [load for load in loads_in(store.value) if load.buffer is store.buffer]
    return any(load.indices != store.indices for load in loads)


def _at_places(store: BufferStore, guards: Sequence[PrimExpr], inner: Sequence[Var]) -> Iterator[PrimExpr]:
    for guard in guards:
        placed = _at_place(store, guard, inner)
        if placed is not None:
            yield placed


def _at_place(store: BufferStore, guard: PrimExpr, inner: Sequence[Var]) -> PrimExpr | None:
    """A guard as a condition on the element that is stored; None if it asks for more than the element."""
    mapping: dict[Var, PrimExpr] = {
        index: place for index, place in zip(store.indices, _PLACES, strict=False) if type(index) is Var
    }
    if depends_on_memory(guard) or any(var not in mapping for var in inner if uses_any(guard, [var])):
        return None
    return substitute(guard, mapping)


class _Speculate(StmtRewriter):
    def __init__(self, analyzer: Analyzer, common: dict[Buffer, frozenset[PrimExpr]]) -> None:
        self._analyzer = analyzer
        self._common = common
        self._guards: tuple[PrimExpr, ...] = ()
        self._inner: tuple[Var, ...] = ()
        self._lanes: tuple[Var, ...] = ()
        self.sizes: dict[PrimExpr, None] = {}

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        saved = self._guards
        self._guards = (*saved, *conjuncts(stmt.condition))
        body = self.stmt(stmt.then_body)
        self._guards = saved
        return body

    @contextmanager
    def _inside(self, var: Var, lanes: bool) -> Iterator[None]:
        saved = self._inner, self._lanes
        self._inner = (*self._inner, var)
        self._lanes = (*self._lanes, var) if lanes else self._lanes
        yield
        self._inner, self._lanes = saved

    def visit_for(self, loop: For) -> Stmt:
        if loop.kind is LoopKind.SERIAL:
            loop = self._without_missing_taps(loop)
        # Guards of what is inside may keep a loop from running at all: they stay inside it.
        with self._inside(loop.var, loop.kind is LoopKind.VECTORIZED), inside_loop(self._analyzer, loop):
            return loop.replace(body=self.stmt(loop.body))

    def _without_missing_taps(self, loop: For) -> For:
        """A loop over the taps of sums that starts and ends where those are in the image: others add nothing."""
        nest = store_below(loop)
        if nest is None:
            return loop
        inner, store = nest
        added = store.value.b if type(store.value) is Add and _loads_itself(store.value.a, store) else None
        selection = next((item for item in find_all(added, Select)), None) if added is not None else None
        if added is None or selection is None or not _vanishes(added, selection):
            return loop
        low, high = loop.min, add(loop.min, loop.extent)
        held: set[PrimExpr] = set()
        with inside_loop(self._analyzer, loop):
            for part in conjuncts(selection.condition):
                window = None if uses_any(part, inner) else solve(part, loop.var, {}, self._analyzer)
                if window is None:
                    continue
                held.add(part)
                low = low if window.low is None else maximum(low, window.low)
                high = high if window.high is None else minimum(high, window.high)
        low = self._analyzer.simplify(low)
        body = assume_held(loop.body, held)
        return loop.replace(min=low, extent=self._analyzer.simplify(maximum(sub(high, low), ZERO)), body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        raise _MustStayGuardedError

    def visit_store(self, stmt: BufferStore) -> Stmt:
        dropped = self._common.get(stmt.buffer, frozenset())
        kept = [guard for guard in self._guards if _at_place(stmt, guard, self._inner) not in dropped]
        reads: dict[BufferLoad, Var] = {}
        with self._analyzer.assume(*kept):
            value = self._value(stmt.value, len(kept) < len(self._guards), reads)
        result: Stmt = stmt.replace(value=value)
        for load, var in reads.items():
            result = LetStmt(var, load, result)
        return IfThenElse(all_of(kept), result) if kept else result

    def _value(self, value: PrimExpr, in_vain: bool, reads: dict[BufferLoad, Var]) -> PrimExpr:
        """A value whose reads are all possible; those of one side of a selection come before it."""
        value = ExprRewriter(self._inner_selection)(value)
        sides = [side for item in find_all(value, Select) for side in (item.a, item.b)]
        guarded = {load for side in sides for load in loads_in(side)}

        def visit(expr: PrimExpr) -> PrimExpr | None:
            if type(expr) is Select and not expr.condition.dtype.is_scalar:
                raise _MustStayGuardedError
            if type(expr) is not BufferLoad or not (in_vain or expr in guarded):
                return None
            load = self._nearest(expr)
            if expr not in guarded:
                return load
            return reads.setdefault(load, Var("near", load.dtype))

        return ExprRewriter(visit)(value)

    def _inner_selection(self, expr: PrimExpr) -> PrimExpr | None:
        """`(x if p else 0) * w` for `x * w if p else 0` where only x may be missing: taps of neighbours share it."""
        if type(expr) is not Select or type(expr.a) is not Mul or not _is_zero(expr.b):
            return None
        missing = [
            any(self._nearest(load) is not load for load in find_all(side, BufferLoad)) for side in expr.a.children()
        ]
        if missing == [True, False]:
            return mul(Select(expr.condition, expr.a.a, expr.b), expr.a.b)
        return mul(expr.a.a, Select(expr.condition, expr.a.b, expr.b)) if missing == [False, True] else None

    def _nearest(self, load: BufferLoad) -> BufferLoad:
        """The load at the nearest element that there is."""
        indices: list[PrimExpr] = []
        for index, size in zip(load.indices, load.buffer.shape, strict=True):
            if loads_in(index):
                raise _MustStayGuardedError
            near = index
            if not self._analyzer.prove(lt(index, size)):
                near = minimum(near, sub(size, ONE))
            if not self._analyzer.prove(ge(index, ZERO)):
                near = maximum(near, ZERO)
            if near is not index:
                if uses_any(index, self._lanes):
                    # A vector of nearest elements is no run of memory.
                    raise _MustStayGuardedError
                if not self._analyzer.prove(le(ONE, size)):
                    self.sizes[size] = None
            indices.append(near)
        changed = any(old is not new for old, new in zip(load.indices, indices, strict=True))
        return BufferLoad(load.buffer, tuple(indices)) if changed else load


def _loads_itself(expr: PrimExpr, store: BufferStore) -> bool:
    return type(expr) is BufferLoad and expr.buffer is store.buffer and expr.indices == store.indices


def _vanishes(expr: PrimExpr, selection: Select) -> bool:
    """Whether a term of a sum is nothing where a selection does not hold."""
    if expr is selection:
        return _is_zero(selection.b)
    return type(expr) is Mul and any(_vanishes(side, selection) for side in (expr.a, expr.b))


def store_below(loop: For) -> tuple[list[Var], BufferStore] | None:
    """The variables of the loops between a loop and the only store below it; None if there are other statements."""
    inner: list[Var] = []
    stmt = loop.body
    while not isinstance(stmt, BufferStore):
        if isinstance(stmt, For):
            inner.append(stmt.var)
        elif not isinstance(stmt, IfThenElse) or stmt.else_body is not None:
            return None
        (stmt,) = inner_statements(stmt)
    return inner, stmt


def _is_zero(expr: PrimExpr) -> bool:
    return isinstance(expr, (IntImm, FloatImm)) and expr.value == 0
