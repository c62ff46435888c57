"""Caffe2's two nets: one that computes, and one whose operators fill the weights; messages in bytes or texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.core.protobuf import Schema
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

SCHEMA = Schema("""
message Argument
  1 name string
  2 f float
  3 i int64
  4 s bytes
  5 floats float*
  6 ints int64*
  7 strings bytes*

message OperatorDef
  1 input string*
  2 output string*
  3 name string
  4 type string
  5 arg Argument*
  7 engine string

message NetDef
  1 name string
  2 op OperatorDef*
  3 type string
  6 arg Argument*
  7 external_input string*
  8 external_output string*
""")

_FILLS = {
    "GivenTensorFill": "float32",
    "GivenTensorDoubleFill": "float64",
    "GivenTensorIntFill": "int32",
    "GivenTensorInt64Fill": "int64",
    "GivenTensorInt16Fill": "int16",
    "GivenTensorBoolFill": "bool",
}
_TYPES = {
    1: "float32",
    2: "int32",
    3: "uint8",
    5: "bool",
    6: "uint8",
    7: "int8",
    9: "int16",
    10: "int64",
    12: "float16",
    13: "float64",
}
"""Element types by their numbers."""
_LARGEST = 1 << 33


def type_name(number: int) -> str:
    """The element type of a number."""
    if number not in _TYPES:
        raise UnsupportedError(f"elements of the type number {number}")
    return _TYPES[number]


def read_net(content: bytes, where: str) -> Any:
    """A net in bytes, or as a text."""
    head = content[:4096]
    if head and not any(byte < 32 and byte not in b"\t\n\r\f\v" for byte in head):
        return SCHEMA.read_text("NetDef", content.decode("utf-8", "replace"), where)
    return SCHEMA.read("NetDef", content, where)


def read_file(path: Path) -> bytes:
    """The content of one of a model's files."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}",
            hint="a Caffe2 model is predict_net.pb with init_net.pb beside it",
        ) from error


def is_filling(net: Any) -> bool:
    """Whether a net only fills blobs: it is the one of the weights."""
    return bool(net.op) and all("Fill" in op.type for op in net.op)


def arguments(op: Any) -> dict[str, Any]:
    """The arguments of an operator by name."""
    return {argument.name: argument for argument in op.arg}


class Weight:
    """A blob that the net of weights fills: its numbers, and for integers what they stand for."""

    def __init__(self, values: Array, levels: tuple[float, int] | None = None, is_placeholder: bool = False) -> None:
        self.values, self.levels = values, levels
        self.is_placeholder = is_placeholder


def read_weights(net: Any, where: str) -> dict[str, Weight]:
    """The blobs that a net fills."""
    found: dict[str, Weight] = {}
    for op in net.op:
        place = f"{where}: {op.type} '{op.output[0] if op.output else op.name}'"
        if len(op.output) != 1:
            raise UserError(f"{op.type} fills {len(op.output)} blobs", where=place)
        try:
            found[op.output[0]] = _filled(op)
        except UserError as error:
            kind = UnsupportedError if isinstance(error, UnsupportedError) else UserError
            raise kind(error.message, where=place, hint=error.hint) from error
    return found


def _filled(op: Any) -> Weight:
    given = arguments(op)
    shape = [int(size) for size in given["shape"].ints] if "shape" in given else []
    if any(size < 0 for size in shape) or math.prod(shape) > _LARGEST:
        raise UserError(f"a blob of shape {tuple(shape)}")
    if op.type == "ConstantFill":
        kind = type_name(int(given["dtype"].i)) if "dtype" in given else "float32"
        value = given.get("value")
        number = 0 if value is None else value.i if value.HasField("i") else value.f
        if math.prod(shape) > 1 << 26:
            raise UserError(f"a constant of shape {tuple(shape)} is too large")
        return Weight(np.full(shape, number, kind), is_placeholder=math.prod(shape) <= 1)
    values = given.get("values")
    if op.type in _FILLS:
        numbers: Any = [] if values is None else values.floats if values.floats else values.ints
        return Weight(_shaped(np.array(list(numbers)).astype(_FILLS[op.type]), shape))
    if op.type in ("Int8GivenTensorFill", "Int8GivenIntTensorFill"):
        levels = (float(given["Y_scale"].f) if "Y_scale" in given else 1.0, _whole(given, "Y_zero_point"))
        if op.type == "Int8GivenTensorFill":
            content = b"" if values is None else bytes(values.s)
            return Weight(_shaped(np.frombuffer(content, np.uint8), shape), levels)
        whole: Any = [] if values is None else values.ints
        return Weight(_shaped(np.array(list(whole), np.int64).astype(np.int32), shape), levels)
    if op.type == "GivenTensorByteStringToUInt8Fill":
        content = b"" if values is None else b"".join(values.strings)
        return Weight(_shaped(np.frombuffer(content, np.uint8), shape))
    raise UnsupportedError(f"the net of weights fills a blob by {op.type}", hint="save the weights themselves")


def _whole(given: dict[str, Any], name: str) -> int:
    return int(given[name].i) if name in given else 0


def _shaped(values: Array, shape: list[int]) -> Array:
    if values.size != math.prod(shape):
        raise UserError(f"{values.size} numbers do not fit the shape {tuple(shape)}")
    return values.reshape(shape)
