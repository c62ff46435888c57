"""Statements of a kernel, whatever the language: what comes in which order, not how it is said."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from tilewright.codegen.lanes import Lanes
from tilewright.codegen.operators import KernelOperators, reads_memory
from tilewright.ir.expr import Call, PrimExpr, Range, StringImm, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.passes.split_host_device import DeviceKernel, buffer_bytes
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
    While,
    seq,
)

E = TypeVar("E", bound=KernelOperators)

SURE_SHARED_BYTES: Final = 16384
"""Memory of a workgroup that every device of WebGPU and Vulkan has."""


class KernelStatements(ABC, Generic[E]):
    """One kernel being emitted. What values are is up to the language: texts, or numbers of results."""

    alone: Stmt | None = None
    """A statement that is not joined with its neighbours."""

    def __init__(self, expressions: E) -> None:
        self.values = expressions
        self.lanes = Lanes()

    @property
    def language(self) -> str:
        """Whose kernels they are, for messages."""
        return self.values.language

    # ---------------------------------------------------------------- what a language says in its own way

    @abstractmethod
    def loop(self, loop: For, body: Callable[[], None]) -> None:
        """A loop that counts."""

    @abstractmethod
    def repeat(self, condition: Callable[[], str], body: Callable[[], None]) -> None:
        """A loop that runs while a condition holds; the condition is computed before each iteration."""

    @abstractmethod
    def branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        """One of two statements."""

    @abstractmethod
    def let(self, stmt: LetStmt, body: Callable[[], None]) -> None:
        """A name for a value."""

    @abstractmethod
    def allocate(self, buffer: Buffer) -> None:
        """Memory of a thread."""

    @abstractmethod
    def hold(self, value: PrimExpr, text: str) -> str:
        """A value that is computed here, before anything is stored."""

    @abstractmethod
    def assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        """An element of a buffer is given a value."""

    @abstractmethod
    def barrier(self, scope: str) -> None:
        """The threads of a block meet; memory of the scope is then seen by all."""

    # ---------------------------------------------------------------- what a language may do better

    def under(self, condition: PrimExpr, stmt: Stmt) -> None:
        """A statement that runs where a condition holds."""
        self.statement(stmt)

    def prepare(self, value: PrimExpr) -> None:
        """What is to be read at once, or first, for a value that is stored."""

    def store_whole(self, stmt: BufferStore, texts: Sequence[str]) -> bool:
        """Store several lanes at once, if they lie so."""
        return False

    # ---------------------------------------------------------------- what all of them have in common

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement."""
        match stmt:
            case SeqStmt():
                for item in merged(stmt.stmts, self.alone):
                    self.statement(item)
            case BufferStore():
                self.store(stmt, None)
            case For():
                self._for(stmt)
            case IfThenElse():
                self.choose(stmt)
            case While():
                self._while(stmt)
            case LetStmt() if stmt.var.dtype.lanes > 1:
                self._let_lanes(stmt)
            case LetStmt():
                self.values.start(stmt.value)
                self.let(stmt, lambda: self.statement(stmt.body))
            case Allocate():
                self.allocate(stmt.buffer)
                self.statement(stmt.body)
            case Evaluate():
                self.evaluate(stmt)
            case _:
                raise UnsupportedError(f"{self.language} kernels have no {type(stmt).__name__}")

    def evaluate(self, stmt: Evaluate) -> None:
        """Emit what is done for its effect: barriers."""
        value = stmt.value
        if isinstance(value, Call) and value.name in ("async_commit", "async_wait"):
            return  # copies are never under way here
        if not isinstance(value, Call) or value.name != "barrier":
            raise UnsupportedError(f"{self.language} kernels do not call for an effect: {value}")
        scope = value.args[0]
        self.barrier(scope.value if isinstance(scope, StringImm) else "shared")

    def _let_lanes(self, stmt: LetStmt) -> None:
        """A name for each lane of a vector."""
        names = [Var(f"{stmt.var.name}_{lane}", stmt.var.dtype.element) for lane in range(stmt.var.dtype.lanes)]
        values = [self.lanes.of(stmt.value, lane) for lane in range(len(names))]
        self.lanes.name(stmt.var, names)
        self.values.start(*values)
        self.prepare(stmt.value)

        def bind(lane: int) -> None:
            if lane == len(names):
                self.statement(stmt.body)
            else:
                self.let(LetStmt(names[lane], values[lane], stmt.body), lambda: bind(lane + 1))

        bind(0)

    def _for(self, loop: For) -> None:
        if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.PARALLEL):
            raise CompilerBug(f"a {loop.kind.value} loop came to the code generator")
        c = self.values
        c.start(loop.min, loop.extent)
        c.decide(loop.var, c.is_short(loop.min, loop.extent))

        def body() -> None:
            with c.analyzer.scope():
                c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
                self.statement(loop.body)

        self.loop(loop, body)

    def _while(self, stmt: While) -> None:
        if any(isinstance(item, Call) and item.name == "barrier" for item in pre_order(stmt)):
            raise UnsupportedError(f"{self.language} kernels have no barrier inside a while loop")

        def condition() -> str:
            self.values.start(stmt.condition)
            return self.values.value(stmt.condition)

        self.repeat(condition, lambda: self.statement(stmt.body))

    def choose(self, stmt: IfThenElse) -> None:
        """Emit a condition; one of vectors is a store of some lanes."""
        if stmt.condition.dtype.lanes > 1:
            assert isinstance(stmt.then_body, BufferStore)
            self.store(stmt.then_body, stmt.condition)
            return
        self.values.start(stmt.condition)
        other = stmt.else_body
        self.branch(
            self.values.value(stmt.condition),
            lambda: self.under(stmt.condition, stmt.then_body),
            None if other is None else lambda: self.statement(other),
        )

    def store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """Emit a store. All lanes are computed before any is stored, as one vector operation does."""
        c = self.values
        if isinstance(stmt.value, Call) and stmt.value.name == "async_copy":
            stmt = stmt.replace(value=stmt.value.args[0])
        lanes = range(stmt.value.dtype.lanes)
        values = [self.lanes.of(stmt.value, lane) for lane in lanes]
        indices = [self.lanes.of(stmt.indices[0], lane) for lane in lanes]
        if mask is None:
            c.start(*values, *indices)
            self.prepare(stmt.value)
            texts = [self.values.full(value) for value in values]
            if len(lanes) > 1 and self.store_whole(stmt, texts):
                return
            if len(lanes) > 1 and _reads(stmt.value, stmt.buffer):
                texts = [self.hold(value, text) for value, text in zip(values, texts, strict=True)]
            for index, text in zip(indices, texts, strict=True):
                self.assign(stmt.buffer, index, text)
            return
        if _reads(stmt.value, stmt.buffer) and len(lanes) > 1:
            raise UnsupportedError(f"{self.language} kernels have no masked store to what its value reads")
        for lane, index, value in zip(lanes, indices, values, strict=True):
            self._store_if(self.lanes.of(mask, lane), stmt.buffer, index, value)

    def _store_if(self, condition: PrimExpr, buffer: Buffer, index: PrimExpr, value: PrimExpr) -> None:
        self.values.start(condition)

        def store() -> None:
            self.values.start(value, index)
            self.assign(buffer, index, self.values.full(value))

        self.branch(self.values.value(condition), store, None)


def _reads(expr: PrimExpr, buffer: Buffer) -> bool:
    return any(isinstance(item, BufferLoad) and item.buffer is buffer for item in pre_order(expr))


def merged(stmts: Sequence[Stmt], alone: Stmt | None = None) -> list[Stmt]:
    """Neighbouring statements under the same condition on indices become one, but for one that stays as it is."""
    result: list[Stmt] = []
    for stmt in stmts:
        last = result[-1] if result else None
        if (
            isinstance(stmt, IfThenElse)
            and isinstance(last, IfThenElse)
            and stmt is not alone
            and last is not alone
            and stmt.condition is last.condition
            and stmt.condition.dtype.is_scalar
            and stmt.else_body is None
            and last.else_body is None
            and not reads_memory(stmt.condition)
        ):
            result[-1] = last.replace(then_body=seq(last.then_body, stmt.then_body))
        else:
            result.append(stmt)
    return result


def element_count(buffer: Buffer) -> int:
    """The elements of a buffer of constant size; an array has at least one."""
    size = buffer_bytes(buffer)
    assert size is not None
    return max(1, size // buffer.dtype.itemsize)


def check_shared(kernel: DeviceKernel, total: int, devices: str) -> None:
    """Refuse a kernel whose shared memory grows beyond what is certain where small elements take a word each."""
    declared = sum(buffer_bytes(buffer) or 0 for buffer in kernel.shared)
    if total > max(declared, SURE_SHARED_BYTES):
        raise UserError(
            f"a block uses {total} bytes of shared memory, {devices} devices have {SURE_SHARED_BYTES}: elements of "
            "small types take 4 bytes there",
            where=f"kernel {kernel.func.name}",
            hint="use smaller tiles",
        )
