"""How SPIR-V holds values: 32 bits in registers for small integers and floats, their own types in storage buffers."""

from __future__ import annotations

import struct
from typing import Final

from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError

INTEGER_OPERATIONS: Final[dict[type, str]] = {e.Add: "OpIAdd", e.Sub: "OpISub", e.Mul: "OpIMul"}
FLOAT_OPERATIONS: Final[dict[type, str]] = {e.Add: "OpFAdd", e.Sub: "OpFSub", e.Mul: "OpFMul", e.Div: "OpFDiv"}


def register_type(dtype: DataType) -> str:
    """The type of a value in a register; small integers are kept in range."""
    if dtype.is_bool:
        return "%bool"
    if dtype.name in ("float16", "bfloat16", "float32"):
        return "%f32"
    if dtype.name == "float64":
        return "%f64"
    if dtype.is_integer and dtype.bits in (8, 16, 32):
        return "%u32"
    if dtype.is_integer and dtype.bits == 64:
        return "%u64"
    raise UnsupportedError(f"Vulkan kernels do not know {dtype}", hint="cast it to a wider type first")


def storage_type(dtype: DataType) -> str:
    """The type of an element of a storage buffer."""
    if dtype.name == "float16":
        return "%f16"
    if dtype.itemsize == 1:
        return "%u8"
    return "%u16" if dtype.itemsize == 2 else register_type(dtype)


def float_words(value: float, kind: str) -> tuple[int, ...]:
    """The bits of a float constant, the low word first."""
    if kind == "%f64":
        return struct.unpack("<2I", struct.pack("<d", value))
    try:
        return struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        return (0x7F800000 if value > 0 else 0xFF800000,)
