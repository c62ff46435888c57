"""Converters of layers with weights, normalisations, pooling and resizing."""

from __future__ import annotations

from tilewright.frontend.caffe2.node import Node, converter
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.ceil_windows import average_pooled, check_window, max_pooled
from tilewright.frontend.core.layers import (
    affine,
    along_channels,
    convolve,
    deconvolve,
    dense,
    flattened,
    repeated,
    shuffled_channels,
)
from tilewright.frontend.core.local_response import across_channels, mean_free
from tilewright.frontend.core.resampling import linear_at, scaled_size, take_at
from tilewright.frontend.core.windows import Extents, known_sizes, same_padding
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_VALID, _SAME, _CAFFE = 1, 2, 3


def _per_dimension(node: Node, name: str, rank: int, default: int) -> tuple[int, ...]:
    """A list, one number for all dimensions, or two under names of their own."""
    if node.has(f"{name}s"):
        values = node.ints(f"{name}s")
    elif node.has(name):
        values = (node.integer(name, default),) * rank
    elif node.has(f"{name}_h") or node.has(f"{name}_w"):
        values = (node.integer(f"{name}_h", default), node.integer(f"{name}_w", default))
    else:
        values = (default,) * rank
    if len(values) != rank:
        raise UserError(f"{name} has {len(values)} numbers for {rank} dimensions")
    return values


def _extents(node: Node, size: tuple[Size, ...], kernel: tuple[int, ...] | None = None) -> tuple[Extents, bool]:
    """The window of an operator, and whether the number of windows is rounded up."""
    rank = len(size)
    kernel = _per_dimension(node, "kernel", rank, 0) if kernel is None else kernel
    strides, dilation = _per_dimension(node, "stride", rank, 1), _per_dimension(node, "dilation", rank, 1)
    if any(item < 1 for item in (*kernel, *strides, *dilation)):
        raise UserError(f"a kernel of {kernel} by steps of {strides}, spread by {dilation}: all must be positive")
    before, after = _pads(node, rank)
    mode = node.integer("legacy_pad", 0)
    if mode == _VALID:
        before = after = (0,) * rank
    elif mode == _SAME:
        total = [
            same_padding(*item)
            for item in zip(known_sizes(size, "SAME padding"), strides, kernel, dilation, strict=True)
        ]
        before = tuple(item // 2 for item in total)
        after = tuple(item - item // 2 for item in total)
    elif mode not in (0, _CAFFE):
        raise UserError(f"the padding number {mode} is not known")
    return Extents(kernel, strides, before, after, dilation), mode == _CAFFE


def _pads(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if node.has("pads"):
        pads = node.ints("pads")
        if len(pads) != 2 * rank:
            raise UserError(f"pads has {len(pads)} numbers for {rank} dimensions")
        return pads[:rank], pads[rank:]
    if node.has("pad") or rank != 2:
        return (node.integer("pad", 0),) * rank, (node.integer("pad", 0),) * rank
    sides = [node.integer(f"pad_{side}", 0) for side in "tlbr"]
    return (sides[0], sides[1]), (sides[2], sides[3])


@converter("Conv", "Conv1D", "Conv2D", "Conv3D", "ConvRelu")
def conv(node: Node) -> GraphExpr:
    """In one, two or three dimensions, with channels first or last."""
    weight = node.first(node.input(1))
    data = node.first(node.input(0))
    rank = rank_of(data) - 2
    if rank < 1 or rank_of(weight) != rank + 2:
        raise UserError(f"weights of {rank_of(weight)} dimensions do not fit data of {rank_of(data)}")
    kernel = tuple(size_at(weight, 2 + at) for at in range(rank))
    extents, _ = _extents(node, sizes_of(data)[2:], kernel)
    check_window(extents, sizes_of(data)[2:])
    result = convolve(node.b, data, weight, node.optional(2), extents, node.integer("group", 1))
    if node.kind == "ConvRelu":
        result = node.call("nn.relu", result)
    return node.in_order(result)


@converter("ConvTranspose")
def conv_transpose(node: Node) -> GraphExpr:
    """The transpose of a convolution."""
    data, weight = node.first(node.input(0)), node.first(node.input(1))
    rank = rank_of(data) - 2
    kernel = tuple(size_at(weight, 2 + at) for at in range(rank))
    extents, _ = _extents(node, sizes_of(data)[2:], kernel)
    extra = _per_dimension(node, "adj", rank, 0)
    groups = node.integer("group", 1)
    return node.in_order(deconvolve(node.b, data, weight, node.optional(2), extents, extra, groups))


@converter("FC", "FCTransposed")
def fully_connected(node: Node) -> GraphExpr:
    """Everything from an axis on times a matrix."""
    data, weight, b = node.input(0), node.input(1), node.b
    axis = node.axis(node.integer("axis", 1), rank_of(data))
    rows = flattened(b, data, axis)
    split = node.axis(node.integer("axis_w", 1), rank_of(weight))
    sizes = sizes_of(weight)
    matrix = b.reshape(weight, (product(sizes[:split]), product(sizes[split:])))
    if node.kind == "FCTransposed":
        matrix = b.transpose(matrix, (1, 0))
    return dense(b, rows, matrix, node.optional(2))


@converter("SpatialBN")
def spatial_bn(node: Node) -> GraphExpr:
    """With given statistics, or those of the batch."""
    scale, shift, epsilon = node.input(1), node.input(2), node.number("epsilon", 1e-5)

    def normalised(data: GraphExpr) -> GraphExpr:
        if node.flag("is_test") or node.has_input(4):
            statistics = node.input(3), node.input(4)
            return node.call("nn.batch_norm", data, scale, shift, *statistics, epsilon=epsilon, axis=1)
        axes = [at for at in range(rank_of(data)) if at != 1]
        return affine(node.b, mean_free(node.b, data, axes, epsilon, outside=False), scale, shift)

    return node.through(normalised)


@converter("AffineChannel")
def affine_channel(node: Node) -> GraphExpr:
    """Each channel times a number, plus a number."""
    return node.through(lambda data: affine(node.b, data, node.input(1), node.input(2)))


@converter("InstanceNorm")
def instance_norm(node: Node) -> GraphExpr:
    """Statistics of each channel of each image."""
    epsilon = node.number("epsilon", 1e-5)

    def normalised(data: GraphExpr) -> GraphExpr:
        normal = mean_free(node.b, data, range(2, rank_of(data)), epsilon, outside=False)
        return affine(node.b, normal, node.input(1), node.input(2))

    return node.through(normalised)


@converter("GroupNorm")
def group_norm(node: Node) -> GraphExpr:
    """Statistics of groups of channels."""
    groups, epsilon = node.integer("group", 32), node.number("epsilon", 1e-5)

    def normalised(data: GraphExpr) -> GraphExpr:
        sizes, channels = sizes_of(data), size_at(data, 1)
        if groups < 1 or channels % groups:
            raise UserError(f"{groups} groups do not divide {channels} channels")
        grouped = node.b.reshape(data, (sizes[0], groups, product((channels // groups, *sizes[2:]))))
        normal = node.b.reshape(mean_free(node.b, grouped, (2,), epsilon, outside=False), sizes)
        return affine(node.b, normal, node.input(1), node.input(2))

    return node.through(normalised)


@converter("LayerNorm")
def layer_norm(node: Node) -> GraphExpr:
    """Statistics of everything from an axis on."""
    data, b = node.input(0), node.b
    axis = node.axis(node.integer("axis", 1), rank_of(data))
    normal = mean_free(b, data, range(axis, rank_of(data)), node.number("epsilon", 1e-5), outside=False)
    if node.flag("elementwise_affine"):
        scale, shift = (b.reshape(node.input(at), sizes_of(data)[axis:]) for at in (1, 2))
        normal = node.call("add", node.call("multiply", normal, scale), shift)
    return normal


@converter("LRN")
def local_response(node: Node) -> GraphExpr:
    """Divided by a power of the mean of squares of neighbouring channels."""
    size, alpha, beta = node.integer("size", 0), node.number("alpha", 0.0), node.number("beta", 0.0)
    bias = node.number("bias", 1.0)
    return node.through(lambda data: across_channels(node.b, data, size, alpha, beta, bias))


@converter("MaxPool", "MaxPool1D", "MaxPool2D", "MaxPool3D", "AveragePool", "AveragePool1D", "AveragePool2D",
           "AveragePool3D")  # fmt: skip
def pool(node: Node) -> GraphExpr:
    """Maxima or means of windows, or of everything; padding does not count in means unless it says so."""
    is_max = node.kind.startswith("Max")

    def pooled(data: GraphExpr) -> GraphExpr:
        axes = tuple(range(2, rank_of(data)))
        if node.flag("global_pooling"):
            return node.call("max" if is_max else "mean", data, axes=axes, keepdims=True)
        extents, ceiling = _extents(node, sizes_of(data)[2:])
        check_window(extents, sizes_of(data)[2:])
        if is_max:
            return max_pooled(node.b, data, extents, ceiling)
        return average_pooled(node.b, data, extents, ceiling, node.flag("count_include_pad"))

    return node.through(pooled)


@converter("ResizeNearest", "UpsampleNearest")
def resize_nearest(node: Node) -> GraphExpr:
    """Elements at places rounded down."""
    if node.kind == "UpsampleNearest":
        return node.through(lambda data: repeated(node.b, data, (node.integer("scale", 2),) * 2))
    scales = node.number("height_scale", 1.0), node.number("width_scale", 1.0)

    def resized(data: GraphExpr) -> GraphExpr:
        if all(float(scale).is_integer() and scale >= 1 for scale in scales):
            return repeated(node.b, data, [int(scale) for scale in scales])
        for axis, scale in zip((2, 3), scales, strict=True):
            wanted = scaled_size(sizes_of(data)[axis], scale, "float32")
            if wanted is None or not scale > 0:
                raise UnsupportedError(f"a resize by {scale}")
            places = node.b.divide(node.b.cast(node.b.arange(wanted), FLOAT32), scale)
            data = take_at(node.b, data, axis, node.call("floor", places))
        return data

    return node.through(resized)


@converter("UpsampleBilinear")
def upsample_bilinear(node: Node) -> GraphExpr:
    """Values between neighbours, corners on corners."""
    scales = node.number("height_scale", 1.0), node.number("width_scale", 1.0)

    def resized(data: GraphExpr) -> GraphExpr:
        for axis, scale in zip((2, 3), scales, strict=True):
            size = size_at(data, axis)
            wanted = int(size * scale)
            if wanted < 1:
                raise UserError(f"a resize of {size} elements by {scale}")
            step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
            places = node.b.multiply(node.b.cast(node.b.arange(wanted), FLOAT32), step)
            data = linear_at(node.b, data, axis, places)
        return data

    return node.through(resized)


@converter("ChannelShuffle")
def channel_shuffle(node: Node) -> GraphExpr:
    """Channels of groups by turns."""
    return node.through(lambda data: shuffled_channels(node.b, data, node.integer("group", 1)))


@converter("PadImage")
def pad_image(node: Node) -> GraphExpr:
    """Elements around an image."""
    mode = node.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise UserError(f"the padding mode {mode!r} is not known")
    before, after = _pads(node, 2)
    value = node.number("value", 0.0)
    return node.through(
        lambda data: node.call("pad", data, before=(0, 0, *before), after=(0, 0, *after), mode=mode, value=value)
    )


@converter("PRelu")
def prelu(node: Node) -> GraphExpr:
    """With a slope of each channel, or one of all."""
    slope = node.input(1)
    if size_at(slope, 0) == 1:
        return node.call("nn.prelu", node.input(0), slope)
    return node.through(lambda data: node.call("nn.prelu", data, along_channels(node.b, slope, rank_of(data))))


@converter("Softmax", "LogSoftmax")
def softmax(node: Node) -> GraphExpr:
    """Of everything from an axis on."""
    data, b = node.input(0), node.b
    axis = node.axis(node.integer("axis", 1), rank_of(data)) if rank_of(data) > 1 else 0
    rows = flattened(b, data, axis)
    name = "nn.softmax" if node.kind == "Softmax" else "nn.log_softmax"
    return b.reshape(node.call(name, rows, axis=axis), sizes_of(data))


@converter("BatchMatMul", "MatMul")
def matmul(node: Node) -> GraphExpr:
    """Products of matrices, one by one."""
    flags = {f"transpose_{side}": node.flag(f"trans_{side}") for side in "ab"}
    a, c = node.input(0), node.input(1)
    if node.kind == "MatMul" and (rank_of(a) != 2 or rank_of(c) != 2):
        raise UnsupportedError(f"MatMul of tensors of {rank_of(a)} and {rank_of(c)} dimensions")
    return node.call("matmul", a, node.b.cast(c, dtype_of(a)), **flags)
