"""Kernels as WGSL: statements, memory, bindings, and the entry point around them.

Buffers are bindings 0, 1, ... of group 0 in the order of the kernel's parameters; after them comes one uniform buffer
with all scalars, 8 bytes each. Blocks are launched in a row, folded where they are more than a device takes along one
axis: `workgroup_id.x + 65535 * workgroup_id.y` is the number of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from tilewright.codegen.c.kernels import merged
from tilewright.codegen.c.lanes import Lanes
from tilewright.codegen.language import KernelLanguage
from tilewright.codegen.wgsl.convert import from_bits, to_bits
from tilewright.codegen.wgsl.expressions import WgslExpressions
from tilewright.codegen.wgsl.helpers import helper_text
from tilewright.codegen.wgsl.types import LONG, is_packed, register_bytes, register_type, storage_type
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Call, IntImm, PrimExpr, Range, StringImm, Var, const_value
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
)

MOST_BLOCKS: Final = 65535
"""Blocks along one axis of a launch that every device takes."""
SURE_SHARED_BYTES: Final = 16384
"""Memory of a workgroup that every device has."""


class WgslLanguage(KernelLanguage):
    """The language of WebGPU."""

    name: ClassVar[str] = "WebGPU"

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """One module with an entry point a kernel."""
        bodies = "\n".join(_Kernel(kernel, f"k{number}").emit() for number, kernel in enumerate(kernels))
        return f"{helper_text(bodies)}\n{bodies}"


class _Kernel:
    """One kernel being emitted; what it declares outside functions has a prefix of its own."""

    def __init__(self, kernel: DeviceKernel, prefix: str) -> None:
        self._kernel = kernel
        self._prefix = prefix
        params = [param for param in kernel.func.params if isinstance(param, Buffer)]
        # Threads that store small elements of one word do so bit by bit.
        self._e = WgslExpressions({param: param in kernel.written and is_packed(param.dtype) for param in params})
        self._lanes = Lanes()
        self._head: list[str] = []

    def emit(self) -> str:
        """The text of the kernel."""
        c, kernel = self._e, self._kernel
        head = self._head
        self._bindings()
        self._shared()
        self._scalars()
        self._axes()
        self._stmt(kernel.func.body)
        x, y, z = kernel.block
        head.append(f"@compute @workgroup_size({x}, {y}, {z})")
        head.append(f"fn {kernel.func.name}(")
        head.append("  @builtin(workgroup_id) tw_group: vec3<u32>, @builtin(local_invocation_id) tw_local: vec3<u32>")
        return "\n".join([*head, ") {", *c.lines, "}", ""])

    # ---------------------------------------------------------------- what stands around the statements

    def _bindings(self) -> None:
        c, lines = self._e, self._head
        for number, buffer in enumerate(c.storage):
            element = "atomic<u32>" if c.storage[buffer] else storage_type(buffer.dtype)
            mode = "read_write" if buffer in self._kernel.written else "read"
            name = c.declare_global(buffer, self._prefix)
            lines.append(f"@group(0) @binding({number}) var<storage, {mode}> {name}: array<{element}>;")

    def _shared(self) -> None:
        c, lines = self._e, self._head
        total = 0
        for buffer in self._kernel.shared:
            kind = register_type(buffer.dtype)
            total += _count(buffer) * register_bytes(buffer.dtype)
            name = c.declare_global(buffer, self._prefix)
            lines.append(f"var<workgroup> {name}: array<{kind}, {_count(buffer)}>;")
        declared = sum(buffer_bytes(buffer) or 0 for buffer in self._kernel.shared)
        if total > max(declared, SURE_SHARED_BYTES):
            raise UserError(
                f"a block uses {total} bytes of shared memory, WebGPU devices have {SURE_SHARED_BYTES}: elements of "
                "small types take 4 bytes there",
                where=f"kernel {self._kernel.func.name}",
                hint="use smaller tiles",
            )

    def _scalars(self) -> None:
        """Scalars out of the uniform buffer."""
        c, kernel = self._e, self._kernel
        scalars = [param for param in kernel.func.params if isinstance(param, Var)]
        if not scalars:
            return
        place = f"{self._prefix}_scalars"
        self._head.append(
            f"@group(0) @binding({len(c.storage)}) var<uniform> {place}: array<vec4<u32>, {(len(scalars) + 1) // 2}>;"
        )
        for number, param in enumerate(scalars):
            c.decide(param, narrow=False)
            kind = register_type(param.dtype)
            pair = f"{place}[{number // 2}].{'zw' if number % 2 else 'xy'}"
            bits = param.dtype.bits if not param.dtype.is_bool else 8
            low = f"{pair}.x" if bits >= 32 else f"({pair}.x & {(1 << bits) - 1}u)"
            text = pair if kind == LONG else from_bits(low, param.dtype)
            c.line(f"let {c.name(param)}: {kind} = {text};")

    def _axes(self) -> None:
        """The places of the block and of the thread."""
        c, kernel = self._e, self._kernel
        counts = [const_value(extent) for extent in kernel.grid]
        total = 1
        for count in counts:
            total = 0 if count is None else total * count
        block = "i32(tw_group.x)"
        if not 0 < total <= MOST_BLOCKS:
            c.line(f"let tw_block: i32 = i32(tw_group.x + tw_group.y * {MOST_BLOCKS}u);")
            block = "tw_block"
        texts = []
        for extent in kernel.grid:
            c.start(extent)
            texts.append(c.index(extent))
        if block == "tw_block":
            c.line(f"if (tw_block >= {texts[0]} * {texts[1]} * {texts[2]}) {{ return; }}")
        places = {
            "blockIdx.x": f"{block} % {texts[0]}" if counts[1:] != [1, 1] else block,
            "blockIdx.y": f"{block} / {texts[0]} % {texts[1]}",
            "blockIdx.z": f"{block} / {texts[0]} / {texts[1]}",
        }
        places |= {f"threadIdx.{letter}": f"i32(tw_local.{letter})" for letter in "xyz"}
        for var, (axis, extent) in kernel.axes.items():
            c.analyzer.bind(var, Range(IntImm(0, INDEX), extent))
            c.decide(var, narrow=True)
            c.line(f"let {c.name(var)}: i32 = {places[axis]};")

    # ---------------------------------------------------------------- statements

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case SeqStmt():
                for item in merged(stmt.stmts):
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
                kind = register_type(stmt.buffer.dtype)
                self._e.line(f"var {self._e.name(stmt.buffer)}: array<{kind}, {_count(stmt.buffer)}>;")
                self._stmt(stmt.body)
            case Evaluate():
                self._evaluate(stmt)
            case _:
                raise UnsupportedError(f"WebGPU kernels have no {type(stmt).__name__}")

    def _evaluate(self, stmt: Evaluate) -> None:
        value = stmt.value
        if not isinstance(value, Call) or value.name != "barrier":
            raise UnsupportedError(f"WebGPU kernels do not call for an effect: {value}")
        scope = value.args[0]
        if not isinstance(scope, StringImm) or scope.value != "shared":
            self._e.line("storageBarrier();")
        self._e.line("workgroupBarrier();")

    def _body(self, stmt: Stmt) -> None:
        self._e.depth += 1
        self._stmt(stmt)
        self._e.depth -= 1

    def _for(self, loop: For) -> None:
        c = self._e
        if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.PARALLEL):
            raise CompilerBug(f"a {loop.kind.value} loop came to the code generator")
        c.start(loop.min, loop.extent)
        name, low, extent = c.name(loop.var), const_value(loop.min), const_value(loop.extent)
        short = c.is_short(loop.min, loop.extent)
        c.decide(loop.var, short)
        if short and low is not None and extent is not None:
            c.line(f"for (var {name}: i32 = {low}; {name} < {low + extent}; {name} = {name} + 1) {{")
        elif short:
            end = c.declare("i32", f"{c.value(loop.min)} + {c.value(loop.extent)}")
            c.line(f"for (var {name}: i32 = {c.value(loop.min)}; {name} < {end}; {name} = {name} + 1) {{")
        else:
            first = c.full(loop.min)
            end = c.declare(LONG, f"tw_add({first}, {c.full(loop.extent)})")
            step = f"{name} = tw_add({name}, {LONG}(1u, 0u))"
            c.line(f"for (var {name}: {LONG} = {first}; tw_less_int64({name}, {end}); {step}) {{")
        with c.analyzer.scope():
            c.analyzer.bind(loop.var, Range(loop.min, loop.extent))
            self._body(loop.body)
        c.line("}")

    def _if(self, stmt: IfThenElse) -> None:
        c = self._e
        if stmt.condition.dtype.lanes > 1:
            assert isinstance(stmt.then_body, BufferStore)
            self._store(stmt.then_body, stmt.condition)
            return
        c.start(stmt.condition)
        c.line(f"if ({c.value(stmt.condition)}) {{")
        self._body(stmt.then_body)
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
        c.line(f"let {c.name(stmt.var)}: {c.type_of(stmt.value)} = {text};")
        self._stmt(stmt.body)
        c.depth -= 1
        c.line("}")

    def _store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """A store. All lanes are computed before any is stored, as one vector operation does."""
        c = self._e
        lanes = range(stmt.value.dtype.lanes)
        values = [self._lanes.of(stmt.value, lane) for lane in lanes]
        indices = [self._lanes.of(stmt.indices[0], lane) for lane in lanes]
        if mask is None:
            c.start(*values, *indices)
            texts = [c.full(value) for value in values]
            if len(texts) > 1 and _reads(stmt.value, stmt.buffer):
                texts = [c.declare(register_type(v.dtype), text) for v, text in zip(values, texts, strict=True)]
            for index, text in zip(indices, texts, strict=True):
                self._assign(stmt.buffer, index, text)
            return
        if _reads(stmt.value, stmt.buffer) and len(lanes) > 1:
            raise UnsupportedError("WebGPU kernels have no masked store to what its value reads")
        for lane, index, value in zip(lanes, indices, values, strict=True):
            condition = self._lanes.of(mask, lane)
            c.start(condition)
            c.line(f"if ({c.value(condition)}) {{")
            c.depth += 1
            c.start(value, index)
            self._assign(stmt.buffer, index, c.full(value))
            c.depth -= 1
            c.line("}")

    def _assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        c = self._e
        place = c.index(index)
        if not c.storage.get(buffer, False):
            c.line(f"{c.element(buffer, place)} = {text};")
            return
        size = 8 * buffer.dtype.itemsize
        place = c.declare("i32", place)
        shift = c.declare("u32", f"(u32({place}) & {32 // size - 1}u) * {size}u")
        bits = c.declare("u32", to_bits(text, buffer.dtype))
        word = c.element(buffer, place)
        c.line(f"atomicAnd(&{word}, ~({(1 << size) - 1}u << {shift}));")
        c.line(f"atomicOr(&{word}, {bits} << {shift});")


def _reads(expr: PrimExpr, buffer: Buffer) -> bool:
    return any(isinstance(item, BufferLoad) and item.buffer is buffer for item in pre_order(expr))


def _count(buffer: Buffer) -> int:
    size = buffer_bytes(buffer)
    assert size is not None
    return max(1, size // buffer.dtype.itemsize)
