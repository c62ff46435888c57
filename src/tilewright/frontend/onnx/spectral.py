"""Converters of Fourier transforms: products with constant tables of sines and cosines."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.dimensions import add, floor_divide, subtract
from tilewright.graph.expr import GraphExpr
from tilewright.graph.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError

_LONGEST = 4096
"""The longest transform: the tables have the square of it as elements."""


def _tables(rows: int, columns: int, length: int, inverse: bool) -> tuple[Array, Array]:
    """cos and sin of the angles of a transform from `rows` samples to `columns` frequencies."""
    if max(rows, columns, length) > _LONGEST:
        raise UnsupportedError(f"a Fourier transform of length {length}: the longest supported is {_LONGEST}")
    # Angles are reduced as whole numbers first: large ones would lose digits.
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angle = 2 * np.pi * turns / length
    scale = 1 / length if inverse else 1.0
    return np.cos(angle) * scale, np.sin(angle) * (scale if inverse else -scale)


def _product(node: NodeContext, value: GraphExpr, table: Array) -> GraphExpr:
    return node.call("matmul", value, node.builder.constant(table, dtype_of(value)))


def _fitted(node: NodeContext, value: GraphExpr, length: int) -> GraphExpr:
    """The last axis cut off or filled up with zeros."""
    found = shape_of(value)[-1]
    axis = rank_of(value) - 1
    if found >= length:
        return node.builder.slice_axis(value, axis, 0, length)
    return node.call("pad", value, before=(0,) * (axis + 1), after=(*(0,) * axis, length - found))


@converter("DFT")
def fourier_transform(node: NodeContext) -> GraphExpr:
    """Along one axis of real or complex data; complex numbers are pairs along the last axis."""
    data = node.input(0)
    dims = shape_of(data)
    if len(dims) < 2 or dims[-1] not in (1, 2) or not dtype_of(data).is_float:
        raise UserError(f"DFT needs real or complex data (a last dimension of 1 or 2), it is {dims}")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    if node.opset < 20:
        chosen = node.integer("axis", 1)
    else:
        chosen = node.constant_int(2, "the axis") if node.has_input(2) else -2
    axis = node.axis(chosen, len(dims))
    if axis == len(dims) - 1:
        raise UserError("DFT along the axis of real and imaginary parts")
    builder = node.builder
    order = (*(at for at in range(len(dims) - 1) if at != axis), axis)
    turned = builder.transpose(data, (len(dims) - 1, *order))
    parts: list[GraphExpr] = []
    for index in range(dims[-1]):
        part = builder.slice_axis(turned, 0, index, index + 1)
        parts.append(builder.reshape(part, shape_of(turned)[1:]))
    length = node.constant_int(1, "the length") if node.has_input(1) else None
    if (length is not None and length < 1) or 0 in dims:
        raise UserError(f"a Fourier transform of length {length} of data of shape {dims}")
    if onesided and inverse:
        pair = [_onesided_inverse(node, parts, length)]
    else:
        length = length or shape_of(parts[0])[-1]
        if onesided and len(parts) == 2:
            raise UserError("a one-sided DFT needs real data")
        columns = length // 2 + 1 if onesided else length
        cosines, sines = _tables(length, columns, length, inverse)
        parts = [_fitted(node, part, length) for part in parts]
        pair = [_product(node, parts[0], cosines), _product(node, parts[0], sines)]
        if len(parts) == 2:
            pair[0] = node.call("subtract", pair[0], _product(node, parts[1], sines))
            pair[1] = node.call("add", pair[1], _product(node, parts[1], cosines))
    rank = len(dims)
    stacked = builder.concatenate([builder.expand_dims(part, (0,)) for part in pair], 0)
    back = [0] * rank
    for place, at in enumerate(order):
        back[at] = place + 1
    return builder.transpose(stacked, (*back[: rank - 1], 0))


def _onesided_inverse(node: NodeContext, parts: list[GraphExpr], length: int | None) -> GraphExpr:
    """Real data from the first half of its spectrum, the rest of which is known by symmetry."""
    length = length or 2 * (shape_of(parts[0])[-1] - 1)
    if length < 1:
        raise UserError("a one-sided inverse DFT of a single frequency needs a length")
    half = length // 2 + 1
    cosines, sines = _tables(half, length, length, inverse=True)
    # All but the first and (of an even number) the middle frequency occur twice.
    weight = np.full((half, 1), 2.0)
    weight[0] = 1
    if length % 2 == 0:
        weight[-1] = 1
    parts = [_fitted(node, part, half) for part in parts]
    real = _product(node, parts[0], cosines * weight)
    if len(parts) == 1:
        return real
    return node.call("subtract", real, _product(node, parts[1], sines * weight))


@converter("STFT")
def short_time_fourier_transform(node: NodeContext) -> GraphExpr:
    """Transforms of windows that move over a signal."""
    signal = node.input(0)
    step = node.constant_int(1, "the step")
    window = node.optional(2)
    dims = sizes_of(signal)
    if len(dims) == 2:
        dims = (*dims, 1)
    if len(dims) != 3 or (window is not None and rank_of(window) != 1) or not dtype_of(signal).is_float:
        shown = sizes_text(dims)
        raise UserError(f"STFT needs a real or complex signal and a window of one dimension, the signal is {shown}")
    batch, samples, kinds = dims
    if node.has_input(3):
        length = node.constant_int(3, "the length of frames")
    elif window is not None:
        length = shape_of(window)[0]
    else:
        raise UserError("STFT needs a window or the length of frames")
    fits = step >= 1 and length >= 1 and kinds in (1, 2) and not (isinstance(samples, int) and length > samples)
    if not fits or not isinstance(kinds, int):
        raise UserError(f"STFT of frames of {length}, {step} apart, does not fit a signal of shape {sizes_text(dims)}")
    onesided = node.flag("onesided", True) and kinds == 1
    frames = add(floor_divide(subtract(samples, length), step), 1)
    builder = node.builder
    columns = length // 2 + 1 if onesided else length
    starts = builder.reshape(builder.arange(frames, 0, step), (frames, 1))
    table = node.call("add", starts, builder.constant(builder.count(length)[None, :], "int64"))
    cosines, sines = _tables(length, columns, length, inverse=False)
    cut = node.call("take", builder.reshape(signal, (batch, samples, kinds)), table, axis=1)
    parts: list[GraphExpr] = []
    for index in range(kinds):
        part = builder.reshape(builder.slice_axis(cut, 3, index, index + 1), (batch, frames, length))
        parts.append(part if window is None else node.call("multiply", part, window))
    pair = [_product(node, parts[0], cosines), _product(node, parts[0], sines)]
    if kinds == 2:
        pair[0] = node.call("subtract", pair[0], _product(node, parts[1], sines))
        pair[1] = node.call("add", pair[1], _product(node, parts[1], cosines))
    return builder.concatenate([builder.expand_dims(part, (3,)) for part in pair], 3)
