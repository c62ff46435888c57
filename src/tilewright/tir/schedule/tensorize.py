"""Tiles as units: blockize (a nest becomes one block) and tensorize (a block is computed by an intrinsic)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.linear import Linear
from tilewright.ir.expr import TRUE, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.index import statements
from tilewright.tir.analysis.linear import expression, linear, mentions
from tilewright.tir.analysis.match_intrin import Mismatch, loop_nest, match_intrinsic
from tilewright.tir.analysis.regions import relax
from tilewright.tir.annotations import TENSOR_INTRIN
from tilewright.tir.buffer import BufferRegion
from tilewright.tir.schedule.loops import require_serial
from tilewright.tir.schedule.state import ScheduleState, edit_tree, with_value
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LoopKind, Stmt, seq
from tilewright.tir.tensor_intrin import TensorIntrin


def blockize(state: ScheduleState, loop: For) -> str:
    """Make one block of a loop nest; gives the name of the new block, which holds the old one.

    for i_0: for j_0:                           for i_0: for j_0:
        for i_1 in 8: for j_1 in 8:                 with block("C_o"):
            with block("C"):                  ->        vi_o, vj_o = spatial(4, i_0), spatial(4, j_0)
                vi = spatial(32, i_0 * 8 + i_1)         for i_1 in 8: for j_1 in 8:
                vj = spatial(32, j_0 * 8 + j_1)             with block("C"):
                C[vi, vj] = ...                                 vi = spatial(32, vi_o * 8 + i_1) ...

    Every iterator must be whole tiles: the loops outside count tiles, the loops inside run through one. The init of a
    reduction whose outer part reduces goes to the new block.
    """
    block, inner = _nest(state, loop)
    outer_iters: list[BlockIter] = []
    inner_iters: list[BlockIter] = []
    used: set[Var] = set()
    for item in block.iters:
        outer, value = _divide(state, block, item, inner, used)
        if outer is not None:
            outer_iters.append(outer)
        inner_iters.append(with_value(item, value))
    name = state.fresh_block_name(f"{block.name}_o")
    reduces = any(item.kind is IterKind.REDUCE for item in outer_iters)
    init: Stmt | None = None
    body_block = block.replace(iters=tuple(inner_iters), predicate=TRUE)
    if block.init is not None and reduces:
        init = _init_nest(state, block, body_block, inner)
        body_block = with_detected_accesses(body_block.replace(init=None))
    body: Stmt = body_block
    for entry in reversed(inner):
        body = entry.replace(body=body)
    outer_block = Block(name, tuple(outer_iters), (), (), body, init, block.predicate)
    outer_block = outer_block.replace(
        reads=_regions(state, body_block, block.reads, inner),
        writes=_regions(state, body_block, block.writes, inner),
    )
    state.inherit(name, block.name)
    # The loops inside run through one tile.
    for stmt in statements(outer_block.body if init is None else seq(init, outer_block.body)):
        if isinstance(stmt, Block):
            state.mark_partial(stmt.name)
    state.replace(loop, outer_block)
    return name


def _nest(state: ScheduleState, loop: For) -> tuple[Block, list[For]]:
    """The one block under directly nested loops, and the loops."""
    loops, block = loop_nest(loop)
    if not isinstance(block, Block):
        state.fail("blockize: the loops must be directly nested around one block", loop)
    for item in loops:
        require_serial(state, item, "blockize")
        if mentions(item.extent, {other.var for other in loops}) or const_value(item.min) != 0:
            state.fail(f"blockize: loop {item.var.name} of the tile does not run from 0 to a fixed extent", item)
    if mentions(block.predicate, {item.var for item in loops}):
        state.fail(
            f"blockize: block {block.name} is guarded inside the tile: not every tile is full",
            block,
            "split by factors that divide, or make the extents multiples first with pad_einsum",
        )
    return block, loops


def _divide(
    state: ScheduleState, block: Block, item: BlockIter, inner: Sequence[For], used: set[Var]
) -> tuple[BlockIter | None, PrimExpr]:
    """An iterator as (the iterator that counts tiles, its value in terms of that and the inner loops)."""
    by_var = {loop.var: loop for loop in inner}
    form = linear(item.value)
    if any(type(term) is not Var and mentions(term, by_var) for term in form.terms):
        state.fail(
            f"blockize: iterator {item.var.name} of block {block.name} divides or combines loops of the tile",
            block,
            "split and reorder loops rather than fusing them",
        )
    tile = Linear({term: c for term, c in form.terms.items() if type(term) is Var and term in by_var}, 0)
    rest = form.minus(tile)
    size = 1
    for term, coefficient in sorted(tile.terms.items(), key=lambda step: step[1]):
        assert isinstance(term, Var)
        count = const_value(by_var[term].extent)
        if count is None:
            state.fail(f"blockize: the extent of loop {term.name} is not constant", by_var[term])
        if count == 1:
            continue
        if coefficient != size or term in used:
            state.fail(
                f"blockize: the loops of the tile do not run through iterator {item.var.name} step by step", block
            )
        used.add(term)
        size *= count
    start, extent = const_value(item.domain.min), const_value(item.domain.extent)
    if size == 1:
        return _whole(item, rest, tile)
    if start == 0 and extent == size and not rest.terms and rest.constant == 0:
        return None, item.value
    divisible = rest.constant % size == 0 and all(c % size == 0 for c in rest.terms.values())
    if start is None or extent is None or start % size or extent % size or not divisible:
        state.fail(
            f"blockize: iterator {item.var.name} of block {block.name} is not made of whole tiles of {size}",
            block,
            "split by factors that divide the extents",
        )
    var = Var(f"{item.var.name}_o")
    domain = Range(linear_const(start // size), linear_const(extent // size))
    outer = BlockIter(var, domain, item.kind, expression(rest.divided(size)))
    return outer, expression(Linear({var: size}, 0).plus(tile))


def _whole(item: BlockIter, rest: Linear, tile: Linear) -> tuple[BlockIter | None, PrimExpr]:
    """An iterator that stands still in the tile: the new block has it as it was."""
    if not rest.terms and const_value(item.domain.extent) == 1:
        return None, item.value
    var = Var(f"{item.var.name}_o")
    return BlockIter(var, item.domain, item.kind, expression(rest)), expression(Linear({var: 1}, 0).plus(tile))


def linear_const(value: int) -> PrimExpr:
    """An index constant."""
    return expression(Linear({}, value))


def _init_nest(state: ScheduleState, block: Block, inner_block: Block, loops: Sequence[For]) -> Stmt:
    """The init of a tile: loops and iterators of its own, for the spatial part."""
    assert block.init is not None
    spatial = [item for item in inner_block.iters if item.kind is not IterKind.REDUCE]
    kept = [loop for loop in loops if any(mentions(item.value, {loop.var}) for item in spatial)]
    fresh: dict[Var, PrimExpr] = {loop.var: Var(f"{loop.var.name}_init") for loop in kept}
    iters: list[BlockIter] = []
    inside: dict[Var, PrimExpr] = {}
    for item in spatial:
        var = Var(item.var.name)
        inside[item.var] = var
        iters.append(BlockIter(var, item.domain, item.kind, substitute(item.value, fresh)))
    name = state.fresh_block_name(f"{block.name}_init")
    init_block = Block(name, tuple(iters), (), (), substitute(block.init, inside))
    result: Stmt = with_detected_accesses(init_block)
    for loop in reversed(kept):
        variable = fresh[loop.var]
        assert isinstance(variable, Var)
        result = For(variable, loop.min, loop.extent, LoopKind.SERIAL, result)
    return result


def _regions(
    state: ScheduleState, inner: Block, regions: Sequence[BufferRegion], loops: Sequence[For]
) -> tuple[BufferRegion, ...]:
    """What a tile touches, in terms of the iterators that count tiles."""
    outer_regions: list[BufferRegion] = []
    for region, box in relax(inner, regions, loops, state.analyzer):
        whole = region.buffer.full_region().region
        ranges = tuple(whole[n] if part is None else part for n, part in enumerate(box))
        simplify = state.analyzer.simplify
        outer_regions.append(
            BufferRegion(region.buffer, tuple(Range(simplify(part.min), simplify(part.extent)) for part in ranges))
        )
    return tuple(outer_regions)


def tensorize(state: ScheduleState, target: For | Block, intrinsic: TensorIntrin) -> str:
    """Let an intrinsic compute a loop nest (made a block first) or a block; gives the name of the block.

    for i_0: for j_0: for k_0:                  for i_0: for j_0: for k_0:
        for i_1: for j_1: for k_1: C(...)  ->       with block("C_o"):  # tensor_intrin: gemm8x8
                                                        (init: the reset; body: the update, as plain loops)

    The plain loops stay until the program is lowered: they are the meaning. Then the intrinsic's lowering rule gives
    what takes their place: its `compute` where the tile holds the whole reduction, `reset` and `update` where the
    reduction goes on outside.
    """
    if isinstance(target, For):
        trial = state.copy()
        name = blockize(trial, trial.index.loops[target.var])
        block = trial.index.blocks[name]
    else:
        trial, block, name = state, target, target.name
    if block is trial.index.root:
        state.fail("tensorize: the root block is not a tile", block)
    matched = match_intrinsic(block, intrinsic)
    mark = target
    if isinstance(matched, Mismatch):
        state.fail(
            f"tensorize: this is not what {intrinsic.name} computes: {matched.reason}",
            mark,
            "tile the loops so that the nest has the declared axes, extents and accesses, or use auto_tensorize",
        )
    pieces = intrinsic.lower(matched.operands)
    needed = {"compute": ["compute"], "update": ["update"]}[matched.role]
    if block.init is not None:
        needed = ["reset", "update"]
    for part in needed:
        if getattr(pieces, part) is None:
            state.fail(
                f"tensorize: {intrinsic.name} has no {part}, and the reduction of block {block.name} goes on outside "
                "the tile",
                mark,
                "let the lowering rule give (compute, reset, update), or put the whole reduction in the tile",
            )
    changed = TENSOR_INTRIN.put(block, intrinsic.name)
    state.adopt(trial)
    func = trial.func.replace(body=edit_tree(trial.index, {block: changed}))
    state.watch_tensorized(changed)
    state.commit(func)
    return name
