"""Kernels as C text: statements, memory, and the function around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.c.convert import store_value
from tilewright.codegen.c.expressions import Expressions
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.c.lanes import Lanes
from tilewright.codegen.c.release import release_point, wait_point
from tilewright.codegen.c.vectors import VectorMemory
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Broadcast, Call, IntImm, PrimExpr, Range, Select, StringImm
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir import machine
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.passes.bind_threads import CLUSTER_AXIS
from tilewright.tir.passes.rewriting import all_statements
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
    seq,
)

if TYPE_CHECKING:
    from tilewright.codegen.c.dialect import Dialect


def emit_kernels(kernels: Sequence[DeviceKernel], dialect: Dialect) -> str:
    """One program of several kernels."""
    helpers = Helpers(dialect)
    bodies = [_Kernel(dialect, helpers).emit(kernel) for kernel in kernels]
    uses_double = any("double" in text for text in (*bodies, helpers.text()))
    parts = [dialect.preamble(uses_double), helpers.text(), *bodies]
    return "\n".join(part for part in parts if part)


class _Kernel:
    """One kernel being emitted."""

    def __init__(self, dialect: Dialect, helpers: Helpers) -> None:
        self._dialect = dialect
        self._e = Expressions(dialect, helpers)
        self._lanes = Lanes()
        self._vectors = VectorMemory(self._e, self._lanes)
        self._release: Stmt | None = None
        self._wait: Stmt | None = None

    def emit(self, kernel: DeviceKernel) -> str:
        """The text of a kernel."""
        c, dialect = self._e, self._dialect
        parameters: list[str] = []
        for loop in kernel.steps:
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
        for param in kernel.func.params:
            if isinstance(param, Buffer):
                element = dialect.memory_type(param.dtype)
                written, constant = param in kernel.written, param in kernel.constants
                parameters.append(dialect.pointer(element, c.name(param), written, constant))
            else:
                c.decide(param, narrow=False)
                parameters.append(f"const {dialect.register_type(param.dtype)} {c.name(param)}")
        self._declare_shared(kernel)
        for buffer in kernel.warp:
            c.line(f"{dialect.memory_type(buffer.dtype)} {c.name(buffer)};")
        c.own_places = own_places(kernel)
        for var, (axis, extent) in kernel.axes.items():
            c.analyzer.bind(var, Range(IntImm(0, INDEX), extent))
            c.decide(var, narrow=True)
            c.line(f"const int {c.name(var)} = {_place(dialect, axis, kernel.cluster)};")
            if axis == CLUSTER_AXIS:
                c.cluster = (var, kernel.cluster)
        self._wait = wait_point(kernel.func.body, kernel.constants)
        self._release = release_point(kernel.func.body, kernel.written, kernel.constants)
        self._stmt(kernel.func.body)
        if not self._has_waited():
            raise CompilerBug(f"the kernel {kernel.func.name} does not wait for those before it")
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        head = dialect.signature(kernel.func.name, parameters, threads)
        return "\n".join([f"{head} {{", *c.lines, "}", ""])

    def _has_waited(self) -> bool:
        return self._wait is None

    def _lines(self, text: str) -> None:
        for line in text.splitlines():
            self._e.line(line)

    def _declare_shared(self, kernel: DeviceKernel) -> None:
        """Shared buffers, each by itself or, where the language can, in one array."""
        c, dialect = self._e, self._dialect
        array = dialect.shared_array(kernel.shared_bytes, kernel.is_dynamic) if kernel.shared else None
        if array is not None:
            c.line(array)
        for buffer, offset in zip(kernel.shared, kernel.shared_offsets, strict=True):
            element = dialect.memory_type(buffer.dtype)
            if array is None:
                c.line(dialect.shared(element, c.name(buffer), _count(buffer)))
            else:
                c.line(f"{element}* const {c.name(buffer)} = ({element}*)(tw_shared + {offset});")

    def _stmt(self, stmt: Stmt) -> None:
        if stmt is self._wait:
            self._lines(self._dialect.wait_for_predecessors())
            self._wait = None
        if stmt is self._release:
            self._lines(self._dialect.release_successors())
        match stmt:
            case SeqStmt():
                for item in merged(stmt.stmts, self._wait):
                    self._stmt(item)
            case BufferStore():
                self._store(stmt, None)
            case For():
                self._for(stmt)
            case IfThenElse():
                self._if(stmt)
            case LetStmt():
                self._let(stmt)
            case Allocate():
                element = self._dialect.memory_type(stmt.buffer.dtype)
                self._e.line(self._dialect.private(element, self._e.name(stmt.buffer), _count(stmt.buffer)))
                self._stmt(stmt.body)
            case Evaluate():
                self._evaluate(stmt)
            case _:
                raise UnsupportedError(f"{self._dialect.name} kernels have no {type(stmt).__name__}")

    def _evaluate(self, stmt: Evaluate) -> None:
        value = stmt.value
        if isinstance(value, Call) and value.name == "barrier":
            scope = value.args[0]
            name = scope.value if isinstance(scope, StringImm) else "shared"
            # Threads of a warp meet in the shuffles themselves.
            if name != "warp":
                self._e.line(self._dialect.barrier(name))
            return
        if isinstance(value, Call) and value.name in ("async_commit", "async_wait"):
            groups = value.args[0]
            assert isinstance(groups, IntImm)
            helper = self._e.helpers.async_groups(groups.value if value.name == "async_wait" else None)
            if helper is not None:
                self._e.line(f"{helper}();")
            return
        if isinstance(value, Call) and value.name in machine.table:
            self._instruction(value)
            return
        raise UnsupportedError(f"{self._dialect.name} kernels do not call for an effect: {value}")

    def _instruction(self, call: Call) -> None:
        """An instruction of the device: a function of addresses and numbers."""
        c = self._e
        helper = c.helpers.instruction(call.name)
        if helper is None:
            raise UnsupportedError(f"{self._dialect.name} kernels have no instruction {call.name}")
        places = [arg.args[1] if isinstance(arg, Call) and arg.name == "access_ptr" else arg for arg in call.args]
        c.start(*(place.indices[0] if isinstance(place, BufferLoad) else place for place in places))
        texts: list[str] = []
        for place in places:
            if isinstance(place, BufferLoad):
                texts.append(f"{c.name(place.buffer)} + {c.value(place.indices[0])}")
            else:
                texts.append(c.value(place))
        c.line(f"{helper}({', '.join(texts)});")

    def _body(self, stmt: Stmt) -> None:
        self._e.depth += 1
        self._stmt(stmt)
        self._e.depth -= 1

    def _for(self, loop: For) -> None:
        c = self._e
        if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.PARALLEL):
            raise CompilerBug(f"a {loop.kind.value} loop came to the code generator")
        c.start(loop.min, loop.extent)
        kind = "int" if c.is_short(loop.min, loop.extent) else self._dialect.types["int64"]
        low = c.value(loop.min)
        end = c.declare(kind, f"{low} + {c.value(loop.extent)}") if not _is_plain(loop) else None
        limit = end or str(_end(loop))
        name = c.name(loop.var)
        if loop.kind is LoopKind.UNROLLED:
            c.line("#pragma unroll")
        c.decide(loop.var, kind == "int")
        c.line(f"for ({kind} {name} = {low}; {name} < {limit}; ++{name}) {{")
        with c.analyzer.scope():
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
            self._body(loop.body)
        c.line("}")
        if self._dialect.meets_after_loops and any(isinstance(item, Evaluate) for item in all_statements(loop.body)):
            c.line(self._dialect.barrier("shared"))

    def _if(self, stmt: IfThenElse) -> None:
        c = self._e
        if stmt.condition.dtype.lanes > 1:
            assert isinstance(stmt.then_body, BufferStore)
            self._store(stmt.then_body, stmt.condition)
            return
        c.start(stmt.condition)
        c.line(f"if ({c.value(stmt.condition)}) {{")
        c.guards.append(stmt.condition)
        self._body(stmt.then_body)
        c.guards.pop()
        if stmt.else_body is not None:
            c.line("} else {")
            self._body(stmt.else_body)
        c.line("}")

    def _let(self, stmt: LetStmt) -> None:
        c = self._e
        c.start(stmt.value)
        text = c.value(stmt.value)
        c.decide(stmt.var, c.is_narrow(stmt.value))
        c.line("{")
        c.depth += 1
        c.line(f"const {c.type_of(stmt.value)} {c.name(stmt.var)} = {text};")
        self._stmt(stmt.body)
        c.depth -= 1
        c.line("}")

    def _store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """A store. All lanes are computed before any is stored, as one vector operation does."""
        if isinstance(stmt.value, Call) and stmt.value.name == "async_copy":
            if mask is None and self._vectors.copy_async(stmt):
                return
            stmt = stmt.replace(value=stmt.value.args[0])
        lanes = range(stmt.value.dtype.lanes)
        if mask is None and len(lanes) > 1 and self._store_either(stmt):
            return
        values = [self._lanes.of(stmt.value, lane) for lane in lanes]
        indices = [self._lanes.of(stmt.indices[0], lane) for lane in lanes]
        masks = [None if mask is None else self._lanes.of(mask, lane) for lane in lanes]
        c = self._e
        if mask is None:
            c.start(*values, *indices)
            if len(lanes) > 1:
                self._vectors.read(stmt.value)
            texts = [c.value(value) for value in values]
            pairs = zip(values, texts, strict=True)
            wide = [c.wide(value) if c.is_narrow(value) else text for value, text in pairs]
            stored = [store_value(c, text, stmt.buffer.dtype) for text in wide]
            if len(lanes) > 1 and self._vectors.store(stmt.buffer, stmt.indices[0], stored):
                return
            if len(texts) > 1 and _reads(stmt.value, stmt.buffer):
                texts = [c.declare(c.type_of(value), text) for value, text in zip(values, texts, strict=True)]
            for index, value, text in zip(indices, values, texts, strict=True):
                self._assign(stmt.buffer, index, c.wide(value) if c.is_narrow(value) else text)
            return
        if _reads(stmt.value, stmt.buffer) and len(lanes) > 1:
            raise UnsupportedError(f"{self._dialect.name} kernels have no masked store to what its value reads")
        for index, value, condition in zip(indices, values, masks, strict=True):
            assert condition is not None
            c.start(condition)
            c.line(f"if ({c.value(condition)}) {{")
            c.depth += 1
            c.start(value, index)
            self._assign(stmt.buffer, index, c.wide(value))
            c.depth -= 1
            c.line("}")

    def _store_either(self, stmt: BufferStore) -> bool:
        """A choice between two vectors as a choice between two stores, so that the vectors are accessed whole."""
        value = stmt.value
        if not isinstance(value, Select):
            return False
        condition = value.condition.value if isinstance(value.condition, Broadcast) else value.condition
        if not condition.dtype.is_scalar or any(isinstance(item, BufferLoad) for item in pre_order(condition)):
            return False
        self._if(IfThenElse(condition, stmt.replace(value=value.a), stmt.replace(value=value.b)))
        return True

    def _assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        c = self._e
        if buffer.scope == "shared.cluster":
            _, index = c.part_of_cluster(buffer, index, own=True)
        place = c.name(buffer) if buffer.scope == "warp" else f"{c.name(buffer)}[{c.value(index)}]"
        c.line(f"{place} = {store_value(c, text, buffer.dtype)};")


def _place(dialect: Dialect, axis: str, cluster: int) -> str:
    """The place of a block or thread along an axis; blocks of a cluster follow each other along the first one."""
    if cluster > 1 and axis in (CLUSTER_AXIS, "blockIdx.x"):
        return f"{dialect.axis('blockIdx.x')} {'%' if axis == CLUSTER_AXIS else '/'} {cluster}"
    return dialect.axis(axis)


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
            and not any(isinstance(item, BufferLoad) for item in pre_order(stmt.condition))
        ):
            result[-1] = last.replace(then_body=seq(last.then_body, stmt.then_body))
        else:
            result.append(stmt)
    return result


def own_places(kernel: DeviceKernel) -> dict[Buffer, PrimExpr]:
    """Where a thread's own element of each buffer of a warp lies: where it is stored."""
    stores = (item for item in all_statements(kernel.func.body) if isinstance(item, BufferStore))
    return {store.buffer: store.indices[0] for store in stores if store.buffer.scope == "warp"}


def _reads(expr: PrimExpr, buffer: Buffer) -> bool:
    return any(isinstance(item, BufferLoad) and item.buffer is buffer for item in pre_order(expr))


def _count(buffer: Buffer) -> int:
    size = buffer_bytes(buffer)
    assert size is not None
    return max(1, size // buffer.dtype.itemsize)


def _is_plain(loop: For) -> bool:
    return isinstance(loop.min, IntImm) and isinstance(loop.extent, IntImm)


def _end(loop: For) -> int:
    assert isinstance(loop.min, IntImm) and isinstance(loop.extent, IntImm)
    return loop.min.value + loop.extent.value
