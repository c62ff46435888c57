"""Converters of pooling and of normalisations."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.ceil_windows import average_pooled, check_window, max_pooled, summed
from tilewright.frontend.core.layers import along_channels
from tilewright.frontend.core.local_response import across_channels, mean_free, of_unit_length, within_channels
from tilewright.frontend.core.regions import max_pooled_regions
from tilewright.frontend.core.windows import Extents
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

_MAX, _AVERAGE, _STOCHASTIC = range(3)
_CEIL_MODES = {0: True, 1: False}
_WITHIN = 1


@converter("Pooling")
def pooling(layer: Layer) -> GraphExpr:
    """Maxima or means of windows, whose number is rounded up; padding counts in means, what lies beyond it does not."""
    options, data, b = layer.options("pooling"), layer.input(0), layer.b
    if rank_of(data) != 4:
        raise UserError(f"Pooling needs data of 4 dimensions, it has {rank_of(data)}")
    if layer.tops > 1:
        raise UnsupportedError("Pooling that gives the places of its maxima (two tops)")
    if options.global_pooling:
        if options.pool == _STOCHASTIC:
            return _weighted_mean(layer, data, None, False)
        return layer.call("max" if options.pool == _MAX else "mean", data, axes=(2, 3), keepdims=True)
    kernel = _pair(options, "kernel_size", ("kernel_h", "kernel_w"))
    strides = _pair(options, "stride", ("stride_h", "stride_w"))
    pads = _pair(options, "pad", ("pad_h", "pad_w"))
    extents = Extents(kernel, strides, pads, pads, (1, 1))
    check_window(extents, sizes_of(data)[2:])
    ceiling = _CEIL_MODES.get(options.round_mode, True) and options.ceil_mode
    match options.pool:
        case 0:
            return max_pooled(b, data, extents, ceiling)
        case 1:
            return average_pooled(b, data, extents, ceiling, include_pad=True)
        case 2:
            return _weighted_mean(layer, data, extents, ceiling)
    raise UserError(f"the pooling method number {options.pool} is not known")


def _pair(options: object, name: str, pair: tuple[str, str]) -> tuple[int, int]:
    """One number for both dimensions, or one each."""
    both = [getattr(options, item) for item in pair]
    if any(options.HasField(item) for item in pair):  # type: ignore[attr-defined]
        return int(both[0]), int(both[1])
    one = int(getattr(options, name))
    return one, one


def _weighted_mean(layer: Layer, data: GraphExpr, extents: Extents | None, ceiling: bool) -> GraphExpr:
    """What stochastic pooling gives on average: each element counts as often as it is drawn."""
    squares = layer.call("multiply", data, data)
    if extents is None:
        sums = [layer.call("sum", value, axes=(2, 3), keepdims=True) for value in (squares, data)]
    else:
        sums = [summed(layer.b, value, extents, ceiling) for value in (squares, data)]
    least = float(np.finfo(np.float32).tiny)
    return layer.b.divide(sums[0], layer.b.add(sums[1], least))


@converter("ROIPooling")
def roi_pooling(layer: Layer) -> GraphExpr:
    """The greatest element of each bin of regions."""
    options = layer.options("roi_pooling")
    bins = int(options.pooled_h), int(options.pooled_w)
    return max_pooled_regions(layer.b, layer.input(0), layer.input(1), bins, options.spatial_scale)


@converter("LRN")
def local_response(layer: Layer) -> GraphExpr:
    """Divided by a power of the mean of squares of neighbours."""
    options, data = layer.options("lrn"), layer.input(0)
    if options.norm_region == _WITHIN:
        # Only here Caffe leaves k out: it is always 1.
        return within_channels(layer.b, data, options.local_size, options.alpha, options.beta, 1.0)
    if options.local_size % 2 == 0:
        raise UserError(f"LRN over {options.local_size} channels: the number must be odd")
    return across_channels(layer.b, data, options.local_size, options.alpha, options.beta, options.k)


@converter("BatchNorm")
def batch_norm(layer: Layer) -> GraphExpr:
    """(x - mean) / sqrt(variance + eps), with the statistics of training or those of the batch."""
    options, data, b = layer.options("batch_norm"), layer.input(0), layer.b
    rank = rank_of(data)
    channels = size_at(data, 1) if rank > 1 else 1
    if options.HasField("use_global_stats") and not options.use_global_stats:
        result = mean_free(b, data, [at for at in range(rank) if at != 1], options.eps, outside=False)
    else:
        if len(layer.blobs) < 3:
            layer.blob(2)
        factor = float(layer.blobs[2].ravel()[0]) if layer.blobs[2].size else 0.0
        factor = 0.0 if factor == 0 else 1 / factor
        mean, variance = (np.asarray(layer.blobs[at], np.float32).ravel() * np.float32(factor) for at in (0, 1))
        if mean.size != channels or variance.size != channels:
            raise UserError(f"statistics of {mean.size} channels do not fit {channels}")
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        result = layer.call(
            "nn.batch_norm",
            data if rank > 1 else b.reshape(data, (*sizes_of(data), 1)),
            *(b.constant(item, "float32") for item in (ones, zeros, mean, variance)),
            epsilon=float(options.eps),
            axis=1,
        )
        result = b.reshape(result, sizes_of(data))
    if options.scale_bias:
        scale, shift = (along_channels(b, layer.blob(at, (channels,)), rank) for at in (3, 4))
        result = layer.call("add", layer.call("multiply", result, scale), shift)
    return result


@converter("MVN")
def mean_variance(layer: Layer) -> GraphExpr:
    """Without its mean, and divided by its deviation, a channel or an image at a time."""
    options, data = layer.options("mvn"), layer.input(0)
    if rank_of(data) < 2:
        raise UserError(f"MVN needs data of at least 2 dimensions, it has {rank_of(data)}")
    first = 1 if options.across_channels else 2
    axes = range(first, rank_of(data))
    if not axes:
        axes = range(1, rank_of(data))
    return mean_free(layer.b, data, axes, options.eps, outside=True, by_variance=options.normalize_variance)


@converter("Normalize")
def normalize(layer: Layer) -> GraphExpr:
    """Divided by the length of all channels at a place, or of the whole image, times a scale."""
    options, data, b = layer.options("norm"), layer.input(0), layer.b
    rank = rank_of(data)
    axes = range(1, rank) if options.across_spatial else (1,)
    result = of_unit_length(b, data, axes, options.eps)
    if not layer.blobs:
        return result
    scale = layer.blob(0, (1,) if options.channel_shared else (size_at(data, 1),))
    return layer.call("multiply", result, along_channels(b, scale, rank))
