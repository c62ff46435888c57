"""Converters of operators that read data at computed places between its elements.

How such places are read is in `frontend/core/sampling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.core.layers import add_bias
from tilewright.frontend.core.sampling import Arithmetic, Tap, gather_taps, linear_taps, place_type, sample_grid
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.tensor import known_or_named
from tilewright.frontend.onnx.windows import read_extents
from tilewright.graph.ir.dimensions import Size, as_dims, different, maximum, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import INT64, DataType
from tilewright.support.errors import UnsupportedError, UserError


@converter("GridSample")
def grid_sample(node: NodeContext) -> GraphExpr:
    """Data read at the places of a grid, whose coordinates run from -1 to 1."""
    data, grid = node.input(0), node.input(1)
    places, rank = sizes_of(grid), rank_of(data) - 2
    fits = rank >= 1 and len(places) == rank + 2 and not different(places[-1], rank)
    if not fits or different(places[0], sizes_of(data)[0]):
        texts = sizes_text(places), sizes_text(sizes_of(data))
        raise UserError(f"a grid of shape {texts[0]} does not fit data of shape {texts[1]}")
    grid = node.builder.match(grid, (*places[:-1], rank))
    mode, padding = node.text("mode", "linear"), node.text("padding_mode", "zeros")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("linear", "nearest", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise UserError(f"unknown mode {mode!r} or padding_mode {padding!r} of GridSample")
    if not dtype_of(data).is_float or 0 in (*sizes_of(data), *places):
        raise UnsupportedError(f"GridSample of {dtype_of(data)} of shape {sizes_text(sizes_of(data))}")
    return sample_grid(node.builder, data, grid, mode, padding, node.flag("align_corners"))


@converter("AffineGrid")
def affine_grid(node: NodeContext) -> GraphExpr:
    """The places, from -1 to 1 along each axis, of a regular grid that a matrix has moved.

    ONNX's own definition squeezes a batch of one away.
    """
    theta, builder, aligned = node.input(0), node.builder, node.flag("align_corners")
    size = node.sizes(1, "the size")
    if size is None:
        size = tuple(known_or_named(node, 1, "the size"))
        node.call("shape.broadcast", builder.constant(0, INT64), node.input(1), dims=as_dims(size))
    batch, rank = sizes_of(theta)[:1], len(size) - 2
    fits = rank in (2, 3) and rank_of(theta) == 3 and not any(map(different, sizes_of(theta)[1:], (rank, rank + 1)))
    if not fits or different(batch[0], size[0]):
        texts = sizes_text(sizes_of(theta)), sizes_text(size)
        raise UserError(f"a matrix of shape {texts[0]} does not fit a grid of size {texts[1]}")
    theta = builder.match(theta, (batch[0], rank, rank + 1))
    dtype = dtype_of(theta)
    columns: list[GraphExpr] = []
    for axis in range(rank - 1, -1, -1):  # a grid names the last axis first
        place = _spread(node, size[axis + 2], aligned, dtype)
        place = builder.reshape(place, (*(1,) * axis, size[axis + 2], *(1,) * (rank - 1 - axis), 1))
        columns.append(builder.broadcast_to(place, (*size[2:], 1)))
    columns.append(builder.broadcast_to(builder.constant(1.0, dtype), (*size[2:], 1)))
    points = builder.reshape(builder.concatenate(columns, rank), (1, product(size[2:]), rank + 1))
    moved = node.call("matmul", points, theta, transpose_b=True)
    return builder.reshape(moved, (*batch, *size[2:], rank))


def _spread(node: NodeContext, size: Size, aligned: bool, dtype: DataType) -> GraphExpr:
    """Places from -1 to 1: the medians of as many cells, or points of which the first and the last are at the ends."""
    arithmetic, builder = Arithmetic(node.builder), node.builder
    cells = maximum(subtract(size, 1), 1) if aligned else size
    if isinstance(size, int) and isinstance(cells, int):
        return builder.constant((builder.count(size) + (0.0 if aligned else 0.5)) * (2 / cells) - 1, dtype)
    kind = place_type(dtype)
    number = builder.reshape(builder.cast(builder.shape_tensor((cells,)), kind), ())
    place = arithmetic.add(builder.cast(builder.arange(size), kind), 0.0 if aligned else 0.5)
    place = arithmetic.add(arithmetic("divide", arithmetic.multiply(place, 2.0), number), -1.0)
    return builder.cast(place, dtype)


@converter("RoiAlign")
def roi_align(node: NodeContext) -> GraphExpr:
    """Regions of the data cut into bins, each of which is sampled at a few places."""
    data, regions, images = node.input(0), node.input(1), node.builder.cast(node.input(2), INT64)
    if rank_of(data) != 4 or rank_of(regions) != 2 or shape_of(regions)[1] != 4:
        raise UserError(f"regions of shape {shape_of(regions)} do not fit data of shape {shape_of(data)}")
    mode, samples = node.text("mode", "avg"), node.integer("sampling_ratio", 0)
    half = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    rows, columns = node.integer("output_height", 1), node.integer("output_width", 1)
    scale = node.number("spatial_scale", 1.0)
    if mode not in ("avg", "max") or half not in ("half_pixel", "output_half_pixel"):
        raise UserError(f"unknown mode {mode!r} or coordinate_transformation_mode {half!r} of RoiAlign")
    if min(rows, columns) < 1 or shape_of(images) != shape_of(regions)[:1] or 0 in shape_of(data):
        raise UserError(f"RoiAlign to {rows} x {columns} of images {shape_of(images)} does not fit its regions")
    if samples < 1:
        raise UnsupportedError("RoiAlign whose number of samples depends on the regions (sampling_ratio 0)")
    builder, arithmetic = node.builder, Arithmetic(node.builder)
    batch, channels, *size = shape_of(data)
    count = shape_of(regions)[0]
    shift = -0.5 if half == "half_pixel" else 0.0
    regions = builder.cast(regions, place_type(dtype_of(regions)))
    axes: list[list[Tap]] = []
    outside: GraphExpr | None = None
    for axis, (length, bins) in enumerate(zip(size, (rows, columns), strict=True)):
        corner = [
            arithmetic.add(arithmetic.multiply(builder.slice_axis(regions, 1, at, at + 1), scale), shift)
            for at in (1 - axis, 3 - axis)
        ]
        extent = arithmetic("subtract", corner[1], corner[0])
        if half == "output_half_pixel":
            extent = arithmetic("maximum", extent, 1.0)
        # Sample n of bin b lies at start + (b + (n + 1/2) / samples) * extent / bins.
        steps = ((builder.count(bins)[:, None] + (builder.count(samples)[None, :] + 0.5) / samples) / bins).ravel()
        across = node.call("multiply", extent, builder.constant(steps.reshape(1, -1), dtype_of(regions)))
        x = node.call("add", corner[0], across)
        shape = (count, bins * samples, 1) if axis == 0 else (count, 1, bins * samples)
        x = builder.reshape(x, shape)
        away = node.call("logical_or", arithmetic("less", x, -1.0), arithmetic("greater", x, float(length)))
        outside = away if outside is None else node.call("logical_or", outside, away)
        axes.append(linear_taps(node.builder, arithmetic.clip(x, 0, length - 1), length, zeros=False))
    assert outside is not None
    table = builder.reshape(builder.transpose(data, (0, 2, 3, 1)), (batch * math.prod(size), channels))
    start = node.call("multiply", builder.reshape(images, (count, 1, 1)), builder.constant(math.prod(size), INT64))
    return _bins(node, _weighted(node, table, axes, size, start, mode), outside, (rows, columns, samples), mode)


def _weighted(
    node: NodeContext,
    table: GraphExpr,
    axes: Sequence[Sequence[Tap]],
    size: Sequence[int],
    start: GraphExpr,
    mode: str,
) -> GraphExpr:
    """Values at the samples: a weighted sum of four elements, or (for maxima) the greatest weighted element."""
    if mode == "avg":
        return gather_taps(node.builder, table, axes, size, start)
    parts = [
        gather_taps(node.builder, table, [[first], [second]], size, start) for first in axes[0] for second in axes[1]
    ]
    result = parts[0]
    for part in parts[1:]:
        result = node.call("maximum", result, part)
    return result


def _bins(node: NodeContext, values: GraphExpr, outside: GraphExpr, bins: tuple[int, int, int], mode: str) -> GraphExpr:
    """Samples (regions, rows, columns, channels) pooled by bin."""
    builder = node.builder
    count, _, _, channels = shape_of(values)
    rows, columns, samples = bins
    zero = builder.constant_like(0, values)
    values = node.call("where", builder.expand_dims(outside, (3,)), zero, values)
    split = builder.reshape(values, (count, rows, samples, columns, samples, channels))
    pooled = node.call("mean" if mode == "avg" else "max", split, axes=(2, 4), keepdims=False)
    return builder.transpose(pooled, (0, 3, 1, 2))


@converter("DeformConv")
def deform_conv(node: NodeContext) -> GraphExpr:
    """A convolution whose taps are moved by offsets: sampled, then multiplied with the weights."""
    data, weight, offset, mask = node.input(0), node.input(1), node.input(2), node.optional(4)
    if rank_of(data) != 4 or rank_of(weight) != 4:
        raise UnsupportedError(f"DeformConv of data of shape {shape_of(data)}")
    batch, channels, *size = shape_of(data)
    outputs, _, *kernel = shape_of(weight)
    extents = read_extents(node, node.ints("kernel_shape", tuple(kernel)), tuple(size))
    groups, offset_groups = node.integer("group", 1), node.integer("offset_group", 1)
    if rank_of(offset) != 4 or groups < 1 or offset_groups < 1 or extents.kernel != tuple(kernel):
        raise UserError(f"offsets of shape {shape_of(offset)} do not fit {groups} groups of kernels of {kernel}")
    if channels % groups or outputs % groups or shape_of(weight)[1] * groups != channels or 0 in shape_of(data):
        raise UserError(f"a weight of shape {shape_of(weight)} does not fit data of shape {shape_of(data)}")
    rows, columns = shape_of(offset)[2:]
    taps = math.prod(kernel)
    if shape_of(offset) != (batch, offset_groups * taps * 2, rows, columns) or channels % offset_groups:
        raise UserError(f"offsets of shape {shape_of(offset)} do not fit data of shape {shape_of(data)}")
    builder, arithmetic = node.builder, Arithmetic(node.builder)
    moved = builder.cast(
        builder.reshape(offset, (batch * offset_groups, taps, 2, rows, columns)), place_type(dtype_of(offset))
    )
    axes: list[list[Tap]] = []
    for axis, length in enumerate(size):
        steps = builder.count((rows, columns)[axis], extents.strides[axis]) - extents.before[axis]
        inner = builder.count(kernel[axis], extents.dilation[axis])
        inner = inner.repeat(kernel[1]) if axis == 0 else inner.reshape(1, -1).repeat(kernel[0], axis=0).ravel()
        grid = inner.reshape(1, taps, 1, 1) + steps.reshape((1, 1, -1, 1) if axis == 0 else (1, 1, 1, -1))
        shift = builder.reshape(
            builder.slice_axis(moved, 2, axis, axis + 1), (batch * offset_groups, taps, rows, columns)
        )
        x = arithmetic("add", shift, builder.constant(grid, dtype_of(moved)))
        axes.append(linear_taps(node.builder, x, length, zeros=True))
    part = channels // offset_groups
    planes = builder.reshape(data, (batch * offset_groups, part, *size))
    table = builder.reshape(builder.transpose(planes, (0, 2, 3, 1)), (batch * offset_groups * math.prod(size), part))
    starts = builder.count(batch * offset_groups, math.prod(size)).reshape(-1, 1, 1, 1)
    sampled = gather_taps(node.builder, table, axes, size, builder.constant(starts, INT64))
    if mask is not None:
        factor = builder.reshape(mask, (batch * offset_groups, taps, rows, columns, 1))
        sampled = node.call("multiply", sampled, factor)
    # (batch * offset groups, taps, rows, columns, part) -> (batch, groups, channels * taps, rows * columns)
    columns_first = builder.transpose(sampled, (0, 4, 1, 2, 3))
    matrix = builder.reshape(columns_first, (batch, groups, channels // groups * taps, rows * columns))
    filters = builder.reshape(weight, (1, groups, outputs // groups, channels // groups * taps))
    sums = node.call("matmul", filters, matrix)
    return add_bias(builder, builder.reshape(sums, (batch, outputs, rows, columns)), node.optional(3))
