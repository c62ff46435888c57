"""Converters of Fourier transforms: by products with tables of sines and cosines."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.fourier import half_length, real_from_half, transform
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, add, at_least, floor_divide, multiply, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.support.errors import UserError


def _fitted(node: NodeContext, value: GraphExpr, length: Size) -> GraphExpr:
    """The last axis cut off or filled up with zeros."""
    axis, builder = rank_of(value) - 1, node.builder
    found = sizes_of(value)[axis]
    if same(found, length):
        return value
    if not isinstance(length, int) or not isinstance(found, int):
        places = builder.arange(length)
        taken = node.call("take", value, places, axis=axis, mode="clip")
        inside = node.call("less", places, builder.reshape(builder.shape_tensor((found,)), ()))
        return node.call("where", inside, taken, builder.constant_like(0, value))
    if found >= length:
        return node.builder.slice_axis(value, axis, 0, length)
    return node.call("pad", value, before=(0,) * (axis + 1), after=(*(0,) * axis, length - found))


@converter("DFT")
def fourier_transform(node: NodeContext) -> GraphExpr:
    """Along one axis of real or complex data; complex numbers are pairs along the last axis."""
    data = node.input(0)
    dims = sizes_of(data)
    if len(dims) < 2 or size_at(data, len(dims) - 1) not in (1, 2) or not dtype_of(data).is_float:
        raise UserError(f"DFT needs real or complex data (a last dimension of 1 or 2), it is {sizes_text(dims)}")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    if node.opset >= 20 and node.has_input(2):
        axis = node.chosen_axis(2, len(dims), "the axis")
    else:
        axis = node.axis(node.integer("axis", 1) if node.opset < 20 else -2, len(dims))
    if axis == len(dims) - 1:
        raise UserError("DFT along the axis of real and imaginary parts")
    builder = node.builder
    order = (*(at for at in range(len(dims) - 1) if at != axis), axis)
    turned = builder.transpose(data, (len(dims) - 1, *order))
    parts: list[GraphExpr] = []
    for index in range(size_at(data, len(dims) - 1)):
        part = builder.slice_axis(turned, 0, index, index + 1)
        parts.append(builder.reshape(part, sizes_of(turned)[1:]))
    length = node.size(1, "the length") if node.has_input(1) else None
    if (isinstance(length, int) and length < 1) or 0 in dims:
        raise UserError(f"a Fourier transform of length {length} of data of shape {sizes_text(dims)}")
    if onesided and inverse:
        pair = [_onesided_inverse(node, parts, length)]
    else:
        if onesided and len(parts) == 2:
            raise UserError("a one-sided DFT needs real data")
        count = sizes_of(parts[0])[-1] if length is None else length
        parts = [_fitted(node, part, count) for part in parts]
        imaginary = parts[1] if len(parts) == 2 else None
        pair = [*transform(builder, parts[0], imaginary, half_length(count) if onesided else count, inverse)]
        pair = [_divided(node, part, count) for part in pair] if inverse else pair
    rank = len(dims)
    stacked = builder.concatenate([builder.expand_dims(part, (0,)) for part in pair], 0)
    back = [0] * rank
    for place, at in enumerate(order):
        back[at] = place + 1
    return builder.transpose(stacked, (*back[: rank - 1], 0))


def _divided(node: NodeContext, value: GraphExpr, length: Size) -> GraphExpr:
    """Divided by the length of a transform."""
    number = node.builder.reshape(node.builder.shape_tensor((length,)), ())
    return node.call("divide", value, node.builder.cast(number, dtype_of(value)))


def _onesided_inverse(node: NodeContext, parts: list[GraphExpr], length: Size | None) -> GraphExpr:
    """Real data from the first half of its spectrum, the rest of which is known by symmetry."""
    count = multiply(subtract(sizes_of(parts[0])[-1], 1), 2) if length is None else length
    if isinstance(count, int) and count < 1:
        raise UserError("a one-sided inverse DFT of a single frequency needs a length")
    parts = [_fitted(node, part, half_length(count)) for part in parts]
    found = real_from_half(node.builder, parts[0], parts[1] if len(parts) == 2 else None, count)
    return _divided(node, found, count)


@converter("STFT")
def short_time_fourier_transform(node: NodeContext) -> GraphExpr:
    """Transforms of windows that move over a signal."""
    signal = node.input(0)
    step = node.size(1, "the step")
    window = node.optional(2)
    dims = sizes_of(signal)
    if len(dims) == 2:
        dims = (*dims, 1)
    if len(dims) != 3 or (window is not None and rank_of(window) != 1) or not dtype_of(signal).is_float:
        shown = sizes_text(dims)
        raise UserError(f"STFT needs a real or complex signal and a window of one dimension, the signal is {shown}")
    batch, samples, kinds = dims
    if node.has_input(3):
        length = node.size(3, "the length of frames")
    elif window is not None:
        length = sizes_of(window)[0]
    else:
        raise UserError("STFT needs a window or the length of frames")
    fits = not any(at_least(0, size) for size in (step, length)) and not at_least(length, add(samples, 1))
    if not fits or not isinstance(kinds, int) or kinds not in (1, 2):
        text = f"frames of {size_text(length)}, {size_text(step)} apart"
        raise UserError(f"STFT of {text}, does not fit a signal of shape {sizes_text(dims)}")
    onesided = node.flag("onesided", True) and kinds == 1
    frames = add(floor_divide(subtract(samples, length), step), 1)
    builder = node.builder
    columns = half_length(length) if onesided else length
    apart = builder.reshape(builder.shape_tensor((step,)), ())
    starts = builder.reshape(node.call("multiply", builder.arange(frames), apart), (frames, 1))
    table = node.call("add", starts, builder.reshape(builder.arange(length), (1, length)))
    cut = node.call("take", builder.reshape(signal, (batch, samples, kinds)), table, axis=1)
    parts: list[GraphExpr] = []
    for index in range(kinds):
        part = builder.reshape(builder.slice_axis(cut, 3, index, index + 1), (batch, frames, length))
        parts.append(part if window is None else node.call("multiply", part, window))
    pair = transform(builder, parts[0], parts[1] if kinds == 2 else None, columns)
    return builder.concatenate([builder.expand_dims(part, (3,)) for part in pair], 3)
