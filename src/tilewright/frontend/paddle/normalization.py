"""Converters of the normalisations."""

from __future__ import annotations

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@converter("batch_norm", "sync_batch_norm", "fused_batch_norm_act", inputs="X Mean Variance Scale Bias", outputs="Y")
def batch_norm(node: NodeContext) -> GraphExpr:
    """By statistics that are given."""
    b, x = node.builder, node.input(0)
    mean, variance = node.input(1), node.input(2)
    axis = rank_of(x) - 1 if node.channels_last or rank_of(x) < 2 else 1
    scale = node.optional(3) or b.broadcast_to(b.scalar(1.0, mean.tensor_type.dtype), sizes_of(mean))
    bias = node.optional(4) or b.broadcast_to(b.scalar(0.0, mean.tensor_type.dtype), sizes_of(mean))
    return node.call(
        "nn.batch_norm", x, scale, bias, mean, variance, epsilon=node.number("epsilon", default=1e-5), axis=axis
    )


@converter("layer_norm", inputs="X Scale Bias", outputs="Y")
def layer_norm(node: NodeContext) -> GraphExpr:
    """By the statistics of all axes from one on."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.integer("begin_norm_axis", default=1), rank_of(x))
    sizes = sizes_of(x)[axis:]
    factors = [
        b.broadcast_to(b.scalar(default, x.tensor_type.dtype), sizes) if value is None else b.reshape(value, sizes)
        for value, default in ((node.optional(1), 1.0), (node.optional(2), 0.0))
    ]
    return node.call("nn.layer_norm", x, *factors, axis=axis, epsilon=node.number("epsilon", default=1e-5))


@converter("rms_norm", "fused_rms_norm", "fused_rms_norm_ext", inputs="X Scale")
def rms_norm(node: NodeContext) -> GraphExpr:
    """By the root of the mean square along the last axis."""
    b, x = node.builder, node.input(0)
    square = b.reduce("mean", b.multiply(x, x), (rank_of(x) - 1,), True)
    shrunk = b.multiply(x, b.call("rsqrt", b.add(square, node.number("epsilon", default=1e-6))))
    return b.multiply(shrunk, node.input(1)) if node.has_input(1) else shrunk


def _normalized(node: NodeContext, x: GraphExpr, axes: tuple[int, ...], epsilon: float) -> GraphExpr:
    b = node.builder
    centered = b.subtract(x, b.reduce("mean", x, axes, True))
    variance = b.reduce("mean", b.multiply(centered, centered), axes, True)
    return b.divide(centered, b.call("sqrt", b.add(variance, epsilon)))


def _scaled(node: NodeContext, x: GraphExpr, axis: int) -> GraphExpr:
    """Times a scale and plus a bias for each channel, where they are given."""
    b = node.builder
    shape: list[Size] = [1] * rank_of(x)
    shape[axis] = sizes_of(x)[axis]
    if node.has_input(1):
        x = b.multiply(x, b.reshape(node.input(1), shape))
    return b.add(x, b.reshape(node.input(2), shape)) if node.has_input(2) else x


@converter("instance_norm", inputs="X Scale Bias", outputs="Y")
def instance_norm(node: NodeContext) -> GraphExpr:
    """By the statistics of each channel of each image."""
    x = node.input(0)
    axes = tuple(range(2, rank_of(x)))
    return _scaled(node, _normalized(node, x, axes, node.number("epsilon", default=1e-5)), 1)


@converter("group_norm", inputs="X Scale Bias", outputs="Y")
def group_norm(node: NodeContext) -> GraphExpr:
    """By the statistics of groups of channels of each image."""
    b, x = node.builder, node.input(0)
    groups, last = node.integer("groups"), node.channels_last
    rank = rank_of(x)
    moved = b.transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x
    batch, channels = sizes_of(moved)[0], size_at(moved, 1)
    if groups < 1 or channels % groups:
        raise UserError(f"{channels} channels in {groups} groups")
    sizes = sizes_of(moved)
    parted = b.reshape(moved, (batch, groups, product((channels // groups, *sizes[2:]))))
    normal = b.reshape(_normalized(node, parted, (2,), node.number("epsilon", default=1e-5)), sizes)
    result = _scaled(node, normal, 1)
    return b.transpose(result, (0, *range(2, rank), 1)) if last else result


@converter("affine_channel", inputs="X Scale Bias")
def affine_channel(node: NodeContext) -> GraphExpr:
    """Times a scale and plus a bias for each channel."""
    return _scaled(node, node.input(0), rank_of(node.input(0)) - 1 if node.channels_last else 1)


@converter("lrn")
def local_response(node: NodeContext) -> GraphExpr:
    """By the squares of neighbouring channels: alpha is for each of them, ONNX has it for their mean."""
    size = node.integer("n", default=5)
    return node.onnx(
        "LRN",
        node.input(0),
        size=size,
        alpha=node.number("alpha", default=1e-4) * size,
        beta=node.number("beta", default=0.75),
        bias=node.number("k", default=1.0),
    )


@converter("label_smooth", inputs="X PriorDist")
def label_smooth(node: NodeContext) -> GraphExpr:
    """Labels mixed with a distribution."""
    b, x = node.builder, node.input(0)
    share = node.number("epsilon", default=0.0)
    kept = b.multiply(x, 1 - share)
    if node.has_input(1):
        return b.add(kept, b.multiply(node.input(1), share))
    return b.add(kept, share / size_at(x, rank_of(x) - 1))


@converter("cos_sim", inputs="X Y")
def cosine(node: NodeContext) -> GraphExpr:
    """The cosine of the angle between rows."""
    b, x, y = node.builder, node.input(0), node.input(1)
    axis = (rank_of(x) - 1,)
    lengths = [b.call("sqrt", b.reduce("sum", b.multiply(value, value), axis, True)) for value in (x, y)]
    return b.divide(b.reduce("sum", b.multiply(x, y), axis, True), b.multiply(lengths[0], lengths[1]))
