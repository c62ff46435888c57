"""Converters of operators that move elements: reshapes, transpositions, parts, paddings, repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, size_at, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size, divide_exactly, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("reshape2", "reshape", inputs="X Shape ShapeTensor")
def reshape(node: NodeContext) -> GraphExpr:
    """Another shape: 0 keeps a dimension, -1 is what is left."""
    shape = node.needed_tensor("its shape", (2, 1), "shape")
    return node.onnx("Reshape", node.input(0), shape)


@converter("transpose2", "transpose")
def transpose(node: NodeContext) -> GraphExpr:
    """Dimensions in another order."""
    x = node.input(0)
    order = [node.axis(axis, rank_of(x)) for axis in node.ints("axis", "perm")]
    if sorted(order) != list(range(rank_of(x))):
        raise UserError(f"{tuple(order)} is no order of {rank_of(x)} dimensions")
    return node.builder.transpose(x, order)


@converter("squeeze2", "squeeze", inputs="X AxesTensor AxesTensorList")
def squeeze(node: NodeContext) -> GraphExpr:
    """Dimensions of 1 taken out: those that are named (others of them stay), or all."""
    b, x = node.builder, node.input(0)
    sizes = sizes_of(x)
    axes = b.axes(node.wholes("the axes", (1, 2), "axes", "axis") or None, len(sizes))
    return b.reshape(x, [size for at, size in enumerate(sizes) if at not in axes or size != 1])


@converter("unsqueeze2", "unsqueeze", inputs="X AxesTensor AxesTensorList")
def unsqueeze(node: NodeContext) -> GraphExpr:
    """New dimensions of 1, put in one after the other."""
    b, x = node.builder, node.input(0)
    shape: list[Size] = list(sizes_of(x))
    for axis in node.wholes("the axes", (1, 2), "axes", "axis") or ():
        place = axis + len(shape) + 1 if axis < 0 else axis
        if not 0 <= place <= len(shape):
            raise UserError(f"axis {axis} is out of range for {len(shape)} dimensions")
        shape.insert(place, 1)
    return b.reshape(x, shape)


@converter("flatten_contiguous_range", "flatten", "flatten2")
def flatten(node: NodeContext) -> GraphExpr:
    """Dimensions joined: from one to another, or all before and all behind one in the old form."""
    b, x = node.builder, node.input(0)
    sizes, rank = sizes_of(x), rank_of(x)
    if node.attribute("start_axis") is None:
        axis = node.integer("axis", default=1)
        return b.reshape(x, (product(sizes[:axis]), product(sizes[axis:])))
    first, last = (
        node.axis(node.integer(name, default=default), rank) for name, default in (("start_axis", 1), ("stop_axis", -1))
    )
    return b.reshape(x, (*sizes[:first], product(sizes[first : last + 1]), *sizes[last + 1 :]))


@converter("concat", inputs="X AxisTensor")
def concat(node: NodeContext) -> GraphExpr:
    """Values one after the other along an axis."""
    values = node.group(0)
    if not values:
        raise UserError("concat of nothing")
    axis = node.axis(node.whole("the axis", (1,), "axis", default=0), rank_of(values[0]))
    return node.builder.concatenate(values, axis)


@converter("stack", outputs="Y")
def stack(node: NodeContext) -> GraphExpr:
    """Values next to each other along a new axis."""
    values = node.group(0)
    axis = node.integer("axis", default=0)
    return node.builder.stack(values, axis % (rank_of(values[0]) + 1))


@converter("unbind")
def unbind(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """Each slice along an axis."""
    return unstack(node)


@converter("unstack", outputs="Y")
def unstack(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """Each slice along an axis."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.integer("axis", default=0), rank_of(x))
    return [[b.select(x, axis, at) for at in range(size_at(x, axis))]]


@converter("split", inputs="X SectionsTensorList AxisTensor")
def split(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """Consecutive parts along an axis, of sizes that are given or of one size; -1 is what is left."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.whole("the axis", (2,), "axis", default=0), rank_of(x))
    count = node.integer("num", default=0)
    sections = node.wholes("the sizes", (1,), "sections")
    return [b.parts(x, axis, sections) if sections else b.equal_parts(x, axis, count)]


@converter("split_with_num", inputs="X AxisTensor")
def split_evenly(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """So many parts of one size along an axis."""
    x = node.input(0)
    axis = node.axis(node.whole("the axis", (1,), "axis", default=0), rank_of(x))
    return [node.builder.equal_parts(x, axis, node.integer("num"))]


@converter("slice", inputs="Input StartsTensor EndsTensor StartsTensorList EndsTensorList")
def part(node: NodeContext) -> GraphExpr:
    """Elements between places along axes; some axes vanish."""
    b, x = node.builder, node.input(0)
    axes = b.constant(np.array(node.ints("axes"), np.int64), INT64)
    starts = node.needed_tensor("where it begins", (3, 1), "starts")
    ends = node.needed_tensor("where it ends", (4, 2), "ends")
    result = node.onnx("Slice", x, starts, ends, axes)
    gone = {node.axis(axis, rank_of(x)) for axis in node.ints("decrease_axis", default=())}
    return b.reshape(result, [size for at, size in enumerate(sizes_of(result)) if at not in gone]) if gone else result


@converter(
    "strided_slice",
    inputs="Input StartsTensor EndsTensor StridesTensor StartsTensorList EndsTensorList StridesTensorList",
)
def strided_part(node: NodeContext) -> GraphExpr:
    """Elements from a place to another by a step, along axes."""
    x = node.input(0)
    axes = node.builder.constant(np.array(node.ints("axes"), np.int64), INT64)
    bounds = [
        node.needed_tensor("its bounds", (at + 3, at), name)
        for at, name in ((1, "starts"), (2, "ends"), (3, "strides"))
    ]
    result = node.onnx("Slice", x, bounds[0], bounds[1], axes, bounds[2])
    gone = {node.axis(axis, rank_of(x)) for axis in node.ints("decrease_axis", default=())}
    kept = [size for at, size in enumerate(sizes_of(result)) if at not in gone]
    return node.builder.reshape(result, kept) if gone else result


@converter("crop_tensor", "crop", inputs="X Shape Offsets")
def crop(node: NodeContext) -> GraphExpr:
    """So many elements from places on."""
    b, x = node.builder, node.input(0)
    shape = node.wholes("its shape", (1,), "shape") or ()
    offsets = node.wholes("its offsets", (2,), "offsets") or (0,) * len(shape)
    for axis, (size, start) in enumerate(zip(shape, offsets, strict=True)):
        end: Size = sizes_of(x)[axis] if size == -1 else start + size
        x = b.slice_axis(x, axis, start, end)
    return x


@converter("expand_v2", "expand", inputs="X Shape expand_shapes_tensor")
def expand(node: NodeContext) -> GraphExpr:
    """Dimensions of 1, and missing leading ones, repeated; -1 keeps a dimension."""
    b, x = node.builder, node.input(0)
    shape = node.needed_tensor("its shape", (2, 1), "shape")
    known = evaluate(shape)
    if known is None:
        return node.onnx("Expand", x, shape)
    missing = known.size - rank_of(x)
    if missing < 0:
        raise UserError(f"{rank_of(x)} dimensions cannot expand to {known.size}")
    sizes: list[Size] = [
        sizes_of(x)[at - missing] if int(size) == -1 and at >= missing else int(size)
        for at, size in enumerate(known.ravel())
    ]
    return b.broadcast_to(x, sizes)


@converter("expand_as_v2", "expand_as", inputs="X Y")
def expand_as(node: NodeContext) -> GraphExpr:
    """Repeated to the shape of another tensor."""
    if node.has_input(1):
        return node.builder.broadcast_to(node.input(0), sizes_of(node.input(1)))
    return node.builder.broadcast_to(node.input(0), node.ints("target_shape"))


@converter("broadcast_tensors")
def broadcast_tensors(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """All repeated to one shape."""
    values = node.group(0)
    total = values[0]
    for value in values[1:]:
        total = node.call("add", total, value)
    return [[node.builder.broadcast_to(value, sizes_of(total)) for value in values]]


@converter("tile", inputs="X RepeatTimes repeat_times_tensor")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension; the shorter list is filled up with ones in front."""
    b, x = node.builder, node.input(0)
    repeats = node.needed_tensor("its repeats", (2, 1), "repeat_times")
    count, rank = size_at(repeats, 0), rank_of(x)
    if count > rank:
        x = b.reshape(x, (*(1,) * (count - rank), *sizes_of(x)))
    elif count < rank:
        ones = b.constant(np.ones(rank - count, np.int64), INT64)
        repeats = b.concatenate([ones, repeats], 0)
    return node.onnx("Tile", x, repeats)


@converter("repeat_interleave")
def repeat_interleave(node: NodeContext) -> GraphExpr:
    """Each slice along an axis so many times."""
    b, x = node.builder, node.input(0)
    axis, times = node.axis(node.integer("dim", "axis", default=0), rank_of(x)), node.integer("Repeats", "repeats")
    sizes = list(sizes_of(x))
    wide = b.broadcast_to(b.expand_dims(x, (axis + 1,)), (*sizes[: axis + 1], times, *sizes[axis + 1 :]))
    sizes[axis] = product((sizes[axis], times))
    return b.reshape(wide, sizes)


@converter("pad", inputs="X PadValue")
def pad_all(node: NodeContext) -> GraphExpr:
    """A constant around the data: pairs for all dimensions from the first on."""
    amounts = node.ints("paddings")
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    return _padded(node, node.input(0), pairs, "constant", node.known_number(1, "pad_value"))


@converter("pad3d", "pad2d", inputs="X Paddings")
def pad(node: NodeContext) -> GraphExpr:
    """Elements around the data: a constant, the mirrored data, its edge, or its other end.

    Pairs are those of the spatial dimensions, from the last one on.
    """
    x = node.input(0)
    amounts = node.wholes("its paddings", (1,), "paddings") or ()
    rank = rank_of(x)
    spatial = list(range(1, rank - 1)) if node.channels_last else list(range(2, rank))
    pairs = [(0, 0)] * rank
    given = list(zip(amounts[::2], amounts[1::2], strict=True))
    if node.node.kind == "pad3d":
        given.reverse()
    if len(given) < len(spatial) or any(pair != (0, 0) for pair in given[: len(given) - len(spatial)]):
        raise UserError(f"paddings {amounts} of {rank} dimensions")
    for axis, pair in zip(spatial, given[len(given) - len(spatial) :], strict=True):
        pairs[axis] = pair
    return _padded(
        node, x, pairs, node.text("mode", default="constant"), node.number("value", "pad_value", default=0.0)
    )


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}


def _padded(node: NodeContext, x: GraphExpr, pairs: Sequence[tuple[int, int]], mode: str, value: float) -> GraphExpr:
    if mode not in _MODES:
        raise UnsupportedError(f"padding by the mode {mode!r}")
    amounts = np.array([*(low for low, _ in pairs), *(high for _, high in pairs)], np.int64)
    filler = node.builder.scalar(value, dtype_of(x)) if mode == "constant" else None
    return node.onnx("Pad", x, node.builder.constant(amounts, INT64), filler, mode=_MODES[mode])


@converter("flip", "reverse")
def flip(node: NodeContext) -> GraphExpr:
    """The other order along axes."""
    x = node.input(0)
    return node.builder.flip(x, node.builder.axes(node.ints("axis"), rank_of(x)))


@converter("roll", inputs="X ShiftsTensor")
def roll(node: NodeContext) -> GraphExpr:
    """Elements moved along axes; what leaves at one end comes in at the other."""
    b, x = node.builder, node.input(0)
    shifts, axes = node.wholes("its shifts", (1,), "shifts") or (), node.ints("axis", default=())
    sizes = sizes_of(x)
    if not axes:
        x, axes = b.flatten(x), (0,)
    for axis, shift in zip(axes, shifts, strict=True):
        place = node.axis(axis, rank_of(x))
        size = size_at(x, place)
        cut = -shift % size if size else 0
        if cut:
            x = b.concatenate([b.slice_axis(x, place, cut, size), b.slice_axis(x, place, 0, cut)], place)
    return b.reshape(x, sizes)


@converter("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(node: NodeContext) -> GraphExpr:
    """Channels spread over pixels, or pixels gathered to channels."""
    b, x = node.builder, node.input(0)
    last = node.channels_last
    x = b.transpose(x, (0, 3, 1, 2)) if last else x
    if node.node.kind == "pixel_shuffle":
        x = node.onnx("DepthToSpace", x, blocksize=node.integer("upscale_factor", default=1), mode="CRD")
    else:
        step = node.integer("downscale_factor", default=1)
        batch, channels, height, width = sizes_of(x)
        rows, columns = divide_exactly(height, step), divide_exactly(width, step)
        if rows is None or columns is None:
            raise UserError(f"pixels of {height} x {width} in blocks of {step}")
        x = b.reshape(x, (batch, channels, rows, step, columns, step))
        x = b.transpose(x, (0, 1, 3, 5, 2, 4))
        x = b.reshape(x, (batch, product((channels, step, step)), rows, columns))
    return b.transpose(x, (0, 2, 3, 1)) if last else x


@converter("space_to_depth")
def space_to_depth(node: NodeContext) -> GraphExpr:
    """Blocks of pixels as channels."""
    return node.onnx("SpaceToDepth", node.input(0), blocksize=node.integer("blocksize"))


@converter("shuffle_channel", "channel_shuffle")
def shuffle_channels(node: NodeContext) -> GraphExpr:
    """Channels of groups by turns."""
    b, x = node.builder, node.input(0)
    groups, sizes = node.integer("group", "groups", default=1), sizes_of(x)
    axis = rank_of(x) - 1 if node.channels_last else 1
    channels = size_at(x, axis)
    if groups < 1 or channels % groups:
        raise UserError(f"{channels} channels in {groups} groups")
    parted = b.reshape(x, (*sizes[:axis], groups, channels // groups, *sizes[axis + 1 :]))
    order = list(range(rank_of(parted)))
    order[axis], order[axis + 1] = axis + 1, axis
    return b.reshape(b.transpose(parted, order), sizes)


@converter("tril_triu", "tril", "triu")
def triangle(node: NodeContext) -> GraphExpr:
    """The lower or the upper triangle of matrices."""
    lower = node.flag("lower", default=True) if node.node.kind == "tril_triu" else node.node.kind == "tril"
    diagonal = node.builder.constant(node.integer("diagonal", default=0), INT64)
    return node.onnx("Trilu", node.input(0), diagonal, upper=not lower)


@converter("unfold", outputs="Y")
def unfold(node: NodeContext) -> GraphExpr:
    """The elements of each window in a column."""
    b, x = node.builder, node.input(0)
    kernel, strides = node.ints("kernel_sizes"), node.ints("strides", default=(1, 1))
    paddings, dilations = node.ints("paddings", default=(0, 0, 0, 0)), node.ints("dilations", default=(1, 1))
    low, high = (paddings[:2], paddings[2:]) if len(paddings) == 4 else (paddings, paddings)
    x = _padded(node, x, [(0, 0), (0, 0), (low[0], high[0]), (low[1], high[1])], "constant", 0.0)
    batch, channels = sizes_of(x)[:2]
    counts = [
        (size_at(x, at + 2) - (kernel[at] - 1) * dilations[at] - 1) // strides[at] + 1 for at in range(2)
    ]  # fmt: skip
    parts: list[GraphExpr] = []
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            first = (row * dilations[0], column * dilations[1])
            ends = [first[at] + (counts[at] - 1) * strides[at] + 1 for at in range(2)]
            chosen = b.call("slice", x, begin=(0, 0, *first), end=(batch, channels, *ends), strides=(1, 1, *strides))
            parts.append(b.reshape(chosen, (batch, channels, 1, counts[0] * counts[1])))
    stacked = b.concatenate(parts, 2)
    return b.reshape(stacked, (batch, product((channels, len(parts))), counts[0] * counts[1]))


@converter("meshgrid")
def meshgrid(node: NodeContext) -> Sequence[Sequence[GraphExpr]]:
    """Each list along an axis of its own, repeated along the others."""
    b, values = node.builder, [node.builder.at_least_1d(value) for value in node.group(0)]
    sizes = [sizes_of(value)[0] for value in values]
    results: list[GraphExpr] = []
    for at, value in enumerate(values):
        shape: list[Size] = [1] * len(values)
        shape[at] = sizes[at]
        results.append(b.broadcast_to(b.reshape(value, shape), sizes))
    return [results]
