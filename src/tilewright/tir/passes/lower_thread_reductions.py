"""Reduction loops bound to threads: each thread has a partial result, which the threads combine.

    for i in thread_binding("blockIdx.x", 8):              for i in thread_binding("blockIdx.x", 8):
        for k0 in range(4):                                    for k1 in thread_binding("threadIdx.x", 64):
            for k1 in thread_binding("threadIdx.x", 64):  ->       for k0 in range(4): P[k1] += A[i, k0 * 64 + k1]
                C[i] += A[i, k0 * 64 + k1]                     for k1 in thread_binding("threadIdx.x", 64):
                                                                   C[i] += P[k1]

That is `rfactor`; what is left, a reduction over threads alone, `combine_threads` makes of exchanges between threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir.expr import Var, is_const_int
from tilewright.ir.visit import uses_any
from tilewright.support.errors import UnsupportedError
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements
from tilewright.tir.rewrite.thread_combination import combine_threads
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Stmt


@dataclass(frozen=True, slots=True)
class ThreadReductionOptions:
    """How threads exchange values."""

    warp_size: int = 1
    """Threads that exchange values without shared memory; 1 for none."""


_USUAL: Final = ThreadReductionOptions()


def lower_thread_reductions(func: PrimFunc, options: ThreadReductionOptions = _USUAL) -> PrimFunc:
    """The function without reductions across threads; threads of a warp exchange values where it has several."""
    while True:
        reduction = _find(func, bare=False)
        if reduction is None:
            break
        func = _lower(func, *reduction)
    while True:
        reduction = _find(func, bare=True)
        if reduction is None:
            return func
        block, loop, path = reduction
        func = combine_threads(func, block, loop, path[0], options.warp_size)


def _find(func: PrimFunc, *, bare: bool) -> tuple[Block, For, list[For]] | None:
    """A reduction whose loop is bound to threads: the block, the loop, and all loops around the block.

    It is `bare` if the loop over threads is directly around it and there is no other reduction loop.
    """

    def visit(stmt: Stmt, path: list[For]) -> tuple[Block, For, list[For]] | None:
        if isinstance(stmt, For):
            path = [*path, stmt]
        if isinstance(stmt, Block) and stmt.init is not None:
            for loop in path:
                # A single thread has nobody to combine its result with.
                several = loop.kind is LoopKind.THREAD and not is_const_int(loop.extent, 1)
                if several and _reduces(stmt, loop.var):
                    alone = sum(_reduces(stmt, item.var) for item in path) == 1
                    if bare == (alone and loop.body is stmt):
                        return stmt, loop, path
        for child in stmt.children():
            if isinstance(child, Stmt):
                reduction = visit(child, path)
                if reduction is not None:
                    return reduction
        return None

    return visit(func.body, [])


def _reduces(block: Block, var: Var) -> bool:
    return any(item.kind is IterKind.REDUCE and uses_any(item.value, [var]) for item in block.iters)


def _lower(func: PrimFunc, block: Block, loop: For, path: list[For]) -> PrimFunc:
    where = f"function {func.name}, block {block.name}"
    alone = sum(isinstance(item, Block) for item in all_statements(path[0])) == 1
    inner = [item for item in path if item is not loop and _reduces(block, item.var)]
    if not alone or any(item.kind is LoopKind.THREAD for item in inner):
        raise UnsupportedError(
            "a reduction across threads needs loops of its own and one loop bound to threads",
            where=where,
            hint="make the partial results separate with rfactor, and bind the loops of that block",
        )
    axis = loop.thread
    assert axis is not None
    spatial = [item for item in path if not _reduces(block, item.var)]
    sch = Schedule(func.replace(body=_Serial({item.var for item in path}).stmt(func.body)))
    handle = BlockHandle(block.name)
    try:
        partial = sch.rfactor(LoopHandle(loop.var), 0)
        *rows, last = sch.get_loops(handle)
        if len(rows) != len(spatial):
            raise UnsupportedError(
                "a reduction across threads needs one loop for each axis of its result",
                where=where,
                hint="split or fuse these loops after the reduction is factored (rfactor), and bind the loops of that",
            )
        if rows:
            sch.compute_at(partial, rows[-1])
        for row, old in zip(rows, spatial, strict=True):
            if old.kind is LoopKind.THREAD and old.thread is not None:
                sch.bind(row, old.thread)
        own = sch.get_loops(partial)
        lane_value = sch.block(partial).iters[0].value
        lane = next(item for item in own if item.var is lane_value)
        sch.reorder(lane, *[item for item in own[len(rows) :] if item != lane])
        sch.bind(lane, axis)
        sch.bind(last, axis)
    except ScheduleError as error:
        raise UnsupportedError(f"a reduction across threads: {error.message}", where=where, hint=error.hint) from error
    return sch.func


class _Serial(StmtRewriter):
    """Some loops, serial again."""

    def __init__(self, variables: set[Var]) -> None:
        self._variables = variables

    def visit_for(self, loop: For) -> Stmt:
        done = super().visit_for(loop)
        assert isinstance(done, For)
        return done.replace(kind=LoopKind.SERIAL, thread=None) if loop.var in self._variables else done
