"""Data types and constants as LLVM text: the type a value has in a register, and the one it has in memory."""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Final

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import FloatImm, IntImm
from tilewright.support.errors import CompilerBug, UnsupportedError

_FLOATS: Final = {16: "half", 32: "float", 64: "double"}


@cache
def register_type(dtype: DataType) -> str:
    """The LLVM type of a value: `i1` for bool, `i16` for bfloat16 (only ever converted), vectors in brackets."""
    scalar = _scalar(dtype)
    return scalar if dtype.lanes == 1 else f"<{dtype.lanes} x {scalar}>"


@cache
def memory_type(dtype: DataType) -> str:
    """The LLVM type of a value in memory: bool and 4-bit integers take a byte."""
    scalar = "i8" if dtype.is_bool or dtype.bits < 8 else _scalar(dtype)
    return scalar if dtype.lanes == 1 else f"<{dtype.lanes} x {scalar}>"


def _scalar(dtype: DataType) -> str:
    if dtype.is_bool:
        return "i1"
    if dtype.is_integer:
        return f"i{dtype.bits}"
    if dtype.code == "float":
        return _FLOATS[dtype.bits]
    if dtype.code == "bfloat":
        return "i16"
    if dtype.code == "handle":
        return "ptr"
    raise UnsupportedError(
        f"the CPU code generator has no {dtype.element} values",
        hint="convert the data to float16, bfloat16 or float32",
    )


def lane_suffix(dtype: DataType) -> str:
    """The type as the names of intrinsics spell it: `f32`, `v8f32`, `i64`."""
    scalar = _scalar(dtype)
    name = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(scalar, scalar)
    return name if dtype.lanes == 1 else f"v{dtype.lanes}{name}"


def memory_suffix(dtype: DataType) -> str:
    """The memory type as the names of intrinsics spell it."""
    if dtype.is_bool or dtype.bits < 8:
        return "i8" if dtype.lanes == 1 else f"v{dtype.lanes}i8"
    return lane_suffix(dtype)


def constant(expr: IntImm | FloatImm) -> str:
    """The text of a scalar constant, without its type."""
    dtype = expr.dtype
    if isinstance(expr, IntImm):
        if dtype.is_bool:
            return "true" if expr.value else "false"
        return str(expr.value)
    return float_constant(expr.value, dtype)


def float_constant(value: float, dtype: DataType) -> str:
    """The text of a float constant: hexadecimal, so that every bit is kept."""
    if dtype.code == "bfloat":
        return str(_bfloat_bits(value))
    if dtype.bits == 16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if dtype.bits in (32, 64) and dtype.code == "float":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    raise CompilerBug(f"no constant of type {dtype}")


def _bfloat_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits >> 16


def splat(type_text: str, value: str, lanes: int) -> str:
    """A constant vector whose lanes are all one constant (the type is the scalar's)."""
    return value if lanes == 1 else f"splat ({type_text} {value})"
