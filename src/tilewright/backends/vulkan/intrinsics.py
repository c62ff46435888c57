"""Calls of intrinsics in SPIR-V. Functions that Vulkan leaves imprecise were made arithmetic before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tilewright.backends.vulkan.convert import brain_bits, convert
from tilewright.backends.vulkan.types import register_type
from tilewright.ir.dtype import INT32, DataType
from tilewright.ir.expr import Call
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.backends.vulkan.expressions import SpirvExpressions

# Numbers of the extended instruction set GLSL.std.450.
_EXACT: Final = {"round": 2, "trunc": 3, "floor": 8, "ceil": 9, "sqrt": 31, "fma": 50}
_SINGLE: Final = {"sin": 13, "cos": 14, "tan": 15}
_ABS, _PACK_HALVES, _UNPACK_HALVES, _HIGHEST_ONE = 4, 58, 62, 75
_BITS: Final = {"bitwise_and": "OpBitwiseAnd", "bitwise_or": "OpBitwiseOr", "bitwise_xor": "OpBitwiseXor"}


def call(c: SpirvExpressions, expr: Call) -> str:
    """The value of a call."""
    name, dtype = expr.name, expr.dtype
    if name == "likely":
        return c.value(expr.args[0])
    values = [c.full(arg) for arg in expr.args]
    if name == "reinterpret":
        return reinterpret(c, values[0], expr.args[0].dtype, dtype)
    if name in ("isnan", "isinf", "isfinite"):
        return _test(c, name, values[0], register_type(expr.args[0].dtype))
    kind = register_type(dtype)
    if name in _EXACT or (name in _SINGLE and kind == "%f32"):
        return c.glsl(_EXACT.get(name) or _SINGLE[name], kind, *values)
    if name == "copysign":
        return _copysign(c, kind, *values)
    if name == "abs":
        return _absolute(c, values[0], dtype)
    if name in _BITS:
        return c.op(_BITS[name], kind, *values)
    if name == "bitwise_not":
        return c.wrapped(c.op("OpNot", kind, values[0]), dtype)
    if name in ("shift_left", "shift_right"):
        return _shift(c, values[0], values[1], dtype, name == "shift_left")
    if name in ("popcount", "clz"):
        return _count(c, values[0], dtype, name == "clz")
    raise UnsupportedError(f"Vulkan kernels do not know {name} of {dtype}", hint="cast to float32 first")


def _test(c: SpirvExpressions, name: str, value: str, kind: str) -> str:
    if name == "isnan":
        return c.is_nan(value, kind)
    words = (0, 0x7FF00000) if kind == "%f64" else (0x7F800000,)
    infinity = c.module.constant(kind, *words)
    operation = "OpFOrdEqual" if name == "isinf" else "OpFOrdLessThan"
    return c.op(operation, "%bool", c.glsl(_ABS, kind, value), infinity)


def _copysign(c: SpirvExpressions, kind: str, x: str, y: str) -> str:
    integer = "%u64" if kind == "%f64" else "%u32"
    sign = 1 << (63 if kind == "%f64" else 31)
    magnitude = c.op("OpBitwiseAnd", integer, c.op("OpBitcast", integer, x), c.integer(sign - 1, integer))
    signed = c.op("OpBitwiseAnd", integer, c.op("OpBitcast", integer, y), c.integer(sign, integer))
    return c.op("OpBitcast", kind, c.op("OpBitwiseOr", integer, magnitude, signed))


def _absolute(c: SpirvExpressions, value: str, dtype: DataType) -> str:
    kind = register_type(dtype)
    if dtype.is_float:
        return c.glsl(_ABS, kind, value)
    if dtype.is_uint:
        return value
    negative = c.op("OpSLessThan", "%bool", value, c.integer(0, kind))
    return c.wrapped(c.select(kind, negative, c.op("OpSNegate", kind, value), value), dtype)


def _shift(c: SpirvExpressions, value: str, count: str, dtype: DataType, left: bool) -> str:
    kind = register_type(dtype)
    # The count is taken modulo the width.
    count = c.op("OpBitwiseAnd", kind, count, c.integer(dtype.bits - 1, kind))
    if left:
        return c.wrapped(c.op("OpShiftLeftLogical", kind, value, count), dtype)
    return c.op("OpShiftRightArithmetic" if dtype.is_int else "OpShiftRightLogical", kind, value, count)


def _count(c: SpirvExpressions, value: str, dtype: DataType, leading: bool) -> str:
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


def _zeros(c: SpirvExpressions, value: str) -> str:
    """Leading zeros of a word: the place of the highest one is -1 where there is none."""
    return c.op("OpISub", "%u32", c.integer(31), c.glsl(_HIGHEST_ONE, "%u32", value))


def reinterpret(c: SpirvExpressions, value: str, source: DataType, target: DataType) -> str:
    """The same bits as another type of the same width."""
    if source.lanes != 1 or target.lanes != 1:
        raise UnsupportedError(f"Vulkan kernels do not reinterpret {source} as {target}")
    if source.is_float == target.is_float:
        return convert(c, value, source, target)
    if source.bits >= 32:
        return c.op("OpBitcast", register_type(target), value)
    if target.is_float:
        bits = c.op("OpBitwiseAnd", "%u32", value, c.integer(0xFFFF))
        if target.name == "bfloat16":
            return c.op("OpBitcast", "%f32", c.op("OpShiftLeftLogical", "%u32", bits, c.integer(16)))
        both = c.glsl(_UNPACK_HALVES, "%f32x2", bits)
        return c.op("OpCompositeExtract", "%f32", both, "0")
    if source.name == "bfloat16":
        return convert(c, brain_bits(c, value), INT32, target)
    zero = c.module.constant("%f32", 0)
    packed = c.glsl(_PACK_HALVES, "%u32", c.op("OpCompositeConstruct", "%f32x2", value, zero))
    return convert(c, c.op("OpBitwiseAnd", "%u32", packed, c.integer(0xFFFF)), INT32, target)
