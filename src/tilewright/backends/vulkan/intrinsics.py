"""Calls of intrinsics in SPIR-V. Functions that Vulkan leaves imprecise were made arithmetic before."""

from __future__ import annotations

from typing import Final

from tilewright.backends.vulkan.convert import SpirvConversions
from tilewright.backends.vulkan.types import register_type
from tilewright.codegen.operators import IntrinsicRule, by_intrinsic
from tilewright.ir.dtype import INT32, DataType
from tilewright.ir.expr import Call
from tilewright.support.errors import UnsupportedError
from tilewright.tir.machine import DOT4

# Numbers of the extended instruction set GLSL.std.450.
_SINGLE: Final = {"sin": 13, "cos": 14, "tan": 15}
"""Functions of float32 alone."""
_FUNCTIONS: Final = {"round": 2, "trunc": 3, "floor": 8, "ceil": 9, "sqrt": 31, "fma": 50, **_SINGLE}
_ABS, _PACK_HALVES, _UNPACK_HALVES, _HIGHEST_ONE = 4, 58, 62, 75
_BITS: Final = {"bitwise_and": "OpBitwiseAnd", "bitwise_or": "OpBitwiseOr", "bitwise_xor": "OpBitwiseXor"}


def _function(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    kind = register_type(expr.dtype)
    if expr.name in _SINGLE and kind != "%f32":
        return c.unknown_call(expr, values)
    return c.glsl(_FUNCTIONS[expr.name], kind, *values)


def _test(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    kind = register_type(expr.args[0].dtype)
    if expr.name == "isnan":
        return c.is_nan(values[0], kind)
    words = (0, 0x7FF00000) if kind == "%f64" else (0x7F800000,)
    infinity = c.module.constant(kind, *words)
    operation = "OpFOrdEqual" if expr.name == "isinf" else "OpFOrdLessThan"
    return c.op(operation, "%bool", c.glsl(_ABS, kind, values[0]), infinity)


def _copysign(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    kind, (x, y) = register_type(expr.dtype), values
    integer = "%u64" if kind == "%f64" else "%u32"
    sign = 1 << (63 if kind == "%f64" else 31)
    magnitude = c.op("OpBitwiseAnd", integer, c.op("OpBitcast", integer, x), c.integer(sign - 1, integer))
    signed = c.op("OpBitwiseAnd", integer, c.op("OpBitcast", integer, y), c.integer(sign, integer))
    return c.op("OpBitcast", kind, c.op("OpBitwiseOr", integer, magnitude, signed))


def _absolute(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    value, dtype, kind = values[0], expr.dtype, register_type(expr.dtype)
    if dtype.is_float:
        return c.glsl(_ABS, kind, value)
    if dtype.is_uint:
        return value
    negative = c.op("OpSLessThan", "%bool", value, c.integer(0, kind))
    return c.wrapped(c.select(kind, negative, c.op("OpSNegate", kind, value), value), dtype)


def _bitwise(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    return c.op(_BITS[expr.name], register_type(expr.dtype), *values)


def _invert(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    return c.wrapped(c.op("OpNot", register_type(expr.dtype), values[0]), expr.dtype)


def _shift(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    """The count is taken modulo the width."""
    dtype, kind = expr.dtype, register_type(expr.dtype)
    count = c.op("OpBitwiseAnd", kind, values[1], c.integer(dtype.bits - 1, kind))
    if expr.name == "shift_left":
        return c.wrapped(c.op("OpShiftLeftLogical", kind, values[0], count), dtype)
    return c.op("OpShiftRightArithmetic" if dtype.is_int else "OpShiftRightLogical", kind, values[0], count)


def _count(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    value, dtype, leading = values[0], expr.dtype, expr.name == "clz"
    if dtype.bits == 64:
        words = c.op("OpBitcast", "%u32x2", value)
        low, high = (c.op("OpCompositeExtract", "%u32", words, part) for part in "01")
        if leading:
            # The low word counts only where the high one is zero.
            empty = c.op("OpIEqual", "%bool", high, c.integer(0))
            rest = c.select("%u32", empty, _zeros(c, low), c.integer(0))
            return c.op("OpUConvert", "%u64", c.op("OpIAdd", "%u32", _zeros(c, high), rest))
        ones = c.op("OpIAdd", "%u32", c.op("OpBitCount", "%u32", low), c.op("OpBitCount", "%u32", high))
        return c.op("OpUConvert", "%u64", ones)
    if dtype.bits < 32:
        value = c.op("OpBitwiseAnd", "%u32", value, c.integer((1 << dtype.bits) - 1))
    if not leading:
        return c.op("OpBitCount", "%u32", value)
    return c.op("OpISub", "%u32", _zeros(c, value), c.integer(32 - dtype.bits))


def _zeros(c: SpirvConversions, value: str) -> str:
    """Leading zeros of a word: the place of the highest one is -1 where there is none."""
    return c.op("OpISub", "%u32", c.integer(31), c.glsl(_HIGHEST_ONE, "%u32", value))


def reinterpret(c: SpirvConversions, value: str, source: DataType, target: DataType) -> str:
    """The same bits as another type of the same width."""
    if source.lanes != 1 or target.lanes != 1:
        raise UnsupportedError(f"Vulkan kernels do not reinterpret {source} as {target}")
    if source is target:
        return value
    if source.is_float == target.is_float:
        return c.convert(value, source, target)
    if source.bits >= 32:
        return c.op("OpBitcast", register_type(target), value)
    if target.is_float:
        bits = c.op("OpBitwiseAnd", "%u32", value, c.integer(0xFFFF))
        if target.name == "bfloat16":
            return c.bfloat16_value(bits)
        both = c.glsl(_UNPACK_HALVES, "%f32x2", bits)
        return c.op("OpCompositeExtract", "%f32", both, "0")
    if source.name == "bfloat16":
        return c.convert(c.bfloat16_bits(value), INT32, target)
    zero = c.module.constant("%f32", 0)
    packed = c.glsl(_PACK_HALVES, "%u32", c.op("OpCompositeConstruct", "%f32x2", value, zero))
    return c.convert(c.op("OpBitwiseAnd", "%u32", packed, c.integer(0xFFFF)), INT32, target)


def _reinterpret(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    return reinterpret(c, values[0], expr.args[0].dtype, expr.dtype)


def _dot4(c: SpirvConversions, expr: Call, values: list[str]) -> str:
    """An instruction of `SPV_KHR_integer_dot_product`."""
    total, a, b = values
    c.module.need("DotProduct", "DotProductInput4x8BitPacked")
    return c.op("OpIAdd", "%u32", total, c.op("OpSDot", "%u32", a, b, "PackedVectorFormat4x8Bit"))


INTRINSICS: Final[dict[str, IntrinsicRule]] = {
    **by_intrinsic(
        _FUNCTIONS,
        function=_function,
        test=_test,
        absolute=_absolute,
        bitwise=_bitwise,
        invert=_invert,
        shift=_shift,
        count=_count,
        same=_reinterpret,
    ),
    "copysign": _copysign,
    DOT4: _dot4,
}
