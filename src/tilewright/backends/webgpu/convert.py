"""Conversions between types in WGSL, and elements of storage buffers on their way from and to registers."""

from __future__ import annotations

from tilewright.backends.webgpu.types import LONG, integer_text, register_type
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError


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


def convert(text: str, source: DataType, target: DataType) -> str:
    """A value of one type as another; half-precision floats are rounded."""
    if source is target:
        return text
    if target.is_bool:
        return _to_bool(text, source)
    if target.is_float:
        return _to_float(text, source, target)
    if source.is_float:
        return _float_to_integer(text, target)
    return _to_integer(text, source, target)


def _to_bool(text: str, source: DataType) -> str:
    if source.is_float:
        return f"tw_is_true({text})"
    if register_type(source) == LONG:
        return f"any({text} != {LONG}(0u, 0u))"
    return f"({text} != {integer_text(0, source)})"


def _to_float(text: str, source: DataType, target: DataType) -> str:
    register_type(target)
    if source.is_bool:
        return f"select(0.0f, 1.0f, {text})"
    if target.name == "float16":
        if source.is_integer and source.bits == 32:
            # What is beyond these is infinite, what is not is exact as a float32: it is rounded once.
            bounded = f"clamp({text}, -131072, 131072)" if source.is_int else f"min({text}, 131072u)"
            text = f"f32({bounded})"
        else:
            # A 64-bit integer that a float32 does not hold is beyond the range of a half too.
            text = _single(text, source)
        return f"tw_half_value(tw_half_bits({text}))"
    single = _single(text, source)
    return f"tw_brain_value(tw_brain_bits({single}))" if target.name == "bfloat16" else single


def _single(text: str, source: DataType) -> str:
    if source.is_float:
        return text
    return f"tw_{source.name}_to_float({text})" if register_type(source) == LONG else f"f32({text})"


def _float_to_integer(text: str, target: DataType) -> str:
    if register_type(target) == LONG:
        return f"tw_to_{target.name}({text})"
    high = integer_text(target.max_value(), target)
    if target.is_uint:
        return f"tw_to_uint({text}, {high})"
    return f"tw_to_int({text}, {integer_text(target.min_value(), target)}, {high})"


def _to_integer(text: str, source: DataType, target: DataType) -> str:
    wide = register_type(target) == LONG
    if source.is_bool:
        bit = f"select(0u, 1u, {text})"
        return f"{LONG}({bit}, 0u)" if wide else f"i32({bit})" if target.is_int else bit
    if register_type(source) == LONG:
        if wide:
            return text
        low = f"{text}.x"
        return wrapped(low if target.is_uint else f"bitcast<i32>({low})", target)
    if wide:
        return f"tw_long({text})" if source.is_int else f"{LONG}({text}, 0u)"
    same = source.is_int == target.is_int
    cast = text if same else f"bitcast<{register_type(target)}>({text})"
    fits = (same and source.bits <= target.bits) or (source.is_uint and source.bits < target.bits)
    return cast if fits else wrapped(cast, target)


def reinterpret(text: str, source: DataType, target: DataType) -> str:
    """The same bits as another type of the same width."""
    if source.bits == 64 and source.is_integer and target.is_integer:
        return text
    if source.lanes != 1 or target.lanes != 1 or source.bits > 32:
        raise UnsupportedError(f"WebGPU kernels do not reinterpret {source} as {target}")
    if source.is_integer and target.is_integer:
        return convert(text, source, target)
    return from_bits(to_bits(text, source), target)
