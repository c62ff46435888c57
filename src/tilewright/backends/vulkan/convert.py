"""Conversions between types in SPIR-V, and values on their way to storage buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.vulkan.types import INTEGER_OPERATIONS, float_words, register_type
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, INT32, DataType

if TYPE_CHECKING:
    from tilewright.backends.vulkan.expressions import SpirvExpressions


def to_storage(c: SpirvExpressions, value: str, dtype: DataType) -> str:
    """What goes to a storage buffer for a value in a register."""
    if dtype.name == "float16":
        return c.op("OpFConvert", "%f16", value)
    if dtype.is_bool:
        value = c.select("%u32", value, c.integer(1), c.integer(0))
    elif dtype.name == "bfloat16":
        value = brain_bits(c, value)
    if dtype.itemsize >= 4:
        return value
    return c.op("OpUConvert", "%u8" if dtype.itemsize == 1 else "%u16", value)


def brain_bits(c: SpirvExpressions, value: str) -> str:
    """The bits of the nearest bfloat16, ties to even."""
    bits = c.op("OpBitcast", "%u32", value)
    sixteen = c.integer(16)
    odd = c.op("OpBitwiseAnd", "%u32", c.op("OpShiftRightLogical", "%u32", bits, sixteen), c.integer(1))
    rounded = c.op("OpIAdd", "%u32", c.op("OpIAdd", "%u32", bits, c.integer(0x7FFF)), odd)
    result = c.op("OpShiftRightLogical", "%u32", rounded, sixteen)
    return c.select("%u32", c.is_nan(value, "%f32"), c.integer(0x7FC0), result)


def convert(c: SpirvExpressions, value: str, source: DataType, target: DataType) -> str:
    """A value of one type as another; half-precision floats are rounded."""
    if source is target:
        return value
    if target.is_bool:
        kind = register_type(source)
        if source.is_float:
            return c.op("OpFUnordNotEqual", "%bool", value, c.module.constant(kind, *float_words(0.0, kind)))
        return c.op("OpINotEqual", "%bool", value, c.integer(0, kind))
    if target.is_float:
        return _to_float(c, value, source, target)
    if source.is_float:
        return _float_to_integer(c, value, register_type(source), target)
    return _to_integer(c, value, source, target)


def _to_float(c: SpirvExpressions, value: str, source: DataType, target: DataType) -> str:
    kind = register_type(target)
    if source.is_bool:
        one, zero = (c.module.constant(kind, *float_words(number, kind)) for number in (1.0, 0.0))
        return c.select(kind, value, one, zero)
    if source.is_float:
        before = register_type(source)
        if target.name == "float16":
            return c.op("OpFConvert", "%f32", c.op("OpFConvert", "%f16", value))
        value = value if before == kind else c.op("OpFConvert", kind, value)
    else:
        if target.name == "float16" and source.bits > 16:
            value = _bounded(c, value, source)
        value = c.op("OpConvertSToF" if source.is_int else "OpConvertUToF", kind, value)
        if target.name == "float16":
            return c.op("OpFConvert", "%f32", c.op("OpFConvert", "%f16", value))
    if target.name == "bfloat16":
        return c.op("OpBitcast", "%f32", c.op("OpShiftLeftLogical", "%u32", brain_bits(c, value), c.integer(16)))
    return value


def _bounded(c: SpirvExpressions, value: str, source: DataType) -> str:
    """An integer within twice the range of a half: what is beyond is infinite, what is within is exact as a float."""
    kind = register_type(source)
    less = "OpSLessThan" if source.is_int else "OpULessThan"
    high = c.integer(131072, kind)
    value = c.select(kind, c.op(less, "%bool", value, high), value, high)
    if source.is_int:
        low = c.integer(-131072, kind)
        value = c.select(kind, c.op(less, "%bool", low, value), value, low)
    return value


def _float_to_integer(c: SpirvExpressions, value: str, kind: str, target: DataType) -> str:
    """The integer part, kept in the range; NaN gives 0. Conversions of what is out of range mean nothing."""
    low, high = float(target.min_value()), float(target.max_value())
    register = register_type(target)
    limits = [c.module.constant(kind, *float_words(number, kind)) for number in (low, high)]
    above = c.op("OpFOrdLessThan", "%bool", limits[0], value)
    below = c.op("OpFOrdLessThan", "%bool", value, limits[1])
    inside = c.op("OpLogicalAnd", "%bool", above, below)
    zero = c.module.constant(kind, *float_words(0.0, kind))
    safe = c.select(kind, inside, value, zero)
    result = c.op("OpConvertFToS" if target.is_int else "OpConvertFToU", register, safe)
    edge = c.select(register, above, c.integer(target.max_value(), register), c.integer(target.min_value(), register))
    result = c.select(register, inside, result, edge)
    return c.select(register, c.is_nan(value, kind), c.integer(0, register), result)


def _to_integer(c: SpirvExpressions, value: str, source: DataType, target: DataType) -> str:
    kind = register_type(target)
    if source.is_bool:
        return c.select(kind, value, c.integer(1, kind), c.integer(0, kind))
    before = register_type(source)
    if before != kind:
        value = c.op("OpSConvert" if source.is_int and kind == "%u64" else "OpUConvert", kind, value)
    if kind == "%u64":
        return value
    same = source.is_int == target.is_int
    fits = (same and source.bits <= target.bits) or (source.is_uint and source.bits < target.bits)
    return value if fits else c.wrapped(value, target)


def cast(c: SpirvExpressions, expr: e.Cast) -> str:
    """A conversion."""
    inner, target = expr.value, expr.dtype
    if target is INT32 and inner.dtype is INDEX and not c.is_narrow(inner):
        # What overflows in a sum or product does not change its lowest bits.
        if isinstance(inner, (e.Add, e.Sub, e.Mul)):
            return c.op(INTEGER_OPERATIONS[type(inner)], "%u32", c.index(inner.a), c.index(inner.b))
        if isinstance(inner, e.IntImm):
            return c.integer(inner.value)
    source = INT32 if c.is_narrow(inner) else inner.dtype
    return convert(c, c.value(inner), source, INT32 if c.is_narrow(expr) else target)
