"""Warp specialisation: a warp group of its own makes the copies of a software pipeline, the others compute.

    for k in range(8):  # producers                      if threadIdx.y == 2:              (one group more than before)
        S[k % 3] = async_copy(A[k])                          for k in range(8):
        sums += product(S[k % 3])              ->                wait(free[k % 3]);  S[k % 3] = async_copy(A[k])
    B = sums                                                     copied(full[k % 3])
                                                         else:
                                                             for k in range(8):
                                                                 wait(full[k % 3]);  sums += product(S[k % 3])
                                                                 if k > 0: arrive(free[(k - 1) % 3])
                                                             B = sums

Barriers in shared memory order the two sides, two for each copy of the buffers: `full` is complete when all copies of
an iteration are there, `free` when all warps have read them. So groups that compute need not meet: while one waits or
stores results, another multiplies. Products of warp groups may still read the buffers of one iteration during the
next (`topi/intrinsics/warp_group.py`), so these are given back one iteration later. The side that copies needs few
registers, and gives the rest to the side that computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.build import add, all_of, cast, const, eq, floordiv, floormod, le, sub
from tilewright.ir.dtype import HANDLE, INT32, INT64
from tilewright.ir.expr import ZERO, Call, IntImm, PrimExpr, StringImm, Var
from tilewright.ir.intrinsics import async_wait, barrier
from tilewright.ir.visit import pre_order, uses_any
from tilewright.support.errors import UnsupportedError
from tilewright.tir.annotations import ORDERED, PRODUCERS, without
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import machine_call
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements, fresh_copy, substitute_stmt
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq
from tilewright.tir.warp_instructions import FENCE, GROUP, WARP, reads_by_itself

_GROUPS, _THREADS = "threadIdx.y", "threadIdx.x"
"""The axes of warp groups, and of the threads of one."""


def specialize_warps(func: PrimFunc) -> PrimFunc:
    """The function with a warp group more in each kernel whose pipeline asks for one."""
    if not any(PRODUCERS.is_on(item) for item in all_statements(func.body)):
        return func
    return func.replace(body=_Kernels(func.name).stmt(func.body))


class _Kernels(StmtRewriter):
    def __init__(self, where: str) -> None:
        self._where = where

    def visit_for(self, loop: For) -> Stmt:
        if loop.thread != _GROUPS:
            return super().visit_for(loop)
        found = [item for item in all_statements(loop) if PRODUCERS.is_on(item)]
        if not found:
            return loop
        threads = loop.body
        if len(found) != 1 or not isinstance(threads, For) or threads.thread != _THREADS:
            raise UnsupportedError("threads that copy for others need one pipeline", where=f"function {self._where}")
        return _Kernel(self._where, loop, threads).specialized()


@dataclass(slots=True)
class _Kernel:
    """A kernel whose loop over warp groups is `groups`, and `threads` that over the threads of one."""

    where: str
    groups: For
    threads: For

    def specialized(self) -> Stmt:
        """The loop over warp groups, with one more; barriers are around it."""
        body, private = self.threads.body, []
        while isinstance(body, Allocate):
            private.append(body.buffer)
            body = body.body
        before, pipeline, after = self._parts(body)
        copies, products = self._sides(pipeline)
        stages = self._stages(pipeline)
        places = Buffer("barriers", (const(2 * stages),), INT64, "shared")
        count = self.groups.extent
        assert isinstance(count, IntImm)
        arrivals = count.value * GROUP // (WARP if _read_by_themselves(products) else 1)
        less, more = PRODUCERS.of(pipeline) or (0, 0)
        first = all_of([eq(self.groups.var, ZERO), eq(self.threads.var, ZERO)])
        start = [
            *(self._call("start", places, const(n), const(GROUP, INT32)) for n in range(stages)),
            *(self._call("start", places, const(n + stages), const(arrivals, INT32)) for n in range(stages)),
            Evaluate(machine_call("cuda.mbarrier.started")),
        ]
        producing = seq(
            Evaluate(machine_call(f"cuda.registers.less.{less}")), self._producers(pipeline, copies, places, stages)
        )
        computing = seq(
            Evaluate(machine_call(f"cuda.registers.more.{more}")),
            *before,
            self._consumers(pipeline, products, places, stages),
            *after,
        )
        result = seq(
            IfThenElse(first, seq(*start)),
            Evaluate(barrier("shared")),
            IfThenElse(eq(self.groups.var, count), producing, computing),
        )
        for buffer in reversed(private):
            result = Allocate(buffer, result)
        threads = self.threads.replace(body=result)
        return Allocate(places, self.groups.replace(extent=add(count, const(1)), body=threads))

    def _refuse(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"no warp group can copy for others: {why}", where=f"function {self.where}")

    def _parts(self, body: Stmt) -> tuple[list[Stmt], For, list[Stmt]]:
        """What comes before the pipeline, it, and what comes after."""
        items = list(body.stmts) if isinstance(body, SeqStmt) else [body]
        number = next((number for number, item in enumerate(items) if PRODUCERS.is_on(item)), None)
        if number is None:
            raise self._refuse("the pipeline is inside other loops")
        pipeline = items[number]
        assert isinstance(pipeline, For)
        others = [*items[:number], *items[number + 1 :]]
        if any(isinstance(item, Call) and item.name == "barrier" for other in others for item in pre_order(other)):
            raise self._refuse("threads meet outside the pipeline")
        return items[:number], pipeline, items[number + 1 :]

    def _sides(self, pipeline: For) -> tuple[list[Stmt], list[Stmt]]:
        """The statements that fill the buffers of the pipeline, by the first group; the others."""
        names = ORDERED.of(pipeline) or ()
        items = pipeline.body.stmts if isinstance(pipeline.body, SeqStmt) else (pipeline.body,)
        copies = [item for item in items if any(buffer.name in names for buffer in _stored(item))]
        products = [item for item in items if item not in copies]
        if self.groups.extent is not const(1):
            copies = [self._alone(item) for item in copies]
        for item in copies:
            if uses_any(item, [self.groups.var]):
                raise self._refuse("several groups share the copies")
        return copies, products

    def _alone(self, stmt: Stmt) -> Stmt:
        """A statement of the first group as that of the group that does nothing else."""
        first = eq(self.groups.var, ZERO)
        conditions = [item.condition for item in all_statements(stmt) if isinstance(item, IfThenElse)]
        guarded = any(part is first for condition in conditions for part in pre_order(condition))
        return substitute_stmt(stmt, {self.groups.var: ZERO}) if guarded else stmt

    def _stages(self, pipeline: For) -> int:
        names = ORDERED.of(pipeline) or ()
        counts = {buffer.shape[0] for buffer in _stored(pipeline) if buffer.name in names}
        if len(counts) != 1:
            raise self._refuse("buffers have different numbers of copies")
        (count,) = counts
        assert isinstance(count, IntImm)
        return count.value

    def _call(self, name: str, places: Buffer, number: PrimExpr, *rest: PrimExpr) -> Stmt:
        """An instruction on a barrier."""
        first, last = (BufferLoad(places, (const(n),)) for n in (0, self._count(places) - 1))
        pointer = Call("access_ptr", (StringImm("rw"), first, last), HANDLE)
        return Evaluate(machine_call(f"cuda.mbarrier.{name}", pointer, cast(number, INT32), *rest))

    def _count(self, places: Buffer) -> int:
        (count,) = places.shape
        assert isinstance(count, IntImm)
        return count.value

    def _producers(self, pipeline: For, copies: list[Stmt], places: Buffer, stages: int) -> Stmt:
        time = Var(pipeline.var.name, pipeline.var.dtype)
        step = sub(time, pipeline.min)
        slot, turn = floormod(step, const(stages)), floordiv(step, const(stages))
        moved = [fresh_copy(item, {pipeline.var: time}) for item in copies]
        # Before the first turn all is free, as it is after phases of the other parity.
        free = cast(floormod(add(turn, const(1)), const(2)), INT32)
        stores = [item for copy in copies for item in all_statements(copy) if isinstance(item, BufferStore)]
        asynchronous = all(isinstance(item.value, Call) and item.value.name == "async_copy" for item in stores)
        done: list[Stmt] = [self._call("copied", places, slot)]
        if not asynchronous:
            # What threads store themselves is there when they say so.
            done = [Evaluate(async_wait(0)), Evaluate(machine_call(FENCE)), self._call("arrive", places, slot)]
        body = seq(self._call("wait", places, add(slot, const(stages)), free), *moved, *done)
        return _loop(pipeline, time, body)

    def _consumers(self, pipeline: For, products: list[Stmt], places: Buffer, stages: int) -> Stmt:
        time = Var(pipeline.var.name, pipeline.var.dtype)
        step = sub(time, pipeline.min)
        slot, turn = floormod(step, const(stages)), floordiv(step, const(stages))
        moved = [fresh_copy(item, {pipeline.var: time}) for item in products]
        by_themselves = _read_by_themselves(products)
        # Products may go on during the next iteration. The threads of a warp wait for them together, and one speaks for
        # all; threads that read for themselves speak for themselves.
        read = sub(step, const(1)) if by_themselves else step
        leader = eq(floormod(self.threads.var, const(WARP)), ZERO)
        given = self._call("arrive", places, add(floormod(read, const(stages)), const(stages)))
        body = seq(
            self._call("wait", places, slot, cast(floormod(turn, const(2)), INT32)),
            *([Evaluate(machine_call(FENCE))] if by_themselves else []),
            *moved,
            IfThenElse(all_of([le(ZERO, read), leader]), given) if by_themselves else given,
        )
        return _loop(pipeline, time, body)


def _loop(pipeline: For, time: Var, body: Stmt) -> For:
    return pipeline.replace(
        var=time, kind=LoopKind.SERIAL, body=body, annotations=without(pipeline, PRODUCERS, ORDERED)
    )


def _read_by_themselves(products: list[Stmt]) -> bool:
    """Whether instructions read shared memory on a path of their own, and may go on during the next iteration."""
    return any(isinstance(x, Call) and reads_by_itself(x.name) for item in products for x in pre_order(item))


def _stored(stmt: Stmt) -> list[Buffer]:
    return [item.buffer for item in all_statements(stmt) if isinstance(item, BufferStore)]
