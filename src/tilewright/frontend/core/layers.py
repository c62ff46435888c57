"""Layers that frameworks of convolutional networks share: convolutions in any dimension, dense layers, channels.

Data are (batch, channels, ...) unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import Builder, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.volumes import transposed_volume, volume
from tilewright.frontend.core.windows import Extents, Window
from tilewright.graph.ir.dimensions import Size, different, multiply, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.support.errors import UnsupportedError, UserError


def along_channels(builder: Builder, values: GraphExpr, rank: int, axis: int = 1) -> GraphExpr:
    """One number a channel in a shape that broadcasts with data of a rank."""
    return builder.reshape(values, (*sizes_of(values), *(1,) * (rank - axis - rank_of(values))))


def add_bias(builder: Builder, value: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """Add one number a channel."""
    if bias is None:
        return value
    channels = sizes_of(value)[1]
    found = sizes_of(bias)
    if len(found) != 1 or different(found[0], channels):
        raise UserError(f"the bias has shape {sizes_text(found)}, the result has {size_text(channels)} channels")
    return builder.call("add", value, along_channels(builder, bias, rank_of(value)))


def affine(builder: Builder, value: GraphExpr, scale: GraphExpr | None, shift: GraphExpr | None) -> GraphExpr:
    """Each channel times a number, plus a number."""
    rank = rank_of(value)
    if scale is not None:
        value = builder.call("multiply", value, along_channels(builder, scale, rank))
    return value if shift is None else builder.call("add", value, along_channels(builder, shift, rank))


def _spatial_rank(data: GraphExpr, weight: GraphExpr, extents: Extents) -> int:
    rank = rank_of(data) - 2
    if rank < 1 or rank_of(weight) != rank + 2 or len(extents.kernel) != rank:
        raise UserError(f"a weight of shape {shape_of(weight)} does not fit data of {rank_of(data)} dimensions")
    if rank > 3:
        raise UnsupportedError(f"a convolution in {rank} dimensions")
    return rank


def _as_plane(builder: Builder, value: GraphExpr, rank: int) -> GraphExpr:
    """Data (or a weight) of one spatial dimension as one row of two."""
    first, second, *rest = sizes_of(value)
    return builder.reshape(value, (first, second, 1, *rest)) if rank == 1 else value


def _from_plane(builder: Builder, value: GraphExpr, rank: int) -> GraphExpr:
    first, second, _, *rest = sizes_of(value)
    return builder.reshape(value, (first, second, *rest)) if rank == 1 else value


def convolve(
    builder: Builder, data: GraphExpr, weight: GraphExpr, bias: GraphExpr | None, extents: Extents, groups: int
) -> GraphExpr:
    """A convolution in one, two or three dimensions; weights are (outputs, inputs of a group, ...)."""
    rank = _spatial_rank(data, weight, extents)
    if rank == 3:
        return add_bias(builder, volume(builder, data, weight, extents, groups), bias)
    window = Window.of(*extents.fields())
    result = builder.call(
        "nn.conv2d",
        _as_plane(builder, data, rank),
        _as_plane(builder, weight, rank),
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )
    return _from_plane(builder, add_bias(builder, result, bias), rank)


def deconvolve(
    builder: Builder,
    data: GraphExpr,
    weight: GraphExpr,
    bias: GraphExpr | None,
    extents: Extents,
    extra: Sequence[int],
    groups: int,
) -> GraphExpr:
    """A transposed convolution; weights are (inputs, outputs of a group, ...). `extra` is added to the result's end."""
    rank = _spatial_rank(data, weight, extents)
    if rank == 3:
        return add_bias(builder, transposed_volume(builder, data, weight, extents, tuple(extra), groups), bias)
    window = Window.of(*extents.fields())
    result = builder.call(
        "nn.conv2d_transpose",
        _as_plane(builder, data, rank),
        _as_plane(builder, weight, rank),
        strides=window.strides,
        padding=window.padding,
        output_padding=(*(0,) * (2 - rank), *extra),
        dilation=window.dilation,
        groups=groups,
    )
    return _from_plane(builder, add_bias(builder, result, bias), rank)


def dense(builder: Builder, rows: GraphExpr, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """Rows times the transposed weight (outputs, inputs), plus a bias."""
    if rank_of(weight) != 2 or different(sizes_of(rows)[-1], sizes_of(weight)[1]):
        raise UserError(
            f"a weight of shape {sizes_text(sizes_of(weight))} does not fit rows of {size_text(sizes_of(rows)[-1])}"
        )
    result = builder.call("matmul", rows, weight, transpose_b=True)
    return result if bias is None else builder.call("add", result, bias)


def flattened(builder: Builder, value: GraphExpr, axis: int, end: int | None = None) -> GraphExpr:
    """The axes from one up to another (to the last one) as one."""
    sizes = sizes_of(value)
    stop = len(sizes) if end is None else end + 1
    return builder.reshape(value, (*sizes[:axis], product(sizes[axis:stop]), *sizes[stop:]))


def shuffled_channels(builder: Builder, data: GraphExpr, groups: int, axis: int = 1) -> GraphExpr:
    """The first channel of each group, then the second of each, and so on."""
    sizes = sizes_of(data)
    channels = size_at(data, axis)
    if groups < 1 or channels % groups:
        raise UserError(f"{channels} channels cannot be taken from {groups} groups by turns")
    split = builder.reshape(data, (*sizes[:axis], groups, channels // groups, *sizes[axis + 1 :]))
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(sizes) + 1)]
    return builder.reshape(builder.transpose(split, order), sizes)


def repeated(builder: Builder, data: GraphExpr, factors: Sequence[int]) -> GraphExpr:
    """Each element of the last axes as often as factors say: an image made larger by its nearest elements."""
    sizes = sizes_of(data)
    first = len(sizes) - len(factors)
    wide: list[Size] = list(sizes[:first])
    full: list[Size] = list(sizes[:first])
    for size, factor in zip(sizes[first:], factors, strict=True):
        wide += [size, 1]
        full += [size, factor]
    result = [multiply(size, factor) for size, factor in zip(sizes[first:], factors, strict=True)]
    spread = builder.broadcast_to(builder.reshape(data, wide), full)
    return builder.reshape(spread, (*sizes[:first], *result))


def cropped(builder: Builder, data: GraphExpr, begin: Sequence[Size], sizes: Sequence[Size]) -> GraphExpr:
    """A part of the data: as many elements as sizes say from places on."""
    for axis, (start, size) in enumerate(zip(begin, sizes, strict=True)):
        end = start + size
        have = sizes_of(data)[axis]
        if isinstance(end, int) and isinstance(have, int) and not 0 <= start <= end <= have:
            raise UserError(f"elements {start} to {end} along axis {axis} are wanted of {have}")
        data = builder.slice_axis(data, axis, start, end)
    return data
