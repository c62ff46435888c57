"""Kernels as C text: statements, memory, and the function around them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.c.expressions import Expressions
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.c.release import release_point, wait_point
from tilewright.codegen.c.statements import CStatements
from tilewright.codegen.c.vectors import VectorMemory
from tilewright.codegen.language import KernelLanguage
from tilewright.codegen.operators import reads_memory
from tilewright.codegen.statements import element_count
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ONE, Broadcast, Call, IntImm, PrimExpr, Range, Select, Var
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir import machine
from tilewright.tir.annotations import ROLLED
from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.bind_threads import BLOCK_AXES, CLUSTER_AXIS
from tilewright.tir.passes.split_host_device import DeviceKernel
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import BufferStore, Evaluate, For, IfThenElse, LoopKind, Stmt

T = TypeVar("T")


class CLanguage(Dialect, KernelLanguage):
    """A C-like language for kernels: qualifiers, places of threads, barriers."""

    meets_after_loops: ClassVar[bool] = False
    """Whether a barrier follows each loop with barriers inside, for the sake of the language's compilers."""

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """One program of several kernels."""
        return emit_kernels(kernels, self)

    @abstractmethod
    def preamble(self, uses_double: bool) -> str:
        """The text before everything else."""

    @abstractmethod
    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel that runs in blocks of so many threads."""

    @abstractmethod
    def pointer(self, element: str, name: str, is_written: bool, is_constant: bool, is_alone: bool) -> str:
        """A buffer parameter; `is_constant`: no kernel writes it; `is_alone`: no other parameter is its memory."""

    @abstractmethod
    def shared(self, element: str, name: str, size: int) -> str:
        """The declaration of memory that a block of threads shares."""

    @abstractmethod
    def axis(self, name: str) -> str:
        """The place of a thread or block along an axis, as an int."""

    @abstractmethod
    def barrier(self, scope: str) -> str:
        """The statement at which the threads of a block meet; memory of the scope is then seen by all."""

    def wait_for_predecessors(self) -> str:
        """What a kernel begins with that may be started before the kernels in front of it are done."""
        return ""

    def release_successors(self) -> str:
        """What lets the kernels behind it start."""
        return ""

    def shared_array(self, size: int, is_dynamic: bool) -> str | None:
        """The declaration of `tw_shared`, one array of bytes for all shared buffers of a kernel.

        None where each buffer is declared by itself. `is_dynamic`: whether the launch gives its size.
        """
        return None

    def private(self, element: str, name: str, size: int) -> str:
        """The declaration of memory of one thread."""
        return f"{element} {name}[{size}];"


def emit_kernels(kernels: Sequence[DeviceKernel], dialect: CLanguage) -> str:
    """One program of several kernels."""
    return emit_texts(kernels, lambda kernel, helpers: KernelText(kernel, dialect, helpers).emit(), dialect)


def emit_texts(items: Sequence[T], text: Callable[[T, Helpers], str], dialect: CLanguage) -> str:
    """One program of texts, with the functions that they call in front of them."""
    helpers = Helpers(dialect)
    bodies = [text(item, helpers) for item in items]
    uses_double = any("double" in text for text in (*bodies, helpers.text()))
    parts = [dialect.preamble(uses_double), helpers.text(), *bodies]
    return "\n".join(part for part in parts if part)


class KernelText(CStatements):
    """One kernel being emitted."""

    def __init__(self, kernel: DeviceKernel, dialect: CLanguage, helpers: Helpers) -> None:
        super().__init__(Expressions(dialect, helpers))
        self.kernel = kernel
        self._dialect = dialect
        self._vectors = VectorMemory(self.values, self.lanes)
        self.alone = wait_point(kernel.func.body, kernel.constants)
        self._outer_loops: list[list[Var]] = []
        self._release = release_point(kernel.func.body, kernel.written, kernel.constants)

    def emit(self) -> str:
        """The text of the kernel."""
        c, dialect, kernel = self.values, self._dialect, self.kernel
        parameters: list[str] = []
        for loop in kernel.steps:
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
        for param in kernel.func.params:
            if isinstance(param, Buffer):
                parameters.append(self.pointer(param, c.name(param)))
            else:
                parameters.append(self.scalar_parameter(param))
        self._declare_shared()
        self.emit_body(None)
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        head = dialect.signature(kernel.func.name, parameters, threads)
        return "\n".join([f"{head} {{", *c.lines, "}", ""])

    def pointer(self, param: Buffer, name: str) -> str:
        """The declaration of a buffer parameter under a name."""
        kernel, element = self.kernel, self._dialect.memory_type(param.dtype)
        written, constant, alone = param in kernel.written, param in kernel.constants, param not in kernel.overlapping
        return self._dialect.pointer(element, name, written, constant, alone)

    def emit_body(self, row: str | None) -> None:
        """What a block does: the one whose number among the kernel's is in `row`, if its launch has others too."""
        c, dialect, kernel = self.values, self._dialect, self.kernel
        for buffer in kernel.warp:
            c.line(f"{dialect.memory_type(buffer.dtype)} {c.name(buffer)};")
        c.own_places = own_places(kernel)
        blocks = self._folded_blocks() if kernel.is_folded or row is not None else None
        for var, (axis, extent) in kernel.axes.items():
            c.analyzer.bind(var, Range(IntImm(0, INDEX), extent))
            c.decide(var, narrow=True)
            place = _place(dialect, axis, kernel.cluster, blocks, row)
            c.line(f"const int {c.name(var)} = {place};")
            if axis == CLUSTER_AXIS:
                c.cluster = (var, kernel.cluster)
        self.statement(kernel.func.body)
        if self.alone is not None:
            raise CompilerBug(f"the kernel {kernel.func.name} does not wait for those before it")

    def _folded_blocks(self) -> list[str]:
        """How many blocks there are along each axis, where they stand in a row."""
        extents = dict(self.kernel.axes.values())
        counts = [extents.get(axis, ONE) for axis in BLOCK_AXES]
        return [str(n.value) if isinstance(n, IntImm) else f"(int)({self.values.value(n)})" for n in counts]

    def _lines(self, text: str) -> None:
        for line in text.splitlines():
            self.values.line(line)

    def _declare_shared(self) -> None:
        """Shared buffers, each by itself or, where the language can, in one array."""
        kernel = self.kernel
        array = self._dialect.shared_array(kernel.shared_bytes, kernel.is_dynamic) if kernel.shared else None
        if array is not None:
            self.values.line(array)
            self.place_shared()
        else:
            for buffer in kernel.shared:
                self.values.line(self.shared_buffer(buffer))

    def shared_buffer(self, buffer: Buffer) -> str:
        """The declaration of a shared buffer by itself."""
        element = self._dialect.memory_type(buffer.dtype)
        return self._dialect.shared(element, self.values.name(buffer), element_count(buffer))

    def place_shared(self) -> None:
        """Shared buffers as places in one array."""
        c = self.values
        for buffer, offset in zip(self.kernel.shared, self.kernel.shared_offsets, strict=True):
            element = self._dialect.memory_type(buffer.dtype)
            c.line(f"{element}* const {c.name(buffer)} = ({element}*)(tw_shared + {offset});")

    # ---------------------------------------------------------------- statements

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement, after what is to be done before it."""
        if stmt is self.alone:
            self._lines(self._dialect.wait_for_predecessors())
            self.alone = None
        if stmt is self._release:
            self._lines(self._dialect.release_successors())
        super().statement(stmt)

    def evaluate(self, stmt: Evaluate) -> None:
        """Emit barriers, groups of copies that are under way, and instructions of the device."""
        value = stmt.value
        if isinstance(value, Call) and value.name in ("async_commit", "async_wait"):
            groups = value.args[0]
            assert isinstance(groups, IntImm)
            helper = self.values.helpers.async_groups(groups.value if value.name == "async_wait" else None)
            if helper is not None:
                self.values.line(f"{helper}();")
        elif isinstance(value, Call) and value.name in machine.table:
            self._instruction(value)
        else:
            super().evaluate(stmt)

    def barrier(self, scope: str) -> None:
        """A barrier of the block; threads of a warp meet in the shuffles themselves."""
        if scope != "warp":
            self.values.line(self._dialect.barrier(scope))

    def _instruction(self, call: Call) -> None:
        """An instruction of the device: a function of addresses and numbers."""
        c = self.values
        helper = c.helpers.instruction(call.name)
        if helper is None:
            raise UnsupportedError(f"{self._dialect.name} kernels have no instruction {call.name}")
        c.line(f"{helper}({', '.join(self.arguments(call.args))});")

    def before_loop(self, loop: For) -> None:
        """Whether the compiler is to unroll a loop."""
        if loop.kind is LoopKind.UNROLLED:
            self.values.line("#pragma unroll")
        elif ROLLED.of(loop):
            self.values.line("#pragma unroll 1")
        self._outer_loops.append(self.values.loops)
        inside = self.values.loops if loop.kind is LoopKind.UNROLLED else []
        self.values.loops = [*inside, loop.var] if inside or ROLLED.of(loop) else []

    def after_loop(self, loop: For) -> None:
        """A barrier, where compilers of the language want it."""
        self.values.loops = self._outer_loops.pop()
        if self._dialect.meets_after_loops and any(isinstance(item, Evaluate) for item in all_statements(loop.body)):
            self.values.line(self._dialect.barrier("shared"))

    def under(self, condition: PrimExpr, stmt: Stmt) -> None:
        """A statement that runs where a condition holds, which says more about its indices."""
        self.values.guards.append(condition)
        self.statement(stmt)
        self.values.guards.pop()

    def allocate(self, buffer: Buffer) -> None:
        """An array of the function."""
        element = self._dialect.memory_type(buffer.dtype)
        self.values.line(self._dialect.private(element, self.values.name(buffer), element_count(buffer)))

    # ---------------------------------------------------------------- stores

    def store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """Emit a store, as a copy that is under way or as one of two where that keeps vectors whole."""
        if isinstance(stmt.value, Call) and stmt.value.name == "async_copy":
            if mask is None and self._vectors.copy_async(stmt):
                return
            stmt = stmt.replace(value=stmt.value.args[0])
        if mask is None and stmt.value.dtype.lanes > 1 and (self._store_either(stmt) or self._vectors.copy_own(stmt)):
            return
        super().store(stmt, mask)

    def prepare(self, value: PrimExpr) -> None:
        """Vectors that lanes of a value are parts of are read whole, and all that a scalar needs before it is made."""
        if value.dtype.lanes > 1:
            self._vectors.read(value)
        else:
            self.values.load_first(value)

    def store_whole(self, stmt: BufferStore, texts: Sequence[str]) -> bool:
        """Store a vector, if its elements lie next to each other."""
        stored = [self.values.to_memory(text, stmt.buffer.dtype) for text in texts]
        return self._vectors.store(stmt.buffer, stmt.indices[0], stored)

    def _store_either(self, stmt: BufferStore) -> bool:
        """A choice between two vectors as a choice between two stores, so that the vectors are accessed whole."""
        value = stmt.value
        if not isinstance(value, Select) or self._vectors.is_read_anyway(value):
            return False
        condition = value.condition.value if isinstance(value.condition, Broadcast) else value.condition
        if not condition.dtype.is_scalar or reads_memory(condition):
            return False
        self.choose(IfThenElse(condition, stmt.replace(value=value.a), stmt.replace(value=value.b)))
        return True

    def assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        """An assignment."""
        c = self.values
        if buffer.scope == "shared.cluster":
            _, index = c.part_of_cluster(buffer, index, own=True)
        if buffer.scope == "warp":
            c.line(f"{c.name(buffer)} = {c.to_memory(text, buffer.dtype)};")
        else:
            super().assign(buffer, index, text)


def _place(dialect: CLanguage, axis: str, cluster: int, blocks: Sequence[str] | None, row: str | None) -> str:
    """The place of a block or thread along an axis; blocks of a cluster follow each other along the first one.

    `blocks` are the numbers of blocks along the axes where all stand in a row, `row` is the place there.
    """
    row = dialect.axis("blockIdx.x") if row is None else row
    if axis == CLUSTER_AXIS:
        return f"{row} % {cluster}"
    if axis not in BLOCK_AXES or (blocks is None and axis != "blockIdx.x"):
        return dialect.axis(axis)
    if cluster > 1:
        row = f"{row} / {cluster}"
    if blocks is None:
        return row
    number = BLOCK_AXES.index(axis)
    before = "".join(f" / {count}" for count in blocks[:number] if count != "1")
    is_last = all(count == "1" for count in blocks[number + 1 :])
    return f"{row}{before}" if is_last else f"{row}{before} % {blocks[number]}"


def own_places(kernel: DeviceKernel) -> dict[Buffer, PrimExpr]:
    """Where a thread's own element of each buffer of a warp lies: where it is stored."""
    stores = (item for item in all_statements(kernel.func.body) if isinstance(item, BufferStore))
    return {store.buffer: store.indices[0] for store in stores if store.buffer.scope == "warp"}
