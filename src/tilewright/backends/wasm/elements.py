"""The arrays of JavaScript that hold the elements of tensors."""

from __future__ import annotations

from typing import Final

from tilewright.runtime.core.dtypes import C_TYPES

ARRAYS: Final = {
    "float": "Float32Array",
    "double": "Float64Array",
    "int8_t": "Int8Array",
    "int16_t": "Int16Array",
    "int32_t": "Int32Array",
    "int64_t": "BigInt64Array",
    "uint8_t": "Uint8Array",
    "uint16_t": "Uint16Array",
    "uint32_t": "Uint32Array",
    "uint64_t": "BigUint64Array",
}
"""The arrays of JavaScript for elements that are these types in C."""
TEXTS: Final = "Array"
"""That of texts."""


def array_of(dtype: str) -> str:
    """The kind of array for elements of a data type."""
    return TEXTS if dtype == "string" else ARRAYS[C_TYPES[dtype]]
