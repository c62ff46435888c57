"""Kernels as WGSL: statements, memory, bindings, and the entry point around them.

Buffers are bindings 0, 1, ... of group 0 in the order of the kernel's parameters; after them comes one uniform buffer
with all scalars, 8 bytes each. Blocks are launched in a row, folded where they are more than a device takes along one
axis: `workgroup_id.x + 65535 * workgroup_id.y` is the number of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from tilewright.backends.webgpu.convert import from_bits, to_bits
from tilewright.backends.webgpu.expressions import WgslExpressions
from tilewright.backends.webgpu.helpers import helper_text
from tilewright.backends.webgpu.types import LONG, is_packed, register_bytes, register_type, storage_type
from tilewright.codegen.braces import BracedStatements
from tilewright.codegen.language import KernelLanguage
from tilewright.codegen.statements import check_shared, element_count
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.passes.split_host_device import DeviceKernel
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import Allocate, BufferStore, For

MOST_BLOCKS: Final = 65535
"""Blocks along one axis of a launch that every device takes."""


class WgslLanguage(KernelLanguage):
    """The language of WebGPU."""

    name: ClassVar[str] = "WebGPU"
    suffix: ClassVar[str] = ".wgsl"

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """One module with an entry point a kernel."""
        bodies = "\n".join(_Kernel(kernel, f"k{number}").emit() for number, kernel in enumerate(kernels))
        return f"{helper_text(bodies)}\n{bodies}"


class _Kernel(BracedStatements[WgslExpressions]):
    """One kernel being emitted; what it declares outside functions has a prefix of its own."""

    forever = "loop"

    def __init__(self, kernel: DeviceKernel, prefix: str) -> None:
        params = [param for param in kernel.func.params if isinstance(param, Buffer)]
        # Threads that store small elements of one word do so bit by bit.
        storage = {param: param in kernel.written and is_packed(param.dtype) for param in params}
        super().__init__(WgslExpressions(storage, _single_elements(kernel)))
        self.kernel = kernel
        self._prefix = prefix
        self._head: list[str] = []

    def emit(self) -> str:
        """The text of the kernel."""
        kernel, head = self.kernel, self._head
        self._bindings()
        self._shared()
        self._scalars()
        self._axes()
        self.statement(kernel.func.body)
        x, y, z = kernel.block
        head.append(f"@compute @workgroup_size({x}, {y}, {z})")
        head.append(f"fn {kernel.func.name}(")
        head.append("  @builtin(workgroup_id) tw_group: vec3<u32>, @builtin(local_invocation_id) tw_local: vec3<u32>")
        return "\n".join([*head, ") {", *self.values.lines, "}", ""])

    # ---------------------------------------------------------------- what stands around the statements

    def _bindings(self) -> None:
        c, lines = self.values, self._head
        for number, buffer in enumerate(c.storage):
            element = "atomic<u32>" if c.storage[buffer] else storage_type(buffer.dtype)
            mode = "read_write" if buffer in self.kernel.written else "read"
            name = c.declare_global(buffer, self._prefix)
            lines.append(f"@group(0) @binding({number}) var<storage, {mode}> {name}: array<{element}>;")

    def _shared(self) -> None:
        c, lines = self.values, self._head
        total = 0
        for buffer in self.kernel.shared:
            kind = register_type(buffer.dtype)
            total += element_count(buffer) * register_bytes(buffer.dtype)
            name = c.declare_global(buffer, self._prefix)
            lines.append(f"var<workgroup> {name}: array<{kind}, {element_count(buffer)}>;")
        check_shared(self.kernel, total, self.language)

    def _scalars(self) -> None:
        """Scalars out of the uniform buffer."""
        c, kernel = self.values, self.kernel
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
        c, kernel = self.values, self.kernel
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

    def loop(self, loop: For, body: Callable[[], None]) -> None:
        """A `for`."""
        c = self.values
        name, low, extent = c.name(loop.var), const_value(loop.min), const_value(loop.extent)
        short = c.is_narrow(loop.var)
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
        self.inside(body)
        c.line("}")

    def allocate(self, buffer: Buffer) -> None:
        """An array of the function, or a variable for each of its elements."""
        c, kind = self.values, register_type(buffer.dtype)
        if buffer not in c.single:
            c.line(f"var {c.name(buffer)}: array<{kind}, {element_count(buffer)}>;")
            return
        for number in range(element_count(buffer)):
            c.line(f"var {c.element(buffer, str(number))}: {kind};")

    def hold(self, value: PrimExpr, text: str) -> str:
        """A `let`."""
        return self.values.declare(register_type(value.dtype), text)

    def barrier(self, scope: str) -> None:
        """A barrier of the workgroup."""
        if scope != "shared":
            self.values.line("storageBarrier();")
        self.values.line("workgroupBarrier();")

    def assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        """An assignment, or the bits of a small element put in their word."""
        c = self.values
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


def _single_elements(kernel: DeviceKernel) -> frozenset[Buffer]:
    """The buffers of threads whose elements are all named by constants.

    They are variables, not arrays: a product on SwiftShader took 31 ms with variables and 55 ms with an array of sums.
    """
    body = kernel.func.body
    own = {item.buffer for item in all_statements(body) if isinstance(item, Allocate)}
    accesses: list[BufferLoad | BufferStore] = [*find_all(body, BufferLoad), *find_all(body, BufferStore)]
    indexed = {item.buffer for item in accesses if const_value(item.indices[0]) is None}
    return frozenset(own - indexed)
