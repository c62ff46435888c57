"""Converters of operators that see data as overlapping patches: where maxima are, and the ways back."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, of_known_length, rank_of, shape_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.ranks import MOST_RANK
from tilewright.frontend.core.windows import Extents
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.tensor import known_or_named
from tilewright.graph.ir.dimensions import as_dims, constants
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST_TABLE = 1 << 24
"""The most elements of a table of patches."""


def _patch_table(extents: Extents, size: tuple[int, ...]) -> tuple[Array, Array]:
    """For each window, the places along every axis that it covers: (axes, windows, taps), and whether inside."""
    rank = len(size)
    grids: list[Array] = []
    for axis in range(rank):
        reach = (extents.kernel[axis] - 1) * extents.dilation[axis] + 1
        count = (size[axis] + extents.before[axis] + extents.after[axis] - reach) // extents.strides[axis] + 1
        start = np.arange(count) * extents.strides[axis] - extents.before[axis]
        grids.append(start[:, None] + (np.arange(extents.kernel[axis]) * extents.dilation[axis])[None, :])
    windows, taps = math.prod(grid.shape[0] for grid in grids), math.prod(grid.shape[1] for grid in grids)
    if windows * taps * rank > _LARGEST_TABLE:
        raise UnsupportedError(f"the positions of maxima in {windows} windows of {taps} elements")
    shape = [*(grid.shape[0] for grid in grids), *(grid.shape[1] for grid in grids)]
    places = []
    for axis, grid in enumerate(grids):
        view = [grid.shape[0] if at == axis else grid.shape[1] if at == axis + rank else 1 for at in range(2 * rank)]
        places.append(np.broadcast_to(grid.reshape(view), shape).reshape(windows, taps))
    stacked = np.stack(places)
    limits = np.array(size).reshape(rank, 1, 1)
    return stacked, np.asarray(((stacked >= 0) & (stacked < limits)).all(axis=0))


def positions_of_maxima(node: NodeContext, data: GraphExpr, extents: Extents, columns_first: bool) -> GraphExpr:
    """Where in the flattened data the first maximum of each window lies."""
    builder = node.builder
    batch, channels, *rest = shape_of(data)
    size = tuple(rest)
    places, inside = _patch_table(extents, size)
    clipped = np.clip(places, 0, np.array(size).reshape(-1, 1, 1) - 1)
    steps = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    flat = sum((clipped[axis] * step for axis, step in enumerate(steps)), np.zeros(inside.shape, np.int64))
    named = flat
    if columns_first:
        along = [math.prod(size[:axis]) for axis in range(len(size))]
        named = sum((clipped[axis] * step for axis, step in enumerate(along)), np.zeros(inside.shape, np.int64))
    windows, taps = inside.shape
    if windows == 0:
        return builder.constant(np.zeros((batch, channels, *_counts(extents, size)), np.int64), INT64)
    dtype = dtype_of(data)
    lowest = -np.inf if dtype.is_float else dtype.min_value()
    planes = builder.reshape(data, (batch * channels, math.prod(size)))
    patches = node.call("take", planes, builder.constant(flat, INT64), axis=1)
    edge = builder.broadcast_to(builder.constant_like(lowest, data), ())
    patches = node.call("where", builder.constant(inside, "bool"), patches, edge)
    best = node.call("argmax", patches, axis=2)
    row = node.call("add", best, builder.constant(builder.count(windows, taps).reshape(1, windows), INT64))
    position = node.call("take", builder.constant(named.ravel(), INT64), row, axis=0)
    starts = builder.count(batch * channels, math.prod(size)).reshape(-1, 1)
    position = node.call("add", position, builder.constant(starts, INT64))
    return builder.reshape(position, (batch, channels, *_counts(extents, size)))


def _counts(extents: Extents, size: tuple[int, ...]) -> list[int]:
    """How many windows there are along each axis."""
    return [
        (length + before + after - (taps - 1) * space - 1) // stride + 1
        for length, taps, stride, before, after, space in zip(size, *extents.fields(), strict=True)
    ]


@converter("MaxUnpool")
def max_unpool(node: NodeContext) -> GraphExpr:
    """Maxima put back where they came from, zeros elsewhere."""
    builder = node.builder
    data, positions = node.input(0), builder.cast(node.input(1), INT64)
    if rank_of(data) < 3:
        raise UserError(f"MaxUnpool needs data of at least 3 dimensions, it is {shape_of(data)}")
    batch, channels, *size = shape_of(data)
    rank = len(size)
    kernel = node.ints("kernel_shape")
    strides, pads = node.ints("strides", (1,) * rank), node.ints("pads", (0,) * (2 * rank))
    if shape_of(positions) != shape_of(data) or not len(kernel) == len(strides) == rank == len(pads) // 2:
        raise UserError(f"MaxUnpool with a kernel of {kernel} does not fit data of shape {shape_of(data)}")
    natural = [
        (length - 1) * stride - pads[axis] - pads[axis + rank] + reach
        for axis, (length, stride, reach) in enumerate(zip(size, strides, kernel, strict=True))
    ]
    if min(natural) < 1 or 0 in shape_of(data):
        raise UserError(f"MaxUnpool of data of shape {shape_of(data)} leaves nothing")
    total = batch * channels * math.prod(natural)
    count = math.prod(shape_of(data))
    if total * count > 1 << 32:
        raise UnsupportedError(f"MaxUnpool of data of shape {shape_of(data)}")
    empty = builder.filled(0, (total,), dtype_of(data))
    positions = checked_index(builder, positions, [total], [0], negative=False)
    flat = node.call("scatter", empty, builder.reshape(positions, (count,)), builder.reshape(data, (count,)))
    result = builder.reshape(flat, (batch, channels, *natural))
    if not node.has_input(2):
        return result
    if evaluate(node.input(2)) is None:
        missing = node.call("subtract", node.input(2), builder.shape_tensor(shape_of(result)))
        amounts = builder.concatenate([builder.constant([0] * (rank + 2), INT64), missing], 0)
        dims = as_dims([node.symbol(str(axis)) for axis in range(rank + 2)])
        zero = builder.constant_like(0, result)
        return node.call("shape.pad", result, amounts, zero, dims=dims, axes=tuple(range(rank + 2)))
    wanted = node.constant_ints(2, "output_shape")
    if len(wanted) != rank + 2 or any(a < b for a, b in zip(wanted, shape_of(result), strict=True)):
        raise UserError(f"output_shape {wanted} does not hold a result of shape {shape_of(result)}")
    more = tuple(a - b for a, b in zip(wanted, shape_of(result), strict=True))
    return node.call("pad", result, before=(0,) * (rank + 2), after=more) if any(more) else result


@converter("Col2Im")
def columns_to_image(node: NodeContext) -> GraphExpr:
    """Patches added up where they overlap: spread one tap of the kernel at a time."""
    builder = node.builder
    data = node.input(0)
    if any(evaluate(node.input(index)) is None for index in (1, 2)) or constants(sizes_of(data)) is None:
        return _image_by_data(node, data)
    image, block = node.constant_ints(1, "the shape of the image"), node.constant_ints(2, "the shape of blocks")
    rank = len(image)
    strides, dilation = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * (2 * rank))
    if rank_of(data) != 3 or not len(block) == len(strides) == len(dilation) == rank == len(pads) // 2:
        raise UserError(f"Col2Im of an image {image} by blocks {block} does not fit data of shape {shape_of(data)}")
    if min((*image, *block, *strides, *dilation), default=0) < 1 or min(pads) < 0:
        raise UserError(f"Col2Im of an image {image} by blocks {block}: all numbers must be positive")
    counts = [
        (image[axis] + pads[axis] + pads[axis + rank] - (block[axis] - 1) * dilation[axis] - 1) // strides[axis] + 1
        for axis in range(rank)
    ]
    batch, rows, columns = shape_of(data)
    taps = math.prod(block)
    if rows % taps or columns != math.prod(counts) or min(counts) < 1:
        raise UserError(f"data of shape {shape_of(data)} does not fit {counts} blocks of {block}")
    if taps > 1024:
        raise UnsupportedError(f"Col2Im with blocks of {taps} elements")
    channels = rows // taps
    parts = builder.reshape(data, (batch, channels, taps, *counts))
    full = [image[axis] + pads[axis] + pads[axis + rank] for axis in range(rank)]
    total: GraphExpr | None = None
    for tap, offsets in enumerate(np.ndindex(*block)):
        part = builder.reshape(builder.slice_axis(parts, 2, tap, tap + 1), (batch, channels, *counts))
        for axis in range(rank):
            part = _spread(node, part, axis + 2, strides[axis], offsets[axis] * dilation[axis], full[axis])
        total = part if total is None else node.call("add", total, part)
    assert total is not None
    for axis in range(rank):
        total = builder.slice_axis(total, axis + 2, pads[axis], pads[axis] + image[axis])
    return total


def _image_by_data(node: NodeContext, data: GraphExpr) -> GraphExpr:
    """Patches of sizes that only a run knows: the host adds them up."""
    image = of_known_length(node.input(1), MOST_RANK)
    (rank,) = shape_of(image)
    if rank_of(data) != 3:
        raise UserError(f"Col2Im needs data of 3 dimensions, it is {sizes_text(sizes_of(data))}")
    named = known_or_named(node, 1, "the shape of the image")
    return node.call(
        "host.col2im",
        data,
        image,
        node.input(2),
        dims=as_dims((sizes_of(data)[0], node.symbol("channels"), *named)),
        strides=node.ints("strides", (1,) * rank),
        dilations=node.ints("dilations", (1,) * rank),
        pads=node.ints("pads", (0,) * (2 * rank)),
    )


def _spread(node: NodeContext, value: GraphExpr, axis: int, stride: int, first: int, length: int) -> GraphExpr:
    """Elements along an axis `stride` apart from a first place on, zeros between and around."""
    builder = node.builder
    shape = shape_of(value)
    count = shape[axis]
    if stride > 1:
        wide = builder.reshape(value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        after = [0] * rank_of(wide)
        after[axis + 1] = stride - 1
        wide = node.call("pad", wide, before=(0,) * rank_of(wide), after=tuple(after))
        value = builder.reshape(wide, (*shape[:axis], count * stride, *shape[axis + 1 :]))
        value = builder.slice_axis(value, axis, 0, (count - 1) * stride + 1)
    before, after = [0] * rank_of(value), [0] * rank_of(value)
    before[axis], after[axis] = first, length - first - shape_of(value)[axis]
    if not before[axis] and not after[axis]:
        return value
    return node.call("pad", value, before=tuple(before), after=tuple(after))
