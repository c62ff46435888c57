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
stores results, another multiplies. The side that copies needs few registers, and gives the rest to the side that
computes, unless both are to have as many. Buffers that the same statements read share barriers; others have their
own, which are waited for in front of the first reader and arrived at behind the last, so that a product begins before
what a later one reads is there:

    S[k % 2] = async_copy(A[k])                  wait(full_s[k % 2]);  sums = product(S[k % 2])
    T[k % 2] = async_copy(B[k])          ->      arrive(free_s[k % 2])
    sums = product(S[k % 2])                     wait(full_t[k % 2]);  more += product(sums, T[k % 2])
    more += product(sums, T[k % 2])              arrive(free_t[k % 2])

Copies of what lies in a row, here and there (`rewrite/bulk_copies.py`), are made by one thread at once, and `full`
counts their bytes.

Products of warp groups may still read the buffers of one iteration during the next
(`topi/intrinsics/warp_group.py`), so these are given back one iteration later.

With the annotation `BEHIND` the last products of an iteration, those that read the buffers it names, are computed in
the next one, behind its first products, and go on while threads compute with the sums of these
(`rewrite/started_products.py`); the first iteration is without them, and they alone come after the last:

    for k in range(8):                          start sums = product(S[0]);  wait for sums
        sums = product(S[k])                    P = round(sums)
        P = round(sums)                  ->     for k in range(1, 8):
        more += product(P, T[k])                    start sums = product(S[k]);  start more += product(P, T[k - 1])
                                                    wait for sums;  wait for more
                                                    P = round(sums)
                                                start more += product(P, T[7]);  wait for more
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Final

from tilewright.ir.build import add, all_of, cast, const, eq, floordiv, floormod, le, minimum, mul, sub
from tilewright.ir.dtype import HANDLE, INT32, INT64, UINT8
from tilewright.ir.expr import ZERO, Call, IntImm, PrimExpr, StringImm, Var, const_value
from tilewright.ir.intrinsics import async_wait, barrier
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, transform, uses_any
from tilewright.support.errors import UnsupportedError
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.annotations import BEHIND, ORDERED, PRODUCERS, ROLLED, without
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import machine_call
from tilewright.tir.rewrite.bulk_copies import BulkCopy, bulk_copy
from tilewright.tir.rewrite.started_products import StartedProducts, depend, started
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements, fresh_copy, substitute_stmt
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq
from tilewright.tir.warp_instructions import (
    BULK_COPY,
    FENCE,
    GROUP,
    WARP,
    goes_on,
    reads_by_itself,
)

_WORD_BYTES: Final = 4
"""Bytes that a copy has at least that comes later."""


def specialize_warps(func: PrimFunc) -> PrimFunc:
    """The function with a warp group more in each kernel whose pipeline asks for one."""
    if not any(PRODUCERS.is_on(item) for item in all_statements(func.body)):
        return func
    return func.replace(body=_Kernels(func.name).stmt(func.body))


class _Kernels(StmtRewriter):
    def __init__(self, where: str) -> None:
        self._where = where

    def visit_for(self, loop: For) -> Stmt:
        if not _is_of_threads(loop):
            return super().visit_for(loop)
        found = [item for item in all_statements(loop) if PRODUCERS.is_on(item)]
        if not found:
            return loop
        groups, *threads = _thread_nest(loop)
        sizes = [loop.extent.value for loop in threads if isinstance(loop.extent, IntImm)]
        if len(found) != 1 or not threads or prod(sizes) != GROUP:
            raise UnsupportedError(
                "threads that copy for others need one pipeline, and an axis of warp groups",
                where=f"function {self._where}",
            )
        return _Kernel(self._where, groups, threads).specialized()


def _is_of_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and (stmt.thread or "").startswith("threadIdx")


def _thread_nest(loop: For) -> list[For]:
    """A loop over threads and those just inside it."""
    nest = [loop]
    while isinstance(inner := nest[-1].body, For) and _is_of_threads(inner):
        nest.append(inner)
    return nest


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Buffers that the same statements read, and the barriers of their copies."""

    copies: list[Stmt]
    """What fills them, thread by thread."""
    bulk: list[BulkCopy]
    """What fills the others, of which a thread copies as much as all do."""
    first: int
    """The first of the statements that read them, by its number, and the last one."""
    last: int
    stages: int
    """Copies of each buffer: so many barriers say that one is full, and as many that it is free."""
    start: int
    """The number of the first barrier."""
    by_themselves: bool
    """Whether products read them, by instructions of a whole warp."""
    read_later: bool
    """Whether these may go on during the next iteration."""


@dataclass(slots=True)
class _Kernel:
    """A kernel whose loop over warp groups is `groups`, and `threads` those over the threads of one."""

    where: str
    groups: For
    threads: list[For]
    rounds: For | None = None
    """The loop around the pipeline: what a block computes one after the other."""
    counter: Buffer | None = None
    """The iterations of earlier rounds, as each thread counts them where rounds do not all end with the last copies
    of the buffers: up to the number after which barriers are as they were."""
    period: int = 1
    """That number."""

    def specialized(self) -> Stmt:
        """The loop over warp groups, with one more; barriers are around it."""
        body, private = self.threads[-1].body, []
        while isinstance(body, Allocate):
            private.append(body.buffer)
            body = body.body
        if isinstance(body, For) and body.kind is LoopKind.SERIAL and not PRODUCERS.is_on(body):
            self.rounds, body = body, body.body
        before, pipeline, after = self._parts(body)
        copies, products = self._sides(pipeline)
        exchanges = self._exchanges(pipeline, copies, products)
        extent = const_value(pipeline.extent)
        if self.rounds is not None and (extent is None or any(extent % item.stages for item in exchanges)):
            if any(item.read_later for item in exchanges):
                raise self._refuse("a round ends between two copies of the buffers")
            self.period = 2 * lcm(*(item.stages for item in exchanges))
            self.counter = Buffer("steps", (const(1),), UINT8, "local")
            private.append(self.counter)
        places = Buffer("barriers", (const(sum(2 * item.stages for item in exchanges)),), INT64, "shared")
        count = self.groups.extent
        assert isinstance(count, IntImm)
        less, more = PRODUCERS.of(pipeline) or (0, 0)
        first = all_of([eq(loop.var, ZERO) for loop in (self.groups, *self.threads)])
        copying = fresh_copy(self._producers(pipeline, exchanges, places), {})
        producing = self._in_rounds(copying, pipeline)
        ahead = self._ahead(before, pipeline, products, after)
        meanwhile = self._of_next_round(ahead)
        consuming = self._consumers(pipeline, products, exchanges, places, meanwhile)
        rest = [item for item in before if item not in ahead]
        computing = seq(*self._of_first_round(ahead), self._in_rounds(seq(*rest, consuming, *after), pipeline))
        if less != more:
            producing = seq(Evaluate(machine_call(f"cuda.registers.less.{less}")), producing)
            computing = seq(Evaluate(machine_call(f"cuda.registers.more.{more}")), computing)
        result = seq(
            IfThenElse(first, seq(*self._starts(exchanges, places, count.value))),
            Evaluate(barrier("shared")),
            *self._first_copies(pipeline, exchanges, places),
            IfThenElse(eq(self.groups.var, count), producing, computing),
        )
        for buffer in reversed(private):
            result = Allocate(buffer, result)
        for loop in reversed(self.threads):
            result = loop.replace(body=result)
        return Allocate(places, self.groups.replace(extent=add(count, const(1)), body=result))

    def _starts(self, exchanges: list[_Exchange], places: Buffer, groups: int) -> list[Stmt]:
        """Barriers are started: all threads that copy arrive at one, or all that read, or a thread of each warp.

        The thread that makes bulk copies arrives once more, when it says how many bytes are to come.
        """
        result: list[Stmt] = []
        for item in exchanges:
            arrivals = groups * GROUP // (WARP if item.by_themselves else 1)
            copying = GROUP + (1 if item.bulk else 0)
            for number in range(2 * item.stages):
                awaited = const(copying if number < item.stages else arrivals, INT32)
                result.append(self._call("start", places, const(item.start + number), awaited))
        return [*result, Evaluate(machine_call("cuda.mbarrier.started"))]

    def _in_rounds(self, body: Stmt, pipeline: For) -> Stmt:
        """Statements as often as the pipeline runs; its iterations are counted where they have to be."""
        if self.rounds is None:
            return body
        if self.counter is not None:
            counted = floormod(add(self._counted(self.counter), pipeline.extent), const(self.period))
            body = seq(body, BufferStore(self.counter, (ZERO,), cast(counted, UINT8)))
        turn = Var(self.rounds.var.name, self.rounds.var.dtype)
        inside = substitute_stmt(body, {self.rounds.var: turn})
        rounds = self.rounds.replace(var=turn, body=inside, annotations=self.rounds.annotations | ROLLED.entry(True))
        return rounds if self.counter is None else seq(BufferStore(self.counter, (ZERO,), const(0, UINT8)), rounds)

    def _ahead(self, before: list[Stmt], pipeline: For, products: list[Stmt], after: list[Stmt]) -> list[Stmt]:
        """What threads read from memory in front of the pipeline, and need no more when its loop is over: in rounds
        they read it then for the next one, while the last products go on and results are written."""
        if self.rounds is None:
            return []
        last = [*(products[number] for number in self._behind(pipeline, products)), *after]
        written = set(_stored(self.groups))

        def is_ahead(item: Stmt) -> bool:
            others = [other for other in [*before, *last] if other is not item]
            is_kept = all(buffer.scope == "local" for buffer in _stored(item)) and not _loaded(item) & written
            return is_kept and bool(_loaded(item)) and not any(touches(b, s) for b in _stored(item) for s in others)

        return [item for item in before if is_ahead(item)]

    def _of_first_round(self, stmts: list[Stmt]) -> list[Stmt]:
        """Statements for the first round."""
        return [fresh_copy(item, {self.rounds.var: self.rounds.min}) for item in stmts if self.rounds is not None]

    def _of_next_round(self, stmts: list[Stmt]) -> list[Stmt]:
        """Statements for the round after the present one; for the last one again if there is none."""
        if self.rounds is None:
            return []
        following = minimum(add(self.rounds.var, const(1)), add(self.rounds.min, sub(self.rounds.extent, const(1))))
        return [fresh_copy(item, {self.rounds.var: following}) for item in stmts]

    def _counted(self, counter: Buffer) -> PrimExpr:
        """The iterations of earlier rounds, as far as barriers tell them apart."""
        return cast(BufferLoad(counter, (ZERO,)), INT64)

    def _step(self, pipeline: For, at: PrimExpr) -> PrimExpr:
        """How many iterations come before one, those of earlier rounds included: barriers go on from round to round."""
        step = sub(at, pipeline.min)
        if self.rounds is None:
            return step
        if self.counter is not None:
            return add(self._counted(self.counter), step)
        return add(mul(sub(self.rounds.var, self.rounds.min), pipeline.extent), step)

    def _at(self, pipeline: For, stmt: Stmt, at: PrimExpr) -> Stmt:
        """A statement of an iteration; where iterations are counted, with the copies of the buffers that are next."""
        stmt = fresh_copy(stmt, {pipeline.var: at})
        if self.counter is None:
            return stmt
        names, step = ORDERED.of(pipeline) or (), self._step(pipeline, at)

        def visit(item: Node) -> Node | None:
            if not isinstance(item, (BufferLoad, BufferStore)) or item.buffer.name not in names:
                return None
            return item.replace(indices=(floormod(step, item.buffer.shape[0]), *item.indices[1:]))

        return transform(stmt, visit)

    def _refuse(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"no warp group can copy for others: {why}", where=f"function {self.where}")

    def _parts(self, body: Stmt) -> tuple[list[Stmt], For, list[Stmt]]:
        """What comes before the pipeline, it, and what comes after."""
        items = _in_order(body)
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
        items = _in_order(pipeline.body)
        copies = [item for item in items if any(buffer.name in names for buffer in _stored(item))]
        products = [item for item in items if item not in copies]
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
        is_only = self.groups.extent is const(1)
        return substitute_stmt(stmt, {self.groups.var: ZERO}) if guarded or is_only else stmt

    def _exchanges(self, pipeline: For, copies: list[Stmt], products: list[Stmt]) -> list[_Exchange]:
        """The buffers of the pipeline, by the statements that read them."""
        names = ORDERED.of(pipeline) or ()
        groups: dict[tuple[int, ...], list[Stmt]] = {}
        for copy in copies:
            buffers = {buffer for buffer in _stored(copy) if buffer.name in names}
            readers = [n for n, item in enumerate(products) if any(touches(buffer, item) for buffer in buffers)]
            groups.setdefault((readers[0], readers[-1]) if readers else (0, len(products) - 1), []).append(copy)
        result: list[_Exchange] = []
        start = 0
        for (first, last), filling in groups.items():
            stages = self._stages(filling, names)
            calls = _products_of(products, {buffer for copy in filling for buffer in _stored(copy)})
            later = any(goes_on(name) for name in calls)
            # That products of the iteration before are done is known at the end of this one.
            first, last = (0, len(products) - 1) if later else (first, last)
            single, bulk = self._in_bulk(filling)
            result.append(_Exchange(single, bulk, first, last, stages, start, bool(calls), later))
            start += 2 * stages
        if not result:
            raise self._refuse("nothing is copied")
        return result

    def _in_bulk(self, copies: list[Stmt]) -> tuple[list[Stmt], list[BulkCopy]]:
        """The copies that threads make one by one, and those that one thread makes."""
        single: list[Stmt] = []
        bulk: list[BulkCopy] = []
        for copy in copies:
            found = bulk_copy(copy, self.threads[-1].var, GROUP) if len(self.threads) == 1 else None
            if found is None:
                single.append(copy)
            else:
                bulk.append(found)
        return single, bulk

    def _stages(self, copies: list[Stmt], names: tuple[str, ...]) -> int:
        counts = {buffer.shape[0] for copy in copies for buffer in _stored(copy) if buffer.name in names}
        if len(counts) != 1:
            raise self._refuse("buffers have different numbers of copies")
        (count,) = counts
        assert isinstance(count, IntImm)
        return count.value

    def _call(self, name: str, places: Buffer, number: PrimExpr, *rest: PrimExpr) -> Stmt:
        """An instruction on a barrier."""
        return Evaluate(machine_call(f"cuda.mbarrier.{name}", self._pointer(places), cast(number, INT32), *rest))

    def _pointer(self, places: Buffer) -> PrimExpr:
        first, last = (BufferLoad(places, (const(n),)) for n in (0, self._count(places) - 1))
        return Call("access_ptr", (StringImm("rw"), first, last), HANDLE)

    def _count(self, places: Buffer) -> int:
        (count,) = places.shape
        assert isinstance(count, IntImm)
        return count.value

    def _producers(self, pipeline: For, exchanges: list[_Exchange], places: Buffer) -> Stmt:
        time = Var(pipeline.var.name, pipeline.var.dtype)
        step = self._step(pipeline, time)
        body: list[Stmt] = []
        for item in exchanges:
            slot, turn = floormod(step, const(item.stages)), floordiv(step, const(item.stages))
            full, free = add(slot, const(item.start)), add(slot, const(item.start + item.stages))
            # Before the first turn all is free, as it is after phases of the other parity.
            parity = cast(floormod(add(turn, const(1)), const(2)), INT32)
            done: list[Stmt] = [self._call("copied", places, full)]
            if not all(_is_asynchronous(copy) for copy in item.copies):
                # What threads store themselves is there when they say so.
                done = [Evaluate(async_wait(0)), Evaluate(machine_call(FENCE)), self._call("arrive", places, full)]
            moved = [self._at(pipeline, copy, time) for copy in item.copies]
            later = le(const(self._early(pipeline, item)), step)
            at_once = [self._at(pipeline, self._bulk(item, places, full, later), time)] if item.bulk else []
            body += [self._call("wait", places, free, parity), *at_once, *moved, *done]
        return self._loop(pipeline, time, seq(*body), exchanges)

    def _loop(self, pipeline: For, time: Var, body: Stmt, exchanges: list[_Exchange]) -> Stmt:
        """A loop over the iterations of a pipeline. Where copies of buffers are no power of two, a turn of as many is
        written out: the rest of a division would be in registers of threads, and products wait long for places from
        there. Not where several groups compute and threads copy all: code for so many places in windows takes longer.
        """
        kept = without(pipeline, PRODUCERS, ORDERED, BEHIND)
        loop = pipeline.replace(var=time, kind=LoopKind.SERIAL, body=body, annotations=kept)
        stages, steps = exchanges[0].stages, const_value(pipeline.extent)
        is_short = self.groups.extent is const(1) or bool(exchanges[0].bulk)
        if stages & (stages - 1) == 0 or len(exchanges) > 1 or steps is None or not is_short:
            return loop
        whole, rest = divmod(steps, stages)

        def turn(number: PrimExpr, count: int) -> Stmt:
            slot = Var(f"{time.name}_slot", time.dtype)
            at = add(pipeline.min, add(mul(number, const(stages)), slot))
            return For(slot, ZERO, const(count), LoopKind.UNROLLED, fresh_copy(body, {time: at}))

        var = Var(f"{time.name}_turn", time.dtype)
        turns = loop.replace(var=var, min=ZERO, extent=const(whole), body=turn(var, stages))
        return seq(turns, turn(const(whole), rest)) if rest else turns

    def _bulk(self, item: _Exchange, places: Buffer, full: PrimExpr, condition: PrimExpr) -> Stmt:
        """What the first thread copies of an iteration, if a condition holds."""
        steps = [self._call("expect", places, full, const(sum(copy.nbytes for copy in item.bulk), INT32))]
        for copy in item.bulk:
            arguments = [*copy.pointers(), const(copy.nbytes, INT32), self._pointer(places), cast(full, INT32)]
            steps.append(Evaluate(machine_call(BULK_COPY, *arguments)))
        return IfThenElse(all_of([eq(self.threads[-1].var, ZERO), condition]), seq(*steps))

    def _early(self, pipeline: For, item: _Exchange) -> int:
        """How many iterations' bulk copies are made before the pipeline: as many as there is room for.

        None where iterations are counted: the first ones are not told from others.
        """
        return 0 if self.counter is not None else min(item.stages, const_value(pipeline.extent) or 0)

    def _first_copies(self, pipeline: For, exchanges: list[_Exchange], places: Buffer) -> list[Stmt]:
        """The first bulk copies, in front of all that reads what earlier kernels write.

        What lies in a row are mostly weights, which need not be waited for (`codegen/c/release.py`).
        """
        producer = eq(self.groups.var, self.groups.extent)
        result: list[Stmt] = []
        for item in exchanges:
            for step in range(self._early(pipeline, item) if item.bulk else 0):
                at = {pipeline.var: add(pipeline.min, const(step))}
                if self.rounds is not None:
                    at[self.rounds.var] = self.rounds.min
                copies = self._bulk(item, places, const(item.start + step), producer)
                result.append(fresh_copy(copies, at))
        return result

    def _consumers(
        self,
        pipeline: For,
        products: list[Stmt],
        exchanges: list[_Exchange],
        places: Buffer,
        meanwhile: Sequence[Stmt],
    ) -> Stmt:
        """The loop of those that compute, and what they do after it; where some products are behind, one iteration of
        theirs comes last."""
        time = Var(pipeline.var.name, pipeline.var.dtype)
        behind = self._behind(pipeline, products)

        def iteration(numbers: Sequence[int], at: PrimExpr, beside: Sequence[Stmt] = ()) -> Stmt:
            before = sub(at, const(1))
            items = [(number, before if number in behind else at) for number in numbers]
            return self._computed(pipeline, products, items, exchanges, places, beside)

        if not behind:
            return seq(self._loop(pipeline, time, iteration(range(len(products)), time), exchanges), *meanwhile)
        place = 1 + max(item.last for item in exchanges if item.by_themselves and item.first not in behind)
        front, rest = range(place), range(place, behind[0])
        if any(depend(products[one], products[other]) for one in front for other in behind):
            raise self._refuse("products need what others compute in the next iteration")
        start, end = pipeline.min, add(pipeline.min, pipeline.extent)
        fewer = pipeline.replace(min=add(start, const(1)), extent=sub(pipeline.extent, const(1)))
        return seq(
            iteration([*front, *rest], start),
            self._loop(fewer, time, iteration([*front, *behind, *rest], time), exchanges),
            iteration(behind, end, meanwhile),
        )

    def _behind(self, pipeline: For, products: list[Stmt]) -> list[int]:
        """The statements of an iteration, by their numbers, that are computed in the next one."""
        names = BEHIND.of(pipeline) or ()
        found = [n for n, item in enumerate(products) if any(buffer.name in names for buffer in _loaded(item))]
        if found != list(range(len(products) - len(found), len(products))):
            raise self._refuse("products that are behind others do not come last")
        return found

    def _computed(
        self,
        pipeline: For,
        products: list[Stmt],
        items: list[tuple[int, PrimExpr]],
        exchanges: list[_Exchange],
        places: Buffer,
        beside: Sequence[Stmt],
    ) -> Stmt:
        """Statements (by their numbers) of some iterations, between the barriers of what they read, and others while
        their products go on."""
        stmts = [*(self._at(pipeline, products[number], at) for number, at in items), *beside]
        every = list(range(len(stmts)))
        computed = started(stmts) if BEHIND.is_on(pipeline) else StartedProducts(stmts, every, every)
        around: list[tuple[list[Stmt], list[Stmt]]] = [([], []) for _ in computed.stmts]
        for item in exchanges:
            for position, (number, at) in enumerate(items):
                step = self._step(pipeline, at)
                if number == item.first:
                    around[computed.places[position]][0].extend(self._awaited(item, step, places))
                if number == item.last:
                    around[computed.done[position]][1].append(self._given_back(item, step, places))
        together = zip(around, computed.stmts, strict=True)
        return seq(*[part for (before, after), stmt in together for part in (*before, stmt, *after)])

    def _awaited(self, item: _Exchange, step: PrimExpr, places: Buffer) -> list[Stmt]:
        """What is read has been copied."""
        slot, turn = floormod(step, const(item.stages)), floordiv(step, const(item.stages))
        parity = cast(floormod(turn, const(2)), INT32)
        wait = self._call("wait", places, add(slot, const(item.start)), parity)
        return [wait, Evaluate(machine_call(FENCE))] if item.by_themselves else [wait]

    def _given_back(self, item: _Exchange, step: PrimExpr, places: Buffer) -> Stmt:
        """What has been read may be overwritten.

        The threads of a warp wait for products together, and one speaks for all; threads that read for themselves speak
        for themselves.
        """
        read = sub(step, const(1)) if item.read_later else step
        slot = floormod(read, const(item.stages))
        given = self._call("arrive", places, add(slot, const(item.start + item.stages)))
        leader = [eq(floormod(self.threads[-1].var, const(WARP)), ZERO)] if item.by_themselves else []
        started = [le(ZERO, read)] if item.read_later else []
        return IfThenElse(all_of([*started, *leader]), given) if started or leader else given


def _in_order(stmt: Stmt) -> list[Stmt]:
    """Statements that follow each other."""
    return list(stmt.stmts) if isinstance(stmt, SeqStmt) else [stmt]


def _loads(item: Node, buffers: Collection[Buffer]) -> int:
    """How often some buffers are read."""
    return sum(isinstance(part, BufferLoad) and part.buffer in buffers for part in pre_order(item))


def _products_of(stmts: Sequence[Stmt], buffers: Collection[Buffer]) -> list[str]:
    """The names of the products that read some buffers by themselves; none where threads read them too."""
    calls = [
        part for item in stmts for part in pre_order(item) if isinstance(part, Call) and reads_by_itself(part.name)
    ]
    readers = [call for call in calls if _loads(call, buffers)]
    alone = sum(_loads(call, buffers) for call in readers) == sum(_loads(item, buffers) for item in stmts)
    return [call.name for call in readers] if alone else []


def _is_asynchronous(stmt: Stmt, lanes: int = 1) -> bool:
    """Whether all that a statement stores are copies that come later: of a word at least."""
    match stmt:
        case BufferStore():
            is_copy = isinstance(stmt.value, Call) and stmt.value.name == "async_copy"
            return is_copy and lanes * stmt.buffer.dtype.itemsize >= _WORD_BYTES
        case For():
            count = const_value(stmt.extent) if stmt.kind is LoopKind.VECTORIZED else None
            return _is_asynchronous(stmt.body, lanes * (count or 1))
        case SeqStmt():
            return all(_is_asynchronous(item, lanes) for item in stmt.stmts)
        case IfThenElse(else_body=None):
            return _is_asynchronous(stmt.then_body, lanes)
        case _:
            return False


def _stored(stmt: Stmt) -> list[Buffer]:
    return [item.buffer for item in all_statements(stmt) if isinstance(item, BufferStore)]


def _loaded(stmt: Stmt) -> set[Buffer]:
    return {item.buffer for item in pre_order(stmt) if isinstance(item, BufferLoad)}
