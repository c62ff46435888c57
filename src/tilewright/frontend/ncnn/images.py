"""Converters of pooling, normalisations, resizing and detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontend.core.adaptive import adaptive_along
from tilewright.frontend.core.builder import rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.ceil_windows import average_pooled, check_window, max_pooled
from tilewright.frontend.core.detection import (
    Grid,
    Suppression,
    aspect_ratios,
    box_extents,
    decoded_boxes,
    kept_boxes,
    prior_boxes,
)
from tilewright.frontend.core.layers import along_channels, repeated, shuffled_channels
from tilewright.frontend.core.local_response import across_channels, mean_free, of_unit_length, within_channels
from tilewright.frontend.core.pools import pooled
from tilewright.frontend.core.regions import max_pooled_regions
from tilewright.frontend.core.resampling import cubic_at, linear_at, take_at
from tilewright.frontend.core.windows import Extents, known_sizes, same_padding
from tilewright.frontend.ncnn.layer import UNSET, Layer, converter
from tilewright.graph.ir.dimensions import Size, constants, multiply, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_FULL, _VALID, _UPPER, _LOWER = range(4)


def _pool_extents(layer: Layer, size: Sequence[Size], dims: int) -> Extents:
    """The window of a pool: padding is as written, grown at the end (full) or by the size (same)."""
    across, step = layer.count(1, 0, 1), layer.count(2, 1, 1)
    kernel = (*([layer.count(11, across, 1)] if dims == 2 else []), across)
    strides = (*([layer.count(12, step, 1)] if dims == 2 else []), step)
    left = layer.count(3)
    right = layer.count(14, left)
    top = layer.count(13, left)
    bottom = layer.count(15, top)
    before: tuple[int, ...] = (top, left)[2 - dims :]
    after: tuple[int, ...] = (bottom, right)[2 - dims :]
    extents = Extents(kernel, strides, before, after, (1,) * dims)
    mode = layer.integer(5)
    if mode == _FULL:
        lengths = known_sizes(tuple(size), "full padding")
        check_window(extents, lengths)
        rest = [
            (length + low + high - taps) % stride
            for length, low, high, taps, stride in zip(lengths, before, after, kernel, strides, strict=True)
        ]
        tail = [stride - item if item else 0 for item, stride in zip(rest, strides, strict=True)]
        return replace(extents, after=tuple(high + more for high, more in zip(after, tail, strict=True)))
    if mode in (_UPPER, _LOWER):
        lengths = known_sizes(tuple(size), "SAME padding")
        total = [same_padding(*item, 1) for item in zip(lengths, strides, kernel, strict=True)]
        small, large = tuple(item // 2 for item in total), tuple(item - item // 2 for item in total)
        before, after = (small, large) if mode == _UPPER else (large, small)
        return replace(extents, before=before, after=after)
    if mode != _VALID:
        raise UserError(f"the padding mode {mode} is not known")
    return extents


@converter("Pooling", "Pooling1D")
def pooling(layer: Layer) -> GraphExpr:
    """Maxima or means of windows, of everything, or of as many windows as the result has."""
    dims = 1 if layer.kind.endswith("1D") else 2
    data, kind = layer.input(0), layer.integer(0)
    if rank_of(data) != dims + 1 or kind not in (0, 1):
        raise UserError(f"{layer.kind} number {kind} of data of {rank_of(data)} dimensions")
    name = "max" if kind == 0 else "mean"
    if layer.integer(4):
        return layer.call(name, data, axes=tuple(range(1, dims + 1)), keepdims=False)
    if layer.integer(7):
        wanted = [layer.integer(8)] if dims == 1 else [layer.integer(18, layer.integer(8)), layer.integer(8)]
        for axis, count in enumerate(wanted, start=1):
            if count != UNSET:
                data = adaptive_along(layer.b, name, data, axis, layer.count(8 if axis == dims else 18, count, 1))
        return data
    if layer.integer(5) == _FULL and constants(sizes_of(data)[1:]) is None:
        return _open_pool(layer, kind, dims)
    extents = _pool_extents(layer, sizes_of(data)[1:], dims)
    check_window(extents, sizes_of(data)[1:])
    # What ncnn adds for SAME it takes for data.
    include = bool(layer.integer(6)) or layer.integer(5) in (_UPPER, _LOWER)
    operator = "nn.max_pool2d" if kind == 0 else "nn.avg_pool2d"
    return layer.through(lambda value: pooled(layer.b, operator, value, extents, include_pad=include and kind == 1))


def _open_pool(layer: Layer, kind: int, dims: int) -> GraphExpr:
    """Windows over data of open size, the last of which may reach beyond it."""
    extents = _pool_extents(layer, (1 << 20,) * dims, dims)
    plain = replace(extents, after=extents.before)
    steps_over = any(stride > taps for stride, taps in zip(plain.strides, plain.kernel, strict=True))
    if any(plain.before) or steps_over or (kind == 1 and layer.integer(6)):
        raise UnsupportedError(
            "a pool with padding, or with gaps, over data of open size", hint="give the size: shapes={...}"
        )
    if kind == 0:
        return layer.through(lambda value: max_pooled(layer.b, value, plain, ceiling=True))
    return layer.through(lambda value: average_pooled(layer.b, value, plain, ceiling=True, include_pad=False))


@converter("LRN")
def local_response(layer: Layer) -> GraphExpr:
    """Divided by a power of the mean of squares of neighbours."""
    normal = across_channels if layer.integer(0) == 0 else within_channels
    size, alpha, beta, bias = layer.count(1, 5, 1), layer.number(2, 1.0), layer.number(3, 0.75), layer.number(4, 1.0)
    return layer.through(lambda value: normal(layer.b, value, size, alpha, beta, bias))


def _affine(layer: Layer, value: GraphExpr, count: int, given: bool) -> GraphExpr:
    if not given:
        return value
    rank = rank_of(value)
    scale, shift = (along_channels(layer.b, layer.plain(count), rank, 0) for _ in range(2))
    return layer.b.add(layer.b.multiply(value, scale), shift)


@converter("InstanceNorm")
def instance_norm(layer: Layer) -> GraphExpr:
    """Statistics of each channel."""
    data = layer.input(0)
    normal = mean_free(layer.b, data, range(1, rank_of(data)), layer.number(1, 1e-3), outside=False)
    return _affine(layer, normal, size_at(data, 0), bool(layer.integer(2, 1)))


@converter("GroupNorm")
def group_norm(layer: Layer) -> GraphExpr:
    """Statistics of groups of channels."""
    data, groups = layer.input(0), layer.count(0, 1, 1)
    channels, sizes = size_at(data, 0), sizes_of(data)
    if channels % groups:
        raise UserError(f"{groups} groups do not divide {channels} channels")
    grouped = layer.b.reshape(data, (groups, product((channels // groups, *sizes[1:]))))
    normal = mean_free(layer.b, grouped, (1,), layer.number(2, 1e-3), outside=False)
    return _affine(layer, layer.b.reshape(normal, sizes), channels, bool(layer.integer(3, 1)))


def _last_axes(layer: Layer, data: GraphExpr, size: int) -> tuple[int, ...]:
    """The last axes, whose elements are so many: one or two."""
    rank, sizes = rank_of(data), sizes_of(data)
    for count in (1, 2):
        if count <= rank and product(sizes[rank - count :]) == size:
            return tuple(range(rank - count, rank))
    raise UserError(f"{size} elements are not the last ones of data of shape {sizes_text(sizes)}")


@converter("LayerNorm", "RMSNorm")
def layer_norm(layer: Layer) -> GraphExpr:
    """Statistics of the last axis, or of the last two."""
    data, size, b = layer.input(0), layer.count(0, 0, 1), layer.b
    axes = _last_axes(layer, data, size)
    given = bool(layer.integer(2, 1))
    shape = [size_at(data, at) for at in axes]
    if layer.kind == "RMSNorm":
        square = layer.call("mean", b.multiply(data, data), axes=axes, keepdims=True)
        normal = b.multiply(data, layer.call("rsqrt", b.add(square, layer.number(1, 1e-3))))
        return b.multiply(normal, layer.plain(*shape)) if given else normal
    normal = mean_free(b, data, axes, layer.number(1, 1e-3), outside=False)
    return b.add(b.multiply(normal, layer.plain(*shape)), layer.plain(*shape)) if given else normal


@converter("MVN")
def mean_variance(layer: Layer) -> GraphExpr:
    """Without its mean, and divided by its deviation, a channel or all at a time."""
    data = layer.input(0)
    axes = range(0 if layer.integer(1) else 1, rank_of(data))
    by_variance = bool(layer.integer(0))
    return mean_free(layer.b, data, axes, layer.number(2, 1e-4), outside=True, by_variance=by_variance)


@converter("Normalize")
def normalize(layer: Layer) -> GraphExpr:
    """Divided by a length, over channels, places or both, times a scale."""
    data, b = layer.input(0), layer.b
    spatial, channels, mode = layer.integer(0), layer.integer(4, 1), layer.integer(9)
    count, epsilon = layer.count(3, 0, 1), layer.number(2, 1e-4)
    axes = [*([0] if channels else []), *(range(1, rank_of(data)) if spatial else [])]
    if not axes or mode not in (0, 1, 2):
        raise UnsupportedError(f"Normalize over nothing, or with the mode {mode}")
    if mode == 0:
        result = of_unit_length(b, data, axes, epsilon)
    else:
        length = layer.call("sqrt", layer.call("sum", b.multiply(data, data), axes=tuple(axes), keepdims=True))
        limit = b.constant(epsilon, FLOAT32)
        result = layer.call("divide", data, layer.call("maximum", length, limit) if mode == 1 else b.add(length, limit))
    scale = layer.plain(count)
    return b.multiply(result, scale if count == 1 else along_channels(b, scale, rank_of(data), 0))


@converter("ShuffleChannel")
def shuffle_channel(layer: Layer) -> GraphExpr:
    """Channels of groups by turns, or back."""
    data, groups = layer.input(0), layer.count(0, 1, 1)
    if layer.integer(1):
        groups = size_at(data, 0) // groups
    return shuffled_channels(layer.b, data, groups, 0)


@converter("PixelShuffle", "Reorg")
def pixel_shuffle(layer: Layer) -> GraphExpr:
    """Channels as squares of an image, or the other way round."""
    data, step, mode, b = layer.input(0), layer.count(0, 1, 1), layer.integer(1), layer.b
    channels, height, width = shape_of(data)
    if layer.kind == "PixelShuffle":
        if channels % (step * step):
            raise UserError(f"{channels} channels are no squares of {step}")
        outer = channels // (step * step)
        parts = (outer, step, step, height, width) if mode == 0 else (step, step, outer, height, width)
        order = (0, 3, 1, 4, 2) if mode == 0 else (2, 3, 0, 4, 1)
        turned = b.transpose(b.reshape(data, parts), order)
        return b.reshape(turned, (outer, height * step, width * step))
    if height % step or width % step:
        raise UserError(f"an image of {height} x {width} is no squares of {step}")
    split = b.reshape(data, (channels, height // step, step, width // step, step))
    turned = b.transpose(split, (0, 2, 4, 1, 3) if mode == 0 else (2, 4, 0, 1, 3))
    return b.reshape(turned, (channels * step * step, height // step, width // step))


@converter("Interp")
def interp(layer: Layer) -> GraphExpr:
    """Nearest elements, or values between neighbours."""
    data, b, kind = layer.input(0), layer.b, layer.integer(0)
    aligned = bool(layer.integer(6))
    if rank_of(data) == 1:
        data = b.reshape(data, (*sizes_of(data), 1, 1))
    if rank_of(data) != 3 or kind not in (1, 2, 3):
        raise UnsupportedError(f"Interp number {kind} of data of {rank_of(data)} dimensions")
    for axis, given, scale_key in ((1, layer.integer(3), 1), (2, layer.integer(4), 2)):
        size, scale = size_at(data, axis), layer.number(scale_key, 1.0)
        wanted = int(size * scale) if given == 0 else given
        if layer.has_input(1):
            wanted = size_at(layer.input(1), axis)
        if wanted < 1:
            raise UserError(f"Interp of {size} elements to {wanted}")
        data = _resized(layer, data, axis, wanted, kind, aligned, scale if given == 0 and not layer.has_input(1) else 0)
    return data


def _resized(
    layer: Layer, data: GraphExpr, axis: int, wanted: int, kind: int, aligned: bool, scale: float
) -> GraphExpr:
    b, size = layer.b, size_at(data, axis)
    if wanted == size:
        return data
    if kind == 1:
        if wanted % size == 0:
            return repeated(b, data, [wanted // size if at == axis else 1 for at in range(axis, 3)])
        step = 1 / scale if scale else size / wanted
        places = np.minimum((np.arange(wanted) * np.float32(step)).astype(np.int64), size - 1)
        return take_at(b, data, axis, b.constant(places, "int64"))
    if aligned:
        places = np.arange(wanted) * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    else:
        places = (np.arange(wanted) + 0.5) * (size / wanted) - 0.5
    if kind == 2:
        places = np.clip(places, 0, size - 1)
        return linear_at(b, data, axis, b.constant(places, FLOAT32))
    return cubic_at(b, data, axis, b.constant(places, FLOAT32), -0.75)


@converter("ROIPooling")
def roi_pooling(layer: Layer) -> GraphExpr:
    """The greatest element of each bin of one region."""
    b = layer.b
    region = b.reshape(layer.input(1), (1, 4))
    region = b.concatenate([b.filled(0, (1, 1), FLOAT32), region], 1)
    bins = layer.count(1, 0, 1), layer.count(0, 0, 1)
    scale = layer.number(2, 0.0625)
    return layer.through(lambda data: max_pooled_regions(b, data, region, bins, scale))


@converter("PriorBox")
def prior_box(layer: Layer) -> GraphExpr:
    """Boxes around the middle of each place, and how far codes of boxes reach: (2, boxes * 4)."""
    data, b = layer.input(0), layer.b
    least, most, ratios = layer.floats(0), layer.floats(1), layer.floats(2)
    _, height, width = shape_of(data)
    if not least or (most and len(most) != len(least)) or min(least + most + ratios) <= 0:
        raise UserError(f"boxes of the sizes {least} to {most} and the ratios {ratios}")
    sizes: list[float] = []
    for key, axis in ((10, 1), (9, 2)):
        given = layer.integer(key)
        sizes.append(float(given) if given not in (0, UNSET) else float(size_at(layer.input(1), axis)))
    steps = [
        sizes[at] / count if layer.number(key, UNSET) == UNSET else layer.number(key)
        for at, (key, count) in enumerate(((12, height), (11, width)))
    ]
    extents = box_extents(least, most, aspect_ratios(ratios, bool(layer.integer(7, 1))))
    offset = layer.number(13)
    grid = Grid((height, width), (steps[0], steps[1]), (offset, offset), (sizes[0], sizes[1]))
    boxes = prior_boxes(b, grid, extents)
    if layer.integer(8):
        boxes = layer.call("clip", boxes, minimum=0.0, maximum=1.0)
    reach = np.array([layer.number(key, 0.1 if key < 5 else 0.2) for key in (3, 4, 5, 6)]).reshape(1, 4)
    count = sizes_of(boxes)[0]
    table = b.broadcast_to(b.constant(reach, FLOAT32), (count, 4))
    return b.concatenate([b.reshape(value, (1, multiply(count, 4))) for value in (boxes, table)], 0)


@converter("DetectionOutput")
def detection_output(layer: Layer) -> GraphExpr:
    """Rows of class, score and box, by falling score."""
    codes, scores, priors = (layer.input(at) for at in range(3))
    b, classes = layer.b, layer.count(0, 0, 1)
    count = size_at(priors, 1) // 4
    how = Suppression(layer.number(1, 0.05), layer.number(4, 0.5), layer.integer(2, 300), 0)
    variance = b.constant(np.array([layer.number(5 + at, 0.1 if at < 2 else 0.2) for at in range(4)]), FLOAT32)
    prior = b.reshape(b.slice_axis(priors, 0, 0, 1), (count, 4))
    boxes = decoded_boxes(b, b.reshape(codes, (count, 4)), prior, b.reshape(variance, (1, 4)), "CENTER_SIZE")
    table = b.transpose(b.reshape(scores, (count, classes)), (1, 0))
    ranked = b.slice_axis(table, 0, 1, classes)
    label, score, box = kept_boxes(b, boxes, ranked, how, layer.spec.name)
    kept = sizes_of(label)[0]
    most = layer.integer(3, 100)
    columns = [b.reshape(b.add(b.cast(label, FLOAT32), 1.0), (kept, 1)), b.reshape(score, (kept, 1)), box]
    return _by_score(layer, b.concatenate(columns, 1), score, most)


def _by_score(layer: Layer, rows: GraphExpr, score: GraphExpr, most: int) -> GraphExpr:
    """The best rows, so many at most, by falling score."""
    b = layer.b
    length = b.reshape(b.shape_tensor(sizes_of(score)), (1,))
    limit = b.constant([most if most > 0 else 1 << 30], "int64")
    number = layer.call("minimum", length, limit)
    best = layer.call("host.topk", score, number, dims=(layer.symbol("kept"),), axis=0, largest=True, dtype=FLOAT32)
    return layer.call("take", rows, b.item(best, 1), axis=0)


@converter("Padding")
def padding(layer: Layer) -> GraphExpr:
    """Elements around an image."""
    data, rank = layer.input(0), rank_of(layer.input(0))
    top, bottom, left, right, front, behind = (layer.integer(at) for at in (0, 1, 2, 3, 7, 8))
    if layer.integer(6) or min(top, bottom, left, right, front, behind) < 0 or layer.has_input(1):
        raise UnsupportedError("Padding with a value of each channel, or of sizes that are data")
    before, after = [0] * rank, [0] * rank
    before[-1], after[-1] = left, right
    if rank > 1:
        before[-2], after[-2] = top, bottom
    if rank > 2:
        before[-3], after[-3] = front, behind
    modes = {0: "constant", 1: "edge", 2: "reflect"}
    if layer.integer(4) not in modes:
        raise UserError(f"the padding number {layer.integer(4)} is not known")
    mode = modes[layer.integer(4)]
    return layer.call("pad", data, before=tuple(before), after=tuple(after), mode=mode, value=layer.number(5))
