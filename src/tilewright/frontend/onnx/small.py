"""Types of eight bits and less: floats of 8 and 4 bits, integers of 4 and 2 bits.

A value of such a type is held one to a byte: floats as their bits in uint8, integers in int8 or uint8. They can be
moved around, converted and (de)quantised; there is no arithmetic on them. Floats are decoded by a table and encoded by
integer arithmetic on the bits of float32, rounding to nearest, halves to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import BOOL, FLOAT32, INT8, UINT8, DataType
from tilewright.support.errors import UnsupportedError

_UINT32 = DataType.of("uint32")


@dataclass(frozen=True, slots=True)
class SmallType:
    """A type that is held in bytes."""

    name: str
    bits: int
    signed: bool = True

    @property
    def package_name(self) -> str:
        """What the package ml_dtypes calls it."""
        return _PACKAGE_NAMES.get(self.name, self.name)


_PACKAGE_NAMES = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}


@dataclass(frozen=True, slots=True)
class SmallInteger(SmallType):
    """An integer of 2 or 4 bits."""

    @property
    def low(self) -> int:
        """The least value."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The greatest value."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class SmallFloat(SmallType):
    """A float of a sign, an exponent and a mantissa; codes above `largest` are infinity or not a number."""

    mantissa: int = 0
    bias: int = 0
    largest: int = 0
    """The code of the greatest finite value."""
    infinity: int | None = None
    unsigned_zero: bool = False
    """Whether the code of minus zero stands for the one NaN instead."""

    @property
    def nan(self) -> int | None:
        """The code of a NaN, if there is one."""
        if self.unsigned_zero:
            return 1 << (self.bits - 1)
        return None if self.largest == (1 << (self.bits - 1)) - 1 else (1 << (self.bits - 1)) - 1


EXPONENT_ONLY = SmallType("float8e8m0", 8, signed=False)
"""A power of two: no sign, no mantissa."""

SMALL_TYPES: dict[int, SmallType] = {
    17: SmallFloat("float8e4m3fn", 8, mantissa=3, bias=7, largest=0x7E),
    18: SmallFloat("float8e4m3fnuz", 8, mantissa=3, bias=8, largest=0x7F, unsigned_zero=True),
    19: SmallFloat("float8e5m2", 8, mantissa=2, bias=15, largest=0x7B, infinity=0x7C),
    20: SmallFloat("float8e5m2fnuz", 8, mantissa=2, bias=16, largest=0x7F, unsigned_zero=True),
    21: SmallInteger("uint4", 4, signed=False),
    22: SmallInteger("int4", 4),
    23: SmallFloat("float4e2m1", 4, mantissa=1, bias=1, largest=0x7),
    24: EXPONENT_ONLY,
    25: SmallInteger("uint2", 2, signed=False),
    26: SmallInteger("int2", 2),
}
"""By the number of the ONNX element type."""


def storage_of(small: SmallType) -> DataType:
    """The type of the bytes that hold the values."""
    return INT8 if isinstance(small, SmallInteger) and small.signed else UINT8


@cache
def values_of(small: SmallType) -> Array:
    """The value of every code of a float type, as float32."""
    codes = np.arange(1 << small.bits)
    if not isinstance(small, SmallFloat):
        with np.errstate(over="ignore"):
            return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127)).astype(np.float32)
    sign_bit = 1 << (small.bits - 1)
    magnitude = codes & (sign_bit - 1)
    exponent, fraction = magnitude >> small.mantissa, magnitude & ((1 << small.mantissa) - 1)
    scale = np.exp2(np.maximum(exponent, 1) - small.bias - small.mantissa + 0.0)
    value = (fraction + np.where(exponent > 0, 1 << small.mantissa, 0)) * scale
    value = np.where(magnitude > small.largest, np.nan, value)
    if small.infinity is not None:
        value = np.where(magnitude == small.infinity, np.inf, value)
    value = np.where(codes & sign_bit, -value, value)
    if small.unsigned_zero:
        value = np.where(codes == sign_bit, np.nan, value)
    return value.astype(np.float32)


def decode(builder: Builder, value: GraphExpr, small: SmallType) -> GraphExpr:
    """Bytes as numbers: float32 from floats, int8 or uint8 from integers (a node of its own, which is not small)."""
    if isinstance(small, SmallInteger):
        return builder.call("cast", value, dtype=storage_of(small))
    return builder.call("take", builder.constant(values_of(small), FLOAT32), value, axis=0, mode="clip")


def encode(builder: Builder, value: GraphExpr, small: SmallType, saturate: bool, round_mode: str = "up") -> GraphExpr:
    """Numbers as the bytes of a small type."""
    if isinstance(small, SmallInteger):
        return _encode_integer(builder, value, small)
    dtype = dtype_of(value)
    if dtype.bits > 32 or (dtype.is_integer and dtype.bits > 16):
        # By way of float32 the value would be rounded twice.
        raise UnsupportedError(f"a conversion from {dtype} to {small.name}", hint="convert to float32 first")
    exact = builder.cast(value, FLOAT32)
    if isinstance(small, SmallFloat):
        return _encode_float(builder, exact, small, saturate)
    return _encode_exponent(builder, exact, saturate, round_mode)


def _encode_integer(builder: Builder, value: GraphExpr, small: SmallInteger) -> GraphExpr:
    """The low bits of a whole number; fractions are cut off first."""
    storage = storage_of(small)
    dtype = dtype_of(value)
    whole = builder.cast(value, "int32") if dtype.is_float or dtype is BOOL else value
    byte = builder.cast(whole, UINT8)
    low = builder.call("bitwise_and", byte, builder.constant((1 << small.bits) - 1, UINT8))
    if not small.signed:
        return low
    wide = builder.cast(low, "int32")
    negative = builder.call("greater", wide, builder.constant(small.high, "int32"))
    wrapped = builder.call("subtract", wide, builder.constant(1 << small.bits, "int32"))
    return builder.call("cast", builder.call("where", negative, wrapped, wide), dtype=storage)


def _encode_float(builder: Builder, value: GraphExpr, small: SmallFloat, saturate: bool) -> GraphExpr:
    def number(item: int) -> GraphExpr:
        return builder.constant(item, _UINT32)

    call = builder.call
    bits = call("reinterpret", value, dtype=_UINT32)
    magnitude = call("bitwise_and", bits, number(0x7FFFFFFF))
    shift = 23 - small.mantissa
    odd = call("bitwise_and", call("right_shift", magnitude, number(shift)), number(1))
    rounded = call("add", call("add", magnitude, number((1 << (shift - 1)) - 1)), odd)
    normal = call("subtract", call("right_shift", rounded, number(shift)), number((127 - small.bias) << small.mantissa))
    # Below the least normal number, codes count multiples of the least number.
    steps = call("multiply", call("abs", value), builder.constant(2.0 ** (small.bias - 1 + small.mantissa), FLOAT32))
    below = builder.cast(call("round", steps), _UINT32)
    least_normal = (128 - small.bias) << 23
    code = call("where", call("less", magnitude, number(least_normal)), below, normal)
    beyond = small.largest if saturate else small.infinity
    if beyond is None:
        beyond = small.largest if small.nan is None else small.nan & 0x7F
    over = call("greater", code, number(small.largest))
    zero = call("equal", code, number(0))
    undefined = call("greater", magnitude, number(0x7F800000))
    lost = over if not saturate and small.infinity is None and small.nan is not None else None
    code = call("where", over, number(beyond), code)
    if small.nan is not None and not small.unsigned_zero:
        code = call("where", undefined, number(small.nan), code)
    sign = call("left_shift", call("right_shift", bits, number(31)), number(small.bits - 1))
    code = call("bitwise_or", code, sign)
    if small.unsigned_zero:
        code = call("where", zero, number(0), code)
        code = call("where", undefined if lost is None else call("logical_or", undefined, lost), number(0x80), code)
    if small.nan is None:
        # There is no NaN: minus zero takes its place, as in the package that ONNX's own reference uses.
        code = call("where", undefined, number(1 << (small.bits - 1)), code)
    return call("cast", code, dtype=UINT8)


def _encode_exponent(builder: Builder, value: GraphExpr, saturate: bool, round_mode: str) -> GraphExpr:
    """The power of two not below (or not above) the value."""
    if not saturate or round_mode not in ("up", "down"):
        raise UnsupportedError(
            f"a conversion to float8e8m0 with saturate={int(saturate)} and round_mode={round_mode!r}"
        )

    def number(item: int) -> GraphExpr:
        return builder.constant(item, _UINT32)

    call = builder.call
    magnitude = call("bitwise_and", call("reinterpret", value, dtype=_UINT32), number(0x7FFFFFFF))
    code = call("right_shift", magnitude, number(23))
    if round_mode == "up":
        between = call("greater", call("bitwise_and", magnitude, number(0x7FFFFF)), number(0))
        # The least power, 2 ** -127, lies half-way between two float32 exponents.
        above = call("logical_and", between, call("greater", magnitude, number(0x400000)))
        code = call("add", code, builder.cast(above, _UINT32))
    code = call("minimum", code, number(254))
    undefined = call("greater", magnitude, number(0x7F800000))
    return call("cast", call("where", undefined, number(255), code), dtype=UINT8)
