"""Converters of operators that move data: reshapes, parts, joins, repetitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.layers import cropped, flattened, repeated
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.dimensions import Size, divide_exactly, floor_divide, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError


def resolved(codes: Sequence[int], old: Sequence[Size]) -> list[Size]:
    """The sizes that codes of a reshape mean.

    0 keeps a size, -1 is what is left over, -2 keeps all the rest, -3 joins two, -4 splits one into the next two.
    """
    sizes: list[Size] = []
    at = 0
    rest: int | None = None
    queue = list(codes)

    def next_size() -> Size:
        nonlocal at
        if at >= len(old):
            raise UserError(f"the reshape {tuple(codes)} wants more than {len(old)} dimensions")
        at += 1
        return old[at - 1]

    while queue:
        code = queue.pop(0)
        match code:
            case 0:
                sizes.append(next_size())
            case -1:
                rest, at = len(sizes), at + 1
                sizes.append(-1)
            case -2:
                sizes += old[at:]
                at = len(old)
            case -3:
                sizes.append(multiply(next_size(), next_size()))
            case -4:
                sizes += _split(queue, next_size(), codes)
            case _ if code > 0:
                at += 1
                sizes.append(code)
            case _:
                raise UserError(f"the code {code} of a reshape is not known")
    if rest is not None:
        known = product([size for place, size in enumerate(sizes) if place != rest])
        left = divide_exactly(product(old), known)
        if left is None:
            raise UserError(f"data of shape {sizes_text(old)} cannot have the shape {tuple(codes)}")
        sizes[rest] = left
    return sizes


def _split(queue: list[int], size: Size, codes: Sequence[int]) -> list[Size]:
    if len(queue) < 2:
        raise UserError(f"the reshape {tuple(codes)} does not say the parts of -4")
    parts = [queue.pop(0), queue.pop(0)]
    if parts.count(-1) > 1 or any(part < -1 or part == 0 for part in parts):
        raise UserError(f"the parts {parts} of a split dimension")
    if -1 not in parts:
        return [*parts]
    known = parts[1 - parts.index(-1)]
    other = divide_exactly(size, known)
    if other is None:
        raise UserError(f"a dimension of {size} elements cannot be split by {known}")
    return [other if part == -1 else part for part in parts]


@converter("Reshape", "reshape", "_np_reshape", "_npx_reshape")
def reshape(node: Node) -> GraphExpr:
    """By codes, from the front or from the end."""
    data = node.input(0)
    codes = node.ints("shape", ()) or node.ints("newshape", ()) or node.ints("target_shape", ())
    old = sizes_of(data)
    if not codes:
        raise UserError("the reshape says no shape")
    if node.flag("reverse"):
        if -4 in codes:
            raise UnsupportedError("a reshape from the end that splits a dimension")
        return node.b.reshape(data, resolved(codes[::-1], old[::-1])[::-1])
    return node.b.reshape(data, resolved(codes, old))


@converter("reshape_like")
def reshape_like(node: Node) -> GraphExpr:
    """The shape of another tensor, or a part of it in the place of a part."""
    data, other = node.input(0), node.input(1)
    old, new = sizes_of(data), sizes_of(other)

    def part(rank: int, side: str) -> tuple[int, int]:
        begin, end = (node.integer(f"{side}_{name}", default) for name, default in (("begin", 0), ("end", rank)))
        return begin % (rank + 1) if begin < 0 else begin, end + rank if end < 0 else end

    low, high = part(len(old), "lhs")
    first, last = part(len(new), "rhs")
    return node.b.reshape(data, (*old[:low], *new[first:last], *old[high:]))


@converter("Flatten", "flatten", "_npx_batch_flatten")
def flatten(node: Node) -> GraphExpr:
    """All but the first axis as one."""
    return flattened(node.b, node.input(0), 1)


@converter("transpose", "_np_transpose")
def transpose(node: Node) -> GraphExpr:
    """Axes in another order; reversed where none is given."""
    rank = rank_of(node.input(0))
    axes = node.ints("axes", ()) or tuple(reversed(range(rank)))
    order = [node.axis(axis, rank) for axis in axes]
    if sorted(order) != list(range(rank)):
        raise UserError(f"{tuple(axes)} is no order of {rank} dimensions")
    return node.b.transpose(node.input(0), order)


@converter("SwapAxis", "swapaxes")
def swap_axis(node: Node) -> GraphExpr:
    """Two axes exchanged."""
    rank = rank_of(node.input(0))
    first, second = (node.axis(node.integer(name, 0), rank) for name in ("dim1", "dim2"))
    order = list(range(rank))
    order[first], order[second] = second, first
    return node.b.transpose(node.input(0), order)


@converter("expand_dims", "_npi_expand_dims")
def expand_dims(node: Node) -> GraphExpr:
    """A new axis of 1."""
    rank = rank_of(node.input(0))
    return node.b.expand_dims(node.input(0), (node.axis(node.integer("axis"), rank + 1),))


@converter("squeeze", "_np_squeeze")
def squeeze(node: Node) -> GraphExpr:
    """Without axes of 1; a tensor of one element keeps one."""
    data = node.input(0)
    sizes, rank = sizes_of(data), rank_of(data)
    axes = {node.axis(axis, rank) for axis in node.ints("axis", ())}
    axes = axes or {at for at, size in enumerate(sizes) if size == 1}
    if any(sizes[at] != 1 for at in axes):
        raise UserError(f"axes {sorted(axes)} of data of shape {sizes_text(sizes)} are not all 1")
    kept = [size for at, size in enumerate(sizes) if at not in axes]
    return node.b.reshape(data, kept or [1])


def _bound(value: int | None, size: Size, default: Size) -> Size:
    if value is None:
        return default
    if value < 0:
        return max(0, size + value) if isinstance(size, int) else subtract(size, -value)
    return min(value, size) if isinstance(size, int) else value


@converter("slice", "crop")
def slices(node: Node) -> GraphExpr:
    """A part along the first axes, by steps."""
    data, b = node.input(0), node.b
    sizes = sizes_of(data)
    begins, ends = node.open_ints("begin"), node.open_ints("end")
    steps = [1 if step is None else step for step in node.open_ints("step", ())] or [1] * len(begins)
    if not len(begins) == len(ends) == len(steps) <= len(sizes) or 0 in steps:
        raise UserError(f"a part from {begins} to {ends} by {steps} of data of shape {sizes_text(sizes)}")
    value = data
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        size = sizes[axis]
        if step > 0:
            value = b.slice(value, axis, _bound(begin, size, 0), _bound(end, size, size), step)
            continue
        count = size_at(data, axis)
        places = range(*slice(begin, end, step).indices(count))
        value = node.call("take", value, b.constant(list(places), "int64"), axis=axis)
    return value


@converter("slice_axis")
def slice_axis(node: Node) -> GraphExpr:
    """A part along one axis."""
    data = node.input(0)
    axis = node.axis(node.integer("axis"), rank_of(data))
    size = sizes_of(data)[axis]
    end = node.integer("end") if node.has("end") else None
    return node.b.slice_axis(data, axis, _bound(node.integer("begin"), size, 0), _bound(end, size, size))


@converter("slice_like")
def slice_like(node: Node) -> GraphExpr:
    """As much as another tensor has, along some axes or all."""
    data, other = node.input(0), node.input(1)
    rank = rank_of(data)
    axes = [node.axis(axis, rank) for axis in node.ints("axes", ())] or list(range(min(rank, rank_of(other))))
    sizes = [sizes_of(other)[at] if at in axes else size for at, size in enumerate(sizes_of(data))]
    return cropped(node.b, data, (0,) * rank, sizes)


@converter("Crop")
def crop(node: Node) -> GraphExpr:
    """An image cut to a size, or to that of another."""
    data = node.input(0)
    sizes = list(sizes_of(data))
    wanted = list(sizes_of(node.input(1))[2:4]) if node.has_input(1) else list(node.ints("h_w", (0, 0)))
    begin: list[Size] = [0, 0, *node.ints("offset", (0, 0))]
    if node.flag("center_crop"):
        begin[2:] = [floor_divide(subtract(sizes[2 + at], wanted[at]), 2) for at in range(2)]
    return cropped(node.b, data, begin, [*sizes[:2], *wanted])


@converter("SliceChannel", "split")
def split(node: Node) -> list[GraphExpr]:
    """Equal parts along an axis, which may vanish."""
    data, count = node.input(0), node.integer("num_outputs")
    axis = node.axis(node.integer("axis", 1), rank_of(data))
    size = size_at(data, axis)
    if count < 1 or size % count:
        raise UserError(f"{size} elements cannot be cut into {count} equal parts")
    step = size // count
    parts = [node.b.slice_axis(data, axis, at * step, (at + 1) * step) for at in range(count)]
    if not node.flag("squeeze_axis"):
        return parts
    sizes = sizes_of(parts[0])
    return [node.b.reshape(part, (*sizes[:axis], *sizes[axis + 1 :])) for part in parts]


@converter("_split_v2")
def split_v2(node: Node) -> list[GraphExpr]:
    """Parts between places, or equal ones."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    size, sections = size_at(data, axis), node.integer("sections", 0)
    points = list(node.ints("indices", ())) if sections == 0 else list(range(0, size, size // sections))
    points = [0, *(point for point in points if point > 0), size]
    parts = [node.b.slice_axis(data, axis, low, high) for low, high in itertools.pairwise(points)]
    if not node.flag("squeeze_axis"):
        return parts
    sizes = sizes_of(data)
    return [node.b.reshape(part, (*sizes[:axis], *sizes[axis + 1 :])) for part in parts]


@converter("Concat", "concat", "_rnn_param_concat", "_npi_concatenate")
def concat(node: Node) -> GraphExpr:
    """One after the other."""
    values = node.all_inputs()
    axis = node.integer("axis", 0) if node.op.startswith("_npi") else node.integer("dim", 1)
    return node.b.concatenate(values, node.axis(axis, rank_of(values[0])))


@converter("stack", "_npi_stack")
def stack(node: Node) -> GraphExpr:
    """Next to each other along a new axis."""
    values = node.all_inputs()
    return node.b.stack(values, node.axis(node.integer("axis", 0), rank_of(values[0]) + 1))


@converter("tile")
def tile(node: Node) -> GraphExpr:
    """The whole several times along axes."""
    data, times = node.input(0), node.ints("reps")
    rank = max(rank_of(data), len(times))
    data = node.b.reshape(data, (*(1,) * (rank - rank_of(data)), *sizes_of(data)))
    return node.call("tile", data, repeats=(*(1,) * (rank - len(times)), *times))


@converter("repeat")
def repeat(node: Node) -> GraphExpr:
    """Each element several times along an axis, or of all in a row."""
    data, times, b = node.input(0), node.integer("repeats"), node.b
    if times < 1:
        raise UserError(f"{times} times")
    if not node.has("axis"):
        return repeated(b, b.flatten(data), (times,))
    axis = node.axis(node.integer("axis"), rank_of(data))
    factors = [times if at == axis else 1 for at in range(axis, rank_of(data))]
    return repeated(b, data, factors)


@converter("flip", "reverse")
def flip(node: Node) -> GraphExpr:
    """The other way round along axes."""
    rank = rank_of(node.input(0))
    return node.b.flip(node.input(0), [node.axis(axis, rank) for axis in node.ints("axis")])


@converter("Pad", "pad")
def pad(node: Node) -> GraphExpr:
    """Elements around the data."""
    data, mode, widths = node.input(0), node.text("mode"), node.ints("pad_width")
    if mode not in ("constant", "edge", "reflect") or len(widths) != 2 * rank_of(data):
        raise UserError(f"padding {widths} in the mode {mode!r}")
    value = node.number("constant_value", 0.0)
    return node.call("pad", data, before=widths[::2], after=widths[1::2], mode=mode, value=value)


@converter("broadcast_to")
def broadcast_to(node: Node) -> GraphExpr:
    """Repeated to fill a shape; 0 keeps a size."""
    data = node.input(0)
    shape = [old if new == 0 else new for old, new in zip(sizes_of(data), node.ints("shape"), strict=True)]
    return node.b.broadcast_to(data, shape)


@converter("broadcast_axis", "broadcast_axes")
def broadcast_axis(node: Node) -> GraphExpr:
    """Axes of 1 repeated."""
    data = node.input(0)
    sizes = list(sizes_of(data))
    for axis, size in zip(node.ints("axis", ()), node.ints("size", ()), strict=True):
        sizes[node.axis(axis, len(sizes))] = size
    return node.b.broadcast_to(data, sizes)


@converter("broadcast_like")
def broadcast_like(node: Node) -> GraphExpr:
    """Repeated to the shape of another tensor, or along some of its axes."""
    data, other = node.input(0), node.input(1)
    sizes = list(sizes_of(data))
    left, right = node.ints("lhs_axes", ()), node.ints("rhs_axes", ())
    if not left:
        return node.b.broadcast_to(data, sizes_of(other))
    for ours, theirs in zip(left, right, strict=True):
        sizes[node.axis(ours, len(sizes))] = sizes_of(other)[node.axis(theirs, rank_of(other))]
    return node.b.broadcast_to(data, sizes)


@converter("depth_to_space", "space_to_depth")
def blocks(node: Node) -> GraphExpr:
    """Channels as squares of an image, or the other way round."""
    data, step, b = node.input(0), node.integer("block_size"), node.b
    batch, channels, height, width = sizes_of(data)
    if node.op == "depth_to_space":
        outer = divide_exactly(channels, step * step)
        if outer is None:
            raise UserError(f"{channels} channels are no squares of {step}")
        split = b.reshape(data, (batch, step, step, outer, height, width))
        turned = b.transpose(split, (0, 3, 4, 1, 5, 2))
        return b.reshape(turned, (batch, outer, multiply(height, step), multiply(width, step)))
    rows, columns = divide_exactly(height, step), divide_exactly(width, step)
    if rows is None or columns is None:
        raise UserError(f"an image of {sizes_text((height, width))} is no squares of {step}")
    split = b.reshape(data, (batch, channels, rows, step, columns, step))
    turned = b.transpose(split, (0, 3, 5, 1, 2, 4))
    return b.reshape(turned, (batch, multiply(channels, step * step), rows, columns))


@converter("shape_array")
def shape_array(node: Node) -> GraphExpr:
    """The sizes."""
    return node.b.shape_tensor(sizes_of(node.input(0)))


@converter("size_array")
def size_array(node: Node) -> GraphExpr:
    """The number of elements."""
    return node.b.shape_tensor([product(sizes_of(node.input(0)))])
