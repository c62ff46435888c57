"""Kernels take the form a GPU runs: one program for all threads, with memory and barriers where threads meet.

    for bx in thread_binding("blockIdx.x", 4):               for bx in thread_binding("blockIdx.x", 4):
        S = alloc((32,), "shared")                               S = alloc((32,), "shared")
        for t in thread_binding("threadIdx.x", 32):              for tx in thread_binding("threadIdx.x", 32):
            S[t] = A[bx * 32 + t]                         ->         S[tx] = A[bx * 32 + tx]
        for u in thread_binding("threadIdx.x", 16):                  barrier("shared")
            B[bx * 16 + u] = S[u] + S[31 - u]                        if tx < 16:
                                                                         B[bx * 16 + tx] = S[tx] + S[31 - tx]

Each statement at the top becomes one kernel; loops around such statements are left to the host, which launches the
kernels in every step. All loops over one axis become one set of threads, as many as the longest
of them has; shorter loops are guarded, and what no thread loop encloses is done by the first thread. The iterations of
one thread loop are independent (`bind` proves it), so threads exchange data only between different thread loops:
there, and only in code that all threads reach, barriers are placed. A buffer of a block in which every thread keeps to
its own elements is private to the thread (`local`), any other is `shared`; buffers that several kernels use are
`global`. Buffers of scope `warp`, which `combine_threads` makes, stay so: their threads meet without a barrier.

Loops over `clusterIdx.x` are over the blocks of one cluster. They come one after another as loops over threads do; what
the blocks exchange is `shared.cluster` (each holds the part that it writes), and they meet at barriers of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, permutations
from typing import Final

from tilewright.ir.build import all_of, const, eq, logical_not, lt
from tilewright.ir.expr import ZERO, Call, IntImm, PrimExpr, StringImm, Var
from tilewright.ir.intrinsics import barrier, likely
from tilewright.ir.visit import pre_order, uses_any
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.tir.analysis.bindings import conjuncts
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.annotations import ORDERED
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.machine import machine_call
from tilewright.tir.passes.inject_virtual_threads import is_apart
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, substitute_stmt
from tilewright.tir.stmt import (
    Allocate,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    LoopKind,
    SeqStmt,
    Stmt,
    seq,
)
from tilewright.tir.warp_instructions import FENCE, reads_by_itself

BLOCK_AXES: Final = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
THREAD_AXES: Final = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
CLUSTER_AXIS: Final = "clusterIdx.x"
"""The place of a block in its cluster: blocks that run together and read each other's shared memory."""


@dataclass(frozen=True, slots=True)
class BindThreadsOptions:
    """What a device takes."""

    max_threads: int
    """Threads of a block at most."""


def bind_threads(func: PrimFunc, options: BindThreadsOptions) -> PrimFunc:
    """The function as a sequence of kernels: blocks, their shared memory, threads, and what each thread does."""
    allocated: dict[Buffer, tuple[For, ...]] = {}
    statements = _top_statements(func.body, allocated, ())
    inside = [_owned(allocated, statements, number) for number in range(len(statements))]
    workspaces = [buffer for buffer in allocated if not any(buffer in owned for owned in inside)]
    bound = [
        _Top(_Kernel(func.name, options.max_threads, buffers=owned).bind(top.stmt), top.loops)
        for top, owned in zip(statements, inside, strict=True)
    ]
    kernels = _in_loops(bound, 0)
    scopes = {buffer: buffer.replace(scope="global") for buffer in workspaces if buffer.scope != "global"}
    body = _Rescope(scopes).stmt(seq(*kernels))
    for buffer in reversed(workspaces):
        body = Allocate(scopes.get(buffer, buffer), body)
    return func.replace(body=body)


@dataclass(frozen=True, slots=True)
class _Top:
    """A statement that becomes a kernel, and the loops around it, whose steps the host runs."""

    stmt: Stmt
    loops: tuple[For, ...]


def _owned(buffers: dict[Buffer, tuple[For, ...]], statements: Sequence[_Top], number: int) -> list[Buffer]:
    """The buffers that belong to each block of a kernel: nothing else uses them, and blocks are independent."""
    top = statements[number]
    if not _has_blocks(top.stmt):
        return []
    others = [other.stmt for n, other in enumerate(statements) if n != number]
    return [
        buffer
        for buffer, loops in buffers.items()
        if loops == top.loops and touches(buffer, top.stmt) and not any(touches(buffer, o) for o in others)
    ]


def _in_loops(kernels: Sequence[_Top], depth: int) -> list[Stmt]:
    """Kernels in the loops around them, from a depth on."""
    result: list[Stmt] = []
    for loop, group in groupby(kernels, lambda top: top.loops[depth] if len(top.loops) > depth else None):
        inner = list(group)
        if loop is None:
            result += [top.stmt for top in inner]
        else:
            result.append(loop.replace(kind=LoopKind.SERIAL, body=seq(*_in_loops(inner, depth + 1))))
    return result


def _top_statements(stmt: Stmt, workspaces: dict[Buffer, tuple[For, ...]], loops: tuple[For, ...]) -> list[_Top]:
    """The statements that become kernels, in order; buffers around them are collected, with the loops around these."""
    match stmt:
        case SeqStmt():
            return [item for inner in stmt.stmts for item in _top_statements(inner, workspaces, loops)]
        case Allocate():
            workspaces[stmt.buffer] = loops
            return _top_statements(stmt.body, workspaces, loops)
        case For(kind=LoopKind.SERIAL | LoopKind.UNROLLED, min=IntImm(), extent=IntImm()) if _has_blocks(stmt):
            # Blocks cannot wait for each other: in every step the kernels are launched anew.
            return _top_statements(stmt.body, workspaces, (*loops, stmt))
        case IfThenElse(else_body=None) if not _loads(stmt.condition) and _has_threads(stmt):
            inside = _top_statements(stmt.then_body, workspaces, loops)
            if all(top.loops == loops for top in inside):
                return [_Top(stmt.replace(then_body=top.stmt), loops) for top in inside]
            return [_Top(stmt, loops)]
        case _:
            return [_Top(stmt, loops)]


@dataclass(slots=True)
class _Pending:
    """Exchanged buffers that were read and written since the last barrier."""

    reads: frozenset[Buffer] = frozenset()
    writes: frozenset[Buffer] = frozenset()

    def joined(self, other: _Pending) -> _Pending:
        """What either of two ways leaves."""
        return _Pending(self.reads | other.reads, self.writes | other.writes)

    def conflicts(self, later: _Pending) -> frozenset[Buffer]:
        """The buffers for whose sake later accesses must wait for these."""
        return (self.writes & (later.reads | later.writes)) | (self.reads & later.writes)

    def without_warps(self) -> _Pending:
        """What is left after the threads of each warp have met."""
        reads, writes = (frozenset(b for b in some if b.scope != "warp") for some in (self.reads, self.writes))
        return _Pending(reads, writes)


@dataclass(slots=True)
class _Leaf:
    """What single threads do without meeting others, and the axes that its threads are spread along."""

    stmt: Stmt
    axes: frozenset[str]
    accesses: _Pending
    pinned: frozenset[str] = frozenset()
    """Those of the axes along which only the first thread does it."""


@dataclass(slots=True)
class _Kernel:
    """One kernel being bound."""

    where: str
    max_threads: int
    extents: dict[str, PrimExpr] = field(default_factory=dict)
    axes: dict[str, Var] = field(default_factory=dict)
    leaves: dict[int, _Leaf] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    """Buffers of a block of threads."""
    of_one_block: set[Buffer] = field(default_factory=set)
    """Those of them that each block of a cluster has for itself."""
    between: set[Buffer] = field(default_factory=set)
    """Buffers through which the blocks of a cluster exchange data."""
    needs_fences: bool = False
    """Whether instructions read shared memory on a path of their own: they see what was written before a fence."""

    def bind(self, stmt: Stmt) -> Stmt:
        """The kernel of a statement."""
        self._measure(stmt)
        self.needs_fences = any(isinstance(item, Call) and reads_by_itself(item.name) for item in pre_order(stmt))
        body = self._spread(stmt, (), frozenset())
        scopes: dict[Buffer, Buffer] = {}
        exchanged: set[Buffer] = set()
        for buffer in self._accessed(body):
            apart = self._keeps_apart(buffer, body)
            if self._is_between_blocks(buffer, body):
                self.between.add(buffer)
            if buffer in self.buffers:
                scope = "local" if apart else "warp" if buffer.scope == "warp" else "shared"
                if buffer in self.between:
                    scope = "shared.cluster"
                if buffer.scope != scope:
                    scopes[buffer] = buffer.replace(scope=scope)
            if not apart or buffer in self.between:
                exchanged.add(buffer)
        body, left = self._meet(body, _Pending(), frozenset(exchanged), ())
        if (left.reads | left.writes) & self.between:
            # Others may still read the shared memory of a block that is done.
            body = seq(body, Evaluate(barrier("cluster")))
        body = _Rescope(scopes).stmt(body)
        placed = [scopes.get(buffer, buffer) for buffer in self.buffers]
        for buffer in placed:
            if buffer.scope == "local":
                body = Allocate(buffer, body)
        body = self._loops(THREAD_AXES, body)
        for buffer in placed:
            if buffer.scope in ("shared", "warp"):
                body = Allocate(buffer, body)
        body = self._loops((CLUSTER_AXIS,), body)
        for buffer in placed:
            if buffer.scope == "shared.cluster":
                body = Allocate(buffer, body)
        return self._loops(BLOCK_AXES, body)

    # ---------------------------------------------------------------- extents

    def _measure(self, stmt: Stmt) -> None:
        for item in all_statements(stmt):
            if isinstance(item, For) and item.kind is LoopKind.THREAD and item.thread is not None:
                self.extents[item.thread] = self._longer(item.thread, item.extent)
        threads = 1
        for name in THREAD_AXES:
            extent = self.extents.get(name)
            if isinstance(extent, IntImm):
                threads *= max(1, extent.value)
        if threads > self.max_threads:
            sizes = ", ".join(f"{name} {e.value}" for name, e in self.extents.items() if isinstance(e, IntImm))
            raise UserError(
                f"a block has {threads} threads, the target allows {self.max_threads} ({sizes})",
                where=f"function {self.where}",
                hint="split the loops that are bound to threadIdx by smaller factors",
            )
        for name in self.extents:
            self.axes[name] = Var(name.replace("Idx.", "_"))

    def _longer(self, name: str, extent: PrimExpr) -> PrimExpr:
        known = self.extents.get(name)
        if name in THREAD_AXES and not isinstance(extent, IntImm):
            raise UserError(
                f"a loop bound to {name} has no constant extent",
                where=f"function {self.where}",
                hint="split it by a constant factor and bind the inner loop",
            )
        if known is None or known is extent:
            return extent
        if isinstance(known, IntImm) and isinstance(extent, IntImm):
            return known if known.value >= extent.value else extent
        raise UnsupportedError(
            f"loops of different symbolic extents are bound to {name} in one kernel", where=f"function {self.where}"
        )

    def _loops(self, names: Sequence[str], body: Stmt) -> Stmt:
        for name in names:
            if name in self.extents:
                body = For(self.axes[name], ZERO, self.extents[name], LoopKind.THREAD, body, name)
        return body

    # ---------------------------------------------------------------- one program for all threads

    def _spread(self, stmt: Stmt, guards: tuple[PrimExpr, ...], bound: frozenset[str]) -> Stmt:
        if _is_for_all(stmt):
            return stmt
        if not _has_threads(stmt):
            return self._leaf(stmt, guards, bound)
        match stmt:
            case For(kind=LoopKind.THREAD):
                assert stmt.thread is not None
                axis, extent = self.axes[stmt.thread], self.extents[stmt.thread]
                body = substitute_stmt(stmt.body, {stmt.var: stmt.min + axis})
                inside = (*guards, lt(axis, stmt.extent)) if stmt.extent is not extent else guards
                return self._spread(body, inside, bound | {stmt.thread})
            case For():
                self._refuse_blocks(stmt.body, "a loop")
                kept = stmt.kind in (LoopKind.UNROLLED, LoopKind.PARALLEL)
                kind = stmt.kind if kept else LoopKind.SERIAL
                return stmt.replace(kind=kind, body=self._spread(stmt.body, guards, bound))
            case SeqStmt():
                if len(stmt.stmts) > 1:
                    self._refuse_blocks(stmt, "a sequence of statements")
                return SeqStmt(tuple(self._spread(item, guards, bound) for item in stmt.stmts))
            case Allocate():
                return self._spread(self._hoisted(stmt, bound), guards, bound)
            case LetStmt():
                return stmt.replace(body=self._spread(stmt.body, guards, bound))
            case IfThenElse():
                return self._spread_if(stmt, guards, bound)
            case _:
                raise UnsupportedError(f"{type(stmt).__name__} around thread loops", where=f"function {self.where}")

    def _hoisted(self, stmt: Allocate, bound: frozenset[str]) -> Stmt:
        """The body of an allocation that moves out of the thread loops around it: a place for each of their threads."""
        names = [name for name in THREAD_AXES if name in bound and not _is_one(self.extents[name])]
        old = stmt.buffer
        if not names:
            self.buffers.append(old)
            if CLUSTER_AXIS in bound:
                self.of_one_block.add(old)
            return stmt.body
        sizes = tuple(self.extents[name] for name in names)
        fresh = old.replace(shape=(*sizes, *old.shape), strides=())
        self.buffers.append(fresh)
        if CLUSTER_AXIS in bound:
            self.of_one_block.add(fresh)
        return _Rescope({old: fresh}, tuple(self.axes[name] for name in names)).stmt(stmt.body)

    def _spread_if(self, stmt: IfThenElse, guards: tuple[PrimExpr, ...], bound: frozenset[str]) -> Stmt:
        """A condition that differs between threads moves to what single threads do: no barrier may be under it."""
        condition = stmt.condition
        if not self._is_divergent(condition):
            other = None if stmt.else_body is None else self._spread(stmt.else_body, guards, bound)
            return stmt.replace(then_body=self._spread(stmt.then_body, guards, bound), else_body=other)
        if _loads(condition):
            raise UnsupportedError(
                "threads meet under a condition on data that differs between them", where=f"function {self.where}"
            )
        parts = [self._spread(stmt.then_body, (*guards, condition), bound)]
        if stmt.else_body is not None:
            parts.append(self._spread(stmt.else_body, (*guards, logical_not(condition)), bound))
        return SeqStmt(tuple(parts))

    def _refuse_blocks(self, stmt: Stmt, what: str) -> None:
        if any(isinstance(item, For) and item.thread in BLOCK_AXES for item in all_statements(stmt)):
            raise UnsupportedError(
                f"loops bound to blocks of threads lie inside {what}: blocks cannot wait for each other",
                where=f"function {self.where}",
                hint="make the loops bound to blockIdx the outermost ones",
            )

    def _leaf(self, stmt: Stmt, guards: tuple[PrimExpr, ...], bound: frozenset[str]) -> Stmt:
        idle = [
            eq(self.axes[name], ZERO) for name in self.extents if name not in bound and not _is_one(self.extents[name])
        ]
        guarded: Stmt = stmt
        if guards or idle:
            guarded = IfThenElse(all_of([*idle, *guards]), stmt)
        elif id(stmt) in self.leaves:
            guarded = SeqStmt((stmt,))
        own = (stmt.condition,) if isinstance(stmt, IfThenElse) and stmt.else_body is None else ()
        conditions = (*guards, *own)
        pinned = frozenset(name for name in bound if name in self.axes and _is_for_first(conditions, self.axes[name]))
        self.leaves[id(guarded)] = _Leaf(guarded, bound, _accesses(guarded), pinned)
        return guarded

    def _is_divergent(self, *exprs: PrimExpr) -> bool:
        threads = [self.axes[name] for name in THREAD_AXES if name in self.axes]
        return any(uses_any(expr, threads) for expr in exprs)

    # ---------------------------------------------------------------- who touches what

    def _accessed(self, body: Stmt) -> dict[Buffer, None]:
        accessed: dict[Buffer, None] = dict.fromkeys(self.buffers)
        for leaf in self.leaves.values():
            accessed.update(dict.fromkeys(sorted(leaf.accesses.writes, key=lambda buffer: buffer.name)))
        return accessed

    def _keeps_apart(self, buffer: Buffer, body: Stmt) -> bool:
        """Whether every thread of a block keeps to elements of its own."""
        users = [leaf for leaf in self.leaves.values() if buffer in leaf.accesses.reads | leaf.accesses.writes]
        spread = [name for name in THREAD_AXES if name in self.extents and not _is_one(self.extents[name])]
        names = [name for name in spread if any(name in leaf.axes - leaf.pinned for leaf in users)]
        if any(name not in leaf.axes for name in names for leaf in users):
            return False
        return any(self._apart_in_order(buffer, body, order) for order in permutations(names))

    def _is_between_blocks(self, buffer: Buffer, body: Stmt) -> bool:
        """Whether blocks of a cluster touch the same elements of a buffer, and some of them write."""
        if CLUSTER_AXIS not in self.extents or buffer in self.of_one_block:
            return False
        rank = For(
            self.axes[CLUSTER_AXIS], ZERO, self.extents[CLUSTER_AXIS], LoopKind.SERIAL, self._loops(THREAD_AXES, body)
        )
        return touches(buffer, rank) and not is_apart(buffer, rank)

    def _apart_in_order(self, buffer: Buffer, body: Stmt, order: tuple[str, ...]) -> bool:
        """Whether threads that differ along the first axis are apart whatever the others are, and so on inward."""
        for number, name in enumerate(order):
            loop = For(
                self.axes[name], ZERO, self.extents[name], LoopKind.SERIAL, self._loops(order[number + 1 :], body)
            )
            if not is_apart(buffer, loop):
                return False
        return True

    # ---------------------------------------------------------------- barriers

    def _meet(
        self, stmt: Stmt, before: _Pending, exchanged: frozenset[Buffer], loops: tuple[For, ...]
    ) -> tuple[Stmt, _Pending]:
        """A statement with barriers, and what is pending after it."""
        leaf = self.leaves.get(id(stmt))
        if leaf is not None:
            own = _Pending(leaf.accesses.reads & exchanged, leaf.accesses.writes & exchanged)
            meeting = before.conflicts(own)
            if not meeting:
                return stmt, before.joined(own)
            if all(buffer.scope == "warp" for buffer in meeting):
                return seq(Evaluate(barrier("warp")), stmt), before.without_warps().joined(own)
            return seq(self._barrier(before, loops, own), stmt), own.joined(self._kept(before, own))
        match stmt:
            case SeqStmt():
                items: list[Stmt] = []
                for item in stmt.stmts:
                    done, before = self._meet(item, before, exchanged, loops)
                    items.append(done)
                return seq(*items), before
            case For():
                return self._meet_in_loop(stmt, before, exchanged, loops)
            case Evaluate():
                is_barrier = isinstance(stmt.value, Call) and stmt.value.name == "barrier"
                return stmt, self._kept(before, _Pending()) if is_barrier else before
            case LetStmt():
                body, after = self._meet(stmt.body, before, exchanged, loops)
                return stmt.replace(body=body), after
            case IfThenElse():
                then_body, after = self._meet(stmt.then_body, before, exchanged, loops)
                if stmt.else_body is None:
                    return stmt.replace(then_body=then_body), after.joined(before)
                else_body, other = self._meet(stmt.else_body, before, exchanged, loops)
                return stmt.replace(then_body=then_body, else_body=else_body), after.joined(other)
            case _:
                raise UnsupportedError(f"{type(stmt).__name__} between threads", where=f"function {self.where}")

    def _meet_in_loop(
        self, stmt: For, before: _Pending, exchanged: frozenset[Buffer], loops: tuple[For, ...]
    ) -> tuple[Stmt, _Pending]:
        """A loop with barriers; what is pending before it is met once in front of it, if that saves one inside."""
        inside = exchanged - _ordered_in(stmt, exchanged)
        if stmt.kind is LoopKind.PARALLEL:
            # A block runs its iterations in order, but was told that they are independent (`parallel` proves it):
            # they only meet in its own memory, which all of them have.
            inside -= exchanged.difference(self.buffers)
            stmt = stmt.replace(kind=LoopKind.SERIAL)
        carried = frozenset(buffer for buffer in inside if not self._is_apart_along(buffer, stmt))
        runs = isinstance(stmt.extent, IntImm) and stmt.extent.value > 0

        def met(entry: _Pending) -> tuple[Stmt, _Pending]:
            while True:
                # What the last iteration leaves pending, the next one meets.
                body, after = self._meet(stmt.body, entry, inside, (*loops, stmt))
                grown = entry.joined(_Pending(after.reads & carried, after.writes & carried))
                if grown == entry:
                    return body, after
                entry = grown

        body, after = met(before)
        if runs and (before.reads or before.writes):
            other, left = met(_Pending())
            if _barriers(other) < _barriers(body) and not (before.reads | before.writes) & self.between:
                return seq(self._barrier(before, loops, before), stmt.replace(body=other)), left
        return stmt.replace(body=body), after if runs else before.joined(after)

    def _is_apart_along(self, buffer: Buffer, loop: For) -> bool:
        """Whether all threads together keep to elements of their own in each iteration of a loop."""
        if not touches(buffer, loop):
            return True
        return is_apart(buffer, loop.replace(body=self._loops(THREAD_AXES, loop.body)))

    def _kept(self, before: _Pending, later: _Pending) -> _Pending:
        """What is still pending behind a barrier: if it is one of the block alone, what blocks exchange."""
        if before.conflicts(later) & self.between:
            return _Pending()
        return _Pending(before.reads & self.between, before.writes & self.between)

    def _barrier(self, pending: _Pending, loops: tuple[For, ...], later: _Pending) -> Stmt:
        for loop in loops:
            if self._is_divergent(loop.min, loop.extent):
                raise UnsupportedError(
                    f"threads meet in loop {loop.var.name}, which they run a different number of times",
                    where=f"function {self.where}",
                )
        if pending.conflicts(later) & self.between:
            return Evaluate(barrier("cluster"))
        outside = any(buffer not in self.buffers for buffer in pending.reads | pending.writes)
        meeting = Evaluate(barrier("global" if outside else "shared"))
        if self.needs_fences and pending.writes & later.reads:
            return seq(Evaluate(machine_call(FENCE)), meeting)
        return meeting


def _is_for_all(stmt: Stmt) -> bool:
    """Whether a statement is for all threads although no loop over threads is around it."""
    if isinstance(stmt, For) and stmt.kind is not LoopKind.THREAD:
        return _is_for_all(stmt.body)
    if isinstance(stmt, SeqStmt):
        return all(_is_for_all(item) for item in stmt.stmts)
    return (
        isinstance(stmt, Evaluate)
        and isinstance(stmt.value, Call)
        and stmt.value.name in ("barrier", "async_wait", "async_commit", FENCE)
    )


def _ordered_in(loop: For, buffers: frozenset[Buffer]) -> frozenset[Buffer]:
    """The buffers whose uses in a loop its own barrier orders (a software pipeline's)."""
    names = ORDERED.of(loop) or ()
    return frozenset(buffer for buffer in buffers if buffer.name in names)


def _barriers(stmt: Stmt) -> int:
    return sum(isinstance(item, Evaluate) and _is_for_all(item) for item in all_statements(stmt))


def _has_threads(stmt: Stmt) -> bool:
    return any(isinstance(item, For) and item.kind is LoopKind.THREAD for item in all_statements(stmt))


def _has_blocks(stmt: Stmt) -> bool:
    return any(isinstance(item, For) and item.thread in BLOCK_AXES for item in all_statements(stmt))


def _is_for_first(guards: Sequence[PrimExpr], axis: Var) -> bool:
    """Whether guards leave only the first thread along an axis."""
    first = eq(axis, ZERO)
    return any(part is first or part is likely(first) for guard in guards for part in conjuncts(guard))


def _is_one(extent: PrimExpr) -> bool:
    return extent is const(1)


def _loads(expr: PrimExpr) -> bool:
    return any(isinstance(item, BufferLoad) for item in pre_order(expr))


def _accesses(stmt: Stmt) -> _Pending:
    reads: set[Buffer] = set()
    writes: set[Buffer] = set()
    for item in pre_order(stmt):
        if isinstance(item, BufferLoad):
            reads.add(item.buffer)
        elif isinstance(item, BufferStore):
            writes.add(item.buffer)
        elif isinstance(item, Call) and item.name == "access_ptr" and isinstance(item.args[1], BufferLoad):
            mode = item.args[0]
            if not isinstance(mode, StringImm) or "w" in mode.value:
                writes.add(item.args[1].buffer)
    # What is allocated here no other thread can reach.
    own = {item.buffer for item in all_statements(stmt) if isinstance(item, Allocate)}
    return _Pending(frozenset(reads - own), frozenset(writes - own))


class _Rescope(StmtRewriter):
    """Accesses of buffers go to others, with further indices in front."""

    def __init__(self, mapping: dict[Buffer, Buffer], prefix: tuple[PrimExpr, ...] = ()) -> None:
        self._mapping = mapping
        self._prefix = prefix
        self.expr = ExprRewriter(self._load)  # type: ignore[method-assign]

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._mapping:
            return BufferLoad(self._mapping[expr.buffer], (*self._prefix, *expr.indices))
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        buffer = self._mapping.get(stmt.buffer)
        if buffer is None:
            return stmt.replace(indices=indices, value=value)
        return stmt.replace(buffer=buffer, indices=(*self._prefix, *indices), value=value)
