"""Operations on images: other sizes, borders, patches, colours, blocks of pixels as channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.convolution import convolved
from tilewright.frontend.keras.images import resized
from tilewright.frontend.keras.ops_elementwise import tensor
from tilewright.frontend.keras.ops_shape import wholes
from tilewright.frontend.keras.preprocessing import cropped_to, padded_to
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.dimensions import add, multiply, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError


def _axes(call: LayerCall, value: GraphExpr) -> tuple[int, int]:
    rank = rank_of(value)
    if rank not in (3, 4):
        raise UserError(f"images have 3 or 4 dimensions, not {rank}")
    first = rank - 2 if call.layer.channels_first else rank - 3
    return first, first + 1


@operation("Resize")
def resize(call: LayerCall) -> GraphExpr:
    """Images of another size."""
    b, value, options = call.builder, tensor(call, 0, "images"), call.layer
    axes = _axes(call, value)
    height, width = wholes(options.option("size"), "size")
    if options.flag("crop_to_aspect_ratio"):
        value = cropped_to(b, value, axes, (height, width))
    elif options.flag("pad_to_aspect_ratio"):
        value = padded_to(b, value, axes, (height, width), options.number("fill_value", 0.0))
    how = options.text("interpolation", "bilinear")
    return resized(b, value, (height, width), how, options.channels_first, options.flag("antialias"))


def _amounts(call: LayerCall, value: GraphExpr, names: tuple[str, str, str], outer: bool) -> list[tuple[int, int]]:
    """What is added (or cut off) before and after rows and columns: two of three numbers say the third."""
    found = []
    for axis, (first, last, target) in zip(
        _axes(call, value),
        [(names[0], names[1], "target_height"), (names[2], f"right{names[0][3:]}", "target_width")],
        strict=True,
    ):
        options, size = call.layer, size_at(value, axis)
        given = [options.option(name) for name in (first, last, target)]
        before, after, wanted = (None if item is None else wholes(item, "a border")[0] for item in given)
        spare = None if wanted is None else (wanted - size if outer else size - wanted)
        if before is None and after is not None and spare is not None:
            before = spare - after
        if after is None and before is not None and spare is not None:
            after = spare - before
        if before is None or after is None or before < 0 or after < 0:
            raise UserError(f"borders of {before} and {after}")
        found.append((before, after))
    return found


@operation("PadImages")
def pad_images(call: LayerCall) -> GraphExpr:
    """Zeros around images."""
    value = tensor(call, 0, "images")
    pairs = _amounts(call, value, ("top_padding", "bottom_padding", "left_padding"), True)
    before, after = [0] * rank_of(value), [0] * rank_of(value)
    for axis, pair in zip(_axes(call, value), pairs, strict=True):
        before[axis], after[axis] = pair
    return call.call("pad", value, before=tuple(before), after=tuple(after))


@operation("CropImages")
def crop_images(call: LayerCall) -> GraphExpr:
    """The inside of images."""
    value = tensor(call, 0, "images")
    pairs = _amounts(call, value, ("top_cropping", "bottom_cropping", "left_cropping"), False)
    for axis, (before, after) in zip(_axes(call, value), pairs, strict=True):
        value = call.builder.slice_axis(value, axis, before, subtract(sizes_of(value)[axis], after))
    return value


@operation("RGBToGrayscale")
def grayscale(call: LayerCall) -> GraphExpr:
    """One brightness for three colours."""
    b, value = call.builder, tensor(call, 0, "images")
    axis = rank_of(value) - 3 if call.layer.channels_first else rank_of(value) - 1
    kind = dtype_of(value)
    shape = [3 if at == axis else 1 for at in range(rank_of(value))]
    weights = b.constant(np.array([0.2989, 0.5870, 0.1140], np.float32).reshape(shape), FLOAT32)
    result = b.reduce("sum", b.multiply(b.cast(value, FLOAT32), weights), (axis,), True)
    return b.cast(result, kind)


@operation("ExtractPatches")
def extract_patches(call: LayerCall) -> GraphExpr:
    """Windows of images as channels."""
    b, value, options = call.builder, tensor(call, 0, "images"), call.layer
    first = options.channels_first
    single = rank_of(value) == 3
    value = b.expand_dims(value, (0,)) if single else value
    if rank_of(value) != 4:
        raise UserError("patches of volumes are not supported")
    size = wholes(options.option("size"), "size")
    rows, columns = size * 2 if len(size) == 1 else size
    strides = options.option("strides")
    steps = [rows, columns] if strides is None else wholes(strides, "strides")
    steps = steps * 2 if len(steps) == 1 else steps
    channels = size_at(value, 1 if first else 3)
    count = rows * columns * channels
    # Each result element is one element of the window: a convolution with a kernel of ones and zeros.
    kernel = np.eye(count, dtype=np.float32).reshape(rows, columns, channels, count)
    spread = options.integers("dilation_rate", 2, 1)
    extents = extents_of((rows, columns), (steps[0], steps[1]), (spread[0], spread[1]))
    wide, extents = padded(b, value, extents, options.text("padding", "valid"), first)
    result = convolved(b, wide, b.constant(kernel, dtype_of(value)), extents, 1, first)
    return b.reshape(result, sizes_of(result)[1:]) if single else result


@operation("DepthToSpace", "SpaceToDepth")
def blocks(call: LayerCall) -> GraphExpr:
    """Channels as blocks of pixels, or back."""
    b, value = call.builder, tensor(call)
    size, first = call.layer.integer("block_size"), call.layer.channels_first
    value = b.transpose(value, (0, 2, 3, 1)) if first else value
    result = _to_space(b, value, size) if call.layer.kind == "DepthToSpace" else _to_depth(b, value, size)
    return b.transpose(result, (0, 3, 1, 2)) if first else result


def _to_space(b: KerasBuilder, value: GraphExpr, size: int) -> GraphExpr:
    batch, rows, columns, channels = sizes_of(value)
    inner = size_at(value, 3) // (size * size)
    wide = b.reshape(value, (batch, rows, columns, size, size, inner))
    turned = b.transpose(wide, (0, 1, 3, 2, 4, 5))
    assert channels is not None
    return b.reshape(turned, (batch, multiply(rows, size), multiply(columns, size), inner))


def _to_depth(b: KerasBuilder, value: GraphExpr, size: int) -> GraphExpr:
    batch, _, _, channels = sizes_of(value)
    rows, columns = size_at(value, 1) // size, size_at(value, 2) // size
    wide = b.reshape(value, (batch, rows, size, columns, size, channels))
    turned = b.transpose(wide, (0, 1, 3, 2, 4, 5))
    return b.reshape(turned, (batch, rows, columns, multiply(channels, size * size)))


@operation("ExtractSequences")
def extract_sequences(call: LayerCall) -> GraphExpr:
    """Overlapping runs of the last axis."""
    b, value = call.builder, tensor(call)
    length, stride = call.layer.integer("sequence_length"), call.layer.integer("sequence_stride")
    size = size_at(value, rank_of(value) - 1)
    if length < 1 or stride < 1 or size < length:
        raise UserError(f"runs of {length} by steps of {stride} in {size} elements")
    count = 1 + (size - length) // stride
    places: Any = np.arange(count)[:, None] * stride + np.arange(length)
    assert add(size, 0) == size
    return b.call("take", value, b.constant(places, "int64"), axis=rank_of(value) - 1)
