"""Data types of scalars and vectors: `bool`, integers, floats, their vectors, `handle` (a pointer) and `string`.

Tensors of `string` are numpy arrays of Python strings (dtype object). Only host functions touch them: no kernel does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import numpy as np

from tilewright.ir.small_floats import FORMATS
from tilewright.support.errors import UserError

_NUMPY_NAMES: Final = frozenset(
    ["bool", *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)), "float16", "float32", "float64"]
)
_SCALARS: Final[dict[str, tuple[str, int]]] = {
    "bool": ("bool", 1),
    **{f"int{b}": ("int", b) for b in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{b}": ("uint", b) for b in (1, 2, 4, 8, 16, 32, 64)},
    **{f"float{b}": ("float", b) for b in (16, 32, 64)},
    "bfloat16": ("bfloat", 16),
    **{name: (name, kind.bits) for name, kind in FORMATS.items()},
    "handle": ("handle", 64),
    "string": ("string", 64),
}
SCALAR_NAMES: Final = tuple(_SCALARS)
"""The names of all types of one lane."""
_NAMES: Final = {value: name for name, value in _SCALARS.items()}
_PATTERN: Final = re.compile(rf"^(?P<base>{'|'.join(_SCALARS)})(?:x(?P<lanes>[0-9]+))?$")


class DataType:
    """A scalar or vector element type. Interned: equal types are the same object.

    `DataType.of("float32x8")` parses; `str()` prints the same text back.
    """

    __slots__ = (
        "__weakref__",
        "bits",
        "code",
        "element",
        "is_bool",
        "is_float",
        "is_int",
        "is_integer",
        "is_scalar",
        "lanes",
        "name",
    )

    code: str
    bits: int
    lanes: int
    name: str
    element: DataType
    """The type of one lane."""
    is_bool: bool
    """Whether elements are truth values."""
    is_int: bool
    """Whether elements are signed integers."""
    is_integer: bool
    """Whether elements are signed or unsigned integers (not bool)."""
    is_float: bool
    """Whether elements are floating point of any format."""
    is_scalar: bool
    """Whether there is one lane."""

    @staticmethod
    def of(value: DataType | str | type | np.dtype[np.generic]) -> DataType:
        """The data type named by a string, a numpy dtype or scalar type, or a DataType itself."""
        if isinstance(value, DataType):
            return value
        if isinstance(value, str):
            return _parse(value)
        try:
            name = np.dtype(value).name
            return STRING if name == "object" else _parse(name)
        except TypeError as error:
            raise UserError(f"{value!r} is not a data type") from error

    @property
    def is_uint(self) -> bool:
        """Whether elements are unsigned integers."""
        return self.code == "uint"

    @property
    def is_small_float(self) -> bool:
        """Whether elements are floats of 8 bits or fewer, stored as their codes (`ir/small_floats.py`)."""
        return self.code in FORMATS

    @property
    def is_small_integer(self) -> bool:
        """Whether elements are integers of fewer than 8 bits."""
        return self.is_integer and self.bits < 8

    @property
    def is_sub_byte(self) -> bool:
        """Whether several elements fit a byte (a bool takes a whole one)."""
        return self.bits < 8 and not self.is_bool

    @property
    def is_string(self) -> bool:
        """Whether elements are strings, which only host functions touch."""
        return self.code == "string"

    def with_lanes(self, lanes: int) -> DataType:
        """The same element type with another number of lanes."""
        return self if lanes == self.lanes else _intern(self.code, self.bits, lanes)

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes in memory (a bool and what has fewer bits take one)."""
        return max(1, (self.bits + 7) // 8)

    def min_value(self) -> int:
        """The least value of an integer type."""
        return -(1 << (self.bits - 1)) if self.is_int else 0

    def max_value(self) -> int:
        """The greatest value of an integer type."""
        if self.is_int:
            return (1 << (self.bits - 1)) - 1
        return (1 << self.bits) - 1

    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that stores an element: bfloat16 and small floats as their bits, small integers in a byte."""
        name = self.element.name
        if name in _NUMPY_NAMES:
            return np.dtype(name)
        if name == "bfloat16":
            return np.dtype("uint16")
        if name == "string":
            return np.dtype(object)
        if self.is_small_float or self.is_small_integer:
            return np.dtype("int8" if self.is_int else "uint8")
        raise UserError(f"data type {name} has no numpy storage")

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        return (_parse, (self.name,))

    def __copy__(self) -> DataType:
        return self

    def __deepcopy__(self, memo: object) -> DataType:
        return self


@cache
def _intern(code: str, bits: int, lanes: int) -> DataType:
    dtype = DataType()
    dtype.code, dtype.bits, dtype.lanes = code, bits, lanes
    base = _NAMES[(code, bits)]
    dtype.name = base if lanes == 1 else f"{base}x{lanes}"
    dtype.element = dtype if lanes == 1 else _intern(code, bits, 1)
    # Asked of every expression by every pass: attributes, not properties.
    dtype.is_bool, dtype.is_int, dtype.is_integer = code == "bool", code == "int", code in ("int", "uint")
    dtype.is_float, dtype.is_scalar = code in ("float", "bfloat") or code in FORMATS, lanes == 1
    return dtype


@cache
def _parse(text: str) -> DataType:
    match = _PATTERN.match(text)
    if match is None:
        raise UserError(
            f"unknown data type {text!r}",
            hint=f"one of {', '.join(_SCALARS)}, optionally with lanes, e.g. float32x8",
        )
    lanes = int(match["lanes"] or 1)
    if lanes < 1:
        raise UserError(f"data type {text!r} has no lanes")
    return _intern(*_SCALARS[match["base"]], lanes)


BOOL: Final = _parse("bool")
INT8: Final = _parse("int8")
INT16: Final = _parse("int16")
INT32: Final = _parse("int32")
INT64: Final = _parse("int64")
UINT8: Final = _parse("uint8")
UINT64: Final = _parse("uint64")
FLOAT16: Final = _parse("float16")
BFLOAT16: Final = _parse("bfloat16")
FLOAT32: Final = _parse("float32")
FLOAT8_E4M3: Final = _parse("float8_e4m3fn")
FLOAT64: Final = _parse("float64")
HANDLE: Final = _parse("handle")
STRING: Final = _parse("string")
INDEX: Final = INT64
"""The type of loop variables, indices and dimensions everywhere in the compiler."""


def promote(a: DataType, b: DataType) -> DataType:
    """The type in which a mixed operation is done: floats win over integers, wider over narrower.

    bool < integers < floats; int with uint of the same or larger width takes the next wider int (at most int64).
    """
    if a is b:
        return a
    lanes = max(a.lanes, b.lanes)
    x, y = a.element, b.element
    if x is y:
        return x.with_lanes(lanes)
    if x.is_bool:
        return y.with_lanes(lanes)
    if y.is_bool:
        return x.with_lanes(lanes)
    if x.is_float != y.is_float:
        return (x if x.is_float else y).with_lanes(lanes)
    if x.is_float:
        if x.bits == y.bits or (x.is_small_float and y.is_small_float):
            return FLOAT32.with_lanes(lanes)
        return (x if x.bits > y.bits else y).with_lanes(lanes)
    if x.code == y.code:
        return (x if x.bits > y.bits else y).with_lanes(lanes)
    signed, unsigned = (x, y) if x.is_int else (y, x)
    bits = signed.bits if signed.bits > unsigned.bits else min(64, unsigned.bits * 2)
    return _intern("int", bits, lanes)
