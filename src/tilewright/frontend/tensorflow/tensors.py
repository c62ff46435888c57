"""Tensors of TensorFlow's files as arrays: whole ones, and those that leave out what repeats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE
from tilewright.frontend.tensorflow.schema import OF_REFERENCES, TYPES
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_LISTS = {
    "float32": "float_val",
    "float64": "double_val",
    "int32": "int_val",
    "uint8": "int_val",
    "int16": "int_val",
    "int8": "int_val",
    "uint16": "int_val",
    "qint8": "int_val",
    "quint8": "int_val",
    "qint32": "int_val",
    "qint16": "int_val",
    "quint16": "int_val",
    "int4": "int_val",
    "uint4": "int_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "complex64": "scomplex_val",
    "complex128": "dcomplex_val",
}
"""The field that holds the elements of a type, if there is no field with all their bytes."""
_BITS = {"bfloat16": "uint16", "float16": "uint16", "int4": "int8", "uint4": "uint8"}
"""Types that numpy lacks, or whose list holds bits, by what holds them."""


def type_name(number: int) -> str:
    """Our name of an element type; an error if there is none."""
    found = TYPES.get(number - OF_REFERENCES if number > OF_REFERENCES else number)
    if found is None:
        raise UserError(f"the element type number {number} is not known", hint="is the file of a later TensorFlow?")
    return found[1]


def tensor_dtype(number: int) -> DataType:
    """The data type of tensors of an element type; integers that stand for numbers are integers here."""
    name = type_name(number)
    if name in ("resource", "variant", "complex64", "complex128"):
        raise UnsupportedError(f"a tensor of type {name} is needed as a tensor of numbers here")
    return DataType.of(name.removeprefix("q"))


def shape_dims(message: Any) -> tuple[int | None, ...] | None:
    """The dimensions of a shape, None where they are open; None if not even their number is known."""
    if message.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in message.dim)


def array_of(message: Any, what: str) -> tuple[Array, str]:
    """The elements of a tensor, and the name of its type; types that numpy lacks are their bits."""
    name = type_name(message.dtype)
    dims = shape_dims(message.tensor_shape)
    if dims is None or None in dims:
        raise UserError(f"{what} has a shape that is not known", hint="the file is damaged: export the model again")
    shape = tuple(size for size in dims if size is not None)
    count = math.prod(shape)
    if name == "string":
        texts = [text_of(item) for item in message.string_val]
        return _repeated(np.array(texts, object), count, what).reshape(shape), name
    holder = np.dtype(
        _BITS.get(name, name.removeprefix("q")) if name in _BITS or name.startswith("q") else _numpy(name)
    )
    if message.tensor_content:
        if len(message.tensor_content) != count * holder.itemsize:
            raise UserError(
                f"{what} has {len(message.tensor_content)} bytes, its shape needs {count * holder.itemsize}"
            )
        return _finished(np.frombuffer(message.tensor_content, holder).reshape(shape), name), name
    if name.startswith("float8"):
        listed = np.frombuffer(message.float8_val, np.uint8)
    else:
        field = _LISTS.get(name)
        if field is None:
            raise UnsupportedError(f"{what} is a tensor of type {name}")
        listed = np.array(getattr(message, field), np.dtype("float64") if name == "complex128" else None)
        if name.startswith("complex"):
            listed = np.asarray(listed, np.float32 if name == "complex64" else np.float64).view(holder)
    return _finished(_repeated(listed.astype(holder), count, what).reshape(shape), name), name


def text_of(content: bytes) -> str:
    """A text of bytes; those that are no text keep their bits."""
    return content.decode("utf-8", "surrogateescape")


def _numpy(name: str) -> str:
    if name in ("resource", "variant"):
        raise UnsupportedError(f"a constant of type {name}")
    return "uint8" if name.startswith("float8") else name.removeprefix("q")


def _finished(array: Array, name: str) -> Array:
    return array.view(np.float16) if name == "float16" else array


def _repeated(listed: Array, count: int, what: str) -> Array:
    """So many elements: the last that is listed stands for all that follow; none is all zeros."""
    if len(listed) > count:
        raise UserError(f"{what} has {len(listed)} elements, its shape has {count}")
    if len(listed) == count:
        return listed
    if count > LARGEST_MADE:
        raise UserError(f"{what} has {count} elements, which are not all in the file")
    if not len(listed):
        return np.full(count, "", object) if listed.dtype == object else np.zeros(count, listed.dtype)
    return np.concatenate([listed, np.full(count - len(listed), listed[-1], listed.dtype)])
