"""Converters of layers with weights: convolutions, products, embeddings; with floats, or integers of 8 bits."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.ceil_windows import check_window
from tilewright.frontend.core.layers import along_channels, convolve, deconvolve, dense
from tilewright.frontend.core.windows import Extents, known_sizes, same_padding
from tilewright.frontend.ncnn.layer import UNSET, Layer, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_SAME_UPPER, _SAME_LOWER = -233, -234


def _pairs(layer: Layer, dims: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, dilation and strides: across, then down (as across where not given), then deep; here from the front."""
    found: list[tuple[int, ...]] = []
    for key, default in ((1, 0), (2, 1), (3, 1)):
        across = layer.count(key, default, 1)
        values = [layer.count(key + 10 * at, across, 1) for at in range(1, dims)]
        found.append((*reversed(values), across))
    return found[0], found[1], found[2]


def _padding(layer: Layer, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after, from the front; kinds of SAME are the numbers of `_same`."""
    left = layer.integer(4)
    right = layer.integer(15, left)
    if dims == 1:
        return (left,), (right,)
    top = layer.integer(14, left)
    bottom = layer.integer(16, top)
    if dims == 2:
        return (top, left), (bottom, right)
    front = layer.integer(24, left)
    return (front, top, left), (layer.integer(17, front), bottom, right)


def _extents(layer: Layer, data: GraphExpr, dims: int) -> Extents:
    kernel, dilation, strides = _pairs(layer, dims)
    before, after = _padding(layer, dims)
    modes = {item for item in (*before, *after) if item in (_SAME_UPPER, _SAME_LOWER)}
    if modes:
        size = known_sizes(sizes_of(data)[2:], "SAME padding")
        total = [same_padding(*item) for item in zip(size, strides, kernel, dilation, strict=True)]
        small, large = tuple(item // 2 for item in total), tuple(item - item // 2 for item in total)
        before, after = (small, large) if _SAME_UPPER in modes else (large, small)
    extents = Extents(kernel, strides, before, after, dilation)
    check_window(extents, sizes_of(data)[2:])
    return extents


def _image(layer: Layer, dims: int) -> GraphExpr:
    data = layer.input(0)
    if rank_of(data) != dims + 1:
        raise UserError(f"{layer.kind} needs data of {dims + 1} dimensions, it has {rank_of(data)}")
    return layer.batched(data)


def _outputs(layer: Layer, taps: int, channels: int, groups: int) -> int:
    """The number of results of a layer, whose weights say how many inputs it has."""
    outputs, count = layer.count(0, 0, 1), layer.count(6)
    if groups < 1 or channels % groups or outputs % groups:
        raise UserError(f"{groups} groups do not divide {channels} channels and {outputs} outputs")
    if count != outputs * (channels // groups) * taps:
        raise UserError(f"{count} weights do not fit {channels} channels and {outputs} outputs in {groups} groups")
    return outputs


def _dims(kind: str) -> int:
    return int(kind[-2]) if kind.endswith(("1D", "3D")) else 2


@converter("Convolution", "ConvolutionDepthWise", "Convolution1D", "ConvolutionDepthWise1D", "Convolution3D",
           "ConvolutionDepthWise3D")  # fmt: skip
def convolution(layer: Layer) -> GraphExpr:
    """In one, two or three dimensions, perhaps in groups, with floats or integers."""
    dims = _dims(layer.kind)
    data = _image(layer, dims)
    if layer.integer(19):
        raise UnsupportedError(f"{layer.kind} whose weights are data")
    kernel, _, _ = _pairs(layer, dims)
    groups = layer.count(7, 1, 1) if "DepthWise" in layer.kind else 1
    channels = size_at(data, 1)
    outputs = _outputs(layer, math.prod(kernel), channels, groups)
    weight = layer.numbers.marked(outputs, channels // groups, *kernel)
    bias = layer.plain(outputs) if layer.integer(5) else None
    if layer.number(18) != 0:
        raise UnsupportedError(f"{layer.kind} with padding of {layer.number(18)}")
    extents = _extents(layer, data, dims)
    if not layer.integer(8) and weight.dtype != np.int8:
        result = convolve(layer.b, data, layer.constant_of(weight), bias, extents, groups)
        return layer.single(layer.activated(result))
    scales = _scales(
        layer, groups if "DepthWise" in layer.kind else outputs, groups if "DepthWise" in layer.kind else 1
    )
    per_output = np.repeat(scales[0], outputs // len(scales[0]))
    per_channel = np.repeat(scales[1], channels // len(scales[1]))
    whole = _whole(weight, per_output.reshape(-1, *(1,) * (dims + 1)))
    steps = along_channels(layer.b, layer.constant_of(per_channel), dims + 2)
    entering = _rounded(layer, layer.b.multiply(data, steps))
    sums = convolve(layer.b, entering, layer.constant_of(whole), None, extents, groups)
    inner = np.repeat(scales[1], outputs // len(scales[1]))
    with np.errstate(divide="ignore"):
        factor = np.where(per_output * inner == 0, 0, 1 / (per_output * inner))
    result = layer.b.multiply(sums, along_channels(layer.b, layer.constant_of(factor), dims + 2))
    if bias is not None:
        result = layer.b.add(result, along_channels(layer.b, bias, dims + 2))
    return layer.single(_requantized(layer, layer.activated(result)))


def _scales(layer: Layer, outputs: int, groups: int) -> tuple[Array, Array]:
    """The scales of the weights and of the data of a layer of integers."""
    term = layer.integer(8)
    if "DepthWise" in layer.kind:
        weights = layer.numbers.floats(outputs) if term in (1, 101) else np.repeat(layer.numbers.floats(1), outputs)
        return weights, np.repeat(layer.numbers.floats(1), groups)
    return layer.numbers.floats(outputs), layer.numbers.floats(1)


def _requantized(layer: Layer, value: GraphExpr) -> GraphExpr:
    """A result that the next layer reads as integers."""
    if layer.integer(8) <= 100:
        return value
    scale = float(layer.numbers.floats(1)[0])
    if scale == 0:
        raise UserError("the scale of a result is 0")
    return layer.b.divide(_rounded(layer, layer.b.multiply(value, scale)), scale)


def _whole(weight: Array, scales: Array) -> Array:
    """Weights as integers: as they are, or floats times their scales."""
    if weight.dtype == np.int8:
        return weight.astype(np.float32)
    scaled = weight * scales
    rounded: Array = np.clip(np.sign(scaled) * np.floor(np.abs(scaled) + 0.5), -127, 127)
    return rounded


def _rounded(layer: Layer, value: GraphExpr) -> GraphExpr:
    """The nearest integers of 8 bits, halves away from zero."""
    size = layer.call("floor", layer.b.add(layer.call("abs", value), 0.5))
    return layer.call("clip", layer.b.multiply(size, layer.call("sign", value)), minimum=-127.0, maximum=127.0)


@converter("Deconvolution", "DeconvolutionDepthWise", "Deconvolution1D", "DeconvolutionDepthWise1D", "Deconvolution3D",
           "DeconvolutionDepthWise3D")  # fmt: skip
def deconvolution(layer: Layer) -> GraphExpr:
    """The transpose of a convolution; weights are by output first."""
    dims = _dims(layer.kind)
    data = _image(layer, dims)
    if layer.integer(28) or layer.integer(20) or layer.integer(21):
        raise UnsupportedError(f"{layer.kind} to a given size, or with weights that are data")
    kernel, dilation, strides = _pairs(layer, dims)
    groups = layer.count(7, 1, 1) if "DepthWise" in layer.kind else 1
    channels = size_at(data, 1)
    outputs = _outputs(layer, math.prod(kernel), channels, groups)
    inside, outside = channels // groups, outputs // groups
    weight = layer.numbers.marked(groups, outside, inside, *kernel)
    turned = np.swapaxes(weight, 1, 2).reshape(channels, outside, *kernel)
    bias = layer.plain(outputs) if layer.integer(5) else None
    before, after = _padding(layer, dims)
    if min(*before, *after) < 0:
        raise UnsupportedError(f"{layer.kind} with SAME padding")
    extra = (0, layer.count(19), layer.count(18))[3 - dims :]
    extents = Extents(kernel, strides, before, after, dilation)
    if weight.dtype == np.int8:
        raise UnsupportedError(f"{layer.kind} with weights of 8 bits")
    result = deconvolve(layer.b, data, layer.constant_of(turned), bias, extents, extra, groups)
    return layer.single(layer.activated(result))


@converter("InnerProduct")
def inner_product(layer: Layer) -> GraphExpr:
    """All elements, or each row of a table, times a matrix."""
    data, b = layer.input(0), layer.b
    outputs, count = layer.count(0, 0, 1), layer.count(2)
    if count % outputs:
        raise UserError(f"{count} weights are not {outputs} rows")
    inputs = count // outputs
    is_table = rank_of(data) == 2 and sizes_of(data)[1] == inputs
    rows = data if is_table else b.reshape(data, (1, inputs))
    weight = layer.numbers.marked(outputs, inputs)
    bias = layer.plain(outputs) if layer.integer(1) else None
    if layer.integer(8) or weight.dtype == np.int8:
        scales, step = layer.numbers.floats(outputs), float(layer.numbers.floats(1)[0])
        whole = layer.constant_of(_whole(weight, scales[:, None]))
        sums = dense(b, _rounded(layer, b.multiply(rows, step)), whole, None)
        with np.errstate(divide="ignore"):
            factor = np.where(scales * step == 0, 0, 1 / (scales * step))
        result = b.multiply(sums, layer.constant_of(factor))
        result = result if bias is None else b.add(result, bias)
    else:
        result = dense(b, rows, layer.constant_of(weight), bias)
    result = layer.activated(result)
    return result if is_table and sizes_of(data)[0] != 1 else b.reshape(result, (outputs,))


@converter("Embed")
def embed(layer: Layer) -> GraphExpr:
    """A row of the weights for each number; numbers outside are the nearest."""
    outputs, inputs = layer.count(0, 0, 1), layer.count(1, 0, 1)
    table = layer.marked(inputs, outputs)
    places = layer.b.reshape(layer.b.cast(layer.input(0), INT64), (sizes_of(layer.input(0))[-1],))
    result = layer.call("take", table, places, axis=0, mode="clip")
    return layer.b.add(result, layer.plain(outputs)) if layer.integer(2) else result


@converter("MatMul")
def matmul(layer: Layer) -> GraphExpr:
    """Products of matrices."""
    return layer.call("matmul", layer.input(0), layer.input(1), transpose_b=bool(layer.integer(0)))


@converter("Gemm")
def gemm(layer: Layer) -> GraphExpr:
    """alpha * (a b + beta * c), where each of the three may be weights."""
    b, inputs = layer.b, iter(layer.inputs)
    alpha, beta = layer.number(0, 1.0), layer.number(1, 1.0)
    flags = [bool(layer.integer(at)) for at in (2, 3)]
    constants = [bool(layer.integer(at)) for at in (4, 5, 6)]
    rows, columns, inner = (layer.integer(at) for at in (7, 8, 9))
    if layer.integer(18) or any(layer.integer(at) for at in (11, 12, 13, 14)):
        raise UnsupportedError("Gemm of integers, or with results of another layout")
    values: list[GraphExpr] = []
    shapes = ((inner, rows) if flags[0] else (rows, inner), (columns, inner) if flags[1] else (inner, columns))
    for is_weight, shape in zip(constants, shapes, strict=False):
        value = layer.marked(*shape) if is_weight else next(inputs, None)
        if value is None:
            raise UserError("Gemm needs two matrices")
        values.append(value)
    kind = layer.integer(10)
    third: GraphExpr | None = None
    if constants[2] and kind != -1:
        shapes_of_third = {0: (1,), 1: (rows, 1), 2: (rows, 1), 3: (rows, columns), 4: (1, columns)}
        if kind not in shapes_of_third:
            raise UserError(f"Gemm adds weights of the kind number {kind}")
        third = layer.marked(*shapes_of_third[kind])
    elif not constants[2]:
        third = next(inputs, None)
    result = layer.call("matmul", values[0], values[1], transpose_a=flags[0], transpose_b=flags[1])
    if third is not None:
        result = b.add(result, third if beta == 1 else b.multiply(third, beta))
    return result if alpha == 1 else b.multiply(result, alpha)


@converter("MemoryData")
def memory_data(layer: Layer) -> GraphExpr:
    """Weights as data."""
    sizes = [layer.count(key) for key in (2, 11, 1, 0)]
    shape = [size for size in sizes if size]
    if not shape:
        raise UserError("MemoryData of no size")
    return layer.plain(*shape) if layer.integer(21, 1) == 1 else layer.marked(*shape)


@converter("Scale")
def scale(layer: Layer) -> GraphExpr:
    """Channels times numbers, weights or the second bottom, plus numbers."""
    count = layer.integer(0)
    data, rank = layer.input(0), rank_of(layer.input(0))
    if count == UNSET:
        factor = layer.input(1)
        size = size_at(data, 0)
        factor = layer.b.reshape(factor, (size,))
    else:
        size = layer.count(0, 0, 1)
        factor = layer.plain(size)
    result = layer.b.multiply(data, along_channels(layer.b, factor, rank, 0))
    return layer.b.add(result, along_channels(layer.b, layer.plain(size), rank, 0)) if layer.integer(1) else result


@converter("Bias")
def bias(layer: Layer) -> GraphExpr:
    """Channels plus numbers."""
    data = layer.input(0)
    return layer.b.add(data, along_channels(layer.b, layer.plain(layer.count(0, 0, 1)), rank_of(data), 0))


@converter("BatchNorm")
def batch_norm(layer: Layer) -> GraphExpr:
    """Channels times and plus numbers, which statistics say."""
    data, count = layer.input(0), layer.count(0, 0, 1)
    slope, mean, variance, shift = (layer.numbers.floats(count).astype(np.float64) for _ in range(4))
    with np.errstate(all="ignore"):
        factor = slope / np.sqrt(variance + layer.number(1))
    added = shift - mean * factor
    rank = rank_of(data)
    result = layer.b.multiply(data, along_channels(layer.b, layer.constant_of(factor), rank, 0))
    return layer.b.add(result, along_channels(layer.b, layer.constant_of(added), rank, 0))


@converter("PReLU")
def prelu(layer: Layer) -> GraphExpr:
    """With a slope of each channel, or one of all."""
    count, data = layer.count(0, 0, 1), layer.input(0)
    slope = layer.plain(count)
    if count > 1:
        slope = along_channels(layer.b, slope, rank_of(data), 0)
    return layer.call("nn.prelu", data, slope)
