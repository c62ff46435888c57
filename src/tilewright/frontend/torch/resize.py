"""Converters of resampling: every axis is resampled on its own by a constant table of taps and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.resampling import cubic_at, linear_at, number, plain, take_at
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError

Table = tuple[Array, Array]
"""For each element of the result, which elements are read (elements, taps) and their weights."""


def _resample(b: TorchBuilder, x: GraphExpr, axis: int, table: Table) -> GraphExpr:
    """A weighted sum of chosen elements along an axis."""
    places, weights = table
    total: GraphExpr | None = None
    shape = [-1 if at == axis else 1 for at in range(rank_of(x))]
    dtype = dtype_of(x)
    for tap in range(places.shape[1]):
        part = b.call("take", x, b.constant(places[:, tap].copy(), INT64), axis=axis)
        if places.shape[1] == 1 and np.all(weights == 1):
            return part
        factor = b.cast(b.constant(weights[:, tap].reshape(shape).copy(), "float64"), dtype)
        part = b.multiply(part, factor)
        total = part if total is None else b.add(total, part)
    assert total is not None
    return total


def _scale(size: int, count: int, given: float | None, align_corners: bool) -> float:
    """How far apart neighbours of the result lie in the data."""
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


def _nearest(size: int, count: int, given: float | None, align_corners: bool) -> Table:
    scale = np.float32(_scale(size, count, given, False))
    places = np.minimum(np.floor(np.arange(count, dtype=np.float32) * scale).astype(np.int64), size - 1)
    return places[:, None], np.ones((count, 1))


def _nearest_exact(size: int, count: int, given: float | None, align_corners: bool) -> Table:
    scale = np.float32(_scale(size, count, given, False))
    places = np.floor((np.arange(count, dtype=np.float32) + np.float32(0.5)) * scale).astype(np.int64)
    return np.minimum(places, size - 1)[:, None], np.ones((count, 1))


def _centers(size: int, count: int, given: float | None, align_corners: bool) -> Array:
    scale = np.float32(_scale(size, count, given, align_corners))
    index = np.arange(count, dtype=np.float32)
    return np.asarray(index * scale if align_corners else (index + np.float32(0.5)) * scale - np.float32(0.5))


def _linear(size: int, count: int, given: float | None, align_corners: bool) -> Table:
    centers = np.maximum(_centers(size, count, given, align_corners), 0).astype(np.float64)
    low = np.minimum(np.floor(centers).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.minimum(centers - low, 1.0)
    return np.stack([low, high], 1), np.stack([1 - share, share], 1)


def _cubic(size: int, count: int, given: float | None, align_corners: bool) -> Table:
    centers = _centers(size, count, given, align_corners).astype(np.float64)
    low = np.floor(centers)
    share = centers - low
    distance = np.stack([1 + share, share, 1 - share, 2 - share], 1)
    places = low.astype(np.int64)[:, None] + np.arange(-1, 3)[None, :]
    return np.clip(places, 0, size - 1), _keys(distance, -0.75)


def _keys(distance: Array, a: float) -> Array:
    """The cubic convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _antialiased(kernel: Callable[[Array], Array], reach: float) -> Callable[..., Table]:
    def table(size: int, count: int, given: float | None, align_corners: bool) -> Table:
        scale = _scale(size, count, given, align_corners)
        support = reach * max(scale, 1.0)
        taps = math.ceil(support) * 2 + 1
        places, weights = np.zeros((count, taps), np.int64), np.zeros((count, taps))
        for index in range(count):
            center = scale * (index + 0.5)
            first, last = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), size)
            chosen = np.arange(first, last)
            values = kernel(np.abs((chosen - center + 0.5) / max(scale, 1.0)))
            places[index, : len(chosen)], weights[index, : len(chosen)] = chosen, values / values.sum()
        return places, weights

    return table


def _resample_open(
    b: TorchBuilder,
    value: GraphExpr,
    axis: int,
    rule: Callable[..., Table],
    count: Size,
    given: float | None,
    align_corners: bool,
) -> GraphExpr:
    """Resampling from or to a size that varies, at places that are computed when the model runs."""
    size = sizes_of(value)[axis]
    is_nearest = rule in (_nearest, _nearest_exact)
    times = dimensions.divide_exactly(count, size) if is_nearest else None
    if isinstance(times, int) and given in (None, times):
        return _repeated(b, value, axis, times)
    if rule not in (_nearest, _nearest_exact, _linear, _cubic):
        raise UnsupportedError(
            "resampling without aliasing from or to a size that varies",
            hint="leave antialias out, or export this part with fixed sizes",
        )
    index = b.cast(b.arange(count), "float32")
    apart = _apart(b, size, count, given, align_corners and not is_nearest)
    if rule is _nearest:
        return take_at(b, value, axis, b.call("floor", b.multiply(index, apart)))
    middle = b.multiply(b.add(index, 0.5), apart)
    if rule is _nearest_exact:
        return take_at(b, value, axis, b.call("floor", middle))
    places = b.multiply(index, apart) if align_corners else b.subtract(middle, 0.5)
    if rule is _linear:
        return linear_at(b, value, axis, b.call("maximum", places, plain(b, 0.0)))
    return cubic_at(b, value, axis, places, -0.75)


def _apart(b: TorchBuilder, size: Size, count: Size, given: float | None, align_corners: bool) -> GraphExpr:
    """How far apart neighbours of the result lie in the data."""
    if align_corners:
        # A single element lies at the start: whatever it is multiplied with.
        spaces = b.call("maximum", number(b, dimensions.subtract(count, 1)), plain(b, 1.0))
        return b.divide(number(b, dimensions.subtract(size, 1)), spaces)
    return plain(b, 1 / given) if given else b.divide(number(b, size), number(b, count))


def _repeated(b: TorchBuilder, value: GraphExpr, axis: int, times: int) -> GraphExpr:
    """Each element several times in a row along an axis."""
    sizes = sizes_of(value)
    apart = b.expand_dims(value, (axis + 1,))
    spread = b.broadcast_to(apart, (*sizes[: axis + 1], times, *sizes[axis + 1 :]))
    return b.reshape(spread, (*sizes[:axis], dimensions.multiply(sizes[axis], times), *sizes[axis + 1 :]))


def _upsample(rank: int, rule: Callable[..., Table]) -> Converter:
    def convert(
        b: TorchBuilder,
        x: GraphExpr | None = None,
        input: GraphExpr | None = None,
        output_size: Sequence[int] | None = None,
        align_corners: bool = False,
        scale_factors: Sequence[float] | None = None,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> GraphExpr:
        value = x if x is not None else input
        assert value is not None
        if 0 in b.shape:
            return b.empty(b.shape, b.dtype)
        given: list[float | None] = [None] * rank
        if scale_factors:
            given = list(scale_factors)
        elif rank == 1:
            given = [scales]
        else:
            given = [scales_d, scales_h, scales_w][-rank:]
        dtype = dtype_of(value)
        if not dtype.is_float and rule not in (_nearest, _nearest_exact):
            value = b.cast(value, "float32")
        for axis in range(rank):
            at = rank_of(value) - rank + axis
            size, count = sizes_of(value)[at], b.shape[at]
            if size == count and given[axis] in (None, 1.0):
                continue
            if not isinstance(size, int) or not isinstance(count, int):
                value = _resample_open(b, value, at, rule, count, given[axis], align_corners)
                continue
            value = _resample(b, value, at, rule(size, count, given[axis], align_corners))
        return value if dtype.is_float else b.cast(b.call("round", value) if dtype_of(value).is_float else value, dtype)

    convert.__doc__ = f"Resampling in {rank} dimensions."
    return convert


for _rank, _kind in ((1, "1d"), (2, "2d"), (3, "3d")):
    converter(f"upsample_nearest{_kind}")(_upsample(_rank, _nearest))
    converter(f"_upsample_nearest_exact{_kind}")(_upsample(_rank, _nearest_exact))
for _rank, _kind in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    converter(_kind)(_upsample(_rank, _linear))
converter("upsample_bicubic2d")(_upsample(2, _cubic))
converter("_upsample_bilinear2d_aa")(_upsample(2, _antialiased(lambda d: np.maximum(1 - d, 0.0), 1.0)))
converter("_upsample_bicubic2d_aa")(_upsample(2, _antialiased(lambda d: _keys(d, -0.5), 2.0)))
