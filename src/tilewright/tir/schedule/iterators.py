"""A block's own iterators rearranged: fuse_iterators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import const, floordiv, floormod
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.padding import plain_loops
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, LoopKind, Stmt


def fuse_iterators(state: ScheduleState, block: Block, groups: Sequence[Sequence[int]]) -> list[Var]:
    """Make one iterator (and one loop) of each group of iterators of a block; gives the new loops.

    for y in 4, x in 8, c in 16:                for y_x in 32, c in 16:
        C[y * 8 + x, c] = A[y * 8 + x] + B[c] ->    C[y_x, c] = A[y_x] + B[c]              groups = [[0, 1], [2]]

    Every iterator is in one group, by its number; a group holds iterators of one kind, of constant sizes unless it is
    one alone. The loops around the block must be plain: one for each iterator. An operand whose layout runs through a
    group in order then has the plain index, so that tiles of the new loops are boxes of it.
    """
    what = "fuse_iterators"
    require_movable(state, block, what)
    loops = plain_loops(state, block, what)
    if sorted(number for group in groups for number in group) != list(range(len(block.iters))):
        state.fail(f"{what}: {[list(group) for group in groups]} does not name each iterator once", block)
    analyzer = Analyzer()
    iters: list[BlockIter] = []
    mapping: dict[Var, PrimExpr] = {}
    for group in groups:
        parts = [block.iters[number] for number in group]
        if len(parts) == 1:
            (only,) = parts
            iters.append(only.replace(value=Var(loops[group[0]].var.name)))
            analyzer.bind(only.var, only.domain)
            continue
        extents = [const_value(item.domain.extent) for item in parts]
        sizes = [extent for extent in extents if extent is not None and extent > 0]
        if not parts or len(sizes) < len(parts) or any(const_value(item.domain.min) != 0 for item in parts):
            state.fail(f"{what}: the iterators {list(group)} have no constant domains from 0", block)
        if len({item.kind for item in parts}) != 1:
            state.fail(f"{what}: the iterators {list(group)} are of different kinds", block)
        loop = Var("_".join(loops[number].var.name for number in group))
        fused = Var("_".join([parts[0].var.name, *(loops[number].var.name for number in group[1:])]))
        domain = Range(ZERO, const(prod(sizes)))
        analyzer.bind(fused, domain)
        iters.append(BlockIter(fused, domain, parts[0].kind, loop))
        inner = prod(sizes)
        for number, (item, size) in enumerate(zip(parts, sizes, strict=True)):
            inner //= size
            part: PrimExpr = floordiv(fused, const(inner)) if inner > 1 else fused
            mapping[item.var] = floormod(part, const(size)) if number else part
    new = _rebuilt(block, tuple(iters), mapping, analyzer)
    body: Stmt = new
    for entry in reversed(iters):
        assert isinstance(entry.value, Var)
        state.learn(entry.value, entry.domain)
        body = For(entry.value, entry.domain.min, entry.domain.extent, LoopKind.SERIAL, body)
    state.replace(loops[0], body)
    return [entry.value for entry in iters if isinstance(entry.value, Var)]


def _rebuilt(block: Block, iters: tuple[BlockIter, ...], mapping: dict[Var, PrimExpr], analyzer: Analyzer) -> Block:
    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad):
            return BufferLoad(item.buffer, tuple(analyzer.simplify(index) for index in item.indices))
        if isinstance(item, BufferStore):
            return item.replace(indices=tuple(analyzer.simplify(index) for index in item.indices))
        return None

    def rewritten(stmt: Stmt) -> Stmt:
        return transform(substitute(stmt, mapping), visit)

    init = None if block.init is None else rewritten(block.init)
    return with_detected_accesses(block.replace(iters=iters, body=rewritten(block.body), init=init))
