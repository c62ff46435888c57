"""Scalar expressions as SPIR-V instructions, with the meaning of `docs/semantics.md`.

Values are ids of results; everything is computed once a statement. Selections that read memory become branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tilewright.backends.vulkan.convert import SpirvConversions
from tilewright.backends.vulkan.intrinsics import INTRINSICS
from tilewright.backends.vulkan.types import FLOAT_OPERATIONS, INTEGER_OPERATIONS, float_words, register_type
from tilewright.codegen.operators import Division, IntrinsicRule
from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError
from tilewright.tir.buffer import BufferLoad

_COMPARISONS: Final[dict[type, tuple[str, str, str, str]]] = {
    e.EQ: ("OpIEqual", "OpIEqual", "OpFOrdEqual", "OpLogicalEqual"),
    e.NE: ("OpINotEqual", "OpINotEqual", "OpFUnordNotEqual", "OpLogicalNotEqual"),
    e.LT: ("OpSLessThan", "OpULessThan", "OpFOrdLessThan", ""),
    e.LE: ("OpSLessThanEqual", "OpULessThanEqual", "OpFOrdLessThanEqual", ""),
}


class SpirvExpressions(SpirvConversions):
    """Expressions of one kernel."""

    intrinsics: ClassVar[Mapping[str, IntrinsicRule]] = INTRINSICS

    def load(self, expr: BufferLoad) -> str:
        """An element; small ones are widened."""
        pointer, element = self.place(expr.buffer, self.index(expr.indices[0]))
        return self.from_storage(self.op("OpLoad", element, pointer), element, expr.buffer.dtype)

    def calculate(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An instruction."""
        operations = FLOAT_OPERATIONS if dtype.is_float else INTEGER_OPERATIONS
        return self.op(operations[kind], register_type(dtype), a, b)

    def wrapping(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """Integers of 32 and 64 bits wrap by themselves."""
        return self.wrapped(self.calculate(kind, a, b, dtype), dtype)

    def float_remainder(self, a: str, b: str, dtype: DataType) -> str:
        """A number of steps: `OpFRem` is not exact."""
        if dtype.bits == 64:
            raise UnsupportedError("Vulkan kernels have no remainder of float64", hint="cast to float32 first")
        return _remainder(self, a, b)

    def divide_naturals(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """An unsigned division."""
        return self.op("OpUDiv" if division.quotient else "OpUMod", register_type(dtype), a, b)

    def divide(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """A division by a harmless divisor, and choices around it."""
        return self.wrapped(_safe_division(self, division, a, b, dtype), dtype)

    def extreme(self, lesser: bool, a: str, b: str, dtype: DataType) -> str:
        """A comparison and a choice."""
        kind = register_type(dtype)
        chosen = self.compare(e.LT, *((a, b) if lesser else (b, a)), dtype)
        if dtype.is_float:
            chosen = self.op("OpLogicalOr", "%bool", chosen, self.is_nan(a, kind))
        return self.select(kind, chosen, a, b)

    def compare(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An instruction by the type."""
        signed, unsigned, floating, logical = _COMPARISONS[kind]
        if dtype.is_bool and not logical:
            return self.connect(kind is e.LT, self.invert(a), b)
        operation = logical if dtype.is_bool else floating if dtype.is_float else signed if dtype.is_int else unsigned
        return self.op(operation, "%bool", a, b)

    def unknown_call(self, expr: e.Call, values: list[str]) -> str:
        """Functions of float64 are missing."""
        raise UnsupportedError(f"Vulkan kernels do not know {expr.name} of {expr.dtype}", hint="cast to float32 first")


def _safe_division(c: SpirvConversions, division: Division, a: str, b: str, dtype: DataType) -> str:
    """A division that never traps: 0 for a divisor of 0, wrap-around for the least integer by -1."""
    register = register_type(dtype)
    zero, one, minus = (c.integer(value, register) for value in (0, 1, -1))
    by_zero = c.op("OpIEqual", "%bool", b, zero)
    if dtype.is_uint:
        value = c.op("OpUDiv" if division.quotient else "OpUMod", register, a, c.select(register, by_zero, one, b))
        return c.select(register, by_zero, zero, value)
    by_minus = c.op("OpIEqual", "%bool", b, minus)
    safe = c.select(register, c.op("OpLogicalOr", "%bool", by_zero, by_minus), one, b)
    q = c.op("OpSDiv", register, a, safe)
    r = c.op("OpISub", register, a, c.op("OpIMul", register, q, safe))
    if division.floors:
        differ = c.op("OpSLessThan", "%bool", c.op("OpBitwiseXor", register, r, safe), zero)
        fix = c.op("OpLogicalAnd", "%bool", differ, c.op("OpINotEqual", "%bool", r, zero))
        q = c.op("OpISub", register, q, c.select(register, fix, one, zero))
        r = c.op("OpIAdd", register, r, c.select(register, fix, safe, zero))
    if division.quotient:
        q = c.select(register, by_minus, c.op("OpISub", register, zero, a), q)
        return c.select(register, by_zero, zero, q)
    return c.select(register, c.op("OpLogicalOr", "%bool", by_zero, by_minus), zero, r)


def _remainder(c: SpirvConversions, x: str, y: str) -> str:
    """The exact remainder of floats, in doubles: multiples of the divisor go from the largest power of two downward.

    A quotient of one step has few enough bits for its product with the divisor to be exact.
    """
    rest = c.op("OpFConvert", "%f64", c.glsl(4, "%f32", x))
    divisor = c.op("OpFConvert", "%f64", c.glsl(4, "%f32", y))
    zero = c.module.constant("%f64", 0, 0)
    for power in range(252, -1, -28):
        step = divisor
        if power:
            step = c.op("OpFMul", "%f64", divisor, c.module.constant("%f64", *float_words(2.0**power, "%f64")))
        count = c.glsl(3, "%f64", c.op("OpFDiv", "%f64", rest, step))
        rest = c.op("OpFSub", "%f64", rest, c.op("OpFMul", "%f64", count, step))
        # The quotient may have been rounded up to the next integer.
        negative = c.op("OpFOrdLessThan", "%bool", rest, zero)
        rest = c.select("%f64", negative, c.op("OpFAdd", "%f64", rest, step), rest)
    sign = c.op("OpBitwiseAnd", "%u32", c.op("OpBitcast", "%u32", x), c.integer(0x80000000))
    bits = c.op("OpBitcast", "%u32", c.op("OpFConvert", "%f32", rest))
    value = c.op("OpBitcast", "%f32", c.op("OpBitwiseOr", "%u32", bits, sign))
    small = c.op("OpFOrdLessThan", "%bool", c.glsl(4, "%f32", x), c.glsl(4, "%f32", y))
    value = c.select("%f32", small, x, value)
    limit = c.module.constant("%f32", 0x7F800000)
    finite = c.op("OpFOrdLessThan", "%bool", c.glsl(4, "%f32", x), limit)
    divides = c.op("OpFOrdLessThan", "%bool", c.module.constant("%f32", 0), c.glsl(4, "%f32", y))
    return c.select(
        "%f32", c.op("OpLogicalAnd", "%bool", finite, divides), value, c.module.constant("%f32", 0x7FC00000)
    )
