"""How the interpreter holds values: conversion between arrays and lists of scalars, and arithmetic helpers.

Integers are Python integers in the range of their type, bools are truth values, float16/32/64 are numpy scalars (their
arithmetic rounds once an operation). bfloat16 and small floats are numpy float32 scalars rounded after each operation:
float32 has more than twice their precision, so rounding twice gives what rounding once gives.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.ir import small_floats
from tilewright.ir.build import wrap_int
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
    **dict.fromkeys(small_floats.FORMATS, np.float32),
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


def rounder_of(name: str) -> Callable[[Any], np.float32] | None:
    """The function that rounds to a type whose values are held in float32; None for other types."""
    if name == "bfloat16":
        return round_bf16
    return _SMALL_ROUNDERS.get(name)


def _small_rounder(name: str) -> Callable[[Any], np.float32]:
    def round_small(value: Any) -> np.float32:
        return np.float32(small_floats.rounded(float(value), name))

    return round_small


_SMALL_ROUNDERS: Final = {name: _small_rounder(name) for name in small_floats.FORMATS}


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
    rounder = rounder_of(name)
    return FLOAT_CLASS[name](value) if rounder is None else rounder(np.float32(value))


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


def to_list(array: Array, dtype: DataType) -> list[Scalar]:
    """The elements of an array, in row-major order, as values of the interpreter."""
    flat = np.ascontiguousarray(array).reshape(-1)
    name = dtype.element.name
    if name == "bfloat16":
        return list((flat.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32))
    if dtype.is_small_float:
        return list(small_floats.values_of(name)[flat.view(np.uint8) & ((1 << dtype.bits) - 1)])
    if dtype.is_small_integer:
        unused = flat.dtype.type(8 - dtype.bits)  # what reads a byte does not look at its upper bits
        flat = (flat << unused) >> unused
    return list(flat) if dtype.is_float else flat.tolist()


def from_list(values: list[Scalar], dtype: DataType) -> Array:
    """Values of the interpreter as a flat array of the type's storage."""
    name = dtype.element.name
    if name == "bfloat16":
        bits = np.array(values, np.float32).view(np.uint32)
        return (bits >> np.uint32(16)).astype(np.uint16)
    if dtype.is_small_float:
        return small_floats.codes_of(np.array(values, np.float32), name)
    return np.array(values, dtype.numpy())


def poison(dtype: DataType) -> Scalar:
    """What fresh memory holds: a value that shows when it is used (NaN, a large odd pattern)."""
    if dtype.is_float:
        return FLOAT_CLASS[dtype.element.name](math.nan)
    if dtype.is_bool:
        return True
    return wrap_int(0xA5A5A5A5A5A5A5A5, dtype)


_NUMPY_FLOATS: Final = frozenset(["float16", "float32", "float64"])
"""Types whose values are numpy's scalars of that type, which have its bytes."""


def bits_of(value: Scalar, dtype: DataType) -> int:
    """The bit pattern of a scalar as an unsigned integer."""
    if dtype.name in _NUMPY_FLOATS:
        return int.from_bytes(value, sys.byteorder)
    if dtype.is_float:
        array = from_list([value], dtype)
        return int(array.view(f"uint{8 * array.itemsize}")[0])
    return int(value) & ((1 << dtype.bits) - 1)


@lru_cache(maxsize=1 << 16)
def from_bits(pattern: int, dtype: DataType) -> Scalar:
    """The scalar of a type that has a bit pattern."""
    if dtype.is_float:
        storage = dtype.numpy()
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
