"""How the interpreter holds values: conversion between arrays and lists of scalars, and arithmetic helpers.

Integers are Python integers in the range of their type, bools are truth values, float16/32/64 are numpy scalars (their
arithmetic rounds once an operation). bfloat16 and float8 are numpy float32 scalars rounded after each operation:
float32 has more than twice their precision, so rounding twice gives what rounding once gives.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.build import round_float8, wrap_int
from tilewright.ir.dtype import DataType
from tilewright.ir.intrinsics import fma_reference
from tilewright.support.errors import CompilerBug, UserError

Scalar = Any
"""A value of the interpreter: int, bool or a numpy float scalar."""
Array = NDArray[Any]

f16: Final = np.float16
f32: Final = np.float32
f64: Final = np.float64

FLOAT_CLASS: Final[dict[str, type[np.floating[Any]]]] = {
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": np.float32,
    "float8_e4m3fn": np.float32,
    "float8_e5m2": np.float32,
}
"""The numpy scalar class that holds values of a float type."""


class InterpreterError(UserError):
    """A program did what its semantics forbid: out of bounds, division by zero, a failed assertion."""


def round_bf16(value: np.float32) -> np.float32:
    """A float32 rounded to the nearest bfloat16 (ties to even)."""
    if value != value or value in (math.inf, -math.inf):
        return value
    bits = int(value.view(np.uint32))
    return np.uint32((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


@cache
def float8_values(name: str) -> tuple[float, ...]:
    """The value of each of the 256 codes of a float8 type."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if name == "float8_e4m3fn" else (5, 2, 15)
    values = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        if name == "float8_e4m3fn" and code & 0x7F == 0x7F:
            values.append(math.nan)
        elif name == "float8_e5m2" and exponent == 31:
            values.append(math.nan if mantissa else sign * math.inf)
        elif exponent == 0:
            values.append(sign * math.ldexp(mantissa, 1 - bias - mantissa_bits))
        else:
            values.append(sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits))
    return tuple(values)


@cache
def _float8_magnitudes(name: str) -> tuple[list[float], float]:
    """The finite magnitudes in order of their codes, and the value that takes their place on overflow."""
    finite = [value for value in float8_values(name)[:128] if math.isfinite(value)]
    return finite, (math.nan if name == "float8_e4m3fn" else math.inf)


def float8_code(value: float, name: str) -> int:
    """The code of the float8 nearest to a value (ties to even; overflow gives NaN for e4m3fn, infinity for e5m2)."""
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    magnitude = abs(float(value))
    finite, _ = _float8_magnitudes(name)
    infinite_code = len(finite)
    if magnitude != magnitude:
        return sign | 0x7F
    # The step above the greatest finite value decides where overflow starts, as for any other tie.
    extended = [*finite, 2 * finite[-1] - finite[-2]]
    place = bisect.bisect_left(extended, magnitude)
    if place == len(extended):
        return sign | infinite_code
    if place > 0 and extended[place] != magnitude:
        below, above = magnitude - extended[place - 1], extended[place] - magnitude
        if below < above or (below == above and (place - 1) % 2 == 0):
            place -= 1
    return sign | place


def round_f8(value: np.float32, name: str) -> np.float32:
    """A float32 rounded to the nearest value of a float8 type."""
    return np.float32(round_float8(float(value), name))


def round_e4m3(value: np.float32) -> np.float32:
    """A float32 rounded to float8_e4m3fn."""
    return round_f8(value, "float8_e4m3fn")


def round_e5m2(value: np.float32) -> np.float32:
    """A float32 rounded to float8_e5m2."""
    return round_f8(value, "float8_e5m2")


ROUNDERS: Final[dict[str, str]] = {
    "bfloat16": "round_bf16",
    "float8_e4m3fn": "round_e4m3",
    "float8_e5m2": "round_e5m2",
}
"""Float types whose values are held in float32, and the function of this file that rounds to them."""


def int_to_f32(value: int) -> np.float32:
    """An integer rounded once to float32."""
    if -(1 << 53) <= value <= 1 << 53:
        return np.float32(value)
    exact = np.int64(value) if value < 0 else np.uint64(value)
    return exact.astype(np.float32)


def int_to_f16(value: int) -> np.float16:
    """An integer rounded once to float16 (beyond its range: infinity)."""
    return np.float16(np.float64(value))


def float_to_int(value: Scalar, low: int, high: int) -> int:
    """The integer part of a float, saturated to [low, high]; NaN gives 0."""
    if value != value:
        return 0
    if value >= high:
        return high
    if value <= low:
        return low
    return int(value)


def float_min(a: Scalar, b: Scalar) -> Scalar:
    """The lesser; NaN if either is."""
    if a != a:
        return a
    return b if b != b or b < a else a


def float_max(a: Scalar, b: Scalar) -> Scalar:
    """The greater; NaN if either is."""
    if a != a:
        return a
    return b if b != b or b > a else a


def truncdiv(a: int, b: int) -> int:
    """Integer division toward zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def truncmod(a: int, b: int) -> int:
    """The remainder of division toward zero."""
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def fused(a: Scalar, b: Scalar, c: Scalar, bits: int) -> np.float64:
    """a * b + c, to be rounded to a type of this width by the caller."""
    return np.float64(fma_reference(float(a), float(b), float(c), bits))


class Pointer:
    """The address of an element in the interpreter: what an extern function gets for `access_ptr`."""

    __slots__ = ("elements", "start")

    def __init__(self, elements: list[Any], start: int) -> None:
        self.elements = elements
        self.start = start

    def __getitem__(self, place: int) -> Any:
        return self.elements[self.start + place]

    def __setitem__(self, place: int, value: Any) -> None:
        self.elements[self.start + place] = value


def lockstep(threads: list[Iterator[str]]) -> Iterator[str]:
    """Run threads from barrier to barrier, all of them to each before any goes on."""
    done = object()
    while True:
        sites = [next(thread, done) for thread in threads]
        if all(site is done for site in sites):
            return
        if any(site != sites[0] for site in sites):
            raise InterpreterError(
                "the threads of a group wait at different barriers",
                hint="a barrier may not stand in code that only some of the threads reach",
            )
        yield str(sites[0])


def round_to(value: float | np.floating[Any], dtype: DataType) -> Scalar:
    """A number as a value of a float type."""
    name = dtype.element.name
    if name in ROUNDERS:
        single = np.float32(value)
        return round_bf16(single) if name == "bfloat16" else round_f8(single, name)
    return FLOAT_CLASS[name](value)


def to_scalar(value: object, dtype: DataType) -> Scalar:
    """A Python or numpy number as a value of a type (integers wrap)."""
    if not isinstance(value, (bool, int, float, np.generic)):
        raise UserError(f"{value!r} is not a number (a {dtype} is wanted)")
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return (
                int_to_f32(int(value))
                if dtype.name == "float32" and isinstance(value, int)
                else round_to(float(value), dtype)
            )
    if dtype.is_bool:
        return bool(value)
    if not dtype.is_integer:
        raise UserError(f"{value!r} cannot be passed as a {dtype}")
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise UserError(f"{value!r} is not a {dtype}")
    return wrap_int(int(value), dtype)


def storage_type(dtype: DataType) -> np.dtype[Any]:
    """The numpy type of the arrays that hold elements of a type (int4 takes a byte each)."""
    if dtype.bits == 4:
        return np.dtype("int8" if dtype.is_int else "uint8")
    return dtype.numpy()


def to_list(array: Array, dtype: DataType) -> list[Scalar]:
    """The elements of an array, in row-major order, as values of the interpreter."""
    flat = np.ascontiguousarray(array).reshape(-1)
    name = dtype.element.name
    if name == "bfloat16":
        return list((flat.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32))
    if name.startswith("float8"):
        return list(np.array(float8_values(name), np.float32)[flat.view(np.uint8)])
    return list(flat) if dtype.is_float else flat.tolist()


def from_list(values: list[Scalar], dtype: DataType) -> Array:
    """Values of the interpreter as a flat array of the type's storage."""
    name = dtype.element.name
    if name == "bfloat16":
        bits = np.array(values, np.float32).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16)
    if name.startswith("float8"):
        return np.array([float8_code(float(value), name) for value in values], np.uint8)
    return np.array(values, storage_type(dtype))


def poison(dtype: DataType) -> Scalar:
    """What fresh memory holds: a value that shows when it is used (NaN, a large odd pattern)."""
    if dtype.is_float:
        return FLOAT_CLASS[dtype.element.name](math.nan)
    if dtype.is_bool:
        return True
    return wrap_int(0xA5A5A5A5A5A5A5A5, dtype)


def bits_of(value: Scalar, dtype: DataType) -> int:
    """The bit pattern of a scalar as an unsigned integer."""
    if dtype.is_float:
        array = from_list([value], dtype)
        return int(array.view(f"uint{8 * array.itemsize}")[0])
    return int(value) & ((1 << dtype.bits) - 1)


def from_bits(pattern: int, dtype: DataType) -> Scalar:
    """The scalar of a type that has a bit pattern."""
    if dtype.is_float:
        storage = storage_type(dtype)
        return to_list(np.array([pattern], f"uint{8 * storage.itemsize}").view(storage), dtype)[0]
    return bool(pattern) if dtype.is_bool else wrap_int(pattern, dtype)


def reinterpret(value: Scalar | list[Scalar], source: DataType, target: DataType) -> Scalar | list[Scalar]:
    """The bits of a scalar or a list of lanes as another type; lane 0 holds the lowest bits."""
    lanes = value if isinstance(value, list) else [value]
    if source.bits * len(lanes) != target.bits * target.lanes:
        raise CompilerBug(f"reinterpret of {source} as {target}")
    pattern = 0
    for place, lane in enumerate(lanes):
        pattern |= bits_of(lane, source.element) << (place * source.bits)
    mask = (1 << target.bits) - 1
    result = [from_bits((pattern >> (lane * target.bits)) & mask, target.element) for lane in range(target.lanes)]
    return result if target.lanes > 1 else result[0]
