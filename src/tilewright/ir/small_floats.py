"""Floats of 8 and 4 bits: the value of every code, and the code of every number, to the bit as `ml_dtypes` has them.

A code is a sign, an exponent and digits, as in larger floats; the formats differ in what they do without (infinities,
minus zero, NaN, a sign). Numbers become float32 first, and then the nearest value, halves the even code; powers of two
(`float8_e8m0fnu`) round halves up, and what lies between the two least ones becomes the greater.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """The format of a small float type."""

    bits: int
    digits: int
    """Digits of the mantissa behind the point."""
    bias: int
    largest: int
    """The code of the greatest finite value."""
    overflow: int
    """The code of numbers beyond it (with the sign of the number, where NaN has one)."""
    nan: int
    """The code of NaN."""
    has_minus: bool = True
    """Whether there are negative numbers."""
    has_minus_zero: bool = True
    """Whether the codes with a sign are those without one, turned: else minus zero's code stands for the one NaN."""

    @property
    def sign(self) -> int:
        """The bit of the sign (0 where there is none)."""
        return 1 << (self.bits - 1) if self.has_minus else 0

    @property
    def infinity(self) -> int | None:
        """The code of infinity, if there is one."""
        return self.overflow if self.overflow not in (self.nan, self.largest) else None


FORMATS: Final[dict[str, SmallFloat]] = {
    "float8_e4m3fn": SmallFloat(8, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e5m2": SmallFloat(8, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fnuz": SmallFloat(8, 3, 8, 0x7F, 0x80, 0x80, has_minus_zero=False),
    "float8_e5m2fnuz": SmallFloat(8, 2, 16, 0x7F, 0x80, 0x80, has_minus_zero=False),
    "float8_e8m0fnu": SmallFloat(8, 0, 127, 0xFE, 0xFF, 0xFF, has_minus=False, has_minus_zero=False),
    # There is no NaN: the code of minus zero (of a negative NaN: zero) takes its place.
    "float4_e2m1fn": SmallFloat(4, 1, 1, 0x7, 0x7, 0x8),
}
"""By the name of the type."""


@cache
def values_of(name: str) -> Array:
    """The value of every code of a type, as float32."""
    kind = FORMATS[name]
    codes = np.arange(1 << kind.bits)
    magnitude = codes & ~kind.sign
    if not kind.has_minus:
        values = np.where(codes > kind.largest, np.nan, np.exp2(codes - 127.0))
        return values.astype(np.float32)
    exponent, fraction = magnitude >> kind.digits, magnitude & ((1 << kind.digits) - 1)
    mantissa = fraction + np.where(exponent > 0, 1 << kind.digits, 0)
    values = mantissa * np.exp2(np.maximum(exponent, 1) - kind.bias - kind.digits + 0.0)
    values = np.where(magnitude > kind.largest, np.nan, values)
    if kind.infinity is not None:
        values = np.where(magnitude == kind.infinity, np.inf, values)
    values = np.copysign(values, np.where(codes & kind.sign, -1.0, 1.0))
    if not kind.has_minus_zero:
        values = np.where(codes == kind.nan, np.nan, values)
    return values.astype(np.float32)


@cache
def _medians(name: str) -> Array:
    """The numbers half-way between the values of neighbouring codes, up to where overflow starts."""
    kind = FORMATS[name]
    values = values_of(name)[: kind.largest + 1].astype(np.float64)
    beyond = 2 * values[-1] if kind.digits == 0 else 2 * values[-1] - values[-2]
    medians = (values + np.append(values[1:], beyond)) / 2
    if kind.digits == 0:
        # A number that is one rounds up: it lies just above.
        medians = np.nextafter(medians, 0)
        medians[0] = values[0]
    return np.asarray(medians)


def codes_of(numbers: npt.ArrayLike, name: str) -> Array:
    """The codes (uint8) of the values nearest to numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.asarray(numbers).astype(np.float32).astype(np.float64)
    kind, medians = FORMATS[name], _medians(name)
    magnitude = np.abs(exact)
    place = np.searchsorted(medians, magnitude)
    is_tie = (place < len(medians)) & (medians[np.minimum(place, len(medians) - 1)] == magnitude)
    code = place + (is_tie & (place % 2 == 1))
    is_over, is_nan = code > kind.largest, np.isnan(exact)
    code = np.where(is_over, kind.overflow, code)
    if not kind.has_minus:
        return np.asarray(np.where(is_nan | (exact <= 0), kind.nan, code), np.uint8)
    sign = np.where(np.signbit(exact), kind.sign, 0)
    if kind.has_minus_zero:
        return np.asarray(np.where(is_nan, kind.nan, code) ^ sign, np.uint8)
    signed = np.where((code == 0) | is_over, code, code | sign)
    return np.asarray(np.where(is_nan, kind.nan, signed), np.uint8)


@cache
def _lists(name: str) -> tuple[list[float], list[float]]:
    return _medians(name).tolist(), values_of(name).tolist()


def code_of(value: float, name: str) -> int:
    """The code of the value nearest to one number: `codes_of`, quicker for a single one."""
    kind = FORMATS[name]
    with np.errstate(over="ignore"):
        value = float(np.float32(value))
    medians, _ = _lists(name)
    is_negative = math.copysign(1.0, value) < 0
    sign = kind.sign if is_negative else 0
    if math.isnan(value) or (not kind.has_minus and value <= 0):
        return kind.nan ^ (sign if kind.has_minus_zero else 0)
    magnitude = abs(value)
    code = bisect_left(medians, magnitude)
    if code < len(medians) and medians[code] == magnitude and code % 2:
        code += 1
    if code > kind.largest:
        return kind.overflow ^ (sign if kind.has_minus_zero else 0)
    return code if code == 0 and not kind.has_minus_zero else code | sign


def value_of(code: int, name: str) -> float:
    """The value of one code."""
    return _lists(name)[1][code]


def rounded(value: float, name: str) -> float:
    """The value of a type nearest to a number."""
    return value_of(code_of(value, name), name)
