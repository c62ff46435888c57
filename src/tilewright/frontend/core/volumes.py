"""Convolutions in three dimensions as sums of those of planes: shared by importers."""

from __future__ import annotations

from tilewright.frontend.core.builder import Builder, shape_of, sizes_of
from tilewright.frontend.core.windows import Extents, Window
from tilewright.graph.ir.dimensions import add, floor_divide, multiply, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def _planes(builder: Builder, data: GraphExpr) -> GraphExpr:
    """NCDHW data as one image a depth: (N*D)CHW."""
    batch, channels, depth, *plane = sizes_of(data)
    turned = builder.transpose(data, (0, 2, 1, 3, 4))
    return builder.reshape(turned, (multiply(batch, depth), channels, *plane))


def _weight_plane(builder: Builder, weight: GraphExpr, at: int) -> GraphExpr:
    """One plane of a weight in three dimensions."""
    shape = sizes_of(weight)
    return builder.reshape(builder.slice_axis(weight, 2, at, at + 1), (*shape[:2], *shape[3:]))


def volume(builder: Builder, data: GraphExpr, weight: GraphExpr, extents: Extents, groups: int) -> GraphExpr:
    """A convolution in three dimensions: the sum of plane convolutions over the kernel's depth."""
    window = Window.of(*(tuple(part[1:]) for part in extents.fields()))
    stride, space, taps = extents.strides[0], extents.dilation[0], extents.kernel[0]
    before, after = (0, 0, extents.before[0], 0, 0), (0, 0, extents.after[0], 0, 0)
    padded = builder.call("pad", data, before=before, after=after) if any((*before, *after)) else data
    batch, channels, _, *plane = sizes_of(padded)
    steps = add(floor_divide(subtract(sizes_of(padded)[2], (taps - 1) * space + 1), stride), 1)
    if isinstance(steps, int) and steps < 0:
        raise UserError(f"the window does not fit along the depth of data of shape {shape_of(data)}")
    total: GraphExpr | None = None
    for tap in range(taps):
        # A window that is deeper than its data has no place.
        first = 0 if steps == 0 else tap * space
        chosen = builder.call(
            "slice",
            padded,
            begin=(0, 0, first, 0, 0),
            end=(batch, channels, 0 if steps == 0 else add(multiply(subtract(steps, 1), stride), first + 1), *plane),
            strides=(1, 1, stride, 1, 1),
        )
        part = builder.call(
            "nn.conv2d",
            _planes(builder, chosen),
            _weight_plane(builder, weight, tap),
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=groups,
        )
        total = part if total is None else builder.call("add", total, part)
    assert total is not None
    _, outputs, rows, columns = sizes_of(total)
    return builder.transpose(builder.reshape(total, (batch, steps, outputs, rows, columns)), (0, 2, 1, 3, 4))


def transposed_volume(
    builder: Builder, data: GraphExpr, weight: GraphExpr, extents: Extents, extra: tuple[int, ...], groups: int
) -> GraphExpr:
    """A transposed convolution in three dimensions: planes spread over the kernel's depth and added up."""
    window = Window.of(*(tuple(part[1:]) for part in extents.fields()))
    stride, space, taps = extents.strides[0], extents.dilation[0], extents.kernel[0]
    batch, _, depth = sizes_of(data)[:3]
    images = _planes(builder, data)
    spread = add(multiply(subtract(depth, 1), stride), 1)
    rest = (taps - 1) * space + extra[0]
    total: GraphExpr | None = None
    for tap in range(taps):
        part = builder.call(
            "nn.conv2d_transpose",
            images,
            _weight_plane(builder, weight, tap),
            strides=window.strides,
            padding=window.padding,
            output_padding=tuple(extra[1:]),
            dilation=window.dilation,
            groups=groups,
        )
        _, outputs, rows, columns = sizes_of(part)
        # Planes `stride` apart: zeros are put after each, those after the last are cut off.
        part = builder.reshape(part, (batch, depth, 1, outputs, rows, columns))
        if stride > 1:
            part = builder.call("pad", part, before=(0,) * 6, after=(0, 0, stride - 1, 0, 0, 0))
        part = builder.reshape(part, (batch, multiply(depth, stride), outputs, rows, columns))
        part = builder.slice_axis(part, 1, 0, spread)
        first = tap * space
        last = rest - first
        if first or last:
            part = builder.call("pad", part, before=(0, first, 0, 0, 0), after=(0, last, 0, 0, 0))
        total = part if total is None else builder.call("add", total, part)
    assert total is not None
    end = add(spread, rest - extents.after[0])
    if isinstance(end, int) and end <= extents.before[0]:
        raise UserError(f"padding leaves nothing of the depth, which is {end + extents.after[0]}")
    return builder.transpose(builder.slice_axis(total, 1, extents.before[0], end), (0, 2, 1, 3, 4))
