"""Conversions between types in SPIR-V, and values on their way from and to storage buffers."""

from __future__ import annotations

from tilewright.backends.vulkan.types import register_type
from tilewright.backends.vulkan.values import SpirvValues
from tilewright.codegen.operators import holds_all
from tilewright.ir.dtype import DataType


class SpirvConversions(SpirvValues):
    """Values that change their types."""

    def from_storage(self, value: str, element: str, dtype: DataType) -> str:
        """A value in a register from an element of memory of the given type."""
        if element == "%f16":
            return self.op("OpFConvert", "%f32", value)
        if element not in ("%u8", "%u16"):
            return value
        value = self.op("OpSConvert" if dtype.is_int else "OpUConvert", "%u32", value)
        if dtype.is_bool:
            return self.op("OpINotEqual", "%bool", value, self.integer(0))
        return self.bfloat16_value(value) if dtype.name == "bfloat16" else value

    def to_storage(self, value: str, dtype: DataType) -> str:
        """What goes to a storage buffer for a value in a register."""
        if dtype.name == "float16":
            return self.op("OpFConvert", "%f16", value)
        if dtype.is_bool:
            value = self.select("%u32", value, self.integer(1), self.integer(0))
        elif dtype.name == "bfloat16":
            value = self.bfloat16_bits(value)
        if dtype.itemsize >= 4:
            return value
        return self.op("OpUConvert", "%u8" if dtype.itemsize == 1 else "%u16", value)

    def bfloat16_value(self, bits: str) -> str:
        """The float of the bits of a bfloat16."""
        return self.op("OpBitcast", "%f32", self.op("OpShiftLeftLogical", "%u32", bits, self.integer(16)))

    def bfloat16_bits(self, value: str) -> str:
        """The bits of the nearest bfloat16, ties to even."""
        bits = self.op("OpBitcast", "%u32", value)
        sixteen = self.integer(16)
        odd = self.op("OpBitwiseAnd", "%u32", self.op("OpShiftRightLogical", "%u32", bits, sixteen), self.integer(1))
        rounded = self.op("OpIAdd", "%u32", self.op("OpIAdd", "%u32", bits, self.integer(0x7FFF)), odd)
        result = self.op("OpShiftRightLogical", "%u32", rounded, sixteen)
        return self.select("%u32", self.is_nan(value, "%f32"), self.integer(0x7FC0), result)

    def to_bool(self, value: str, source: DataType) -> str:
        """A comparison with zero."""
        kind = register_type(source)
        if source.is_float:
            return self.op("OpFUnordNotEqual", "%bool", value, self.float_constant(0.0, source))
        return self.op("OpINotEqual", "%bool", value, self.integer(0, kind))

    def to_float(self, value: str, source: DataType, target: DataType) -> str:
        """A conversion; half precision is rounded to its bits and back."""
        kind = register_type(target)
        if source.is_bool:
            return self.select(kind, value, self.float_constant(1.0, target), self.float_constant(0.0, target))
        if source.is_float:
            before = register_type(source)
            if target.name == "float16":
                return self.op("OpFConvert", "%f32", self.op("OpFConvert", "%f16", value))
            value = value if before == kind else self.op("OpFConvert", kind, value)
        else:
            if target.name == "float16" and source.bits > 16:
                value = self._bounded(value, source)
            value = self.op("OpConvertSToF" if source.is_int else "OpConvertUToF", kind, value)
            if target.name == "float16":
                return self.op("OpFConvert", "%f32", self.op("OpFConvert", "%f16", value))
        if target.name == "bfloat16":
            return self.bfloat16_value(self.bfloat16_bits(value))
        return value

    def _bounded(self, value: str, source: DataType) -> str:
        """An integer within twice the range of a half: what is beyond is infinite, what is within is exact."""
        kind = register_type(source)
        less = "OpSLessThan" if source.is_int else "OpULessThan"
        high = self.integer(131072, kind)
        value = self.select(kind, self.op(less, "%bool", value, high), value, high)
        if source.is_int:
            low = self.integer(-131072, kind)
            value = self.select(kind, self.op(less, "%bool", low, value), value, low)
        return value

    def float_to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """A conversion of what is in the range, and choices around it: for the rest it means nothing."""
        kind, register = register_type(source), register_type(target)
        limits = [self.float_constant(float(limit), source) for limit in (target.min_value(), target.max_value())]
        above = self.op("OpFOrdLessThan", "%bool", limits[0], value)
        below = self.op("OpFOrdLessThan", "%bool", value, limits[1])
        inside = self.op("OpLogicalAnd", "%bool", above, below)
        safe = self.select(kind, inside, value, self.float_constant(0.0, source))
        result = self.op("OpConvertFToS" if target.is_int else "OpConvertFToU", register, safe)
        edge = self.select(
            register, above, self.integer(target.max_value(), register), self.integer(target.min_value(), register)
        )
        result = self.select(register, inside, result, edge)
        return self.select(register, self.is_nan(value, kind), self.integer(0, register), result)

    def to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """A conversion between widths; small types are kept in range."""
        kind = register_type(target)
        if source.is_bool:
            return self.select(kind, value, self.integer(1, kind), self.integer(0, kind))
        before = register_type(source)
        if before != kind:
            value = self.op("OpSConvert" if source.is_int and kind == "%u64" else "OpUConvert", kind, value)
        if kind == "%u64":
            return value
        return value if holds_all(source, target) else self.wrapped(value, target)
