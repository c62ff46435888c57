"""Converters of pooling over windows, with fixed and with adaptive sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.adaptive import adaptive_average, adaptive_maxima, maxima
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


def _each(values: int | Sequence[int], rank: int) -> list[int]:
    listed = [values] if isinstance(values, int) else list(values)
    return listed * rank if len(listed) == 1 else listed


class Windows:
    """Windows along each of the last axes: their size, steps, padding and spacing."""

    def __init__(
        self,
        x: GraphExpr,
        rank: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        dilation: int | Sequence[int],
        result: Sequence[Size],
        ceil_mode: bool,
    ) -> None:
        self.rank = rank
        self.size = sizes_of(x)[-rank:]
        self.kernel = _each(kernel, rank)
        self.strides = _each(stride, rank) if not (isinstance(stride, Sequence) and not stride) else self.kernel
        self.before = _each(padding, rank)
        self.dilation = _each(dilation, rank)
        self.count = result[-rank:]
        self.is_open = not dimensions.is_constant(self.size)
        """Whether sizes vary: padding after the data then serves every size, and windows too many are cut off."""
        self.ceil_mode = ceil_mode
        self.after = [self._after(axis) for axis in range(rank)]
        """Padding after the data that the last window reaches into; negative if the data goes on."""

    def _after(self, axis: int) -> int:
        size, count = self.size[axis], self.count[axis]
        if not isinstance(size, int) or not isinstance(count, int):
            return self.before[axis] + (self.strides[axis] - 1 if self.ceil_mode else 0)
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return (count - 1) * self.strides[axis] + reach - size - self.before[axis]

    def attributes(self, axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The attributes of a pool of the last two axes by the windows of two axes (-1: one element at a time)."""

        def pick(values: Sequence[int], unit: int) -> tuple[int, int]:
            first, second = (unit if axis < 0 else values[axis] for axis in axes)
            return first, second

        after = [max(0, item) for item in self.after]
        return {
            "kernel": pick(self.kernel, 1),
            "strides": pick(self.strides, 1),
            "padding": (*pick(self.before, 0), *pick(after, 0)),
            "dilation": pick(self.dilation, 1),
        }

    def taps(self, b: TorchBuilder, axis: int) -> GraphExpr:
        """The positions that each window reads along an axis, those outside the data too: (windows, taps)."""
        starts = b.arange(self.count[axis], -self.before[axis], self.strides[axis])
        return b.add(b.expand_dims(starts, (1,)), b.arange(self.kernel[axis], 0, self.dilation[axis]))


def batched(b: TorchBuilder, x: GraphExpr, rank: int) -> GraphExpr:
    """As (N, C, ...)."""
    shape = sizes_of(x)
    return x if len(shape) == rank + 2 else b.reshape(x, (1, *shape))


def pooled(b: TorchBuilder, name: str, x: GraphExpr, how: Windows, include_pad: bool = False) -> GraphExpr:
    """Over (N, C, ...) data in one to three dimensions: maxima and averages are separable."""

    def over(value: GraphExpr, axes: Sequence[int]) -> GraphExpr:
        """Pool the last two axes of a value by the windows of two axes (-1: one element at a time)."""
        for place, axis in enumerate(axes):
            if axis >= 0 and how.after[axis] < 0:
                at = rank_of(value) - 2 + place
                value = b.slice_axis(value, at, 0, size_at(value, at) + how.after[axis])

        result = b.call(name, value, **how.attributes(axes), count_include_pad=include_pad)
        for place, axis in enumerate(axes):
            if axis >= 0 and how.ceil_mode and not isinstance(how.size[axis], int):
                result = b.slice_axis(result, 2 + place, 0, how.count[axis])
        return result

    batch, channels, *size = sizes_of(x)
    match how.rank:
        case 1:
            return b.reshape(over(b.reshape(x, (batch, channels, 1, size[0])), (-1, 0)), (batch, channels, *how.count))
        case 2:
            return over(x, (0, 1))
    planes = over(b.reshape(x, (batch, dimensions.multiply(channels, size[0]), *size[1:])), (1, 2))
    stack = b.reshape(planes, (batch, channels, size[0], dimensions.product(how.count[1:])))
    return b.reshape(over(stack, (0, -1)), (batch, channels, *how.count))


def _max_pool(rank: int, with_places: bool) -> Converter:
    def convert(
        b: TorchBuilder,
        x: GraphExpr,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> GraphExpr | tuple[GraphExpr, GraphExpr | None]:
        if 0 in b.shape:
            nothing = b.empty(b.shape, b.dtype)
            return (nothing, b.empty(b.shape, INT64)) if with_places else nothing
        how = Windows(x, rank, kernel_size, stride, padding, dilation, b.shape, ceil_mode)
        data = batched(b, x, rank)
        found = b.reshape(pooled(b, "nn.max_pool2d", data, how), b.shape)
        if not with_places:
            return found
        if not b.is_used(1):
            return found, None
        _, places = maxima(b, data, [how.taps(b, axis) for axis in range(rank)])
        return found, b.reshape(places, b.shape)

    convert.__doc__ = f"The greatest of each window in {rank} dimensions{', and where it is' if with_places else ''}."
    return convert


for _rank in (1, 2, 3):
    converter(f"max_pool{_rank}d_with_indices")(_max_pool(_rank, with_places=True))
    converter(f"max_pool{_rank}d")(_max_pool(_rank, with_places=False))


def _average_pool(rank: int) -> Converter:
    def convert(
        b: TorchBuilder,
        x: GraphExpr,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> GraphExpr:
        if 0 in b.shape:
            return b.empty(b.shape, b.dtype)
        how = Windows(x, rank, kernel_size, stride, padding, 1, b.shape, ceil_mode)
        data = batched(b, x, rank)
        if divisor_override is not None:
            mean = pooled(b, "nn.avg_pool2d", data, how, include_pad=True)
            total = b.multiply(mean, float(math.prod(how.kernel)))
            return b.reshape(b.divide(total, float(divisor_override)), b.shape)
        return b.reshape(_average(b, data, how, count_include_pad), b.shape)

    convert.__doc__ = f"The mean of each window in {rank} dimensions."
    return convert


def _average(b: TorchBuilder, x: GraphExpr, how: Windows, include_pad: bool) -> GraphExpr:
    """Sums of windows (zeros outside) divided by how many elements count in each."""
    reaches_out = any(how.before) or any(item > 0 for item in how.after)
    if (how.is_open and not how.ceil_mode) or (not include_pad and not reaches_out):
        # No window reaches beyond the padding.
        return pooled(b, "nn.avg_pool2d", x, how, include_pad)
    mean = pooled(b, "nn.avg_pool2d", x, how, include_pad=True)
    if how.is_open:
        for axis in range(how.rank):
            mean = b.divide(mean, b.cast(_counted_share(b, how, axis, include_pad), dtype_of(x)))
        return mean
    number = counted_shares(how, include_pad)
    if np.all(number == 1):
        return mean
    return b.divide(mean, b.cast(b.constant(number, "float64"), dtype_of(x)))


def counted_shares(how: Windows, include_pad: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The share of each window that counts, where sizes are known: (windows along each axis)."""
    number: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.ones((), np.float64)
    for axis, (size, count) in enumerate(zip(*map(dimensions.numbers, (how.size, how.count)), strict=True)):
        starts = np.arange(count) * how.strides[axis] - how.before[axis]
        table = starts[:, None] + np.arange(how.kernel[axis]) * how.dilation[axis]
        limit = size + (how.before[axis] if include_pad else 0)
        least = -how.before[axis] if include_pad else 0
        counted = ((table >= least) & (table < limit)).sum(axis=1) / how.kernel[axis]
        number = number[..., None] * counted
    return number


def _counted_share(b: TorchBuilder, how: Windows, axis: int, include_pad: bool) -> GraphExpr:
    """The share of each window along an axis that counts, in the shape that divides the result."""
    start = b.arange(how.count[axis], -how.before[axis], how.strides[axis])
    padding = how.before[axis] if include_pad else 0
    limit = b.reshape(b.shape_tensor((dimensions.add(how.size[axis], padding),)), ())
    end = b.call("minimum", b.add(start, how.kernel[axis]), limit)
    counted = b.subtract(end, b.call("maximum", start, b.scalar(-padding, INT64)))
    share = b.divide(b.cast(counted, "float32"), float(how.kernel[axis]))
    return b.reshape(share, [how.count[axis] if at == axis else 1 for at in range(how.rank)])


converter("avg_pool1d")(_average_pool(1))
converter("avg_pool2d")(_average_pool(2))
converter("avg_pool3d")(_average_pool(3))


# Adaptive sizes: window i covers floor(i * in / out) .. ceil((i + 1) * in / out)


def _adaptive_average(rank: int) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, output_size: int | Sequence[int]) -> GraphExpr:
        if 0 in b.shape:
            return b.empty(b.shape, b.dtype)
        first = rank_of(x) - rank
        return adaptive_average(b, x, first, dimensions.numbers(b.shape[first:]))

    convert.__doc__ = f"Means of as many windows as the result has, in {rank} dimensions."
    return convert


converter("adaptive_avg_pool1d")(_adaptive_average(1))
converter("adaptive_avg_pool2d", "_adaptive_avg_pool2d")(_adaptive_average(2))
converter("adaptive_avg_pool3d", "_adaptive_avg_pool3d")(_adaptive_average(3))


def _adaptive_max(rank: int) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, output_size: int | Sequence[int]) -> tuple[GraphExpr, GraphExpr]:
        if 0 in b.shape:
            return b.empty(b.shape, b.dtype), b.empty(b.shape, INT64)
        counts = dimensions.numbers(b.shape[rank_of(x) - rank :])
        values, places = adaptive_maxima(b, batched(b, x, rank), counts)
        return b.reshape(values, b.shape), b.reshape(places, b.shape)

    convert.__doc__ = f"The greatest of as many windows as the result has, in {rank} dimensions, and where it is."
    return convert


converter("adaptive_max_pool2d")(_adaptive_max(2))
converter("adaptive_max_pool3d")(_adaptive_max(3))
