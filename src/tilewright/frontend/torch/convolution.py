"""Converters of convolutions in one, two and three dimensions, and their transposes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError


@converter("convolution", "_convolution")
def convolution(
    b: TorchBuilder,
    input: GraphExpr,
    weight: GraphExpr,
    bias: GraphExpr | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    **_: object,
) -> GraphExpr:
    """Any convolution; a single number in a list stands for all dimensions."""
    rank = rank_of(input) - 2
    if not 1 <= rank <= 3:
        raise UnsupportedError(f"a convolution in {rank} dimensions")
    steps, pads, spread, extra = (each(item, rank) for item in (stride, padding, dilation, output_padding))
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    if transposed and 0 not in sizes_of(input) and 0 not in sizes_of(weight):
        result = transposed_convolution(b, input, weight, steps, pads, spread, extra, groups)
    else:
        result = convolved(b, input, weight, steps, pads, spread, groups)
    if bias is None:
        return result
    return b.add(result, b.reshape(bias, (shape_of(bias)[0], *(1,) * rank)))


def _conv(rank: int) -> Converter:
    def convert(
        b: TorchBuilder,
        input: GraphExpr,
        weight: GraphExpr,
        bias: GraphExpr | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] | str = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> GraphExpr:
        steps, spread = each(stride, rank), each(dilation, rank)
        data = input if rank_of(input) == rank + 2 else b.expand_dims(input, (0,))
        if padding == "same":
            reach = [(size - 1) * space for size, space in zip(shape_of(weight)[2:], spread, strict=True)]
            low, high = [total // 2 for total in reach], [total - total // 2 for total in reach]
            if low != high:
                more = [second - first for first, second in zip(low, high, strict=True)]
                data = b.call("pad", data, before=(0,) * (rank + 2), after=(0, 0, *more))
            pads = low
        else:
            pads = [0] * rank if isinstance(padding, str) else each(padding, rank)
        result = convolved(b, data, weight, steps, pads, spread, groups)
        result = result if bias is None else b.add(result, b.reshape(bias, (shape_of(bias)[0], *(1,) * rank)))
        return result if data is input or rank_of(input) == rank + 2 else b.reshape(result, b.shape)

    convert.__doc__ = f"A convolution in {rank} dimensions, of one image or a batch."
    return convert


converter("conv1d")(_conv(1))
converter("conv2d")(_conv(2))
converter("conv3d")(_conv(3))


def convolved(
    b: TorchBuilder,
    x: GraphExpr,
    weight: GraphExpr,
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
    groups: int,
) -> GraphExpr:
    """A convolution in one to three dimensions, without a bias."""
    if 0 in b.shape:
        shape = b.shape if len(b.shape) == len(steps) + 2 else (1, *b.shape)
        return b.empty(shape, b.dtype)
    if 0 in sizes_of(x) or 0 in sizes_of(weight):
        return b.filled(0, b.shape if len(b.shape) == len(steps) + 2 else (1, *b.shape), b.dtype)
    if len(steps) == 3:
        return _volume(b, x, weight, steps, pads, spread, groups)
    return _plane(b, x, weight, steps, pads, pads, spread, groups)


def each(values: Sequence[int], rank: int) -> list[int]:
    """One number for each dimension; a single one stands for all."""
    return list(values) * rank if len(values) == 1 else list(values)


def two(values: Sequence[int], unit: int) -> tuple[int, int]:
    """One dimension as the second of two."""
    return (values[0], values[1]) if len(values) == 2 else (unit, values[0])


def as_plane(b: TorchBuilder, x: GraphExpr) -> GraphExpr:
    """Lines as images of one row."""
    shape = sizes_of(x)
    return x if len(shape) == 4 else b.reshape(x, (*shape[:2], 1, shape[2]))


def from_plane(b: TorchBuilder, x: GraphExpr, rank: int) -> GraphExpr:
    """Images of one row as lines, if there is but one dimension."""
    shape = sizes_of(x)
    return x if rank == 2 else b.reshape(x, (*shape[:2], shape[3]))


def _plane(
    b: TorchBuilder,
    x: GraphExpr,
    weight: GraphExpr,
    steps: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    spread: Sequence[int],
    groups: int,
) -> GraphExpr:
    """In one or two dimensions."""
    rank = len(steps)
    low, high = two(before, 0), two(after, 0)
    result = b.call(
        "nn.conv2d",
        as_plane(b, x),
        as_plane(b, weight),
        strides=two(steps, 1),
        padding=(*low, *high),
        dilation=two(spread, 1),
        groups=groups,
    )
    return from_plane(b, result, rank)


def _volume(
    b: TorchBuilder,
    x: GraphExpr,
    weight: GraphExpr,
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
    groups: int,
) -> GraphExpr:
    """In three dimensions: a sum of plane convolutions over the kernel's depth."""
    batch, _, depth, *_ = sizes_of(x)
    taps = size_at(weight, 2)
    padded = dimensions.add(depth, 2 * pads[0])
    count = dimensions.add(
        dimensions.floor_divide(dimensions.subtract(padded, (taps - 1) * spread[0] + 1), steps[0]), 1
    )
    total: GraphExpr | None = None
    for tap, images in enumerate(depth_slices(b, x, taps, steps[0], pads[0], spread[0], count)):
        part = _plane(b, images, b.select(weight, 2, tap), steps[1:], pads[1:], pads[1:], spread[1:], groups)
        total = part if total is None else b.add(total, part)
    assert total is not None
    _, outputs, rows, columns = sizes_of(total)
    return b.transpose(b.reshape(total, (batch, count, outputs, rows, columns)), (0, 2, 1, 3, 4))


def depth_slices(
    b: TorchBuilder, x: GraphExpr, taps: int, step: int, pad: int, space: int, count: Size
) -> Iterator[GraphExpr]:
    """What each tap of a kernel meets along the depth, as images: (batch * count, channels, height, width)."""
    if pad:
        x = b.call("pad", x, before=(0, 0, pad, 0, 0), after=(0, 0, pad, 0, 0))
    batch, channels, _, height, width = sizes_of(x)
    span = dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), step), 1)
    for tap in range(taps):
        first = tap * space
        chosen = b.slice(x, 2, first, dimensions.add(span, first), step)
        images = b.transpose(chosen, (0, 2, 1, 3, 4))
        yield b.reshape(images, (dimensions.multiply(batch, count), channels, height, width))


def transposed_convolution(
    b: TorchBuilder,
    x: GraphExpr,
    weight: GraphExpr,
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> GraphExpr:
    """The transpose of a convolution; `extra` rows, columns ... are added at its end."""
    rank = len(steps)
    if rank < 3:
        low = two(pads, 0)
        result = b.call(
            "nn.conv2d_transpose",
            as_plane(b, x),
            as_plane(b, weight),
            strides=two(steps, 1),
            padding=(*low, *low),
            output_padding=two(extra, 0),
            dilation=two(spread, 1),
            groups=groups,
        )
        return from_plane(b, result, rank)
    # In three dimensions: a convolution of the data with zeros put between, by the kernel turned around.
    for axis, step in enumerate(steps):
        x = _spaced(b, x, 2 + axis, step)
    inputs, outputs, *kernel = shape_of(weight)
    turned = b.flip(weight, range(2, 5))
    turned = b.reshape(turned, (groups, inputs // groups, outputs, *kernel))
    turned = b.reshape(b.transpose(turned, (0, 2, 1, 3, 4, 5)), (groups * outputs, inputs // groups, *kernel))
    reach = [(size - 1) * space for size, space in zip(kernel, spread, strict=True)]
    before = [length - pad for length, pad in zip(reach, pads, strict=True)]
    after = [low + more for low, more in zip(before, extra, strict=True)]
    for axis in range(3):
        size = size_at(x, 2 + axis)
        x = b.slice_axis(x, 2 + axis, max(0, -before[axis]), size - max(0, -after[axis]))
    x = b.call("pad", x, before=(0, 0, *(max(0, n) for n in before)), after=(0, 0, *(max(0, n) for n in after)))
    return _volume(b, x, turned, (1, 1, 1), (0, 0, 0), spread, groups)


def _spaced(b: TorchBuilder, x: GraphExpr, axis: int, step: int) -> GraphExpr:
    """Zeros between the elements along an axis, so that they lie `step` apart."""
    if step == 1:
        return x
    shape, length = list(sizes_of(x)), size_at(x, axis)
    apart = b.expand_dims(x, (axis + 1,))
    rank = rank_of(apart)
    after = [0] * rank
    after[axis + 1] = step - 1
    padded = b.call("pad", apart, before=(0,) * rank, after=tuple(after))
    shape[axis] = length * step
    assert dtype_of(padded) is dtype_of(x)
    return b.slice_axis(b.reshape(padded, shape), axis, 0, (length - 1) * step + 1)
