"""Kernels as SPIR-V: statements, memory, bindings, and the entry point around them.

Buffers are bindings 0, 1, ... of set 0 in the order of the kernel's parameters; scalars are push constants of 8 bytes.
Blocks are launched in a row, folded as `backends/webgpu/kernels.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from tilewright.backends.vulkan.expressions import SpirvExpressions
from tilewright.backends.vulkan.intrinsics import reinterpret
from tilewright.backends.vulkan.module import SIZES, SpirvModule
from tilewright.backends.vulkan.types import register_type, storage_type
from tilewright.backends.webgpu.kernels import MOST_BLOCKS
from tilewright.codegen.language import KernelLanguage
from tilewright.codegen.statements import KernelStatements, check_shared, element_count
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import IntImm, PrimExpr, Range, Var, const_value
from tilewright.support.errors import UnsupportedError
from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.split_host_device import DeviceKernel
from tilewright.tir.stmt import For, LetStmt

MOST_SCALARS: Final = 16
"""Scalars that fit the push constants of every device."""
_ACQUIRE_RELEASE, _STORAGE_MEMORY, _WORKGROUP_MEMORY = 0x8, 0x40, 0x100


class SpirvLanguage(KernelLanguage):
    """The language of Vulkan."""

    name: ClassVar[str] = "Vulkan"
    suffix: ClassVar[str] = ".spvasm"

    def emit(self, kernels: Sequence[DeviceKernel]) -> str:
        """One module with an entry point a kernel."""
        module = SpirvModule()
        for number, kernel in enumerate(kernels):
            _Kernel(kernel, SpirvExpressions(module, f"k{number}")).emit()
        return module.text()


class _Kernel(KernelStatements[SpirvExpressions]):
    """One kernel being emitted. Variables of a function stand at its beginning, wherever they are needed."""

    def __init__(self, kernel: DeviceKernel, values: SpirvExpressions) -> None:
        super().__init__(values)
        self.kernel = kernel
        self._module = values.module
        self._variables: list[str] = []

    def emit(self) -> None:
        """Add the kernel to its module."""
        c, kernel, module = self.values, self.kernel, self._module
        function = f"%{c.prefix}"
        self._bindings()
        self._shared()
        self._scalars()
        self._places()
        self.statement(kernel.func.body)
        c.line("OpReturn")
        inputs = f"{module.builtin('WorkgroupId')} {module.builtin('LocalInvocationId')}"
        module.entries.append(f'OpEntryPoint GLCompute {function} "{kernel.func.name}" {inputs}')
        x, y, z = kernel.block
        module.modes.append(f"OpExecutionMode {function} LocalSize {x} {y} {z}")
        head = [f"{function} = OpFunction %void None {module.function_type()}", f"%{c.prefix}_start = OpLabel"]
        module.functions += [*head, *self._variables, *c.lines, "OpFunctionEnd"]

    # ---------------------------------------------------------------- what stands around the statements

    def _bindings(self) -> None:
        c, module = self.values, self._module
        buffers = [param for param in self.kernel.func.params if isinstance(param, Buffer)]
        for number, buffer in enumerate(buffers):
            block = module.storage_block(storage_type(buffer.dtype))
            variable = module.variable(f"%{c.prefix}_{c.name(buffer)}", "StorageBuffer", block)
            module.decorate(f"OpDecorate {variable} DescriptorSet 0")
            module.decorate(f"OpDecorate {variable} Binding {number}")
            if buffer not in self.kernel.written:
                module.decorate(f"OpDecorate {variable} NonWritable")
            c.storage[buffer] = variable

    def _shared(self) -> None:
        c, module = self.values, self._module
        total = 0
        for buffer in self.kernel.shared:
            element = register_type(buffer.dtype)
            total += element_count(buffer) * SIZES[element]
            array = module.array(element, element_count(buffer))
            variable = module.variable(f"%{c.prefix}_{c.name(buffer)}", "Workgroup", array)
            c.memory[buffer] = (variable, "Workgroup")
        check_shared(self.kernel, total, self.language)

    def _scalars(self) -> None:
        """Scalars out of the push constants."""
        c, module = self.values, self._module
        scalars = [param for param in self.kernel.func.params if isinstance(param, Var)]
        if len(scalars) > MOST_SCALARS:
            raise UnsupportedError(
                f"a Vulkan kernel takes up to {MOST_SCALARS} scalars, not {len(scalars)}",
                where=f"kernel {self.kernel.func.name}",
            )
        if not scalars:
            return
        block = module.variable(f"%{c.prefix}_scalars", "PushConstant", module.constant_block(2 * len(scalars)))
        pointer = module.pointer("PushConstant", module.type("%u32"))

        def word(number: int) -> str:
            place = c.fresh()
            c.line(f"{place} = OpAccessChain {pointer} {block} {c.integer(0)} {c.integer(number)}")
            return c.op("OpLoad", "%u32", place)

        for number, param in enumerate(scalars):
            c.decide(param, narrow=False)
            kind, dtype = register_type(param.dtype), param.dtype
            if kind in ("%u64", "%f64"):
                both = c.op("OpCompositeConstruct", "%u32x2", word(2 * number), word(2 * number + 1))
                c.variables[param] = c.op("OpBitcast", kind, both)
                continue
            value = word(2 * number)
            if dtype.is_bool:
                low = c.op("OpBitwiseAnd", "%u32", value, c.integer(0xFF))
                value = c.op("OpINotEqual", "%bool", low, c.integer(0))
            elif dtype.name == "float32":
                value = c.op("OpBitcast", "%f32", value)
            elif dtype.is_float:
                value = reinterpret(c, value, DataType.of("uint16"), dtype)
            else:
                value = c.wrapped(value, dtype)
            c.variables[param] = value

    def _places(self) -> None:
        """The places of the block and of the thread."""
        c, module, kernel = self.values, self._module, self.kernel
        group = c.op("OpLoad", "%u32x3", module.builtin("WorkgroupId"))
        local = c.op("OpLoad", "%u32x3", module.builtin("LocalInvocationId"))
        counts = [const_value(extent) for extent in kernel.grid]
        total = 1
        for count in counts:
            total = 0 if count is None else total * count
        block = c.op("OpCompositeExtract", "%u32", group, "0")
        extents = []
        for extent in kernel.grid:
            c.start(extent)
            extents.append(c.index(extent))
        if not 0 < total <= MOST_BLOCKS:
            row = c.op("OpCompositeExtract", "%u32", group, "1")
            block = c.op("OpIAdd", "%u32", block, c.op("OpIMul", "%u32", row, c.integer(MOST_BLOCKS)))
            blocks = c.op("OpIMul", "%u32", c.op("OpIMul", "%u32", extents[0], extents[1]), extents[2])
            self._return_unless(c.op("OpULessThan", "%bool", block, blocks))
        for var, (axis, extent) in kernel.axes.items():
            c.analyzer.bind(var, Range(IntImm(0, INDEX), extent))
            c.decide(var, narrow=True)
            kind, letter = axis.split(".")
            number = "xyz".index(letter)
            if kind == "threadIdx":
                c.variables[var] = c.op("OpCompositeExtract", "%u32", local, str(number))
                continue
            place = block
            for before in extents[:number]:
                place = c.op("OpUDiv", "%u32", place, before)
            if counts[number + 1 :] != [1] * (2 - number):
                place = c.op("OpUMod", "%u32", place, extents[number])
            c.variables[var] = place

    def _return_unless(self, condition: str) -> None:
        c = self.values
        inside, outside = c.fresh(), c.fresh()
        c.line(f"OpSelectionMerge {inside} None")
        c.line(f"OpBranchConditional {condition} {inside} {outside}")
        c.begin(outside)
        c.line("OpReturn")
        c.begin(inside)

    # ---------------------------------------------------------------- statements

    def loop(self, loop: For, body: Callable[[], None]) -> None:
        """A loop that counts in a variable."""
        c = self.values
        kind = "%u32" if c.is_narrow(loop.var) else "%u64"
        counter = self._variable(kind)
        first = c.value(loop.min) if kind == "%u32" else c.full(loop.min)
        extent = c.value(loop.extent) if kind == "%u32" else c.full(loop.extent)
        end = c.op("OpIAdd", kind, first, extent)
        c.line(f"OpStore {counter} {first}")

        def test() -> str:
            c.variables[loop.var] = c.op("OpLoad", kind, counter)
            return c.op("OpSLessThan", "%bool", c.variables[loop.var], end)

        def advance() -> None:
            c.line(f"OpStore {counter} {c.op('OpIAdd', kind, c.variables[loop.var], c.integer(1, kind))}")

        self._frame(test, body, advance)

    def repeat(self, condition: Callable[[], str], body: Callable[[], None]) -> None:
        """A loop whose first blocks decide whether it goes on."""
        self._frame(condition, body, lambda: None)

    def _frame(self, condition: Callable[[], str], body: Callable[[], None], advance: Callable[[], None]) -> None:
        """The blocks of a loop: `advance` is done after each iteration."""
        c = self.values
        head, test, inside, again, after = (c.fresh() for _ in range(5))
        c.line(f"OpBranch {head}")
        c.begin(head)
        c.line(f"OpLoopMerge {after} {again} None")
        c.line(f"OpBranch {test}")
        c.begin(test)
        c.line(f"OpBranchConditional {condition()} {inside} {after}")
        c.begin(inside)
        body()
        c.line(f"OpBranch {again}")
        c.begin(again)
        advance()
        c.line(f"OpBranch {head}")
        c.begin(after)

    def _variable(self, kind: str) -> str:
        module = self._module
        return self._declare(module.pointer("Function", module.type(kind)))

    def _declare(self, pointer: str) -> str:
        name = self.values.fresh()
        self._variables.append(f"{name} = OpVariable {pointer} Function")
        return name

    def branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        """One of two blocks."""
        c = self.values
        first, after = c.fresh(), c.fresh()
        second = after if otherwise is None else c.fresh()
        c.line(f"OpSelectionMerge {after} None")
        c.line(f"OpBranchConditional {condition} {first} {second}")
        for label, side in ((first, then), (second, otherwise)):
            if side is not None:
                c.begin(label)
                side()
                c.line(f"OpBranch {after}")
        c.begin(after)

    def let(self, stmt: LetStmt, body: Callable[[], None]) -> None:
        """A result has a name already."""
        c = self.values
        c.decide(stmt.var, c.is_narrow(stmt.value))
        c.variables[stmt.var] = c.value(stmt.value)
        body()

    def allocate(self, buffer: Buffer) -> None:
        """An array of the function."""
        array = self._module.array(register_type(buffer.dtype), element_count(buffer))
        self.values.memory[buffer] = (self._declare(self._module.pointer("Function", array)), "Function")

    def hold(self, value: PrimExpr, text: str) -> str:
        """A result is computed where it is first named."""
        return text

    def assign(self, buffer: Buffer, index: PrimExpr, text: str) -> None:
        """A store."""
        c = self.values
        if buffer in c.storage:
            text = c.to_storage(text, buffer.dtype)
        pointer, _ = c.place(buffer, c.index(index))
        c.line(f"OpStore {pointer} {text}")

    def barrier(self, scope: str) -> None:
        """A barrier of the workgroup."""
        c = self.values
        semantics = _ACQUIRE_RELEASE | _WORKGROUP_MEMORY | (0 if scope == "shared" else _STORAGE_MEMORY)
        workgroup = c.integer(2)
        c.line(f"OpControlBarrier {workgroup} {workgroup} {c.integer(semantics)}")
