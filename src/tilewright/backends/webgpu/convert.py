"""Conversions between types in WGSL, and elements of storage buffers on their way from and to registers."""

from __future__ import annotations

from tilewright.backends.webgpu.types import LONG, integer_text, register_type
from tilewright.codegen.braces import BracedValues
from tilewright.codegen.operators import holds_all
from tilewright.ir.dtype import DataType


def wrapped(text: str, dtype: DataType) -> str:
    """A value of 32 bits brought into the range of its type."""
    if dtype.bits >= 32:
        return text
    if dtype.is_uint:
        return f"({text} & {(1 << dtype.bits) - 1}u)"
    return f"tw_int{dtype.bits}(bitcast<u32>({text}))"


def from_bits(text: str, dtype: DataType) -> str:
    """A value from the lowest bits of a word, the others being zero."""
    name = dtype.name
    if name == "bool":
        return f"({text} != 0u)"
    if name == "float16":
        return f"tw_half_value({text})"
    if name == "bfloat16":
        return f"tw_brain_value({text})"
    if name == "float32":
        return f"bitcast<f32>({text})"
    if dtype.is_int:
        return f"bitcast<i32>({text})" if dtype.bits == 32 else f"tw_int{dtype.bits}({text})"
    return text


def to_bits(text: str, dtype: DataType) -> str:
    """The bits of a value as a word, zero above them."""
    name = dtype.name
    if name == "bool":
        return f"select(0u, 1u, {text})"
    if name == "float16":
        return f"tw_half_bits({text})"
    if name == "bfloat16":
        return f"tw_brain_bits({text})"
    if name == "float32":
        return f"bitcast<u32>({text})"
    if dtype.is_int:
        return f"bitcast<u32>({text})" if dtype.bits == 32 else f"(bitcast<u32>({text}) & {(1 << dtype.bits) - 1}u)"
    return text


class WgslConversions(BracedValues):
    """Values that change their types."""

    def to_bool(self, value: str, source: DataType) -> str:
        """A comparison with zero."""
        if source.is_float:
            return f"tw_is_true({value})"
        if register_type(source) == LONG:
            return f"any({value} != {LONG}(0u, 0u))"
        return f"({value} != {integer_text(0, source)})"

    def to_float(self, value: str, source: DataType, target: DataType) -> str:
        """A float32; half precision is rounded to its bits and back."""
        register_type(target)
        if source.is_bool:
            return f"select(0.0f, 1.0f, {value})"
        if target.name == "float16":
            if source.is_integer and source.bits == 32:
                # What is beyond these is infinite, what is not is exact as a float32: it is rounded once.
                bounded = f"clamp({value}, -131072, 131072)" if source.is_int else f"min({value}, 131072u)"
                single = f"f32({bounded})"
            else:
                # A 64-bit integer that a float32 does not hold is beyond the range of a half too.
                single = _single(value, source)
            return f"tw_half_value(tw_half_bits({single}))"
        single = _single(value, source)
        return f"tw_brain_value(tw_brain_bits({single}))" if target.name == "bfloat16" else single

    def float_to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """A function of the range."""
        if register_type(target) == LONG:
            return f"tw_to_{target.name}({value})"
        high = integer_text(target.max_value(), target)
        if target.is_uint:
            return f"tw_to_uint({value}, {high})"
        return f"tw_to_int({value}, {integer_text(target.min_value(), target)}, {high})"

    def to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """The low word, or a pair of words; small types are kept in range."""
        wide = register_type(target) == LONG
        if source.is_bool:
            bit = f"select(0u, 1u, {value})"
            return f"{LONG}({bit}, 0u)" if wide else f"i32({bit})" if target.is_int else bit
        if register_type(source) == LONG:
            if wide:
                return value
            low = f"{value}.x"
            return wrapped(low if target.is_uint else f"bitcast<i32>({low})", target)
        if wide:
            return f"tw_long({value})" if source.is_int else f"{LONG}({value}, 0u)"
        cast = value if source.is_int == target.is_int else f"bitcast<{register_type(target)}>({value})"
        return cast if holds_all(source, target) else wrapped(cast, target)


def _single(text: str, source: DataType) -> str:
    if source.is_float:
        return text
    return f"tw_{source.name}_to_float({text})" if register_type(source) == LONG else f"f32({text})"
