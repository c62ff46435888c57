"""Statements to LLVM control flow: loops, conditionals, allocations, asserts; parallel loops as functions of their own.

Every function returns an error code: 0, or what went wrong. All ways out pass one exit block that gives scratch memory
back. A parallel loop's body becomes a function that gets the captured values through a record on the caller's stack;
it calls an inner function whose pointer parameters are `noalias` again, as those of the kernel are (but for those that
the kernel's attribute `IN_PLACE` names).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.backends.llvm.context import FunctionContext, ModuleContext
from tilewright.backends.llvm.emit_interleaved import emit_interleaved, interleaved_at
from tilewright.backends.llvm.emit_machine import tile_frame
from tilewright.backends.llvm.emit_memory import emit_store
from tilewright.backends.llvm.emit_narrowed import emit_narrowed, narrowed_at
from tilewright.backends.llvm.emit_prefetch import emit_prefetches
from tilewright.backends.llvm.emit_reduction import as_vector_reduction, emit_vector_reduction
from tilewright.backends.llvm.emit_squares import emit_square, square_at
from tilewright.backends.llvm.types import memory_type, register_type
from tilewright.codegen.captures import Capture, free_captures
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Add, Call, IntImm, Mul, PrimExpr, Range, Var
from tilewright.ir.visit import variables
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.frames import constant_bytes, frame_allocations, stack_buffers
from tilewright.tir.annotations import PLAIN_ADDRESSES, REDUCTION, ROW_VECTORS
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import (
    Allocate,
    Assert,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    LoopKind,
    SeqStmt,
    Stmt,
    While,
)

SCRATCH_ALIGNMENT: Final = 64
FAILED_ASSERT: Final = 1
OUT_OF_MEMORY: Final = 2


@dataclass
class FunctionEmitter:
    """Emits one LLVM function from a statement; nested parallel loops add functions to the module."""

    module: ModuleContext
    name: str
    captures: tuple[Capture, ...]
    is_parallel_body: bool = False
    bodies: int = 0
    in_reduction: bool = False
    """Whether the innermost loop combines values in any order."""
    loops: list[For] = field(default_factory=list)
    """The loops around what is being emitted, in this function."""
    exits: list[tuple[str, str]] = field(default_factory=list)
    to_free: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = FunctionContext(self.module, Analyzer())

    def parameter_list(self) -> str:
        """The parameters in LLVM text; also makes their operands known."""
        parts: list[str] = []
        for number, item in enumerate(self.captures):
            operand = f"%a{number}"
            if isinstance(item, Buffer):
                align = max(item.alignment, item.dtype.itemsize)
                alone = "" if item in self.module.overlapping else "noalias "
                parts.append(f"ptr {alone}noundef align {align} {operand}")
                self.context.pointers[item] = operand
            else:
                parts.append(f"{memory_type(item.dtype)} noundef {operand}")
                self.context.variables[item] = operand
        return ", ".join(parts)

    def emit(self, linkage: str, body: Callable[[FunctionEmitter], None], frame: Stmt, extra_params: str = "") -> None:
        """Emit the whole function; `body` emits what is inside, `frame` is searched for the memory it needs."""
        c = self.context
        params = self.parameter_list()
        for item in self.captures:
            if isinstance(item, Var) and item.dtype.is_bool:
                c.variables[item] = c.op(f"icmp ne i8 {c.variables[item]}, 0")
        self._take_memory(frame)
        body(self)
        self.leave("0")
        lines = [f"define {linkage}i32 @{self.name}({', '.join(p for p in (params, extra_params) if p)}) nounwind {{"]
        tiles = tile_frame(c, self.name)
        if tiles is None:
            lines += ["entry:", *c.entry, *c.lines, "exit:"]
        else:
            lines += ["prologue:", *c.entry, *tiles.ask, "entry:", *tiles.start, *c.lines, "exit:"]
        arms = ", ".join(f"[ {code}, %{block} ]" for code, block in self.exits)
        lines.append(f"  %code = phi i32 {arms}")
        for number, slot in enumerate(self.to_free):
            lines.append(f"  %owned{number} = load ptr, ptr {slot}, align 8")
            lines.append(f"  call void {self._free()}(ptr %owned{number})")
        lines += [] if tiles is None else tiles.end
        lines += ["  ret i32 %code", "}"]
        self.module.functions.append("\n".join(lines))

    def leave(self, code: str) -> None:
        """End the open block by leaving the function with a code."""
        self.exits.append((code, self.context.block))
        self.context.jump("exit")

    def leave_if(self, condition: str, code: str) -> None:
        """Leave the function with a code if a condition holds."""
        c = self.context
        fail, ok = c.label("fail"), c.label("ok")
        c.branch(condition, fail, ok)
        c.open(fail)
        self.leave(code)
        c.open(ok)

    # Memory

    def _free(self) -> str:
        return self.module.declare("tw_free", "void", "ptr")

    def _take_memory(self, frame: Stmt) -> None:
        """Memory of a size that is known from the start is taken once, when the function starts."""
        allocations = frame_allocations(frame, self.is_parallel_body)
        on_stack = stack_buffers(allocations)
        for stmt in allocations:
            size = constant_bytes(stmt.buffer)
            if size is None:
                if all(var in self.captures for dim in stmt.buffer.shape for var in variables(dim)):
                    self.context.pointers[stmt.buffer] = self._take(self.context.value(_bytes(stmt.buffer)))[0]
            elif stmt.buffer in on_stack:
                kind = f"[{max(size, 1)} x i8]"
                self.context.pointers[stmt.buffer] = self.context.stack(kind, SCRATCH_ALIGNMENT)
                self.context.on_stack.add(stmt.buffer)
            else:
                self.context.pointers[stmt.buffer] = self._take(str(size))[0]

    def _take(self, size: str) -> tuple[str, str]:
        c = self.context
        slot = c.stack("ptr", 8, "owner")
        c.entry.append(f"  store ptr null, ptr {slot}, align 8")
        self.to_free.append(slot)
        allocate = self.module.declare("tw_alloc", "noalias align 64 ptr", "i64")
        pointer = c.op(f"call noalias align 64 ptr {allocate}(i64 {size})", "scratch")
        c.do(f"store ptr {pointer}, ptr {slot}, align 8")
        self.leave_if(c.op(f"icmp eq ptr {pointer}, null"), str(OUT_OF_MEMORY))
        return pointer, slot

    # Statements

    def stmt(self, stmt: Stmt) -> None:
        """Emit a statement."""
        _EMITTERS[type(stmt)](self, stmt)

    def sequence(self, stmt: SeqStmt) -> None:
        """Statements one after another; those that are better emitted together (`_TOGETHER`) are."""
        start = 0
        while start < len(stmt.stmts):
            for recognise, emit in _TOGETHER:
                count = recognise(self.context, stmt.stmts, start)
                if count:
                    self.context.forget_loads()
                    emit(self.context, stmt.stmts[start : start + count])
                    break
            else:
                count = 1
                self.stmt(stmt.stmts[start])
            start += count

    def store(self, stmt: BufferStore) -> None:
        """A store."""
        self.context.forget_loads()
        # Reductions may be reassociated (docs/semantics.md); explicit vectors are as their schedule wants them.
        self.context.reduction = stmt.value if self.in_reduction and _is_scalar_reduction(stmt) else None
        emit_store(self.context, stmt.buffer, stmt.indices, stmt.value)
        self.context.reduction = None

    def let(self, stmt: LetStmt) -> None:
        """A binding: the variable is the value's operand."""
        self.context.forget_loads()
        self.context.variables[stmt.var] = self.context.value(stmt.value)
        self.stmt(stmt.body)

    def evaluate(self, stmt: Evaluate) -> None:
        """A call; an int32 result of an extern function is an error code."""
        self.context.forget_loads()
        result = self.context.value(stmt.value)
        if isinstance(stmt.value, Call) and stmt.value.name == "call_extern" and stmt.value.dtype.name == "int32":
            self.leave_if(self.context.op(f"icmp ne i32 {result}, 0"), result)

    def check(self, stmt: Assert) -> None:
        """An assertion: a code instead of a message, since kernels do not print."""
        self.context.forget_loads()
        condition = self.context.value(stmt.condition)
        self.leave_if(self.context.op(f"xor i1 {condition}, true"), str(FAILED_ASSERT))

    def conditional(self, stmt: IfThenElse) -> None:
        """A branch, or with a vector condition the body under a mask."""
        c = self.context
        c.forget_loads()
        condition = c.value(stmt.condition)
        if stmt.condition.dtype.lanes > 1:
            if stmt.else_body is not None:
                raise CompilerBug("a vector condition has no else")
            with c.masked(condition, stmt.condition.dtype.lanes):
                self.stmt(stmt.then_body)
            return
        then_label, end = c.label("then"), c.label("end")
        else_label = end if stmt.else_body is None else c.label("else")
        c.branch(condition, then_label, else_label)
        c.open(then_label)
        with c.scope():
            self.stmt(stmt.then_body)
        c.jump(end)
        if stmt.else_body is not None:
            c.open(else_label)
            with c.scope():
                self.stmt(stmt.else_body)
            c.jump(end)
        c.open(end)

    def repeat(self, stmt: While) -> None:
        """A loop that tests its condition before each iteration."""
        c = self.context
        head, inside, after = c.label("while"), c.label("body"), c.label("after")
        c.forget_loads()
        c.jump(head)
        c.open(head)
        # Sums are reassociated over the iterations of reductions alone.
        outer, self.in_reduction = self.in_reduction, False
        with c.scope():
            c.branch(c.value(stmt.condition), inside, after)
            c.open(inside)
            self.stmt(stmt.body)
            c.jump(head)
        self.in_reduction = outer
        c.open(after)

    def allocate(self, stmt: Allocate) -> None:
        """Memory whose size is known only now; the rest was taken when the function started."""
        if stmt.buffer in self.context.pointers:
            self.stmt(stmt.body)
            return
        c = self.context
        pointer, slot = self._take(c.value(_bytes(stmt.buffer)))
        c.pointers[stmt.buffer] = pointer
        self.stmt(stmt.body)
        c.do(f"call void {self._free()}(ptr {pointer})")
        c.do(f"store ptr null, ptr {slot}, align 8")

    def loop(self, loop: For) -> None:
        """A loop: parallel ones leave the function unless they are nested in another."""
        if loop.kind is LoopKind.PARALLEL and not self.is_parallel_body:
            self._parallel(loop)
            return
        if loop.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
            raise CompilerBug(f"a loop of kind {loop.kind} reached the code generator")
        c = self.context
        combined = as_vector_reduction(loop)
        if combined is not None:
            self.store(emit_vector_reduction(c, loop, combined))
            return
        outer, self.in_reduction = self.in_reduction, REDUCTION.is_on(loop)
        low = c.value(loop.min)
        end = str(_const(loop.min) + _const(loop.extent)) if _both_const(loop) else c.value(loop.min + loop.extent)
        never_empty = isinstance(loop.extent, IntImm) and loop.extent.value > 0
        with c.analyzer.scope():
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
            self.counted(
                loop.var, low, end, lambda: self.repeated(loop), never_empty, _loop_metadata(self.module, loop)
            )
        self.in_reduction = outer

    def repeated(self, loop: For) -> None:
        """What a loop repeats, after the prefetches that it asks for."""
        c = self.context
        self.loops.append(loop)
        emit_prefetches(c, self.loops)
        outer, rows = c.plainly_addressed, c.row_vectors
        c.plainly_addressed = outer.union(PLAIN_ADDRESSES.of(loop) or ())
        c.row_vectors = rows or bool(ROW_VECTORS.of(loop))
        self.stmt(loop.body)
        c.plainly_addressed, c.row_vectors = outer, rows
        self.loops.pop()

    def counted(
        self, var: Var, low: str, end: str, body: Callable[[], None], never_empty: bool, metadata: str = ""
    ) -> None:
        """A loop of `var` from `low` to before `end`, tested at the bottom."""
        c = self.context
        head, after = c.label("loop"), c.label("after")
        before = c.block
        kind = register_type(var.dtype)
        if never_empty:
            c.jump(head)
        else:
            c.branch(c.op(f"icmp slt {kind} {low}, {end}"), head, after)
        c.open(head)
        number = head.removeprefix("loop")
        current, following = f"%i{number}_", f"%n{number}_"
        place = len(c.lines)
        c.lines.append("")
        c.variables[var] = current
        with c.scope():
            body()
        c.do(
            f"{following} = add nuw nsw {kind} {current}, 1"
            if low == "0"
            else f"{following} = add nsw {kind} {current}, 1"
        )
        again = c.op(f"icmp slt {kind} {following}, {end}")
        c.lines[place] = f"  {current} = phi {kind} [ {low}, %{before} ], [ {following}, %{c.block} ]"
        c.do(f"br i1 {again}, label %{head}, label %{after}{metadata}")
        c.open(after)

    def _parallel(self, loop: For) -> None:
        c = self.context
        captured = free_captures(loop)
        name = f"{self.name}__parallel{self.bodies}"
        self.bodies += 1
        _emit_parallel_body(self.module, name, loop, captured)
        record = c.stack(f"[{max(len(captured), 1)} x i64]", 8, "record")
        for number, item in enumerate(captured):
            place = c.op(f"getelementptr inbounds i64, ptr {record}, i64 {number}", "p")
            if isinstance(item, Buffer):
                c.do(f"store ptr {c.pointer(item)}, ptr {place}, align 8")
            elif item.dtype.is_bool:
                c.do(f"store i8 {c.op(f'zext i1 {c.value(item)} to i8')}, ptr {place}, align 8")
            else:
                c.do(f"store {memory_type(item.dtype)} {c.value(item)}, ptr {place}, align 8")
        run = self.module.declare("tw_parallel", "i32", "ptr, ptr, i64")
        code = c.op(f"call i32 {run}(ptr @{name}, ptr {record}, i64 {c.value(loop.extent)})")
        self.leave_if(c.op(f"icmp ne i32 {code}, 0"), code)


def _emit_parallel_body(module: ModuleContext, name: str, loop: For, captured: tuple[Capture, ...]) -> None:
    inner = FunctionEmitter(module, f"{name}_run", captured, is_parallel_body=True)

    def body(emitter: FunctionEmitter) -> None:
        c = emitter.context
        low = c.value(loop.min)
        first, last = "%begin", "%end"
        if low != "0":
            first, last = c.op(f"add nsw i64 {low}, %begin"), c.op(f"add nsw i64 {low}, %end")
        with c.analyzer.scope():
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
            emitter.counted(loop.var, first, last, lambda: emitter.repeated(loop), never_empty=False)

    inner.emit("internal ", body, loop.body, "i64 noundef %begin, i64 noundef %end")
    lines = [f"define internal i32 @{name}(ptr noundef %record, i64 noundef %begin, i64 noundef %end) nounwind {{"]
    arguments: list[str] = []
    for number, item in enumerate(captured):
        lines.append(f"  %p{number} = getelementptr inbounds i64, ptr %record, i64 {number}")
        kind = "ptr" if isinstance(item, Buffer) else memory_type(item.dtype)
        lines.append(f"  %a{number} = load {kind}, ptr %p{number}, align 8")
        arguments.append(f"{kind} %a{number}")
    arguments += ["i64 %begin", "i64 %end"]
    lines += [f"  %code = call i32 @{name}_run({', '.join(arguments)})", "  ret i32 %code", "}"]
    module.functions.append("\n".join(lines))


def _bytes(buffer: Buffer) -> PrimExpr:
    size: PrimExpr = IntImm(buffer.dtype.itemsize, INDEX)
    for dim in buffer.shape:
        size = size * dim
    return size


def _is_scalar_reduction(stmt: BufferStore) -> bool:
    """Whether a store adds to (or multiplies) what its own element holds."""
    value = stmt.value
    if not isinstance(value, (Add, Mul)) or not value.dtype.is_float or not value.dtype.is_scalar:
        return False
    own = BufferLoad(stmt.buffer, stmt.indices)
    return value.a is own or value.b is own


def _const(expr: PrimExpr) -> int:
    assert isinstance(expr, IntImm)
    return expr.value


def _both_const(loop: For) -> bool:
    return isinstance(loop.min, IntImm) and isinstance(loop.extent, IntImm)


def _loop_metadata(module: ModuleContext, loop: For) -> str:
    """A loop whose body has explicit vectors or many statements is as its schedule wants it: LLVM leaves it alone."""
    statements = 0
    for item in all_statements(loop.body):
        if isinstance(item, For):
            # LLVM unrolls innermost loops; outer ones only by accident.
            statements += 16
        if isinstance(item, BufferStore):
            statements += 1
            if item.value.dtype.lanes > 1:
                statements += 16
        if statements >= 16:
            key = module.add_metadata('!{!"llvm.loop.unroll.disable"}')
            return f", !llvm.loop {module.add_metadata(f'distinct !{{{{self}}, {key}}}')}"
    return ""


_TOGETHER: Final = ((square_at, emit_square), (interleaved_at, emit_interleaved), (narrowed_at, emit_narrowed))
"""What is better emitted from several statements at once: how many of them from one on, and how."""

_EMITTERS: Final[dict[type, Callable[[FunctionEmitter, Stmt], None]]] = {
    SeqStmt: lambda emitter, stmt: emitter.sequence(stmt),  # type: ignore[arg-type]
    BufferStore: lambda emitter, stmt: emitter.store(stmt),  # type: ignore[arg-type]
    LetStmt: lambda emitter, stmt: emitter.let(stmt),  # type: ignore[arg-type]
    Evaluate: lambda emitter, stmt: emitter.evaluate(stmt),  # type: ignore[arg-type]
    Assert: lambda emitter, stmt: emitter.check(stmt),  # type: ignore[arg-type]
    IfThenElse: lambda emitter, stmt: emitter.conditional(stmt),  # type: ignore[arg-type]
    While: lambda emitter, stmt: emitter.repeat(stmt),  # type: ignore[arg-type]
    Allocate: lambda emitter, stmt: emitter.allocate(stmt),  # type: ignore[arg-type]
    For: lambda emitter, stmt: emitter.loop(stmt),  # type: ignore[arg-type]
}
