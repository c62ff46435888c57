"""Indices that take divisions to compute, kept in buffers: cache_index."""

from __future__ import annotations

from tilewright.ir.build import sub
from tilewright.ir.expr import (
    Add,
    Call,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Mod,
    Mul,
    PrimExpr,
    Sub,
    Var,
    const_value,
)
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, variables
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.cache import finish_staging, place_beside
from tilewright.tir.schedule.inline import with_replaced
from tilewright.tir.schedule.placement import build_nest
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LetStmt

WHAT = "cache_index"
_PLAIN = (Var, IntImm, Add, Sub, Mul, Cast)
"""What an index may be made of and still cost next to nothing: addressing modes and additions."""
_DIVISIONS = (Div, Mod, FloorDiv, FloorMod)


def cache_index(state: ScheduleState, block: Block, scope: str) -> list[str]:
    """Compute the indices of a block's reads that take more than sums and products first, into buffers.

    for i in 64: B[i] = A[i // 3 % 5, i]   ->   for i in 64: B_index[i] = i // 3 % 5
                                                for i in 64: B[i] = A[B_index[i], i]

    One buffer for each distinct index, with a dimension for each iterator in it. Only reads: where a block writes must
    be known without looking at data.
    """
    if block is state.index.root or any(isinstance(item, Block) for item in pre_order(block.body)):
        state.fail(f"{WHAT}: block {block.name} holds other blocks", block)
    computed = _computed(block)
    if not computed:
        state.fail(
            f"{WHAT}: block {block.name} reads at no index that takes more than sums and products of its iterators",
            block,
        )
    trial = state.copy()
    names = [_cache_one(trial, trial.index.blocks[block.name], index, scope) for index in computed]
    state.adopt(trial)
    state.commit(trial.func)
    return names


def _computed(block: Block) -> list[PrimExpr]:
    """The distinct indices of reads that are worth keeping, in order of their first use."""
    iters = {item.var for item in block.iters}
    bound = {item.var for item in pre_order(block.body) if isinstance(item, (For, LetStmt))}
    computed: dict[PrimExpr, None] = {}
    # An update reads where it writes: those two must go on looking alike.
    for stmt in (block.body, block.init):
        for load in () if stmt is None else pre_order(stmt):
            if isinstance(load, BufferLoad) and all(region.buffer is not load.buffer for region in block.writes):
                for index in load.indices:
                    used = set(variables(index))
                    if used & iters and not used & bound and _is_computed(index):
                        computed.setdefault(index)
    return list(computed)


def _is_computed(index: PrimExpr) -> bool:
    """Whether an index takes some computing that may as well be done anywhere."""
    parts = list(pre_order(index))
    if any(isinstance(item, BufferLoad) or (isinstance(item, Call) and not is_pure(item)) for item in parts):
        return False
    if any(isinstance(item, _DIVISIONS) and not const_value(item.b) for item in parts):
        return False
    return any(not isinstance(item, _PLAIN) for item in parts)


def _cache_one(state: ScheduleState, block: Block, index: PrimExpr, scope: str) -> str:
    used = [item for item in block.iters if item.var in variables(index)]
    shape = tuple(item.domain.extent for item in used)
    kept = Buffer(state.fresh_buffer_name(f"{block.name}_index"), shape, index.dtype, scope)
    name = state.fresh_block_name(kept.name)
    iters = tuple(BlockIter(Var(item.var.name), item.domain, IterKind.SPATIAL, item.domain.min) for item in used)
    fresh: dict[Var, PrimExpr] = {old.var: new.var for old, new in zip(used, iters, strict=True)}
    body = BufferStore(kept, _place(iters), substitute(index, fresh))
    nest = build_nest(state, with_detected_accesses(Block(name, iters, (), (), body)), {}, preserve_unit_loops=True)
    load = BufferLoad(kept, _place(used))

    def replace(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and any(part is index for part in item.indices):
            return BufferLoad(item.buffer, tuple(load if part is index else part for part in item.indices))
        return None

    where, number = place_beside(state, block, [])
    state.mark_regular(name)
    affected = [name, block.name]
    finish_staging(state, where, number, nest, {block: with_replaced(block, replace)}, [kept], affected, WHAT)
    return name


def _place(iters: tuple[BlockIter, ...] | list[BlockIter]) -> tuple[PrimExpr, ...]:
    return tuple(item.var if const_value(item.domain.min) == 0 else sub(item.var, item.domain.min) for item in iters)
