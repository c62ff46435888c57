"""Converters of the gradients of pooling over windows.

Pooling in three dimensions is pooling of planes, then along the depth; its gradient goes back the same way. The first
of equal maxima takes the gradient, as in torch, and does so too when planes come before the depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.pooling import Windows, batched, counted_shares, pooled
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

Axes = tuple[int, int]
"""Which windows the last two axes of a value have; -1 for one element at a time."""
Gradient = Callable[[GraphExpr, GraphExpr, Axes], GraphExpr]
"""The gradient for data of four axes, from the data and the gradient of its windows."""


def _through(b: TorchBuilder, x: GraphExpr, gradient: GraphExpr, how: Windows, part: Gradient) -> GraphExpr:
    """The gradient for (N, C, ...) data in two or three dimensions."""
    if how.rank == 2:
        return part(x, gradient, (0, 1))
    batch, channels, *size = sizes_of(x)
    planes = b.reshape(x, (batch, dimensions.multiply(channels, size[0]), *size[1:]))
    below = pooled_planes(b, planes, how)
    area = dimensions.product(how.count[1:])
    stack = b.reshape(below, (batch, channels, size[0], area))
    across = part(stack, b.reshape(gradient, (batch, channels, how.count[0], area)), (0, -1))
    return b.reshape(part(planes, b.reshape(across, sizes_of(below)), (1, 2)), sizes_of(x))


def pooled_planes(b: TorchBuilder, planes: GraphExpr, how: Windows) -> GraphExpr:
    """Maxima of planes: what the depth is pooled of."""
    flat = Windows(
        planes,
        2,
        how.kernel[1:],
        how.strides[1:],
        how.before[1:],
        how.dilation[1:],
        (*sizes_of(planes)[:2], *how.count[1:]),
        how.ceil_mode,
    )
    return pooled(b, "nn.max_pool2d", planes, flat)


def _trimmed(b: TorchBuilder, x: GraphExpr, how: Windows, axes: Axes) -> tuple[GraphExpr, list[Size]]:
    """The data as far as windows reach, and how much of each axis is left out."""
    left: list[Size] = [0] * 4
    for place, axis in enumerate(axes, start=2):
        if axis >= 0 and how.after[axis] < 0:
            left[place] = -how.after[axis]
            x = b.slice_axis(x, place, 0, dimensions.add(sizes_of(x)[place], how.after[axis]))
    return x, left


def _restored(b: TorchBuilder, x: GraphExpr, left: Sequence[Size]) -> GraphExpr:
    return b.call("pad", x, before=(0,) * 4, after=tuple(left)) if any(left) else x


def _max_gradient(rank: int) -> Converter:
    def convert(
        b: TorchBuilder,
        grad_output: GraphExpr,
        x: GraphExpr,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> GraphExpr:
        if 0 in (*sizes_of(x), *sizes_of(grad_output)):
            return b.empty(b.shape, b.dtype) if 0 in b.shape else b.filled(0, b.shape, b.dtype)
        how = Windows(x, rank, kernel_size, stride, padding, dilation, sizes_of(grad_output), ceil_mode)
        if how.is_open and ceil_mode:
            raise UnsupportedError("the gradient of windows rounded up, of sizes that vary")

        def part(data: GraphExpr, gradient: GraphExpr, axes: Axes) -> GraphExpr:
            reached, left = _trimmed(b, data, how, axes)
            found = b.call("nn.max_pool2d_gradient", reached, gradient, **how.attributes(axes))
            return _restored(b, found, left)

        result = _through(b, batched(b, x, rank), batched(b, grad_output, rank), how, part)
        return b.reshape(result, b.shape)

    convert.__doc__ = f"The gradient of each window of {rank} dimensions goes to its greatest element."
    return convert


for _rank in (2, 3):
    converter(f"tilewright::max_pool{_rank}d_gradient")(_max_gradient(_rank))


def _average_gradient(rank: int) -> Converter:
    def convert(
        b: TorchBuilder,
        grad_output: GraphExpr,
        x: GraphExpr,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> GraphExpr:
        if 0 in (*sizes_of(x), *sizes_of(grad_output)):
            return b.empty(b.shape, b.dtype) if 0 in b.shape else b.filled(0, b.shape, b.dtype)
        how = Windows(x, rank, kernel_size, stride, padding, 1, sizes_of(grad_output), ceil_mode)
        if how.is_open:
            raise UnsupportedError("the gradient of averages over windows of sizes that vary")
        gradient = batched(b, grad_output, rank)
        if divisor_override is not None:
            gradient = b.multiply(gradient, math.prod(how.kernel) / divisor_override)
        else:
            shares = counted_shares(how, count_include_pad)
            if np.any(shares != 1):
                gradient = b.divide(gradient, b.cast(b.constant(shares, "float64"), dtype_of(gradient)))
        return b.reshape(_spread(b, gradient, how, sizes_of(batched(b, x, rank))), b.shape)

    convert.__doc__ = f"Each element of a window of {rank} dimensions takes an equal share of its gradient."
    return convert


def _spread(b: TorchBuilder, gradient: GraphExpr, how: Windows, shape: Sequence[Size]) -> GraphExpr:
    """Shares of the gradients of windows, padding counted, for data of a shape."""

    def part(value: GraphExpr, axes: Axes, size: Sequence[Size]) -> GraphExpr:
        wide = dimensions.numbers(size)
        after = [how.after[axis] if axis >= 0 else 0 for axis in axes]
        reached = tuple(length + min(0, more) for length, more in zip(wide, after, strict=True))
        attributes = how.attributes(axes)
        found = b.call("nn.avg_pool2d_gradient", value, **attributes, count_include_pad=True, size=reached)
        return _restored(b, found, (0, 0, *(max(0, -more) for more in after)))

    batch, channels, *size = shape
    if how.rank == 2:
        return part(gradient, (0, 1), size)
    area = dimensions.product(how.count[1:])
    depth = part(b.reshape(gradient, (batch, channels, how.count[0], area)), (0, -1), (size[0], area))
    planes = b.reshape(depth, (batch, dimensions.multiply(channels, size[0]), *how.count[1:]))
    return b.reshape(part(planes, (1, 2), size[1:]), shape)


converter("avg_pool2d_backward")(_average_gradient(2))
converter("avg_pool3d_backward")(_average_gradient(3))


def _adaptive_gradient(rank: int) -> Converter:
    def convert(b: TorchBuilder, grad_output: GraphExpr, x: GraphExpr) -> GraphExpr:
        result = grad_output
        if 0 in (*sizes_of(x), *sizes_of(grad_output)):
            return b.empty(b.shape, b.dtype) if 0 in b.shape else b.filled(0, b.shape, b.dtype)
        for axis in range(rank_of(x) - rank, rank_of(x)):
            result = _adaptive_axis(b, result, axis, *dimensions.numbers((sizes_of(x)[axis], sizes_of(result)[axis])))
        return result

    convert.__doc__ = f"The gradient of means of as many windows as the result has, in {rank} dimensions."
    return convert


def _adaptive_axis(b: TorchBuilder, gradient: GraphExpr, axis: int, size: int, count: int) -> GraphExpr:
    """The gradient of means along one axis: windows side by side, or a product with the share of each element."""
    shape = sizes_of(gradient)
    if size % count == 0:
        share = b.expand_dims(b.multiply(gradient, count / size), (axis + 1,))
        spread = b.broadcast_to(share, (*shape[: axis + 1], size // count, *shape[axis + 1 :]))
        return b.reshape(spread, (*shape[:axis], size, *shape[axis + 1 :]))
    shares = np.zeros((count, size))
    for window in range(count):
        start, stop = window * size // count, -((-(window + 1) * size) // count)
        shares[window, start:stop] = 1 / (stop - start)
    order = [*(at for at in range(len(shape)) if at != axis), axis]
    moved = b.transpose(gradient, order)
    flat = b.reshape(moved, (dimensions.product(sizes_of(moved)[:-1]), count))
    product = b.call("matmul", flat, b.cast(b.constant(shares, "float64"), dtype_of(gradient)))
    back = b.reshape(product, (*sizes_of(moved)[:-1], size))
    return b.transpose(back, [order.index(at) for at in range(len(order))])


converter("_adaptive_avg_pool2d_backward")(_adaptive_gradient(2))
converter("_adaptive_avg_pool3d_backward")(_adaptive_gradient(3))
