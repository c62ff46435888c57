"""The values of the threads of a block combined, so that every thread has the result in a register.

    for t in thread_binding("threadIdx.x", 64):     for t in threads(64): W0[t] = P[t]
        C += P[t]                                   for t in threads(64): W1[t] = W0[t] + W0[t ^ 16]      (same warp)
                                                    ... W5[t] = W4[t] + W4[t ^ 1]
                                               ->   for t in threads(64): if t % 32 == 0: S[t // 32] = W5[t]
                                                    for t in threads(64): R[t] = S[0]; R[t] = R[t] + S[1]

Where a loop is around the threads' (results of a thread, one after the other), it is divided: first all results go to
shared memory, each to places of its own, then all are read. Threads meet once in between, not for each result.

Between the threads of a warp values go through buffers of scope `warp`, of which each thread holds an element: the
code generator makes registers and shuffles of them. Where a target has no shuffles, all partial results go through
shared memory, and a few threads combine groups of them. Readers of `C` read the `R` of their thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tilewright.ir.build import all_of, const, eq, select
from tilewright.ir.expr import TRUE, ZERO, PrimExpr, Var, const_value
from tilewright.ir.intrinsics import likely
from tilewright.ir.visit import substitute, uses_any
from tilewright.support.errors import UnsupportedError
from tilewright.tir.analysis.bindings import conjuncts
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, fresh_copy
from tilewright.tir.schedule.reducer import combining_body, match_reducer
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, LoopKind, SeqStmt, Stmt, seq

_FEW: Final = 8
"""Partial results that every thread combines by itself."""
_MOST_RESULTS: Final = 16
"""Results of a thread that are combined together."""
_GROUPS: Final = 16
"""Groups whose partial results are combined by a thread each, where there are no shuffles."""


def combine_threads(func: PrimFunc, block: Block, loop: For, nest: Stmt, warp_size: int) -> PrimFunc:
    """The function with one reduction, whose only reduction loop is over threads, made of exchanges.

    `nest` is the outermost loop around the block. `warp_size` is 1 where threads have no shuffles.
    """
    return _Combination(func, block, loop, nest, warp_size).lower()


class _Combination:
    """One reduction being lowered."""

    def __init__(self, func: PrimFunc, block: Block, loop: For, nest: Stmt, warp_size: int) -> None:
        threads, matched = const_value(loop.extent), match_reducer(block)
        if matched is None or threads is None or block.init is None:
            raise UnsupportedError(
                "a reduction across threads needs a constant number of threads and values that combine in any order",
                where=f"function {func.name}, block {block.name}",
            )
        self._func, self._block, self._loop, self._nest = func, block, loop, nest
        self._matched, self._threads, self._init = matched, threads, block.init
        self._local: list[Buffer] = []
        self._made: list[Stmt] = []
        self._before: list[Stmt] = []
        """What comes in a loop of its own over `_rows`, where there are several results."""
        whole = all(size is not None and size % warp_size == 0 for size in self._extents())
        self._warp = warp_size if loop.thread == "threadIdx.x" and whole else 1
        self._rows = _loop_around(nest, loop) if self._warp > 1 and threads > self._warp else None

    def _extents(self) -> list[int | None]:
        """The extents of all loops over the same threads: a warp takes part as a whole or not at all."""
        loops = [item for item in all_statements(self._nest) if isinstance(item, For)]
        return [const_value(item.extent) for item in loops if item.thread == self._loop.thread]

    def lower(self) -> PrimFunc:
        """The function without this reduction."""
        mapping = {item.var: item.value for item in self._block.iters}
        predicate = substitute(self._block.predicate, mapping)
        own = [substitute(source, mapping) for source in self._matched.sources]
        neutral = {store.buffer: substitute(store.value, mapping) for store in _stores(self._init)}
        places = [substitute(load, mapping) for load in self._matched.accumulators]
        if predicate is not TRUE:
            own = [
                select(predicate, value, neutral[load.buffer])
                for value, load in zip(own, self._matched.accumulators, strict=True)
            ]
        parts = self._buffers("part", self._threads)
        stores = [BufferStore(buffer, (self._loop.var,), value) for buffer, value in zip(parts, own, strict=True)]
        self._made.append(self._loop.replace(body=seq(*stores)))
        guards = [part for part in conjuncts(predicate) if not uses_any(part, [self._loop.var])]
        results = [
            load.buffer.replace(shape=(*load.buffer.shape, const(self._threads)), strides=(), scope="local")
            for load in places
        ]
        self._finish(parts, results, places, all_of(guards))
        private: dict[Buffer, Buffer] = {}
        for load, result in zip(places, results, strict=True):
            if self._is_kept(load.buffer):
                self._local.append(result)
                self._over(self._threads, partial(_store_once, load, result, guards))
            else:
                private[load.buffer] = result
        body: Stmt = seq(*self._made)
        replaced = self._loop
        if self._rows is not None:
            replaced = self._rows
            again = Var(replaced.var.name, replaced.var.dtype)
            last = replaced.replace(var=again, body=fresh_copy(body, {replaced.var: again}))
            body = seq(replaced.replace(body=seq(*self._before)), last)
        for buffer in self._local:
            body = Allocate(buffer, body)
        readers = _Readers(self._loop, replaced, body, private, self._threads)
        return self._func.replace(body=readers.stmt(self._func.body))

    def _is_kept(self, buffer: Buffer) -> bool:
        """Whether a result is needed as it is: by the caller, or by other kernels."""
        if any(param is buffer for param in self._func.params):
            return True
        inside = {id(item) for item in all_statements(self._nest)}
        return any(
            id(item) not in inside and isinstance(item, Block) and any(region.buffer is buffer for region in item.reads)
            for item in all_statements(self._func.body)
        )

    # ---------------------------------------------------------------- rounds

    def _finish(
        self, parts: list[Buffer], results: list[Buffer], places: Sequence[BufferLoad], guard: PrimExpr
    ) -> None:
        """The results of every thread from the values of all."""
        if self._warp > 1:
            warps = self._exchange(parts, self._warp)
            groups = self._threads // self._warp
            if groups == 1:
                self._chain(warps, 1, results, places, guard)
                return
            row: PrimExpr = ZERO
            count = 1
            if self._rows is not None:
                row, count = self._rows.var * groups, const_value(self._rows.extent) or 1
            held = self._buffers("warps", groups * count, "shared")
            self._over(self._threads, lambda t: self._of_warps(held, row, warps, t))
            if self._rows is not None:
                self._before, self._made = self._made, []
            if groups > _FEW and groups & (groups - 1) == 0:
                again = self._buffers("part", self._threads)
                self._over(self._threads, lambda t: _copies(again, t, held, row + t % groups))
                self._chain(self._exchange(again, groups), 1, results, places, guard)
            else:
                self._chain(held, groups, results, places, guard, row)
            return
        groups = max(count for count in range(1, _GROUPS + 1) if self._threads % count == 0)
        if self._threads <= _GROUPS or groups == 1:
            self._chain(parts, self._threads, results, places, guard)
            return
        few = self._buffers("groups", groups, "shared")
        self._over(groups, lambda t: self._run(few, (t,), parts, lambda u: u * groups + t, self._threads // groups))
        self._chain(few, groups, results, places, guard)

    def _of_warps(self, held: list[Buffer], row: PrimExpr, parts: list[Buffer], thread: Var) -> Stmt:
        """The first thread of each warp puts the warp's value where all see it: from the place `row` on."""
        return IfThenElse(eq(thread % self._warp, ZERO), _copies(held, row + thread // self._warp, parts, thread))

    def _exchange(self, parts: list[Buffer], span: int) -> list[Buffer]:
        """Every thread combines its value with that of a thread half a span away, a quarter, and so on."""
        distance = span // 2
        while distance:
            fresh = self._buffers("part", self._threads)

            seen = self._buffers("other", self._threads, "local")

            def step(
                t: Var,
                fresh: list[Buffer] = fresh,
                seen: list[Buffer] = seen,
                old: list[Buffer] = parts,
                away: int = distance,
            ) -> Stmt:
                # Read before anything is decided: all threads of a warp take part in an exchange.
                other = t // (2 * away) * (2 * away) + (t + away) % (2 * away)
                both = self._matched.combined(_loads(old, t), _loads(seen, t))
                return seq(_copies(seen, t, old, other), combining_body(_loads(fresh, t), both))

            self._over(self._threads, step)
            parts = fresh
            distance //= 2
        return parts

    def _chain(
        self,
        held: list[Buffer],
        count: int,
        results: list[Buffer],
        places: Sequence[BufferLoad],
        guard: PrimExpr,
        row: PrimExpr = ZERO,
    ) -> None:
        """Every thread combines a few values that all see, from the place `row` on; or takes its own, if it has one."""

        def step(t: Var) -> Stmt:
            index = (*places[0].indices, t)
            mine = t if count == 1 else None
            body = self._run(results, index, held, lambda u: row + u if mine is None else mine, count)
            return body if guard is TRUE else IfThenElse(guard, body)

        self._over(self._threads, step)

    def _run(
        self,
        targets: list[Buffer],
        index: tuple[PrimExpr, ...],
        held: list[Buffer],
        place: Callable[[PrimExpr], PrimExpr],
        count: int,
    ) -> Stmt:
        """`count` values combined one after another."""
        first = seq(
            *(
                BufferStore(target, index, BufferLoad(buffer, (place(ZERO),)))
                for target, buffer in zip(targets, held, strict=True)
            )
        )
        if count == 1:
            return first
        step = Var("u")
        goals = [BufferLoad(target, index) for target in targets]
        right = [BufferLoad(buffer, (place(step + 1),)) for buffer in held]
        more = combining_body(goals, self._matched.combined(goals, right))
        return seq(first, For(step, ZERO, const(count - 1), LoopKind.SERIAL, more))

    def _over(self, threads: int, body: Callable[[Var], Stmt]) -> None:
        var = Var(self._loop.var.name)
        self._made.append(For(var, ZERO, const(threads), LoopKind.THREAD, body(var), self._loop.thread))

    def _buffers(self, what: str, size: int, scope: str = "") -> list[Buffer]:
        scope = scope or ("warp" if self._warp > 1 else "shared")
        buffers = [
            Buffer(f"{load.buffer.name}_{what}", (const(size),), load.buffer.dtype, scope)
            for load in self._matched.accumulators
        ]
        self._local.extend(buffers)
        return buffers


def _stores(init: Stmt) -> list[BufferStore]:
    items = init.stmts if isinstance(init, SeqStmt) else (init,)
    return [item for item in items if isinstance(item, BufferStore)]


def _loads(buffers: Sequence[Buffer], index: PrimExpr) -> list[BufferLoad]:
    return [BufferLoad(buffer, (index,)) for buffer in buffers]


def _copies(targets: Sequence[Buffer], at: PrimExpr, sources: Sequence[Buffer], place: PrimExpr) -> Stmt:
    pairs = zip(targets, sources, strict=True)
    return seq(*(BufferStore(target, (at,), BufferLoad(source, (place,))) for target, source in pairs))


def _store_once(load: BufferLoad, result: Buffer, guards: list[PrimExpr], thread: Var) -> Stmt:
    value = BufferLoad(result, (*load.indices, thread))
    # Hidden from simplification: the place of the value is the thread's own, not the constant place of thread 0.
    first = likely(eq(thread, ZERO))
    return IfThenElse(all_of([first, *guards]), BufferStore(load.buffer, load.indices, value))


def _loop_around(nest: Stmt, loop: For) -> For | None:
    """The loop over a few results that has nothing in it but a loop over threads."""
    for item in all_statements(nest):
        if isinstance(item, For) and item.body is loop:
            plain = item.kind in (LoopKind.SERIAL, LoopKind.UNROLLED) and item.min is ZERO
            return item if plain and (const_value(item.extent) or _MOST_RESULTS + 1) <= _MOST_RESULTS else None
    return None


class _Readers(StmtRewriter):
    """A loop is replaced, and buffers by others with a place for each thread: a thread reads its own."""

    def __init__(self, loop: For, replaced: For, made: Stmt, private: dict[Buffer, Buffer], threads: int) -> None:
        self._loop, self._replaced, self._made = loop, replaced, made
        self._private, self._threads = private, threads
        self._enter(ZERO)

    def _enter(self, thread: PrimExpr) -> None:
        self._thread = thread

        def load(expr: PrimExpr) -> PrimExpr | None:
            if isinstance(expr, BufferLoad) and expr.buffer in self._private:
                return BufferLoad(self._private[expr.buffer], (*expr.indices, thread))
            return None

        self.expr = ExprRewriter(load)  # type: ignore[method-assign]

    def visit_for(self, loop: For) -> Stmt:
        """The loop itself, or one over the same threads."""
        if loop.var is self._replaced.var:
            return self._made
        extent = const_value(loop.extent)
        if loop.thread != self._loop.thread or extent is None or extent > self._threads:
            return super().visit_for(loop)
        outside = self._thread
        self._enter(loop.var)
        done = super().visit_for(loop)
        self._enter(outside)
        return done

    def visit_block(self, block: Block) -> Stmt:
        """A block: what it allocates and says it reads follows. One that no thread loop encloses is the first's."""
        alone = self._thread is ZERO and any(region.buffer in self._private for region in block.reads)
        if alone and not any(isinstance(item, (For, Block)) for item in all_statements(block.body)):
            var = Var(self._loop.var.name)
            self._enter(var)
            inside = self.visit_block(block)
            self._enter(ZERO)
            once = IfThenElse(likely(eq(var, ZERO)), inside)
            return For(var, ZERO, const(self._threads), LoopKind.THREAD, once, self._loop.thread)
        done = super().visit_block(block)
        assert isinstance(done, Block)
        reads = tuple(region for region in done.reads if region.buffer not in self._private)
        allocations = tuple(self._private.get(buffer, buffer) for buffer in done.allocations)
        return done.replace(reads=reads, allocations=allocations)
