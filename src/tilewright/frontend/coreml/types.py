"""Core ML's data types: those of arrays at the interface, of values in programs and of blobs of weights."""

from __future__ import annotations

from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_ARRAYS = {65568: "float32", 65600: "float64", 131104: "int32", 131080: "int8", 65552: "float16"}
_PROGRAM = {
    1: "bool",
    2: "string",
    10: "float16",
    11: "float32",
    12: "float64",
    13: "bfloat16",
    21: "int8",
    22: "int16",
    23: "int32",
    24: "int64",
    25: "int4",
    31: "uint8",
    32: "uint16",
    33: "uint32",
    34: "uint64",
    35: "uint4",
    36: "uint2",
    37: "uint1",
    38: "uint6",
    39: "uint3",
    40: "float8_e4m3fn",
    41: "float8_e5m2",
}
"""Types of values by the numbers of the schema."""
BLOBS = {
    1: "float16",
    2: "float32",
    3: "uint8",
    4: "int8",
    5: "bfloat16",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
    16: "float8_e4m3fn",
    17: "float8_e5m2",
}
"""Types of blobs by the numbers in their headers."""
PACKED = {"int4": 4, "uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}
"""Bits of the types that blobs hold packed; values of them are bytes here."""
_NAMES = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}


def array_dtype(number: int) -> DataType:
    """The type of an array at the interface."""
    if number not in _ARRAYS:
        raise UserError(f"the element type number {number} of an array is not known")
    return DataType.of(_ARRAYS[number])


def type_name(number: int) -> str:
    """The name of a type of values in programs."""
    if number not in _PROGRAM:
        raise UserError(f"the element type number {number} is not known")
    return _PROGRAM[number]


def value_dtype(name: str) -> DataType:
    """The type that values of a named type have in the graph: packed integers are bytes."""
    if name in PACKED:
        return DataType.of("int8" if name == "int4" else "uint8")
    if name == "uint64" or name.startswith("float8"):
        raise UnsupportedError(f"values of type {name}")
    return DataType.of(name)


def named_dtype(name: str) -> DataType:
    """The type that a text of an operation names."""
    try:
        return DataType.of(_NAMES.get(name, name))
    except UserError as error:
        raise UserError(f"the type {name!r} is not known") from error
