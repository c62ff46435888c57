"""Converters of normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.nn import is_channels_first
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError

_NORMS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2")


@converter("FusedBatchNorm", "FusedBatchNormV2", outputs=_NORMS)
def batch_norm(node: NodeContext) -> Sequence[GraphExpr]:
    """Normalised by given statistics a channel, or by those of the batch where the node is told to train."""
    data, scale, offset, mean, variance = (node.input(at) for at in range(5))
    axis = 1 if is_channels_first(node) else rank_of(data) - 1
    epsilon = node.number("epsilon", 1e-4)
    if node.flag("is_training", True):
        axes = tuple(at for at in range(rank_of(data)) if at != axis)
        wide = node.builder.cast(data, FLOAT32)
        mean = node.call("mean", wide, axes=axes)
        centred = node.call("subtract", wide, node.call("mean", wide, axes=axes, keepdims=True))
        variance = node.call("mean", node.call("multiply", centred, centred), axes=axes)
    values = [scale, offset, mean, variance]
    if dtype_of(data).name != "float32":
        values = [node.builder.cast(value, dtype_of(data)) for value in values]
    result = node.call("nn.batch_norm", data, *values, epsilon=epsilon, axis=axis)
    return [result, mean, variance, mean, variance]


@converter("FusedBatchNormV3", outputs=(*_NORMS, "reserve_space_3"))
def batch_norm_v3(node: NodeContext) -> Sequence[GraphExpr]:
    """The same with one output more, which only training takes."""
    results = batch_norm(node)
    return [*results, results[1]]


@converter("BatchNormWithGlobalNormalization")
def old_batch_norm(node: NodeContext) -> GraphExpr:
    """The form of the oldest graphs."""
    data, mean, variance, offset, scale = (node.input(at) for at in range(5))
    if not node.flag("scale_after_normalization", True):
        scale = node.builder.filled(1, sizes_of(offset), dtype_of(data))
    epsilon = node.number("variance_epsilon")
    return node.call("nn.batch_norm", data, scale, offset, mean, variance, epsilon=epsilon, axis=rank_of(data) - 1)


@converter("LRN")
def local_response_normalization(node: NodeContext) -> GraphExpr:
    """x / (bias + alpha * sum of the squares of neighbouring channels) ** beta."""
    data, call, b = node.input(0), node.call, node.builder
    radius, shape = node.integer("depth_radius", 5), sizes_of(data)
    if radius < 0 or len(shape) < 1:
        raise UserError(f"LRN over {radius} neighbours")
    size = 2 * radius + 1
    square = b.reshape(call("multiply", data, data), (1, product(shape[:-1]), shape[-1], 1))
    mean = call("nn.avg_pool2d", square, kernel=(size, 1), padding=(radius, 0, radius, 0), count_include_pad=True)
    scaled = b.multiply(b.reshape(mean, shape), node.number("alpha", 1.0) * size)
    base = b.add(scaled, node.number("bias", 1.0))
    return b.divide(data, b.binary("power", base, node.number("beta", 0.5)))
