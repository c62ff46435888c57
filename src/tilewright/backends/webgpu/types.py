"""How WGSL holds values: registers of 32 bits, pairs of them for 64-bit integers, small elements packed in words.

| type | in a register | in a storage buffer |
|---|---|---|
| int8, int16, int32 | `i32`, kept in range | four, two or one in a word |
| uint8, uint16, uint32 | `u32`, kept in range | four, two or one in a word |
| int64, uint64 | `vec2<u32>`, the low word first | `vec2<u32>` |
| float16, bfloat16, float32 | `f32` | their bits, two or one in a word |
| bool | `bool` | four in a word |

Memory of a workgroup or a thread holds what registers hold. float64 is unknown to WGSL.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError

LONG = "vec2<u32>"
_WORD = 0xFFFFFFFF


def register_type(dtype: DataType) -> str:
    """The type of a value in a register."""
    if dtype.is_bool:
        return "bool"
    if dtype.name in ("float16", "bfloat16", "float32"):
        return "f32"
    if dtype.is_integer and dtype.bits in (8, 16, 32):
        return "i32" if dtype.is_int else "u32"
    if dtype.is_integer and dtype.bits == 64:
        return LONG
    raise UnsupportedError(
        f"WebGPU kernels do not know {dtype}",
        hint="cast to float32 first" if dtype.is_float else "cast it to a wider type first",
    )


def is_packed(dtype: DataType) -> bool:
    """Whether several elements share a word of a storage buffer."""
    return dtype.itemsize < 4


def storage_type(dtype: DataType) -> str:
    """The element of a storage buffer."""
    register = register_type(dtype)
    return "u32" if is_packed(dtype) else register


def register_bytes(dtype: DataType) -> int:
    """The bytes of an element in the memory of a workgroup."""
    return 8 if register_type(dtype) == LONG else 4


def integer_text(value: int, dtype: DataType) -> str:
    """An integer constant."""
    kind = register_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind == LONG:
        return f"{LONG}({value & _WORD}u, {value >> 32 & _WORD}u)"
    if kind == "u32":
        return f"{value}u"
    # The least integer has no literal of its own.
    return f"({value + 1}i - 1i)" if value == -(1 << 31) else f"({value}i)" if value < 0 else f"{value}i"


def float_text(value: float) -> str:
    """A float constant. What is not finite comes from bits that are a variable: constants must be finite."""
    if math.isnan(value):
        return "tw_nan()"
    single = np.float32(value)
    if math.isinf(single):
        return "tw_infinity()" if single > 0 else "(-tw_infinity())"
    if single == 0 and math.copysign(1.0, value) < 0:
        return "tw_float(0x80000000u)"
    text = str(single)
    if abs(float(text)) > float(np.finfo(np.float32).max):
        text = repr(float(single))  # Its shortest text is greater than it, and so than any number of the type.
    return f"({text}f)" if single < 0 else f"{text}f"
