"""Values of one kernel in SPIR-V: ids of results, instructions that make them, constants, places in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tilewright.backends.vulkan.module import SpirvModule
from tilewright.backends.vulkan.types import float_words, register_type, storage_type
from tilewright.codegen.operators import KernelOperators
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.buffer import Buffer


class SpirvValues(KernelOperators):
    """Values of one kernel. `storage` are the variables of buffers in storage, `memory` those of other buffers."""

    language = "Vulkan"
    addresses_in_32_bits: ClassVar[bool] = True

    def __init__(self, module: SpirvModule, prefix: str) -> None:
        super().__init__()
        self.module = module
        self.prefix = prefix
        self.storage: dict[Buffer, str] = {}
        self.memory: dict[Buffer, tuple[str, str]] = {}
        self.variables: dict[Var, str] = {}
        self.label = f"%{prefix}_start"

    # ---------------------------------------------------------------- instructions

    def fresh(self) -> str:
        """An id that was not used before."""
        return f"%{self.prefix}_{self.temporary()}"

    def op(self, name: str, kind: str, *operands: str) -> str:
        """An instruction with a result of a type."""
        result = self.fresh()
        self.line(f"{result} = {name} {self.module.type(kind)} {' '.join(operands)}")
        return result

    def glsl(self, number: int, kind: str, *operands: str) -> str:
        """A function of the extended instruction set."""
        return self.op("OpExtInst", kind, "%glsl", str(number), *operands)

    def integer(self, value: int, kind: str = "%u32") -> str:
        """An integer constant."""
        return self.module.integer(kind, value)

    def truth(self, value: bool) -> str:
        """A constant condition."""
        return self.module.constant("%bool", int(value))

    def connect(self, conjunction: bool, a: str, b: str) -> str:
        """Both of two conditions, or one of them."""
        return self.op("OpLogicalAnd" if conjunction else "OpLogicalOr", "%bool", a, b)

    def invert(self, condition: str) -> str:
        """The opposite of a condition."""
        return self.op("OpLogicalNot", "%bool", condition)

    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values that are both there."""
        return self.op("OpSelect", kind, condition, a, b)

    def begin(self, label: str) -> None:
        """Begin a block of instructions."""
        self.line(f"{label} = OpLabel")
        self.label = label

    def choice(self, condition: str, kind: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """A value of one of two sides, only one of which is computed."""
        first, second, after = self.fresh(), self.fresh(), self.fresh()
        self.line(f"OpSelectionMerge {after} None")
        self.line(f"OpBranchConditional {condition} {first} {second}")
        sides = []
        for label, side in ((first, then), (second, otherwise)):
            self.begin(label)
            self.enter()
            value = side()
            sides += [value, self.label]
            self.leave()
            self.line(f"OpBranch {after}")
        self.begin(after)
        return self.op("OpPhi", kind, *sides)

    # ---------------------------------------------------------------- values

    def share(self, expr: PrimExpr, text: str) -> str:
        """A result has a name already."""
        return text

    def type_of(self, expr: PrimExpr) -> str:
        """The type of an expression's result."""
        return "%u32" if self.is_narrow(expr) else register_type(expr.dtype)

    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return self.op("OpSConvert", "%u64", text)

    def variable_value(self, var: Var) -> str:
        """A variable, by the result that it holds."""
        return self.variables[var]

    def integer_constant(self, value: int, dtype: DataType) -> str:
        """An integer constant."""
        return self.truth(bool(value)) if dtype.is_bool else self.integer(value, register_type(dtype))

    def float_constant(self, value: float, dtype: DataType) -> str:
        """A float constant."""
        kind = register_type(dtype)
        return self.module.constant(kind, *float_words(value, kind))

    def place(self, buffer: Buffer, index: str) -> tuple[str, str]:
        """A pointer to an element, and its type in memory."""
        if buffer in self.storage:
            element = storage_type(buffer.dtype)
            pointer = self.module.pointer("StorageBuffer", self.module.type(element))
            result = self.fresh()
            chain = f"{self.storage[buffer]} {self.integer(0)} {index}"
        else:
            variable, storage = self.memory[buffer]
            element = register_type(buffer.dtype)
            pointer = self.module.pointer(storage, self.module.type(element))
            result = self.fresh()
            chain = f"{variable} {index}"
        self.line(f"{result} = OpAccessChain {pointer} {chain}")
        return result, element

    # ---------------------------------------------------------------- integers of few bits

    def wrapped(self, value: str, dtype: DataType) -> str:
        """A value of 32 bits brought into the range of its type."""
        if dtype.bits >= 32:
            return value
        if dtype.is_uint:
            return self.op("OpBitwiseAnd", "%u32", value, self.integer((1 << dtype.bits) - 1))
        shift = self.integer(32 - dtype.bits)
        return self.op("OpShiftRightArithmetic", "%u32", self.op("OpShiftLeftLogical", "%u32", value, shift), shift)

    def is_nan(self, value: str, kind: str) -> str:
        """Whether a float is not a number."""
        return self.op("OpFUnordNotEqual", "%bool", value, value) if kind == "%f64" else self._is_nan_by_bits(value)

    def _is_nan_by_bits(self, value: str) -> str:
        bits = self.op("OpBitwiseAnd", "%u32", self.op("OpBitcast", "%u32", value), self.integer(0x7FFFFFFF))
        return self.op("OpULessThan", "%bool", self.integer(0x7F800000), bits)
