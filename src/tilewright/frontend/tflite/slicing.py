"""Converters of operators that cut and pad."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.loops import reverse
from tilewright.frontend.core.slices import Masks, mirror_pad, sliced, sliced_at, strided_slice
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("SLICE")
def slice_(node: NodeContext) -> GraphExpr:
    """From places on, so many elements; -1 is all that follow."""
    return sliced(node)


@converter("STRIDED_SLICE")
def slice_by_strides(node: NodeContext) -> GraphExpr:
    """Slices with numpy's meaning: masks say which bounds count, and which places are one index or a new axis."""
    keys = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    return strided_slice(node, Masks(*(node.integer(f"{key}_mask") for key in keys)), node.flag("offset"))


@converter("PAD", "PADV2")
def pad(node: NodeContext) -> GraphExpr:
    """Elements of one value added around the data; zeros, or what stands for zero."""
    data = node.input(0)
    amounts = node.constant_ints(1, "the amounts")
    stored = float(node.levels(0).zero) if node.is_quantized() else 0.0
    if node.has_input(2):
        stored = float(node.constant(2, "the value").ravel()[0])
    before, after = amounts[0::2], amounts[1::2]
    if len(before) != rank_of(data):
        raise UserError(f"{len(before)} amounts of padding for data of {rank_of(data)} dimensions")
    if not any(amounts):
        return data
    if any(item < 0 for item in amounts):
        raise UserError(f"padding by {amounts} is negative")
    return node.call("pad", data, before=before, after=after, value=stored)


@converter("MIRROR_PAD")
def mirrored(node: NodeContext) -> GraphExpr:
    """The data mirrored at its borders, without the border (reflect) or with it (symmetric)."""
    return mirror_pad(node, "symmetric" if node.integer("mode") else "reflect")


@converter("REVERSE_V2")
def reverse_(node: NodeContext) -> GraphExpr:
    """In the other direction along axes that are an input."""
    data = node.input(0)
    for axis in node.constant_ints(1, "the axes"):
        data = reverse(node.builder, data, node.axis(axis, rank_of(data)))
    return data


@converter("DYNAMIC_UPDATE_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(node: NodeContext) -> GraphExpr:
    """A part of the data replaced, at a place that is data and kept within it."""
    builder, call = node.builder, node.call
    data, update = node.input(0), node.input(1)
    if node.node.name == "DYNAMIC_UPDATE_SLICE":
        starts = builder.cast(node.input(2), INT64)
    else:
        parts = [builder.reshape(builder.cast(node.input(at), INT64), (1,)) for at in range(2, len(node.inputs))]
        starts = builder.concatenate(parts, 0)
    sizes, counts, rank = sizes_of(data), sizes_of(update), rank_of(data)
    inside: GraphExpr | None = None
    moved = update
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if same(size, count):
            continue
        start = builder.reshape(builder.slice_axis(starts, 0, axis, axis + 1), ())
        last = builder.reshape(builder.shape_tensor([subtract(size, count)]), ())
        kept = call("minimum", call("maximum", start, builder.constant(0, INT64)), last)
        places = call("subtract", builder.arange(size), kept)
        length = builder.reshape(builder.shape_tensor([count]), ())
        zero = builder.constant(0, INT64)
        here = call("logical_and", call("greater_equal", places, zero), call("less", places, length))
        moved = call("take", moved, places, axis=axis, mode="clip")
        here = builder.reshape(here, [size if at == axis else 1 for at in range(rank)])
        inside = here if inside is None else call("logical_and", inside, here)
    if inside is None:
        return update
    return call("where", inside, moved, data)


@converter("STABLEHLO_SLICE")
def slice_by_options(node: NodeContext) -> GraphExpr:
    """Bounds and strides as options."""
    bounds = [
        tuple(int(item) for item in node.option(key, ())) for key in ("start_indices", "limit_indices", "strides")
    ]
    begin, end, strides = bounds
    return node.call("slice", node.input(0), begin=begin, end=end, strides=strides or (1,) * len(begin))


@converter("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(node: NodeContext) -> GraphExpr:
    """So many elements from places that are data."""
    builder = node.builder
    parts = [builder.reshape(builder.cast(node.input(at), INT64), (1,)) for at in range(1, len(node.inputs))]
    counts = tuple(int(item) for item in node.option("slice_sizes", ()))
    return sliced_at(node, node.input(0), builder.concatenate(parts, 0), counts)


@converter("STABLEHLO_PAD", "DILATE")
def interior_pad(node: NodeContext) -> GraphExpr:
    """Elements of one value before, after and between those of the data; negative amounts cut off."""
    builder, data, rank = node.builder, node.input(0), rank_of(node.input(0))
    if node.node.name == "DILATE":
        between = [item - 1 for item in node.constant_ints(1, "the dilations")]
        low, high, value = [0] * rank, [0] * rank, node.constant(2, "the value")
    else:
        keys = ("edge_padding_low", "edge_padding_high", "interior_padding")
        low, high, between = ([int(item) for item in node.option(key, ())] for key in keys)
        value = node.constant(1, "the value")
    fill = float(value.ravel()[0])
    for axis, space in enumerate(between):
        size = sizes_of(data)[axis]
        if not space:
            continue
        if not isinstance(size, int) or space < 0:
            raise UnsupportedError(f"padding by {space} between elements of a dimension of {size}")
        sizes = list(sizes_of(data))
        parts = builder.reshape(data, (*sizes[: axis + 1], 1, *sizes[axis + 1 :]))
        after = [0] * (rank + 1)
        after[axis + 1] = space
        spread = node.call("pad", parts, before=(0,) * (rank + 1), after=tuple(after), value=fill)
        sizes[axis] = size * (space + 1)
        data = builder.slice_axis(builder.reshape(spread, sizes), axis, 0, max(0, size * (space + 1) - space))
    grown = tuple(max(0, item) for item in low), tuple(max(0, item) for item in high)
    if any((*grown[0], *grown[1])):
        data = node.call("pad", data, before=grown[0], after=grown[1], value=fill)
    for axis, (first, last) in enumerate(zip(low, high, strict=True)):
        data = builder.slice_axis(data, axis, max(0, -first), subtract(sizes_of(data)[axis], max(0, -last)))
    assert dtype_of(data) is dtype_of(node.input(0))
    return data
