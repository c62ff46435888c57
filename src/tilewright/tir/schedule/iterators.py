"""A block's own iterators rearranged: fuse_iterators, transform_block_layout, reorder_block_iter_var."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.itermap import detect_iter_map, inverse
from tilewright.ir.build import const, floordiv, floormod
from tilewright.ir.expr import ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute, transform, variables
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.compute_location import require_movable
from tilewright.tir.schedule.padding import plain_loops
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LoopKind, Stmt


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
    return renested(state, loops[0], rebuilt(block, tuple(iters), mapping, analyzer))


def renested(state: ScheduleState, nest: For, block: Block) -> list[Var]:
    """Put a block whose iterators are bound to new variables in the place of a nest, in loops over these."""
    body: Stmt = block
    variables_above: list[Var] = []
    for entry in reversed(block.iters):
        assert isinstance(entry.value, Var)
        state.learn(entry.value, entry.domain)
        variables_above.append(entry.value)
        body = For(entry.value, entry.domain.min, entry.domain.extent, LoopKind.SERIAL, body)
    state.replace(nest, body)
    return variables_above[::-1]


def rebuilt(block: Block, iters: tuple[BlockIter, ...], mapping: dict[Var, PrimExpr], analyzer: Analyzer) -> Block:
    """A block with other iterators, of which the old ones are expressions; the analyzer knows their domains."""

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


def transform_block_layout(state: ScheduleState, block: Block, index_map: IndexMap) -> list[Var]:
    """Give a block other iterators, which a map makes of the old ones, and a loop for each; gives the loops.

    for i in 8, j in 12:                        for n0 in 8, n1 in 3, n2 in 4:
        C[i, j] = A[i, j] + 1         ->            C[n0, n1 * 4 + n2] = A[n0, n1 * 4 + n2] + 1
                                                lambda i, j: (i, j // 4, j % 4)

    The map must take each instance to one of its own and fill a box from 0 with them; a new iterator is made of old
    ones of one kind. The loops around the block must be plain: one for each iterator.
    """
    what = "transform_block_layout"
    require_movable(state, block, what)
    loops = plain_loops(state, block, what)
    if len(index_map.inputs) != len(block.iters):
        state.fail(
            f"{what}: the map takes {len(index_map.inputs)} iterators, block {block.name} has {len(block.iters)}", block
        )
    domains = {var: item.domain for var, item in zip(index_map.inputs, block.iters, strict=True)}
    iter_map = detect_iter_map(index_map.outputs, domains)
    ranges = None if iter_map is None else iter_map.ranges()
    if iter_map is None or ranges is None or any(const_value(item.min) != 0 for item in ranges):
        state.fail(
            f"{what}: the map does not provably take the instances of block {block.name} one to one to a box from 0",
            block,
            "use maps made of i, i // c, i % c and fused iterators i * n + j, with numbers c that divide",
        )
    iters: list[BlockIter] = []
    analyzer = Analyzer()
    old = dict(zip(index_map.inputs, zip(block.iters, loops, strict=True), strict=True))
    for number, (output, domain) in enumerate(zip(index_map.outputs, ranges, strict=True)):
        used = [old[var] for var in index_map.inputs if var in variables(output)]
        kinds = {item.kind for item, _ in used}
        if len(kinds) > 1:
            state.fail(f"{what}: new iterator {number} is made of iterators of different kinds", block)
        name = "_".join(loop.var.name for _, loop in used) or "unit"
        kind = next(iter(kinds), IterKind.SPATIAL)
        iters.append(BlockIter(Var(f"v_{name}"), domain, kind, Var(name)))
        analyzer.bind(iters[-1].var, domain)
    values = inverse(iter_map, [item.var for item in iters])
    if values is None:
        state.fail(f"{what}: the map has no inverse", block)
    mapping = {old[var][0].var: value for var, value in values.items()}
    return renested(state, loops[0], rebuilt(block, tuple(iters), mapping, analyzer))


def reorder_block_iter_var(state: ScheduleState, block: Block, order: Sequence[int]) -> None:
    """Name the iterators of a block in another order; its loops and what it computes stay.

    vi, vj = spatial(8, i), spatial(12, j)  ->  vj, vi = spatial(12, j), spatial(8, i)     order = [1, 0]
    """
    if sorted(order) != list(range(len(block.iters))):
        state.fail(
            f"reorder_block_iter_var: {list(order)} does not name each iterator of block {block.name} once",
            block,
            f"give the numbers 0 to {len(block.iters) - 1} in the new order",
        )
    state.replace(block, block.replace(iters=tuple(block.iters[number] for number in order)))
