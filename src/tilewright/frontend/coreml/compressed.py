"""Weights that Core ML stores compressed, and quantised values: scales, tables, sparse values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.coreml.blobs import unpacked
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.frontend.coreml.types import named_dtype
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

_MOST = 1 << 31
"""The most elements of a weight."""


def _dense(op: Operation, values: Array) -> GraphExpr:
    """A weight in the type that the model gives it."""
    if op.output is not None and op.output.numpy() != values.dtype:
        values = values.astype(op.output.numpy())
    return op.builder.constant(np.ascontiguousarray(values))


def _along(values: Array, axis: int, rank: int) -> Array:
    """One number for each slice along an axis, so that it broadcasts."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


@operation("constexpr_affine_dequantize")
def affine_dequantize(op: Operation) -> GraphExpr:
    """scale * (data - zero point)."""
    data, scale = op.array("quantized_data"), op.array("scale")
    axis = op.axis("axis", data.ndim)
    zero = _along(op.array("zero_point").astype(np.float32), axis, data.ndim)
    wide = (data.astype(np.float32) - zero) * _along(scale.astype(np.float32), axis, data.ndim)
    return _dense(op, wide.astype(scale.dtype))


@operation("constexpr_cast")
def constant_cast(op: Operation) -> GraphExpr:
    """Converted to a type."""
    return op.builder.constant(op.array("source_val").astype(named_dtype(op.text("output_dtype")).numpy()))


def _shape(op: Operation) -> tuple[int, ...]:
    shape = op.ints("shape")
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST:
        raise UserError(f"a weight of shape {shape} makes no sense")
    return shape


@operation("constexpr_lut_to_dense")
def table_to_dense(op: Operation) -> GraphExpr:
    """Values of a table by their numbers: packed in bytes, or a tensor with tables for its parts."""
    table, indices = op.array("lut"), op.array("indices")
    if op.has("shape"):
        shape = _shape(op)
        bits = max(1, (table.size - 1).bit_length())
        places = unpacked(indices.tobytes(), bits, math.prod(shape)).reshape(shape)
        return _dense(op, _looked_up(table.reshape(-1), places))
    return _dense(op, _vectors(indices, table, op.integer("vector_axis", 0) if op.has("vector_axis") else None))


def _looked_up(table: Array, places: Array) -> Array:
    if places.size and int(places.max()) >= table.size:
        raise UserError(f"a table of {table.size} values has no value {int(places.max())}")
    return table[places]


def _vectors(indices: Array, table: Array, axis: int | None) -> Array:
    """Vectors of tables of (blocks..., values, vector) by their numbers, along an axis."""
    rank = indices.ndim
    if table.ndim != rank + 2:
        raise UserError(f"a table of {table.ndim} dimensions does not fit indices of {rank}")
    blocks = np.ix_(*(_blocks(size, parts) for size, parts in zip(indices.shape, table.shape, strict=False)))
    if indices.size and int(indices.max()) >= table.shape[-2]:
        raise UserError(f"a table of {table.shape[-2]} values has no value {int(indices.max())}")
    vectors: Array = table[(*blocks, indices)]
    width = table.shape[-1]
    if width == 1:
        single: Array = vectors[..., 0]
        return single
    if axis is None or not -rank <= axis < rank:
        raise UserError("vectors of a table need an axis")
    axis %= rank
    shape = list(indices.shape)
    shape[axis] *= width
    result: Array = np.moveaxis(vectors, -1, axis + 1).reshape(shape)
    return result


def _blocks(size: int, parts: int) -> Array:
    """The block that each place along an axis belongs to."""
    if not parts or size % parts:
        raise UserError(f"{parts} blocks do not divide {size} elements")
    return np.arange(size) // (size // parts)


def _expanded(values: Array, shape: Sequence[int]) -> Array:
    """Numbers of blocks as numbers of elements."""
    if values.ndim != len(shape):
        raise UserError(f"scales of {values.ndim} dimensions do not fit data of {len(shape)}")
    return values[np.ix_(*(_blocks(size, parts) for size, parts in zip(shape, values.shape, strict=True)))]


@operation("constexpr_blockwise_shift_scale")
def blockwise_shift_scale(op: Operation) -> GraphExpr:
    """scale * (data - offset), a scale for each block."""
    return _dense(op, _shift_scaled(op, op.array("data")))


def _shift_scaled(op: Operation, data: Array) -> Array:
    scale = op.array("scale")
    wide = data.astype(np.float32)
    if op.has("offset"):
        wide = wide - _expanded(op.array("offset").astype(np.float32), data.shape)
    return (wide * _expanded(scale.astype(np.float32), data.shape)).astype(scale.dtype)


def _spread(mask: Array, values: Array) -> Array:
    """Values where a mask is set, zeros elsewhere."""
    chosen = mask.astype(bool)
    if int(chosen.sum()) != values.size:
        raise UserError(f"a mask of {int(chosen.sum())} elements does not fit {values.size} values")
    result = np.zeros(mask.shape, values.dtype)
    result[chosen] = values.reshape(-1)
    return result


@operation("constexpr_sparse_to_dense")
def sparse_to_dense(op: Operation) -> GraphExpr:
    """Values where a mask is set, zeros elsewhere; the mask is a bit an element."""
    values, mask = op.array("nonzero_data"), op.array("mask")
    if op.has("shape"):
        shape = _shape(op)
        mask = unpacked(mask.tobytes(), 1, math.prod(shape)).reshape(shape)
    return _dense(op, _spread(mask, values))


@operation("constexpr_lut_to_sparse")
def table_to_sparse(op: Operation) -> Sequence[GraphExpr]:
    """The mask, and the values of a table that stand where it is set."""
    mask, places = op.array("indices_mask"), op.array("indices_nonzero_data")
    table = op.array("lut")
    axis = op.integer("vector_axis", 0) if op.has("vector_axis") else None
    dense = _vectors(_spread(mask, places), table, axis)
    if dense.shape != mask.shape and axis is not None:
        mask = np.repeat(mask, dense.shape[axis % mask.ndim] // mask.shape[axis % mask.ndim], axis=axis)
    return [op.builder.constant(mask), op.builder.constant(dense[mask.astype(bool)])]


@operation("constexpr_sparse_blockwise_shift_scale")
def sparse_shift_scale(op: Operation) -> Sequence[GraphExpr]:
    """The mask, and scale * (value - offset) of what stands where it is set."""
    mask = op.array("data_mask")
    dense = _shift_scaled(op, _spread(mask, op.array("nonzero_data")))
    return [op.builder.constant(mask), op.builder.constant(dense[mask.astype(bool)])]


# Quantised values


def _levels(op: Operation, x: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """Scale and zero point, in the shape of one number a slice along the axis."""
    scale = op.array("scale").astype(np.float32)
    rank = rank_of(x)
    axis = op.axis("axis", rank, 0) if op.has("axis") else 0
    zero = op.array("zero_point") if op.has("zero_point") else np.zeros(1, np.int32)
    values = [_along(item, axis, rank) for item in (scale, zero.astype(np.float32))]
    return op.builder.constant(values[0], "float32"), op.builder.constant(values[1], "float32")


@operation("quantize")
def quantize(op: Operation) -> GraphExpr:
    """round(x / scale) + zero point, within the type."""
    x = op.value("input")
    dtype = named_dtype(op.text("output_dtype"))
    scale, zero = _levels(op, x)
    rounded = op.call("round", op.call("divide", op.builder.cast(x, "float32"), scale))
    low, high = float(dtype.min_value()), float(dtype.max_value())
    whole = op.call("clip", op.call("add", rounded, zero), minimum=low, maximum=high)
    return op.builder.cast(whole, dtype)


@operation("dequantize")
def dequantize(op: Operation) -> GraphExpr:
    """(x - zero point) * scale."""
    x, scale_type = op.value("input"), dtype_of(op.value("scale"))
    scale, zero = _levels(op, x)
    return op.builder.cast(
        op.call("multiply", op.call("subtract", op.builder.cast(x, "float32"), zero), scale), scale_type
    )
