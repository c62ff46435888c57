"""OpenVINO's element types, and tensors of them in the file of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import Builder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_TYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i4": "int4",
    "u4": "uint4",
    "u2": "uint2",
    "boolean": "bool",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_PACKED = {"i4": 4, "u4": 4, "u2": 2, "nf4": 4, "u1": 1}
"""Types of several elements a byte, and the bits of each."""
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The numbers that the 16 codes of nf4 stand for."""


def element_type(name: str) -> DataType:
    """The data type that a name stands for."""
    found = _TYPES.get(name.lower())
    if found is None:
        raise UnsupportedError(f"tensors of the element type {name!r}")
    return DataType.of(found)


def stored_tensor(builder: Builder, weights: memoryview, options: Any) -> GraphExpr:
    """The tensor of a layer `Const`; integers of few bits stay what they are, codes are looked up."""
    kind = str(options.get("element_type", "f32"))
    shape = tuple(int(size) for size in str(options.get("shape", "")).split(",") if size.strip())
    offset, size = int(options["offset"]), int(options["size"])
    if offset < 0 or size < 0 or offset + size > len(weights):
        raise UserError(
            f"a constant lies outside of the file of weights, which has {len(weights)} bytes",
            hint="is the .bin file beside the .xml file, and the one of this model?",
        )
    if any(item < 0 for item in shape):
        raise UserError(f"a constant has the shape {shape}")
    count, data = math.prod(shape), weights[offset : offset + size]
    if kind in _PACKED:
        return _unpacked(builder, kind, data, shape, count)
    dtype = element_type(kind)
    if not count:
        return builder.constant(np.empty(shape, dtype.numpy()), dtype)  # files have a byte for it
    if size != count * dtype.itemsize:
        raise UserError(f"{size} bytes for a constant of {kind} of shape {shape}")
    return builder.constant(np.frombuffer(data, dtype.numpy()).reshape(shape), dtype)


def _unpacked(builder: Builder, kind: str, data: memoryview, shape: tuple[int, ...], count: int) -> GraphExpr:
    bits = _PACKED[kind]
    each = 8 // bits
    if len(data) != -(-count // each):
        raise UserError(f"{len(data)} bytes for a constant of {kind} of shape {shape}")
    raw = np.frombuffer(data, np.uint8)
    order = range(each - 1, -1, -1) if kind == "u1" else range(each)
    codes = np.stack([raw >> (bits * place) & ((1 << bits) - 1) for place in order], axis=-1).reshape(-1)
    codes = codes[:count].reshape(shape)
    if kind == "nf4":
        table = builder.constant(np.array(_NF4, np.float32), "float32")
        return builder.call("take", table, builder.constant(codes.astype(np.int64), "int64"), axis=0)
    if kind == "u1":
        return builder.constant(codes, "uint8")
    if kind == "i4":
        return builder.constant(((codes.astype(np.int8) ^ 8) - 8).astype(np.int8), "int4")
    return builder.constant(codes, element_type(kind))
