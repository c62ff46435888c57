"""Data type names at run time, and the numpy types that store them."""

from __future__ import annotations

import numpy as np

from tilewright.support.errors import UnsupportedError

SMALL_FLOATS = {
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn": 4,
}
"""Floats of 8 bits and fewer, and their bits. An element takes a byte, the code in its low bits."""
SMALL_INTEGERS = {"int1": 1, "int2": 2, "int4": 4, "uint1": 1, "uint2": 2, "uint4": 4}
"""Integers of fewer than 8 bits. An element takes a byte; what reads one does not look at the upper bits."""

# Types that numpy lacks: their bits are stored, and the name is kept beside them.
_STORAGE: dict[str, np.dtype[np.generic]] = {
    "bool": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    **dict.fromkeys(SMALL_FLOATS, np.dtype(np.uint8)),
    **{name: np.dtype(np.uint8 if name[0] == "u" else np.int8) for name in SMALL_INTEGERS},
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

C_TYPES = {
    "bool": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    **dict.fromkeys(SMALL_FLOATS, "uint8_t"),
    **{name: "uint8_t" if name[0] == "u" else "int8_t" for name in SMALL_INTEGERS},
    "float32": "float",
    "float64": "double",
}
"""The C type that holds one element; floats of 16 bits and fewer are passed as their bits."""

DTYPE_CODES = {
    **{name: code for code, name in enumerate(["bool", "int8", "int16", "int32", "int64"], start=1)},
    **{name: code for code, name in enumerate(["uint8", "uint16", "uint32", "uint64"], start=6)},
    **{name: code for code, name in enumerate(["float16", "bfloat16", "float32", "float64"], start=10)},
    **{name: code for code, name in enumerate(SMALL_FLOATS, start=14)},
    **{name: code for code, name in enumerate(SMALL_INTEGERS, start=20)},
}
"""Numbers of data types in the C interface of libraries (`enum tilewright_dtype`). They never change."""


def bits_of(name: str) -> int:
    """The bits of an element that count."""
    return SMALL_FLOATS.get(name) or SMALL_INTEGERS.get(name) or 8 * storage_dtype(name).itemsize


def is_sub_byte(name: str) -> bool:
    """Whether several elements fit a byte."""
    return name in SMALL_INTEGERS or SMALL_FLOATS.get(name, 8) < 8


def storage_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy type that stores elements of `name`."""
    if name not in _STORAGE:
        raise UnsupportedError(f"the runtime has no data type '{name}'", hint=f"it has {', '.join(_STORAGE)}")
    return _STORAGE[name]


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """The name of a numpy type (in any byte order; those of the package ml_dtypes are known too)."""
    name = dtype.newbyteorder("=").name
    if name not in _STORAGE:
        raise UnsupportedError(f"the runtime has no data type '{name}'", hint=f"it has {', '.join(_STORAGE)}")
    return name


def dtype_of(given: object) -> str:
    """The name meant by a numpy type, a Python type or a name."""
    if isinstance(given, str) and given in _STORAGE:
        return given
    try:
        dtype = np.dtype(given)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        # numpy's messages for texts that are no type are of many kinds.
        raise UnsupportedError(f"there is no data type {given!r}", hint=f"there are {', '.join(_STORAGE)}") from None
    return dtype_name(dtype)
