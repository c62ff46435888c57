"""Operations of Core ML that move elements: reshaping, joining, slicing, padding, blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.indexing import reverse_sequences
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.graph.ir.dimensions import Size, divide_exactly, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32
from tilewright.support.errors import UserError


@operation("reshape")
def reshape(op: Operation) -> GraphExpr:
    """Another shape, in which -1 is what is left and 0 what was there."""
    return op.onnx("Reshape", op.value(), op.whole("shape"))


@operation("reshape_like")
def reshape_like(op: Operation) -> GraphExpr:
    """The shape of parts of other tensors."""
    x = op.value()
    shape: list[Size] = []
    begins, ends, masks = (_listed(op, name) for name in ("begins", "ends", "end_masks"))
    for value, begin, end, mask in zip(op.values("ref_tensors"), begins, ends, masks, strict=True):
        shape.extend(sizes_of(value)[begin : None if mask else end])
    return op.builder.reshape(x, shape)


def _listed(op: Operation, name: str) -> list[int]:
    """Whole numbers that are several values of one number, or one value of several."""
    arrays = [evaluate(value) for value in op.values(name)]
    if any(array is None for array in arrays):
        raise UserError(f"the argument '{name}' of {op.kind} must be known while the model is imported")
    return [int(item) for array in arrays if array is not None for item in array.ravel()]


@operation("expand_dims")
def expand_dims(op: Operation) -> GraphExpr:
    """New dimensions of 1."""
    return op.onnx("Unsqueeze", op.value(), op.ints_of(op.ints("axes")))


@operation("squeeze")
def squeeze(op: Operation) -> GraphExpr:
    """Without dimensions of 1: those named, or all."""
    axes = op.ints("axes", ())
    return op.onnx("Squeeze", op.value(), op.ints_of(axes) if axes else None)


@operation("transpose")
def transpose(op: Operation) -> GraphExpr:
    """Dimensions in another order."""
    rank = rank_of(op.value())
    order = [op.builder.axis(axis, rank) for axis in op.ints("perm")]
    if sorted(order) != list(range(rank)):
        raise UserError(f"{tuple(order)} is no order of {rank} dimensions")
    return op.builder.transpose(op.value(), order)


@operation("flatten2d")
def flatten(op: Operation) -> GraphExpr:
    """Two dimensions: those before an axis, and the rest."""
    return op.onnx("Flatten", op.value(), axis=op.integer("axis", 1))


@operation("concat")
def concat(op: Operation) -> GraphExpr:
    """One after the other along an axis; interleaved, one slice of each by turns."""
    values = op.values("values")
    rank = rank_of(values[0])
    if not rank:
        return op.builder.concatenate([op.builder.reshape(value, (1,)) for value in values], 0)
    axis = op.axis("axis", rank)
    dtype = dtype_of(values[0])
    values = [op.builder.cast(value, dtype) for value in values]
    if not op.flag("interleave", False):
        return op.builder.concatenate(values, axis)
    shape = list(sizes_of(values[0]))
    stacked = op.builder.stack(values, axis + 1)
    shape[axis] = multiply(shape[axis], len(values))
    return op.builder.reshape(stacked, shape)


@operation("stack")
def stack(op: Operation) -> GraphExpr:
    """Next to each other along a new axis."""
    values = op.values("values")
    dtype = dtype_of(values[0])
    return op.builder.stack(
        [op.builder.cast(value, dtype) for value in values], op.axis("axis", rank_of(values[0]) + 1)
    )


@operation("split")
def split(op: Operation) -> Sequence[GraphExpr]:
    """Parts along an axis, equal or of given sizes."""
    x = op.value()
    axis = op.axis("axis", rank_of(x))
    if op.has("split_sizes"):
        sizes = op.ints("split_sizes")
    else:
        count, total = op.integer("num_splits"), size_at(x, axis)
        if count < 1 or total % count:
            raise UserError(f"{total} elements cannot be split in {count} equal parts")
        sizes = (total // count,) * count
    return op.onnx.several("Split", len(sizes), x, op.ints_of(sizes), axis=axis)


@operation("tile")
def tile(op: Operation) -> GraphExpr:
    """Repeated along each dimension."""
    return op.onnx("Tile", op.value(), op.whole("reps"))


@operation("reverse")
def reverse(op: Operation) -> GraphExpr:
    """In the other direction along axes."""
    x = op.value()
    return op.builder.flip(x, op.builder.axes(op.ints("axes", ()), rank_of(x)))


@operation("reverse_sequence")
def reverse_sequence(op: Operation) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    x = op.value()
    rank = rank_of(x)
    return reverse_sequences(
        op.builder, x, op.value("lengths"), op.axis("seq_axis", rank, 0), op.axis("batch_axis", rank, 0)
    )


# Slices


@operation("slice_by_index")
def slice_by_index(op: Operation) -> GraphExpr:
    """Ranges along all dimensions; masked ends are open, squeezed dimensions vanish."""
    x = op.value()
    rank = rank_of(x)
    strides, squeezed = op.ints("stride", (1,) * rank), op.flags("squeeze_mask", rank)
    begin, end = _bounds(op, rank, strides, squeezed)
    part = op.onnx("Slice", x, begin, end, op.ints_of(range(rank)), op.ints_of(strides))
    axes = [axis for axis in range(rank) if squeezed[axis]]
    return op.onnx("Squeeze", part, op.ints_of(axes)) if axes else part


def _bounds(
    op: Operation, rank: int, strides: tuple[int, ...], squeezed: tuple[bool, ...]
) -> tuple[GraphExpr, GraphExpr]:
    """Where slices begin and end, with what the masks say."""
    begin_mask, end_mask = op.flags("begin_mask", rank), op.flags("end_mask", rank)
    begins, ends = op.whole("begin"), op.whole("end")
    if len(strides) != rank or any(sizes_of(value) != (rank,) for value in (begins, ends)):
        raise UserError(f"begin, end and stride of {op.kind} must have {rank} entries")
    far = np.array([1 << 62 if stride > 0 else -(1 << 62) for stride in strides], np.int64)
    first = np.array([0 if stride > 0 else 1 << 62 for stride in strides], np.int64)

    def masked(value: GraphExpr, mask: Sequence[bool], other: GraphExpr) -> GraphExpr:
        return op.call("where", op.builder.constant(np.array(mask, bool), "bool"), other, value) if any(mask) else value

    begins = masked(begins, begin_mask, op.builder.constant(first, "int64"))
    # A squeezed dimension is one element, wherever it is said to end; the one after -1 is behind the last.
    one = op.builder.constant(1, "int64")
    after = op.call("add", begins, one)
    is_last = op.call("equal", begins, op.builder.constant(-1, "int64"))
    after = op.call("where", is_last, op.builder.constant(1 << 62, "int64"), after)
    ends = masked(ends, end_mask, op.builder.constant(far, "int64"))
    return begins, masked(ends, squeezed, after)


@operation("slice_by_size")
def slice_by_size(op: Operation) -> GraphExpr:
    """So many elements from a place along each dimension; -1 is all that are left."""
    x = op.value()
    rank = rank_of(x)
    begin, size = op.whole("begin"), op.whole("size")
    everything = op.call("less", size, op.builder.constant(0, "int64"))
    end = op.call("where", everything, op.builder.constant(1 << 62, "int64"), op.call("add", begin, size))
    return op.onnx("Slice", x, begin, end, op.ints_of(range(rank)))


@operation("slice_update")
def slice_update(op: Operation) -> GraphExpr:
    """The data with a slice of it replaced: what is written are the places that the slice reads."""
    x = op.value()
    shape = shape_of(x)
    places = op.builder.constant(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape), "int64")
    given = {key: value for key, value in op.arguments.items() if key not in ("x", "update")}
    chosen = op.apply("slice_by_index", x=places, **given)
    flat = op.builder.reshape(x, (product(shape),))
    update = op.builder.broadcast_to(op.builder.cast(op.value("update"), dtype_of(x)), sizes_of(chosen))
    count = product(sizes_of(chosen))
    written = op.onnx(
        "ScatterElements",
        flat,
        op.builder.reshape(chosen, (count,)),
        op.builder.reshape(update, (count,)),
        axis=0,
    )
    return op.builder.reshape(written, shape)


@operation("sliding_windows")
def sliding_windows(op: Operation) -> GraphExpr:
    """Overlapping parts along an axis, each along a new axis behind it."""
    x = op.value()
    axis = op.axis("axis", rank_of(x))
    size, stride, length = op.integer("size"), op.integer("stride", 1), size_at(x, axis)
    if size < 1 or stride < 1 or length < size:
        raise UserError(f"windows of {size} by steps of {stride} do not fit {length} elements")
    count = (length - size) // stride + 1
    places = np.arange(count)[:, None] * stride + np.arange(size)[None, :]
    return op.call("take", x, op.builder.constant(places, "int64"), axis=axis)


@operation("crop")
def crop(op: Operation) -> GraphExpr:
    """Without the borders of the last two dimensions."""
    x = op.value()
    for axis, name in ((rank_of(x) - 2, "crop_height"), (rank_of(x) - 1, "crop_width")):
        before, after = op.ints(name)
        x = op.builder.slice_axis(x, axis, before, subtract(sizes_of(x)[axis], after))
    return x


@operation("pad")
def pad(op: Operation) -> GraphExpr:
    """Around the last dimensions: a constant, mirrored data or the edge."""
    x = op.value()
    rank, mode = rank_of(x), op.text("mode", "constant")
    modes = {"constant": "constant", "reflect": "reflect", "reflection": "reflect", "replicate": "edge"}
    if mode not in modes:
        raise UserError(f"the mode {mode!r} of pad is not known")
    amounts = op.whole("pad")
    count = size_at(amounts, 0)
    if count % 2 or count > 2 * rank:
        raise UserError(f"{count} amounts do not pad {rank} dimensions")
    pairs = op.builder.transpose(op.builder.reshape(amounts, (count // 2, 2)), (1, 0))
    axes = op.ints_of(range(rank - count // 2, rank))
    value = op.builder.constant_like(op.number("constant_val", 0.0), x) if mode == "constant" else None
    return op.onnx("Pad", x, op.builder.reshape(pairs, (count,)), value, axes, mode=modes[mode])


# Blocks of pixels


def _image(op: Operation) -> tuple[Size, Size, Size, Size]:
    sizes = sizes_of(op.value())
    if len(sizes) != 4:
        raise UserError(f"{op.kind} needs images (batch, channels, height, width)")
    return sizes[0], sizes[1], sizes[2], sizes[3]


@operation("depth_to_space")
def depth_to_space(op: Operation) -> GraphExpr:
    """Blocks of channels as blocks of pixels, the block before the channel."""
    return op.onnx("DepthToSpace", op.value(), blocksize=op.integer("block_size"), mode="DCR")


@operation("pixel_shuffle")
def pixel_shuffle(op: Operation) -> GraphExpr:
    """Blocks of channels as blocks of pixels, the channel before the block."""
    return op.onnx("DepthToSpace", op.value(), blocksize=op.integer("upscale_factor"), mode="CRD")


@operation("space_to_depth")
def space_to_depth(op: Operation) -> GraphExpr:
    """Blocks of pixels as channels, the block before the channel."""
    return op.onnx("SpaceToDepth", op.value(), blocksize=op.integer("block_size"))


@operation("pixel_unshuffle")
def pixel_unshuffle(op: Operation) -> GraphExpr:
    """Blocks of pixels as channels, the channel before the block."""
    batch, channels, height, width = _image(op)
    block = op.integer("downscale_factor")
    rows, columns = divide_exactly(height, block), divide_exactly(width, block)
    if rows is None or columns is None:
        raise UserError(f"blocks of {block} do not divide the image")
    parts = op.builder.reshape(op.value(), (batch, channels, rows, block, columns, block))
    turned = op.builder.transpose(parts, (0, 1, 3, 5, 2, 4))
    return op.builder.reshape(turned, (batch, multiply(channels, block * block), rows, columns))


@operation("space_to_batch")
def space_to_batch(op: Operation) -> GraphExpr:
    """Blocks of pixels as samples, after padding."""
    before_after = op.array("paddings").reshape(2, 2)
    x = op.builder.call("pad", op.value(), before=(0, 0, *map(int, before_after[:, 0])),
                        after=(0, 0, *map(int, before_after[:, 1])))  # fmt: skip
    batch, channels, height, width = sizes_of(x)
    down, across = op.ints("block_shape")
    rows, columns = divide_exactly(height, down), divide_exactly(width, across)
    if rows is None or columns is None:
        raise UserError("the blocks do not divide the padded image")
    parts = op.builder.reshape(x, (batch, channels, rows, down, columns, across))
    turned = op.builder.transpose(parts, (3, 5, 0, 1, 2, 4))
    return op.builder.reshape(turned, (multiply(batch, down * across), channels, rows, columns))


@operation("batch_to_space")
def batch_to_space(op: Operation) -> GraphExpr:
    """Samples as blocks of pixels, which are cropped then."""
    batch, channels, height, width = _image(op)
    down, across = op.ints("block_shape")
    outer = divide_exactly(batch, down * across)
    if outer is None:
        raise UserError(f"blocks of {down} x {across} do not divide the batch")
    parts = op.builder.reshape(op.value(), (down, across, outer, channels, height, width))
    turned = op.builder.transpose(parts, (2, 3, 4, 0, 5, 1))
    result = op.builder.reshape(turned, (outer, channels, multiply(height, down), multiply(width, across)))
    for axis, (before, after) in enumerate(op.array("crops").reshape(2, 2), 2):
        result = op.builder.slice_axis(result, axis, int(before), subtract(sizes_of(result)[axis], int(after)))
    return result


@operation("band_part")
def band_part(op: Operation) -> GraphExpr:
    """Zeros outside of a band around the diagonal; negative widths keep a whole side."""
    x = op.value()
    lower, upper = op.integer("lower", -1), op.integer("upper", -1)
    rows = op.builder.positions(sizes_of(x), rank_of(x) - 2)
    distance = op.call("subtract", op.builder.positions(sizes_of(x), rank_of(x) - 1), rows)
    for width, sign in ((lower, -1), (upper, 1)):
        if width >= 0:
            signed = op.builder.multiply(distance, sign)
            x = op.call("where", op.builder.compare("greater", signed, width), op.builder.constant_like(0, x), x)
    return x


# Tensors made of sizes


@operation("shape")
def shape(op: Operation) -> GraphExpr:
    """The sizes of a tensor."""
    return op.builder.cast(op.builder.shape_tensor(sizes_of(op.value())), INT32)


@operation("fill")
def fill(op: Operation) -> GraphExpr:
    """One value in a shape."""
    value = op.optional("value")
    scalar = op.builder.constant(0.0, "float32") if value is None else op.builder.reshape(value, ())
    return op.onnx("Expand", scalar, op.whole("shape"))


@operation("fill_like")
def fill_like(op: Operation) -> GraphExpr:
    """One value in the shape of another tensor."""
    value = op.optional("value")
    scalar = op.builder.constant(0.0, "float32") if value is None else op.builder.reshape(value, ())
    return op.builder.broadcast_to(scalar, sizes_of(op.value("ref_tensor")))


@operation("range_1d")
def range_1d(op: Operation) -> GraphExpr:
    """start, start + step ... before the end."""
    parts = [op.builder.reshape(op.value(name), ()) for name in ("start", "end", "step")]
    return op.onnx("Range", *parts)
