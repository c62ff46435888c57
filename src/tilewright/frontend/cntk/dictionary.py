"""CNTK's files: dictionaries of values of any kind, as plain Python data."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.core.protobuf import Schema
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

SCHEMA = Schema("""
message NDShape
  1 shape_dim uint64*
message Axis
  1 static_axis_idx int32
  2 name string
  3 is_ordered_dynamic_axis bool
message FloatValues
  1 value float*
message DoubleValues
  1 value double*
message BytesValue
  1 value bytes
message IntValues
  1 value sint32*
message NDArrayView
  1 data_type int32
  2 storage_format int32
  3 shape NDShape
  4 float_values FloatValues
  5 double_values DoubleValues
  6 bytes_value BytesValue
  7 sint32_values IntValues
message Vector
  1 value DictionaryValue*
message Dictionary
  1 version uint64
  2 data map string DictionaryValue
message DictionaryValue
  1 version uint64
  2 value_type int32
  3 bool_value bool
  4 int_value int32
  5 size_t_value uint64
  6 float_value float
  7 double_value double
  8 string_value string
  9 nd_shape_value NDShape
  10 axis_value Axis
  11 vector_value Vector
  12 dictionary_value Dictionary
  13 nd_array_view_value NDArrayView
""")
INFERRED, FREE = (1 << 64) - 1, (1 << 64) - 3
"""What stands for a dimension that is inferred, or free."""
_DYNAMIC, _ALL_STATIC, _, _END, _ALL = (2**31 - 1 - at for at in range(5))
"""Numbers of axes that are none of the shape's own."""
TYPES = {1: "float32", 2: "float64", 4: "float16", 5: "int8", 6: "int16"}
_MOST = 1 << 31


@dataclass(frozen=True)
class Axis:
    """An axis: by its number, from the fastest dimension on, or a dynamic one by its name."""

    number: int
    name: str
    ordered: bool

    @property
    def is_static(self) -> bool:
        """Whether it is one of a shape's dimensions."""
        return self.number < _ALL

    @property
    def is_all_static(self) -> bool:
        """Whether it stands for all dimensions of a shape."""
        return self.number == _ALL_STATIC

    @property
    def is_everything(self) -> bool:
        """Whether it stands for all axes, dynamic ones too."""
        return self.number == _ALL

    @property
    def is_end(self) -> bool:
        """Whether it is the place behind the last dimension."""
        return self.number == _END

    @property
    def is_sequence(self) -> bool:
        """Whether it is a dynamic axis along which order matters."""
        return self.number == _DYNAMIC and self.ordered


Shape = tuple[int, ...]
Value = bool | int | float | str | Shape | Axis | Array | list[Any] | dict[str, Any] | None


def read_dictionary(source: str | os.PathLike[str] | bytes) -> tuple[dict[str, Any], str]:
    """The dictionary that a file is, and its name in messages."""
    if isinstance(source, bytes):
        content, where = source, "the bytes"
    else:
        path = Path(os.fspath(source))
        where = str(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if content.startswith(b"B\0C\0N\0"):
        raise UnsupportedError(
            "a model of CNTK's first version", where=where, hint="load and save it with CNTK 2: Function.save(path)"
        )
    return _dictionary(SCHEMA.read("Dictionary", content, where)), where


def _dictionary(message: Any) -> dict[str, Any]:
    return {key: _value(value) for key, value in message.data.items()}


def _value(message: Any) -> Value:
    """A value as Python has it; shapes are in the order of the file, arrays in that of numpy."""
    fields = [(field.name, value) for field, value in message.ListFields() if field.number >= 3]
    if not fields:
        empty: dict[int, Value] = {1: False, 2: 0, 3: 0, 4: 0.0, 5: 0.0, 6: ""}
        return empty.get(message.value_type)
    name, value = fields[0]
    match name:
        case "nd_shape_value":
            return tuple(value.shape_dim)
        case "axis_value":
            return Axis(value.static_axis_idx, value.name, value.is_ordered_dynamic_axis)
        case "vector_value":
            return [_value(item) for item in value.value]
        case "dictionary_value":
            return _dictionary(value)
        case "nd_array_view_value":
            return _array(value)
    plain: bool | int | float | str = value
    return plain


def _array(message: Any) -> Array:
    """An array in the order of numpy: the last dimension is the fastest."""
    shape = tuple(int(size) for size in reversed(message.shape.shape_dim))
    if message.storage_format != 0:
        raise UnsupportedError("a sparse parameter", hint="save the model with dense parameters")
    if message.data_type not in TYPES or math.prod(shape) > _MOST:
        raise UserError(f"an array of type {message.data_type} and shape {shape} makes no sense")
    dtype = np.dtype(TYPES[message.data_type])
    if message.HasField("bytes_value"):
        content = message.bytes_value.value
        values = np.frombuffer(content[: len(content) // dtype.itemsize * dtype.itemsize], dtype)
    else:
        field = next(
            (name for name in ("float_values", "double_values", "sint32_values") if message.HasField(name)), ""
        )
        values = np.array(getattr(message, field).value if field else [], dtype)
    if values.size != math.prod(shape):
        raise UserError(f"an array of shape {shape} has {values.size} numbers")
    return values.reshape(shape)
