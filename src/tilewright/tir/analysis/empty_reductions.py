"""Reductions over nothing: a domain that may be empty when the program runs, and the init that is due all the same.

    for i in range(3):                               for i in range(3):
        for k in range(m):                               if m <= 0: C[i] = 0.0
            with block("C"):                  means      for k in range(m):
                vi, vk = spatial(3, i), reduce(m, k)         with block("C"): ...
                with init(): C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]

No iteration is at the start of an empty domain, so none of them runs the init. It runs in front of the outermost loop
that drives the reduction, once for each setting of the loops inside that do not. Extents that are known cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import all_of, const, ge, le, logical_or
from tilewright.ir.expr import FALSE, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute, uses_any, variables
from tilewright.tir.analysis.bindings import conjuncts, is_domain_guard
from tilewright.tir.analysis.index import child_statements
from tilewright.tir.stmt import Block, BlockIter, For, IfThenElse, IterKind, SeqStmt, Stmt


@dataclass(frozen=True, slots=True)
class EmptyInit:
    """The init of a reduction whose domain may be empty: where `empty` holds, `stmt` is due in front of `place`."""

    place: For | Block
    spatial: tuple[For, ...]
    guards: tuple[PrimExpr, ...]
    empty: PrimExpr

    def around(self, init: Stmt) -> Stmt:
        """The init under its conditions and the loops that do not reduce (their variables are still the old ones)."""
        result: Stmt = IfThenElse(all_of([self.empty, *self.guards]), init)
        for loop in reversed(self.spatial):
            result = loop.replace(body=result)
        return result


def reduce_iters(block: Block) -> list[BlockIter]:
    """The iterators along which a block reduces."""
    return [item for item in block.iters if item.kind is IterKind.REDUCE]


def may_be_empty(block: Block, path: Sequence[Stmt]) -> bool:
    """Whether a reduction with an init is not certainly over something, where the loops over its elements run.

    `path` has the statements around the block within its scope.
    """
    return block.init is not None and may_have_no_steps(block, path)


def may_have_no_steps(block: Block, path: Sequence[Stmt]) -> bool:
    """Whether the domain of some reduce iterator is not certainly at least one long."""
    unknown = [item.domain.extent for item in reduce_iters(block) if (const_value(item.domain.extent) or 0) < 1]
    if not unknown:
        return False
    analyzer = Analyzer()
    steps = step_loops(block, path)
    for item in path:
        # Whoever is inside a loop knows that it runs: what drives the reduction must not answer for itself.
        if isinstance(item, For) and item not in steps:
            analyzer.bind(item.var, Range(item.min, item.extent))
    return not all(analyzer.prove(ge(extent, const(1, extent.dtype))) for extent in unknown)


def step_loops(block: Block, path: Sequence[Stmt]) -> list[For]:
    """The loops around a block that run the steps of its reduction.

    They drive reduce iterators; or they drove one before it was seen that they have one iteration at most, which is so
    of the outer part of a short loop that was split: it has none where there are no steps.
    """
    reducing = reduce_iters(block)
    sizes = {var for item in reducing for var in variables(item.domain.extent)}

    def runs_steps(loop: For) -> bool:
        if _drives(loop, reducing):
            return True
        idle = not _drives(loop, block.iters) and const_value(loop.extent) is None
        return idle and uses_any(loop.extent, sizes)

    return [item for item in path if isinstance(item, For) and runs_steps(item)]


def element_guards(block: Block, path: Sequence[Stmt]) -> list[PrimExpr]:
    """The parts of a block's predicate that say which elements are computed, not which steps of the reduction run.

    Those on steps keep the reduce iterators inside their domains, or the loops that drive these inside a longer one
    that was split.
    """
    loops = [item for item in path if isinstance(item, For)]
    steps = [loop.var for loop in step_loops(block, path)]
    others = [loop.var for loop in loops if loop.var not in steps]
    reducing = block.replace(iters=tuple(reduce_iters(block)))
    known = Analyzer()

    def is_on_steps(part: PrimExpr) -> bool:
        if uses_any(part, steps) and not uses_any(part, others):
            return True
        return is_domain_guard(reducing, part, known)

    return [part for part in conjuncts(block.predicate) if not is_on_steps(part)]


def empty_init(block: Block, path: Sequence[Stmt]) -> EmptyInit | str:
    """Where the init of a reduction over nothing goes, or why there is no such place.

    `path` has the statements around the block within its scope, outermost first.
    """
    reducing = reduce_iters(block)
    running = step_loops(block, path)
    first = next((n for n, item in enumerate(path) if item in running), len(path))
    inner = path[first:]
    if not all(isinstance(item, (For, SeqStmt)) for item in inner):
        return "a condition or a definition is between the loops of the reduction and the block"
    loops = [item for item in inner if isinstance(item, For)]
    steps = [loop for loop in loops if loop in running]
    spatial = [loop for loop in loops if loop not in running]
    inside = [loop.var for loop in steps]
    others = [item for item in block.iters if item.kind is not IterKind.REDUCE]
    for loop in steps:
        if any(uses_any(item.value, [loop.var]) for item in others):
            return f"loop {loop.var.name} runs through elements and steps of the reduction at once"
    if any(uses_any(bound, inside) for loop in spatial for bound in (loop.min, loop.extent)):
        return "the range of a loop over elements depends on a loop over steps"
    guards = element_guards(block, path)
    if any(uses_any(part, inside) for part in guards):
        return "its predicate cuts steps of the reduction off"
    empty: PrimExpr = FALSE
    for item in reducing:
        empty = logical_or(empty, le(item.domain.extent, const(0, item.domain.extent.dtype)))
    empty = substitute(empty, {item.var: item.value for item in others})
    if uses_any(empty, inside):
        return "the extent of the reduction depends on a loop over its steps"
    place = loops[0] if loops else block
    return EmptyInit(place, tuple(spatial), tuple(guards), empty)


def _drives(loop: For, iters: Sequence[BlockIter]) -> bool:
    return any(uses_any(item.value, [loop.var]) for item in iters)


def init_values(block: Block) -> dict[Var, PrimExpr]:
    """What the iterators of a block stand for in its init: their bound values; reduce iterators begin."""
    values: dict[Var, PrimExpr] = {}
    for item in block.iters:
        reduces = item.kind is IterKind.REDUCE
        values[item.var] = item.domain.min if reduces else item.value
    return values


def reductions(root: Stmt) -> Iterator[tuple[Block, list[Stmt]]]:
    """The blocks with inits, each with the statements around it within its scope, outermost first."""
    stack: list[tuple[Stmt, list[Stmt]]] = [(root, [])]
    while stack:
        stmt, path = stack.pop()
        if isinstance(stmt, Block):
            if stmt.init is not None:
                yield stmt, path
            path = []
        else:
            path = [*path, stmt]
        stack.extend((child, path) for child in reversed(child_statements(stmt)))


def init_at_start(block: Block) -> Stmt:
    """The init of a block with its iterators replaced, for use outside the block."""
    assert block.init is not None
    return substitute(block.init, init_values(block))
