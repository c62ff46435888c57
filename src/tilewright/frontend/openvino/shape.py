"""Converters of operators that move elements, and of those that make tensors of sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, size_at, sizes_of
from tilewright.frontend.core.indexing import reverse_sequences
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("Reshape")
def reshape(node: NodeContext) -> GraphExpr:
    """Another shape; 0 keeps a dimension where that is said."""
    shape = node.builder.cast(node.input(1), INT64)
    return node.onnx("Reshape", node.input(0), shape, allowzero=not node.flag("special_zero"))


@converter("Transpose")
def transpose(node: NodeContext) -> GraphExpr:
    """Dimensions in another order; none is the reverse one."""
    x = node.input(0)
    order = node.known(1, "the order") if node.has_input(1) else ()
    axes = [node.axis(axis, rank_of(x)) for axis in order] or list(reversed(range(rank_of(x))))
    if sorted(axes) != list(range(rank_of(x))):
        raise UserError(f"{tuple(axes)} is no order of {rank_of(x)} dimensions")
    return node.builder.transpose(x, axes)


@converter("Squeeze")
def squeeze(node: NodeContext) -> GraphExpr:
    """Dimensions of 1 taken out: those that are named, or all."""
    b, x = node.builder, node.input(0)
    sizes = sizes_of(x)
    given = node.known(1, "the axes") if node.has_input(1) else ()
    axes = {node.axis(axis, len(sizes)) for axis in given} or {at for at, size in enumerate(sizes) if size == 1}
    if node.flag("allow_axis_skip"):
        axes = {at for at in axes if sizes[at] == 1}
    return b.reshape(x, [size for at, size in enumerate(sizes) if at not in axes])


@converter("Unsqueeze")
def unsqueeze(node: NodeContext) -> GraphExpr:
    """New dimensions of 1, at places of the result."""
    x, given = node.input(0), node.known(1, "the axes")
    rank = rank_of(x) + len(given)
    return node.builder.expand_dims(x, sorted({node.axis(axis, rank) for axis in given}))


@converter("Concat")
def concat(node: NodeContext) -> GraphExpr:
    """Values one after the other along an axis."""
    values = node.all_inputs()
    return node.builder.concatenate(values, node.axis(node.integer("axis"), rank_of(values[0])))


@converter("Split")
def split(node: NodeContext) -> Sequence[GraphExpr]:
    """So many parts of one size along an axis."""
    x = node.input(0)
    axis = node.axis(node.known(1, "the axis")[0], rank_of(x))
    return node.builder.equal_parts(x, axis, node.integer("num_splits"))


@converter("VariadicSplit")
def variadic_split(node: NodeContext) -> Sequence[GraphExpr]:
    """Parts of given sizes along an axis; -1 is what is left."""
    x = node.input(0)
    axis = node.axis(node.known(1, "the axis")[0], rank_of(x))
    sizes = node.sizes(2, "the sizes")
    return node.builder.parts(x, axis, node.known(2, "the sizes") if sizes is None else sizes)


@converter("StridedSlice")
def strided_slice(node: NodeContext) -> GraphExpr:
    """Parts by masks: open bounds, new axes, axes that vanish, an ellipsis."""
    b, x = node.builder, node.input(0)
    rank = rank_of(x)
    count = size_at(node.input(1), 0)
    masks = {
        name: (*node.ints(f"{name}_mask", ()), *(0,) * count)[:count]
        for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    }
    taken = sum(not masks["new_axis"][at] and not masks["ellipsis"][at] for at in range(count))
    steps = b.cast(node.input(3), INT64) if node.has_input(3) else b.constant(np.ones(count, np.int64), INT64)
    bounds = [b.cast(node.input(1), INT64), b.cast(node.input(2), INT64), steps]
    known = evaluate(steps)
    if known is None:
        raise UnsupportedError("StridedSlice with steps that are computed when the model runs")
    shape: list[Size | None] = []
    chosen: list[tuple[int, int]] = []
    gone: list[int] = []
    axis = 0
    for at in range(count):
        if masks["ellipsis"][at]:
            width = rank - taken
            shape += [None] * width
            axis += width
        elif masks["new_axis"][at]:
            shape.append(1)
        else:
            chosen.append((at, axis))
            if masks["shrink_axis"][at]:
                gone.append(axis)
            else:
                shape.append(None)
            axis += 1
    result = _sliced(node, x, bounds, chosen, masks, known)
    kept = iter([size for at, size in enumerate(sizes_of(result)) if at not in gone])
    sizes = [next(kept) if size is None else size for size in shape]
    return b.reshape(result, [*sizes, *kept])


def _sliced(
    node: NodeContext,
    x: GraphExpr,
    bounds: Sequence[GraphExpr],
    chosen: Sequence[tuple[int, int]],
    masks: dict[str, tuple[int, ...]],
    steps: object,
) -> GraphExpr:
    """The part between bounds along axes; a mask of 1 leaves a bound open."""
    if not chosen:
        return x
    b, limit = node.builder, (1 << 31) - 1
    starts: list[GraphExpr] = []
    ends: list[GraphExpr] = []
    given: list[int] = []
    assert isinstance(steps, np.ndarray)
    for at, _ in chosen:
        step = int(steps[at])
        begin, end = (b.slice_axis(value, 0, at, at + 1) for value in bounds[:2])
        if masks["shrink_axis"][at]:
            step, last = 1, b.add(begin, 1)
            # The last element is -1, and what follows it is the end.
            end = b.where(b.compare("equal", last, 0), limit, last)
        else:
            begin = b.constant(np.array([0 if step > 0 else limit]), INT64) if masks["begin"][at] else begin
            end = b.constant(np.array([limit if step > 0 else -limit - 1]), INT64) if masks["end"][at] else end
        starts.append(begin)
        ends.append(end)
        given.append(step)
    axes = b.constant(np.array([axis for _, axis in chosen], np.int64), INT64)
    listed = b.constant(np.array(given, np.int64), INT64)
    return node.onnx("Slice", x, b.concatenate(starts, 0), b.concatenate(ends, 0), axes, listed)


@converter("Slice")
def part(node: NodeContext) -> GraphExpr:
    """Elements from a place to another by a step, along axes."""
    b = node.builder
    starts, ends, steps = (b.cast(node.input(at), INT64) for at in (1, 2, 3))
    axes = b.cast(node.input(4), INT64) if node.has_input(4) else None
    return node.onnx("Slice", node.input(0), starts, ends, axes, steps)


@converter("Broadcast")
def broadcast(node: NodeContext) -> GraphExpr:
    """Repeated to a shape, by the rules of numpy, in both directions, or along named axes."""
    b, x = node.builder, node.input(0)
    mode, target = node.text("mode", "numpy"), b.cast(node.input(1), INT64)
    if mode == "explicit":
        axes = node.known(2, "the axes")
        shape: list[Size] = [1] * size_at(target, 0)
        for at, axis in enumerate(axes):
            shape[axis] = sizes_of(x)[at]
        x = b.reshape(x, shape)
    elif mode not in ("numpy", "bidirectional"):
        raise UnsupportedError(f"Broadcast by the mode {mode!r}")
    return node.onnx("Expand", x, target)


@converter("Tile")
def tile(node: NodeContext) -> GraphExpr:
    """Repeated along each dimension; the shorter list is filled up with ones in front."""
    b, x, repeats = node.builder, node.input(0), node.builder.cast(node.input(1), INT64)
    count, rank = size_at(repeats, 0), rank_of(x)
    if count > rank:
        x = b.reshape(x, (*(1,) * (count - rank), *sizes_of(x)))
    elif count < rank:
        repeats = b.concatenate([b.constant(np.ones(rank - count, np.int64), INT64), repeats], 0)
    return node.onnx("Tile", x, repeats)


@converter("Pad")
def pad(node: NodeContext) -> GraphExpr:
    """Elements around the data: a constant, its edge, or the mirrored data without or with its edge."""
    b, x = node.builder, node.input(0)
    mode = node.text("pad_mode", "constant")
    if mode == "symmetric":
        return _symmetric(node, x, node.known(1, "the padding"), node.known(2, "the padding"))
    if mode not in ("constant", "edge", "reflect"):
        raise UserError(f"padding by the mode {mode!r}")
    amounts = b.concatenate([b.cast(node.input(at), INT64) for at in (1, 2)], 0)
    filler = None
    if mode == "constant":
        value = b.reshape(node.input(3), ()) if node.has_input(3) else b.scalar(0, dtype_of(x))
        filler = b.cast(value, dtype_of(x))
    return node.onnx("Pad", x, amounts, filler, mode=mode)


def _symmetric(node: NodeContext, x: GraphExpr, before: Sequence[int], after: Sequence[int]) -> GraphExpr:
    b = node.builder
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        size = size_at(x, axis)
        if low > size or high > size:
            raise UserError(f"padding by {low} and {high} of a dimension of {size}")
        if low or high:
            places = np.pad(np.arange(size), (low, high), mode="symmetric")
            x = b.call("take", x, b.constant(places, INT64), axis=axis)
    return x


@converter("DepthToSpace")
def depth_to_space(node: NodeContext) -> GraphExpr:
    """Channels spread over blocks of pixels, in any number of dimensions."""
    b, x, step = node.builder, node.input(0), node.integer("block_size", 1)
    spatial = rank_of(x) - 2
    blocks_first = node.text("mode") == "blocks_first"
    batch, channels = sizes_of(x)[0], size_at(x, 1)
    depth = channels // step**spatial
    inner = (*(step,) * spatial, depth) if blocks_first else (depth, *(step,) * spatial)
    parted = b.reshape(x, (batch, *inner, *sizes_of(x)[2:]))
    channel = spatial + 1 if blocks_first else 1
    first = 1 if blocks_first else 2
    order = [0, channel]
    for at in range(spatial):
        order += [spatial + 2 + at, first + at]
    sizes = [product((size, step)) for size in sizes_of(x)[2:]]
    return b.reshape(b.transpose(parted, order), (batch, depth, *sizes))


@converter("SpaceToDepth")
def space_to_depth(node: NodeContext) -> GraphExpr:
    """Blocks of pixels gathered to channels, in any number of dimensions."""
    b, x, step = node.builder, node.input(0), node.integer("block_size", 1)
    spatial = rank_of(x) - 2
    batch, channels = sizes_of(x)[:2]
    sizes = [size_at(x, at + 2) // step for at in range(spatial)]
    parted = b.reshape(x, (batch, channels, *(item for size in sizes for item in (size, step))))
    outer, inner = [2 + 2 * at for at in range(spatial)], [3 + 2 * at for at in range(spatial)]
    order = [0, *inner, 1, *outer] if node.text("mode") == "blocks_first" else [0, 1, *inner, *outer]
    return b.reshape(b.transpose(parted, order), (batch, product((channels, step**spatial)), *sizes))


@converter("ShuffleChannels")
def shuffle_channels(node: NodeContext) -> GraphExpr:
    """Parts of an axis by turns."""
    b, x = node.builder, node.input(0)
    axis, groups = node.axis(node.integer("axis", 1), rank_of(x)), node.integer("group", 1)
    sizes, count = sizes_of(x), size_at(x, axis)
    parted = b.reshape(x, (*sizes[:axis], groups, count // groups, *sizes[axis + 1 :]))
    order = list(range(rank_of(parted)))
    order[axis], order[axis + 1] = axis + 1, axis
    return b.reshape(b.transpose(parted, order), sizes)


@converter("BatchToSpace")
def batch_to_space(node: NodeContext) -> GraphExpr:
    """The batch spread over blocks of pixels, which are cropped."""
    b, x = node.builder, node.input(0)
    block, low, high = (node.known(at, "the blocks") for at in (1, 2, 3))
    sizes = [size_at(x, at) for at in range(rank_of(x))]
    batch = sizes[0] // product(block)
    parted = b.reshape(x, (*block[1:], batch, *sizes[1:]))
    inner = len(block) - 1
    order = [inner]
    for at in range(inner):
        order += [inner + 1 + at, at]
    grown = [batch, *(size * step for size, step in zip(sizes[1:], block[1:], strict=True))]
    result = b.reshape(b.transpose(parted, order), grown)
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        result = b.slice_axis(result, axis, first, grown[axis] - last)
    return result


@converter("SpaceToBatch")
def space_to_batch(node: NodeContext) -> GraphExpr:
    """Blocks of padded pixels gathered to the batch."""
    b, x = node.builder, node.input(0)
    block, low, high = (node.known(at, "the blocks") for at in (1, 2, 3))
    x = b.call("pad", x, before=low, after=high) if any((*low, *high)) else x
    sizes = [size_at(x, at) for at in range(rank_of(x))]
    steps = block[1:]
    parts = [size // step for size, step in zip(sizes[1:], steps, strict=True)]
    parted = b.reshape(x, (sizes[0], *(item for pair in zip(parts, steps, strict=True) for item in pair)))
    order = [*(2 + 2 * at for at in range(len(steps))), 0, *(1 + 2 * at for at in range(len(steps)))]
    return b.reshape(b.transpose(parted, order), (sizes[0] * product(block), *parts))


@converter("Reverse")
def reverse(node: NodeContext) -> GraphExpr:
    """The other order along axes, which numbers or a mask name."""
    b, x = node.builder, node.input(0)
    given = node.known(1, "the axes")
    if node.text("mode") == "mask":
        given = tuple(at for at, item in enumerate(given) if item)
    return b.flip(x, [node.axis(axis, rank_of(x)) for axis in given])


@converter("ReverseSequence")
def reverse_sequence(node: NodeContext) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    x = node.input(0)
    axes = [
        node.axis(node.integer(name, default), rank_of(x)) for name, default in (("seq_axis", 1), ("batch_axis", 0))
    ]
    return reverse_sequences(node.builder, x, node.input(1), axes[0], axes[1])


@converter("Roll")
def roll(node: NodeContext) -> GraphExpr:
    """Elements moved along axes; what leaves at one end comes in at the other."""
    b, x = node.builder, node.input(0)
    shifts, axes = node.known(1, "the shifts"), node.known(2, "the axes")
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    for axis, shift in zip(axes, shifts, strict=True):
        place = node.axis(axis, rank_of(x))
        size = size_at(x, place)
        cut = -shift % size if size else 0
        if cut:
            x = b.concatenate([b.slice_axis(x, place, cut, size), b.slice_axis(x, place, 0, cut)], place)
    return x


@converter("ShapeOf")
def shape_of(node: NodeContext) -> GraphExpr:
    """The sizes of a tensor."""
    return node.builder.cast(node.builder.shape_tensor(sizes_of(node.input(0))), node.dtype("output_type"))


@converter("Range")
def arange(node: NodeContext) -> GraphExpr:
    """Numbers from a start by a step up to an end."""
    b = node.builder
    to = node.dtype("output_type") if node.has_option("output_type") else dtype_of(node.input(0))
    values = [b.reshape(node.input(at), ()) for at in range(3)]
    if not to.is_float and any(dtype_of(value).is_float for value in values):
        return b.cast(node.onnx("Range", *(b.cast(value, "float32") for value in values)), to)
    return node.onnx("Range", *(b.cast(value, to) for value in values))


@converter("Eye")
def eye(node: NodeContext) -> GraphExpr:
    """Matrices with ones on a diagonal."""
    b = node.builder
    rows, columns, shift = (node.known(at, "its size")[0] for at in range(3))
    outer = node.known(3, "its batch") if node.has_input(3) else ()
    down = b.reshape(b.arange(rows), (rows, 1))
    table = b.call("equal", b.add(down, shift), b.reshape(b.arange(columns), (1, columns)))
    return b.broadcast_to(b.cast(table, node.dtype("output_type")), (*outer, rows, columns))


@converter("OneHot")
def one_hot(node: NodeContext) -> GraphExpr:
    """A value at the place that each number names along a new axis, another one elsewhere."""
    b = node.builder
    values = b.concatenate([b.reshape(node.input(at), (1,)) for at in (3, 2)], 0)
    indices = b.cast(node.input(0), INT64)
    if node.text("negative_indices_mode", "ignore_negative") == "ignore_negative":
        # ONNX counts negative ones from the end: those that mean nothing go behind all classes.
        depth = b.cast(b.reshape(node.input(1), ()), INT64)
        indices = b.where(b.compare("less", indices, 0), depth, indices)
    return node.onnx("OneHot", indices, b.cast(node.input(1), INT64), values, axis=node.integer("axis", -1))


@converter("NonZero")
def nonzero(node: NodeContext) -> GraphExpr:
    """The places of elements that are not zero, one a column."""
    return node.builder.cast(node.onnx("NonZero", node.input(0)), node.dtype("output_type"))


@converter("Col2Im")
def columns_to_image(node: NodeContext) -> GraphExpr:
    """Columns of blocks as an image, summed where they overlap."""
    b, rank = node.builder, 2
    ones, zeros = (1,) * rank, (0,) * rank
    return node.onnx(
        "Col2Im",
        node.input(0),
        b.cast(node.input(1), INT64),
        b.cast(node.input(2), INT64),
        strides=node.ints("strides", ones),
        dilations=node.ints("dilations", ones),
        pads=(*node.ints("pads_begin", zeros), *node.ints("pads_end", zeros)),
    )
