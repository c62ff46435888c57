"""Loops split where their conditions turn: the main part runs without guards, the edges keep them.

    for i in range(13):                        for i in range(12):
        for j in range(8):                         for j in range(8):
            if i * 8 + j < 100:          ->            B[i * 8 + j] = A[i * 8 + j]
                B[i * 8 + j] = A[...]          for j in range(4):
                                                   B[96 + j] = A[96 + j]

Conditions are those of `if` statements and of `Select` (padding): for each, the range of the loop variable is found in
which it certainly holds, whatever the loops inside do. A parallel loop stays one loop and chooses inside it between the
main body and the guarded one. Unrolled and vectorized loops are not split: once copied out or made vectors, their
conditions are constants or masks; but lanes that never run are dropped. The copies made are bounded.

A loop that is marked `WHOLE` stays one, too: the loops inside it are split instead, at ends that move with it. Large
bodies that have their conditions in a small part are not copied so.

A window of an image that is written out has a row less at each edge. There all edges have one body, in which the rows
are a loop again: `for kh in range(max(1 - y, 0), min(h + 1 - y, 3))`.

Where sizes are open, cuts are not known and every loop may have edges on both sides: an unrolled tile of an image would
be copied nine times. Such a tile has two bodies, and what it is about to compute decides between them:

    for y, xo in grid(h, (w + 7) // 8):        for y, xo in grid(h, (w + 7) // 8):
        for i in unroll(8):              ->        if xo*8 + 7 < w:
            if xo*8 + i < w:                           for i in unroll(8): ...            without guards
                ...                                else:
                                                       for i in unroll(8): ...            all edges alike
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeGuard

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.region import touched
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import add, all_of, ge, le, logical_not, lt, maximum, minimum, sub
from tilewright.ir.expr import ONE, TRUE, ZERO, IntImm, PrimExpr, Range, Select, Var, const_value
from tilewright.ir.visit import find_all, uses_any
from tilewright.tir.annotations import REDUCTION, WHOLE
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.hoist_guards import hoist_conditions
from tilewright.tir.passes.simplify_loops import simplify_stmt, size_analyzer
from tilewright.tir.rewrite.pieces import in_pieces
from tilewright.tir.rewrite.speculation import compute_whole, rolled, rows_rolled
from tilewright.tir.rewrite.statements import (
    StmtRewriter,
    all_statements,
    fresh_copy,
    inner_statements,
    inside_loop,
    is_nothing,
)
from tilewright.tir.rewrite.windows import Window, assume_held, conditions_below, guards_below, positive_form, solve
from tilewright.tir.stmt import BufferStore, Evaluate, For, IfThenElse, LoopKind, Stmt, seq

MAX_EDGE_DEPTH: Final = 1
"""How deep edges are partitioned again: the edge of an outer loop may be split along one more loop."""
MAX_STATEMENTS: Final = 256
"""Stores in a loop body beyond which it is not copied."""
LARGE_STATEMENTS: Final = 64
LARGE_SHARE: Final = 4
"""Parts of a body with conditions that are so many times smaller than all of it have one body for both edges."""
MOST_SHARE: Final = 1.25
"""A loop body of so many unrolled stores is not copied for conditions in parts that are so many times smaller."""
SMALL_SHARE: Final = 2
"""A tile of open sizes has its conditions in a small part where all of it is so many times larger."""
OPEN_TILES: Final = "open_tiles"
"""The attribute of a function with tiles of open sizes: how many there are."""
OPEN_STATEMENTS: Final = 24
"""Stores of an unrolled body beyond which conditions on open sizes do not split the loops around it."""


def partition_loops(func: PrimFunc) -> PrimFunc:
    """The function with guard-free main loops; its attribute `OPEN_TILES` counts the tiles that have two bodies."""
    partition = _Partition(func)
    result = func.replace(body=partition.stmt(func.body))
    if not partition.open_tiles:
        return result
    return result.replace(attributes={**func.attributes, OPEN_TILES: partition.open_tiles})


class _Partition(StmtRewriter):
    def __init__(self, func: PrimFunc) -> None:
        self._analyzer = size_analyzer(func)
        self._edge_depth = 0
        self._loop_vars: set[Var] = set()
        self._symbols = {*func.symbolic_dims(), *(param for param in func.params if type(param) is Var)}
        self._is_open_tile = False
        # Statements that are as they should be.
        self._settled: set[Stmt] = set()
        self.open_tiles = 0

    def stmt(self, stmt: Stmt) -> Stmt:
        return stmt if stmt in self._settled else super().stmt(stmt)

    def visit_for(self, loop: For) -> Stmt:
        if WHOLE.is_on(loop):
            with inside_loop(self._analyzer, loop):
                return super().visit_for(loop)
        if loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
            guards = self._shared_guards(loop)
            if guards:
                return self._skipping(loop, guards)
            if self._is_cut_by_sizes(loop):
                return self._by_tiles(loop)
        splittable = loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL) and self._edge_depth <= MAX_EDGE_DEPTH
        window = self._window(loop) if splittable and _statements(loop.body) <= MAX_STATEMENTS else None
        if window is not None:
            split = self._within(loop, window)
            if split is not None:
                return split
            split = self._choice(loop, window) if loop.kind is LoopKind.PARALLEL else self._split(loop, window)
            if split is not None:
                return split
        if loop.kind is LoopKind.VECTORIZED:
            # A tail runs as a shorter vector: under a mask, what it writes could not stay in registers.
            trimmed = self._trim(loop)
            if trimmed is not None:
                return trimmed
        self._loop_vars.add(loop.var)
        with inside_loop(self._analyzer, loop):
            return super().visit_for(loop)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        with self._analyzer.assume(stmt.condition):
            then_body = self.stmt(stmt.then_body)
        else_body = None if stmt.else_body is None else self.stmt(stmt.else_body)
        if then_body is stmt.then_body and else_body is stmt.else_body:
            return stmt
        return stmt.replace(then_body=then_body, else_body=else_body)

    def _window(self, loop: For) -> Window | None:
        """The range of the loop variable in which every condition of the body that can be solved for it holds."""
        low: PrimExpr | None = None
        high: PrimExpr | None = None
        holding: list[PrimExpr] = []
        of_tiles = {part for part, _ in self._open_conditions(loop)}
        with inside_loop(self._analyzer, loop):
            for condition, domains in conditions_below(loop.body):
                for part in conjuncts(condition):
                    if part in of_tiles or loop.var not in self._analyzer.variables_of(part):
                        continue
                    if self._analyzer.prove(part):
                        continue
                    solution = solve(part, loop.var, domains, self._analyzer)
                    if solution is None or self._moves_with_outer_loops(solution):
                        continue
                    holding.append(part)
                    if solution.low is not None:
                        low = solution.low if low is None else maximum(low, solution.low)
                    if solution.high is not None:
                        high = solution.high if high is None else minimum(high, solution.high)
        if low is None and high is None:
            return None
        return Window(low, high, tuple(holding))

    def _open_conditions(self, loop: For) -> list[tuple[PrimExpr, dict[Var, Range]]]:
        """The conditions on large tiles below a loop that do not split it, with the loops between.

        All of them where sizes decide some, but for those that end a vector.
        """
        if not self._symbols or _copied_statements(loop) <= OPEN_STATEMENTS:
            return []
        lanes = [item.var for item in all_statements(loop.body) if _is_vectorized(item)]
        with inside_loop(self._analyzer, loop):
            parts = [
                (part, domains)
                for condition, domains in conditions_below(loop.body)
                for part in conjuncts(condition)
                if not uses_any(part, lanes) and not self._analyzer.prove(part)
            ]
        is_open = any(not self._symbols.isdisjoint(self._analyzer.variables_of(part)) for part, _ in parts)
        return parts if is_open or self._is_open_tile else []

    def _is_cut_by_sizes(self, loop: For) -> bool:
        """Whether a loop is the innermost one around large tiles that conditions on open sizes depend on."""
        if self._is_open_tile:
            return False
        used = {var for part, _ in self._open_conditions(loop) for var in self._analyzer.variables_of(part)}
        return loop.var in used and used.isdisjoint(_nested(loop))

    def _shared_guards(self, loop: For) -> list[PrimExpr]:
        """What guards all statements of an iteration alike, of a loop over large tiles of open sizes."""
        if not self._symbols or self._is_open_tile or _copied_statements(loop) <= OPEN_STATEMENTS:
            return []
        sets = guards_below(loop.body)
        shared = set.intersection(*({*guards} for guards, _ in sets)) if sets else set()
        inner = {var for _, domains in sets for var, _ in domains}
        guards = [
            guard
            for guard in dict.fromkeys(guard for guards, _ in sets for guard in guards if guard in shared)
            if not uses_any(guard, inner) and not depends_on_memory(guard) and self._is_open(guard)
        ]
        return guards if any(uses_any(guard, [loop.var]) for guard in guards) else []

    def _skipping(self, loop: For, guards: list[PrimExpr]) -> Stmt:
        """A loop with what guards all of an iteration tested once, around it: it runs as a whole or not at all."""
        condition = all_of(guards)
        with inside_loop(self._analyzer, loop), self._analyzer.assume(condition):
            unguarded = loop.replace(body=simplify_stmt(assume_held(loop.body, guards), self._analyzer))
        self._loop_vars.add(loop.var)
        is_tile = self._is_cut_by_sizes(unguarded)
        conditions = self._open_conditions(unguarded) if is_tile else []
        with inside_loop(self._analyzer, loop), self._analyzer.assume(condition):
            body = self._tile(unguarded.body, conditions) if is_tile else self.stmt(unguarded.body)
        return loop.replace(body=IfThenElse(condition, body))

    def _is_open(self, condition: PrimExpr) -> bool:
        return not self._symbols.isdisjoint(self._analyzer.variables_of(condition))

    def _by_tiles(self, loop: For) -> Stmt:
        """A loop that decides for each tile whether it needs guards."""
        conditions = self._open_conditions(loop)
        self._loop_vars.add(loop.var)
        with inside_loop(self._analyzer, loop):
            return loop.replace(body=self._tile(loop.body, conditions))

    def _tile(self, body: Stmt, conditions: list[tuple[PrimExpr, dict[Var, Range]]]) -> Stmt:
        """A tile of open sizes: two bodies, of all of it or of the small part that has the conditions."""
        self.open_tiles += 1
        self._is_open_tile = True
        # Conditions that are no comparison are decided once the tile is unrolled.
        part = _small_part(body, {part for part, _ in conditions if positive_form(part) is not None})
        if part is body:
            result = self._two_bodies(part, conditions, is_small=False)
        else:
            result = self.stmt(_Replace(part, self._two_bodies(part, conditions, is_small=True)).stmt(body))
        self._is_open_tile = False
        return result

    def _two_bodies(self, body: Stmt, conditions: list[tuple[PrimExpr, dict[Var, Range]]], is_small: bool) -> Stmt:
        """A choice between code for tiles in the image and code for those at its edges, with loops in small parts."""
        certain: dict[PrimExpr, None] = {}
        holding: list[PrimExpr] = []
        for part, domains in conditions:
            difference = positive_form(part)
            least = None if difference is None else touched([difference], domains, self._analyzer)[0]
            if least is not None and not depends_on_memory(part):
                holding.append(part)
                certain[self._analyzer.simplify(lt(ZERO, least.min))] = None
        inner = all_of(self._independent(list(certain)))
        some, facts = self._some_run(body)
        with self._analyzer.assume(*facts):
            edge = self._edge_tile(rolled(body, by_rows=True)) if is_small else self._edge_of_rows(body)
        edge = edge if some is TRUE else IfThenElse(some, edge)
        if not holding:
            return edge
        with self._analyzer.assume(inner):
            main = fresh_copy(assume_held(body, holding), {})
            main = self.stmt(simplify_stmt(main, self._analyzer))
        return IfThenElse(inner, main, edge)

    def _some_run(self, body: Stmt) -> tuple[PrimExpr, list[PrimExpr]]:
        """A condition that holds where any statement of a tile runs, and what follows from it.

        Tiles past the end are not computed at all.
        """
        tests: list[dict[PrimExpr, None]] = []
        for guards, domains in guards_below(body):
            possible: dict[PrimExpr, None] = {}
            for guard in guards:
                difference = positive_form(guard)
                if difference is None or depends_on_memory(guard):
                    continue
                span = touched([difference], dict(domains), self._analyzer)[0]
                if span is not None:
                    possible[lt(ONE, add(span.min, span.extent))] = None
            tests.append(possible)
        # What guards all stages of a tile: some may have guards of their own.
        facts = [test for test in min(tests, key=len, default={}) if all(test in others for others in tests)]
        simple = [self._analyzer.simplify(fact) for fact in facts]
        return all_of(self._independent([test for test in simple if test is not TRUE])), facts

    def _independent(self, tests: list[PrimExpr]) -> list[PrimExpr]:
        """Conditions without those that follow from others."""
        kept = list(tests)
        for test in tests:
            others = [other for other in kept if other is not test]
            with self._analyzer.assume(*others):
                if self._analyzer.prove(test):
                    kept = others
        return kept

    def _edge_of_rows(self, body: Stmt) -> Stmt:
        """A tile at the edge: pieces of a product's rows one after the other, those past the end left out."""
        pieces = None if find_all(body, Select) else in_pieces(body)
        if pieces is None:
            return self._edge_tile(body)
        with ExitStack() as around:
            for loop in (*pieces.outer, pieces.loop):
                around.enter_context(inside_loop(self._analyzer, loop))
            some, facts = self._some_run(pieces.loop.body)
            with self._analyzer.assume(*facts):
                piece = self._edge_tile(pieces.loop.body, in_vain=True)
        result: Stmt = pieces.loop.replace(body=piece if some is TRUE else IfThenElse(some, piece))
        for loop in reversed(pieces.outer):
            result = loop.replace(body=result)
        return result

    def _edge_tile(self, body: Stmt, *, in_vain: bool = False) -> Stmt:
        """A tile that may reach past the end of sizes.

        Windows, and what may be computed `in_vain`, are computed whole where that can be, without branches in their
        sums. Other rows that are not there are skipped: a test a row and step is less than computing them.
        """
        self._edge_depth += 1
        whole = compute_whole(body, self._analyzer) if in_vain or find_all(body, Select) else None
        if whole is None:
            result = self.stmt(simplify_stmt(hoist_conditions(body), self._analyzer))
        else:
            result = self.stmt(simplify_stmt(hoist_conditions(whole.stmt), self._analyzer))
            if whole.sizes:
                empty = self.stmt(simplify_stmt(rolled(fresh_copy(body, {})), self._analyzer))
                result = IfThenElse(all_of([le(ONE, size) for size in whole.sizes]), result, empty)
        self._edge_depth -= 1
        return result

    def _moves_with_outer_loops(self, window: Window) -> bool:
        """Whether the cuts differ between iterations of loops outside: those loops are better split themselves."""
        ends = [expr for expr in (window.low, window.high) if expr is not None]
        return any(not self._loop_vars.isdisjoint(self._analyzer.variables_of(expr)) for expr in ends)

    def _split(self, loop: For, window: Window) -> Stmt | None:
        start, end = loop.min, add(loop.min, loop.extent)
        first = loop.min if window.low is None else maximum(loop.min, minimum(window.low, end))
        last = end if window.high is None else maximum(first, minimum(window.high, end))
        first, last, end = (self._analyzer.simplify(expr) for expr in (first, last, end))
        if self._analyzer.prove(le(last, first)):
            return self._trim(loop)
        if self._analyzer.prove(le(first, loop.min)) and self._analyzer.prove(ge(last, end)):
            return None
        ready, idle = self._busy(loop)
        if ready is not None:
            start = self._analyzer.simplify(minimum(first, maximum(start, ready)))
        if idle is not None:
            end = self._analyzer.simplify(maximum(last, minimum(end, idle)))
        has_first = not self._analyzer.prove(le(first, start))
        has_last = not self._analyzer.prove(ge(last, end))
        at_edges = loop.replace(body=rows_rolled(loop.body, loop.var, window.holding))
        if has_first and has_last and at_edges.body is not loop.body:
            return self._choice(loop, window)
        parts: list[Stmt] = []
        if has_first:
            parts.append(self._edge(_part(at_edges, start, first, self._analyzer)))
        unguarded = loop.replace(body=assume_held(loop.body, window.holding))
        parts.append(self._main(_part(unguarded, first, last, self._analyzer)))
        if has_last:
            parts.append(self._edge(_part(at_edges, last, end, self._analyzer)))
        return seq(*[part for part in parts if not is_nothing(part)])

    def _within(self, loop: For, window: Window) -> Stmt | None:
        """A loop that chooses where its conditions are, if they are in some parts of a large body; else None.

        A group of tiles that is padded first has guards in what pads it: the rest would be copied in vain. Large parts
        have a body for each edge, small ones one for both. They are loops: a tile stays in registers from its first
        statement to its last, and choosing between these takes longer.
        """
        whole = _copied_statements(loop)
        parts = _guarded_parts(loop.body, set(window.holding))
        share = sum(map(_count_copied, parts))
        if whole < LARGE_STATEMENTS or MOST_SHARE * share > whole or not all(map(_is_serial, parts)):
            return None
        tests = [] if window.low is None else [ge(loop.var, window.low)]
        tests += [] if window.high is None else [lt(loop.var, window.high)]
        self._loop_vars.add(loop.var)
        body = loop.body
        with inside_loop(self._analyzer, loop):
            condition = self._analyzer.simplify(all_of(tests))
            if isinstance(condition, IntImm):
                return None
            sides = [logical_not(condition)] if LARGE_SHARE * share <= whole else [logical_not(test) for test in tests]
            for part in parts:
                choice = self._chosen(part, loop.var, condition, sides, window.holding)
                self._settled.add(choice)
                body = _Replace(part, choice).stmt(body)
            return loop.replace(body=self.stmt(body))

    def _chosen(
        self, part: Stmt, var: Var, condition: PrimExpr, sides: list[PrimExpr], holding: tuple[PrimExpr, ...]
    ) -> Stmt:
        """A part of a loop's body without guards where a condition holds, and as it is on each of the other sides."""
        with self._analyzer.assume(condition):
            main = self.stmt(simplify_stmt(fresh_copy(assume_held(part, holding), {}), self._analyzer))
        # The loop stays whole, so loops inside its edges may be cut at places that move with it.
        self._loop_vars.discard(var)
        self._edge_depth += 1
        edges: list[Stmt] = []
        at_edges = rows_rolled(part, var, holding)
        if at_edges is not part:
            sides = [logical_not(condition)]
        for side in sides:
            with self._analyzer.assume(side):
                edges.append(self.stmt(simplify_stmt(fresh_copy(at_edges, {}), self._analyzer)))
        self._edge_depth -= 1
        self._loop_vars.add(var)
        edge = edges[0] if len(edges) == 1 else IfThenElse(sides[0], *edges)
        return IfThenElse(condition, main, edge)

    def _busy(self, loop: For) -> tuple[PrimExpr | None, PrimExpr | None]:
        """The iterations before which and from which on a loop does nothing: conditions keep all of it from running."""
        starts: set[PrimExpr] | None = set()
        ends: set[PrimExpr] | None = set()
        with inside_loop(self._analyzer, loop):
            for guards, domains in guards_below(loop.body, seen_outside=True):
                solutions = [solve(logical_not(part), loop.var, dict(domains), self._analyzer) for part in guards]
                solved = [item for item in solutions if item is not None]
                before = [item.high for item in solved if item.high is not None and item.low is None]
                after = [item.low for item in solved if item.low is not None and item.high is None]
                starts = _with(starts, before, maximum, self._analyzer)
                ends = _with(ends, after, minimum, self._analyzer)
        return (
            functools.reduce(minimum, starts) if starts else None,
            functools.reduce(maximum, ends) if ends else None,
        )

    def _trim(self, loop: For) -> Stmt | None:
        """No iteration is free of guards: drop iterations that do nothing, if the whole body is one conditional."""
        body = loop.body
        if not isinstance(body, IfThenElse) or body.else_body is not None:
            return None
        low, high = loop.min, add(loop.min, loop.extent)
        with inside_loop(self._analyzer, loop):
            for part in conjuncts(body.condition):
                holds_not = solve(logical_not(part), loop.var, {}, self._analyzer)
                if holds_not is None:
                    continue
                # Where the negation holds from some point on (or up to it), the body never runs.
                if holds_not.high is None and holds_not.low is not None:
                    high = minimum(high, holds_not.low)
                elif holds_not.low is None and holds_not.high is not None:
                    low = maximum(low, holds_not.high)
        low, high = self._analyzer.simplify(low), self._analyzer.simplify(high)
        if low is loop.min and self._analyzer.prove(ge(high, add(loop.min, loop.extent))):
            return None
        trimmed = _part(loop, low, high, self._analyzer)
        if loop.kind is LoopKind.VECTORIZED and not isinstance(trimmed.extent, IntImm):
            return None
        with self._analyzer.scope():
            return self._inside(trimmed)

    def _main(self, loop: For) -> Stmt:
        with self._analyzer.scope():
            return self._inside(loop)

    def _edge(self, loop: For) -> Stmt:
        self._edge_depth += 1
        with self._analyzer.scope():
            result = self._inside(loop, is_edge=True)
        self._edge_depth -= 1
        return result

    def _inside(self, part: For, is_edge: bool = False) -> Stmt:
        """Simplify a part of a split loop and go on below it (it may become its body, or nothing)."""
        stmt = simplify_stmt(part, self._analyzer)
        if isinstance(stmt, For) and stmt.var is part.var:
            if not is_edge:
                # An edge has been split already: cuts of loops inside it may move with it.
                self._loop_vars.add(stmt.var)
            with inside_loop(self._analyzer, stmt):
                return stmt.replace(body=self.stmt(stmt.body))
        return self.stmt(stmt)

    def _choice(self, loop: For, window: Window) -> Stmt | None:
        tests = []
        if window.low is not None:
            tests.append(ge(loop.var, window.low))
        if window.high is not None:
            tests.append(lt(loop.var, window.high))
        with inside_loop(self._analyzer, loop):
            self._loop_vars.add(loop.var)
            condition = self._analyzer.simplify(all_of(tests))
            if isinstance(condition, IntImm):
                return None
            with self._analyzer.assume(condition):
                main = self.stmt(simplify_stmt(fresh_copy(assume_held(loop.body, window.holding), {}), self._analyzer))
            # The loop stays whole, so loops inside its edge may be cut at places that move with it.
            self._loop_vars.discard(loop.var)
            self._edge_depth += 1
            edge = self.stmt(rows_rolled(loop.body, loop.var, window.holding))
            self._edge_depth -= 1
        return loop.replace(body=IfThenElse(condition, main, edge))


def _guarded_parts(stmt: Stmt, conditions: set[PrimExpr]) -> list[Stmt]:
    """The parts of a statement that have some conditions; a loop as a whole unless they are in little of it.

    What is written out is part of a tile of registers: a part is all of the loop around that.
    """
    if isinstance(stmt, (BufferStore, IfThenElse)) or _is_copied(stmt) or _is_vectorized(stmt):
        return [stmt]
    inner = [
        item
        for item in inner_statements(stmt)
        if any(not conditions.isdisjoint(conjuncts(condition)) for condition, _ in conditions_below(item))
    ]
    parts = [part for item in inner for part in _guarded_parts(item, conditions)]
    is_large = isinstance(stmt, For) and SMALL_SHARE * sum(map(_count_copied, parts)) > _count_copied(stmt)
    has_tile = _is_serial(stmt) and not all(map(_is_serial, parts))
    return [stmt] if is_large or has_tile or not parts else parts


def _small_part(stmt: Stmt, conditions: set[PrimExpr]) -> Stmt:
    """The part of a tile's body that has all of some conditions, if it is a small one; else all of the body."""
    part = stmt
    while not isinstance(part, BufferStore):
        inner = [
            item
            for item in inner_statements(part)
            if any(not conditions.isdisjoint(conjuncts(condition)) for condition, _ in conditions_below(item))
        ]
        if len(inner) != 1 or isinstance(part, IfThenElse) or _is_copied(part):
            break
        (part,) = inner
    return part if SMALL_SHARE * _count_copied(part) <= _count_copied(stmt) else stmt


class _Replace(StmtRewriter):
    """Puts a statement in the place of another."""

    def __init__(self, old: Stmt, new: Stmt) -> None:
        self._old = old
        self._new = new

    def stmt(self, stmt: Stmt) -> Stmt:
        return self._new if stmt is self._old else super().stmt(stmt)


def _with(
    bounds: set[PrimExpr] | None,
    options: list[PrimExpr],
    choose: Callable[[PrimExpr, PrimExpr], PrimExpr],
    analyzer: Analyzer,
) -> set[PrimExpr] | None:
    """Bounds of several statements and that of one more, the tightest of some; None once a statement has none."""
    if bounds is None or not options:
        return None
    return bounds | {analyzer.simplify(functools.reduce(choose, options))}


def _part(loop: For, first: PrimExpr, last: PrimExpr, analyzer: Analyzer) -> For:
    var = Var(loop.var.name, loop.var.dtype)
    body = fresh_copy(loop.body, {loop.var: var})
    return loop.replace(var=var, min=first, extent=analyzer.simplify(sub(last, first)), body=body)


def _statements(stmt: Stmt) -> int:
    return sum(1 for item in all_statements(stmt) if isinstance(item, (BufferStore, Evaluate)))


def _copied_statements(loop: For) -> int:
    """Stores of a loop's body once what is to be unrolled is."""
    return _count_copied(loop.body)


def _count_copied(stmt: Stmt) -> int:
    if isinstance(stmt, (BufferStore, Evaluate)):
        return 1
    inner = sum(map(_count_copied, inner_statements(stmt)))
    return (const_value(stmt.extent) or 1) * inner if _is_copied(stmt) else inner


def _is_copied(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED


def _is_serial(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL


def _is_vectorized(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED


def _nested(loop: For) -> set[Var]:
    """The variables of loops over tiles below a loop: of those that no sum is over."""
    return {
        item.var
        for item in all_statements(loop.body)
        if isinstance(item, For) and item.kind in (LoopKind.SERIAL, LoopKind.PARALLEL) and not REDUCTION.of(item)
    }
