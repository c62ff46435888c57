"""Converters of normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, different, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.support.errors import UnsupportedError, UserError


@converter("BatchNormalization")
def batch_normalization(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """The inference form, whose statistics are inputs; the training form of opset 14 and later gives new ones."""
    if node.opset < 9 and not node.integer("spatial", 1):
        raise UnsupportedError("BatchNormalization with statistics for every element (spatial=0)")
    node.ignore("spatial")
    if node.integer("training_mode", 0):
        return _training_batch_normalization(node)
    node.ignore("momentum")
    node.only_output(1, "running statistics")
    data = node.input(0)
    epsilon = node.number("epsilon", 1e-5)
    rest = [node.builder.cast(node.input(index), dtype_of(data)) for index in range(1, 5)]
    if rank_of(data) < 2:
        raise UserError(f"BatchNormalization needs data of at least 2 dimensions, it is {shape_of(data)}")
    return node.call("nn.batch_norm", data, *rest, epsilon=epsilon, axis=1)


def _training_batch_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """Normalised by the statistics of the batch, which are mixed into the running ones."""
    data, momentum = node.input(0), node.number("momentum", 0.9)
    shape = sizes_of(data)
    if len(shape) < 2:
        raise UserError(f"BatchNormalization needs data of at least 2 dimensions, it is {sizes_text(shape)}")
    axes = tuple(at for at in range(len(shape)) if at != 1)
    mean = node.call("mean", data, axes=axes, keepdims=True)
    centred = node.call("subtract", data, mean)
    variance = node.call("mean", node.call("multiply", centred, centred), axes=axes, keepdims=True)
    flat = [node.builder.reshape(value, (shape[1],)) for value in (mean, variance)]
    rest = [node.builder.cast(node.input(index), dtype_of(data)) for index in (1, 2)]
    result = node.call("nn.batch_norm", data, *rest, *flat, epsilon=node.number("epsilon", 1e-5), axis=1)
    running: list[GraphExpr | None] = []
    for index, fresh in zip((3, 4), flat, strict=True):
        old = node.input(index)
        fresh = node.builder.cast(fresh, dtype_of(old))
        kept = node.call("multiply", old, node.builder.constant_like(momentum, old))
        mixed = node.call("multiply", fresh, node.builder.constant_like(1 - momentum, old))
        running.append(node.call("add", kept, mixed))
    return [result, *running]


def _normalised(
    node: NodeContext, data: GraphExpr, axes: Sequence[int], epsilon: float
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """(x - mean) / sqrt(variance + epsilon), with the mean and the inverse deviation."""
    mean = node.call("mean", data, axes=tuple(axes), keepdims=True)
    centred = node.call("subtract", data, mean)
    variance = node.call("mean", node.call("multiply", centred, centred), axes=tuple(axes), keepdims=True)
    inverse = node.call("rsqrt", node.call("add", variance, node.builder.constant_like(epsilon, variance)))
    return node.call("multiply", centred, inverse), mean, inverse


@converter("LayerNormalization")
def layer_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """Over all axes from one on; mean and inverse deviation on demand."""
    data, scale, bias = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    epsilon = node.number("epsilon", 1e-5)
    stash = data_type(node.integer("stash_type", 1), "the statistics of LayerNormalization")
    shape = sizes_of(data)
    mean: GraphExpr | None = None
    inverse: GraphExpr | None = None
    if node.wants_output(1) or node.wants_output(2):
        wide = node.builder.cast(data, stash)
        _, mean, inverse = _normalised(node, wide, range(axis, len(shape)), epsilon)
    data = node.builder.fitting(data, *(item for item in (scale, bias) if item is not None))
    shape = sizes_of(data)
    if rank_of(scale) <= len(shape) - axis and (bias is None or rank_of(bias) <= len(shape) - axis):
        if bias is None:
            bias = node.builder.filled(0, shape[axis:], dtype_of(data))
        return [node.call("nn.layer_norm", data, scale, bias, axis=axis, epsilon=epsilon), mean, inverse]
    normal, _, _ = _normalised(node, node.builder.cast(data, stash), range(axis, len(shape)), epsilon)
    result = node.call("multiply", node.builder.cast(normal, dtype_of(data)), scale)
    return [result if bias is None else node.call("add", result, bias), mean, inverse]


@converter("RMSNormalization")
def rms_normalization(node: NodeContext) -> GraphExpr:
    """x / sqrt(mean of squares + epsilon) * scale, over all axes from one on."""
    scale = node.input(1)
    data = node.builder.fitting(node.input(0), scale)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    epsilon = node.number("epsilon", 1e-5)
    wide = node.builder.cast(data, data_type(node.integer("stash_type", 1), "the statistics of RMSNormalization"))
    axes = tuple(range(axis, rank_of(data)))
    square = node.call("mean", node.call("multiply", wide, wide), axes=axes, keepdims=True)
    inverse = node.call("rsqrt", node.call("add", square, node.builder.constant_like(epsilon, square)))
    normal = node.builder.cast(node.call("multiply", wide, inverse), dtype_of(scale))
    return node.call("multiply", normal, scale)


def _per_channel(node: NodeContext, value: GraphExpr, channels: Size, rank: int, what: str) -> GraphExpr:
    found = sizes_of(value)
    if len(found) != 1 or different(found[0], channels):
        raise UserError(f"the {what} has shape {sizes_text(found)}, the data has {size_text(channels)} channels")
    return node.builder.reshape(value, (channels, *(1,) * (rank - 2)))


@converter("InstanceNormalization")
def instance_normalization(node: NodeContext) -> GraphExpr:
    """Statistics over the spatial dimensions of each channel of each sample."""
    data = node.input(0)
    rank = rank_of(data)
    if rank < 3:
        raise UserError(f"InstanceNormalization needs data of at least 3 dimensions, it is {shape_of(data)}")
    channels = sizes_of(data)[1]
    scale = _per_channel(node, node.input(1), channels, rank, "scale")
    bias = _per_channel(node, node.input(2), channels, rank, "bias")
    return node.call("nn.layer_norm", data, scale, bias, axis=2, epsilon=node.number("epsilon", 1e-5))


@converter("GroupNormalization")
def group_normalization(node: NodeContext) -> GraphExpr:
    """Statistics over groups of channels; scale and bias are per group before opset 21, per channel since."""
    data = node.input(0)
    shape = sizes_of(data)
    groups = node.integer("num_groups")
    if len(shape) < 2 or groups < 1 or size_at(data, 1) % groups:
        raise UserError(f"{groups} groups do not fit data of shape {sizes_text(shape)}")
    epsilon = node.number("epsilon", 1e-5)
    wide = data
    if node.has_attribute("stash_type"):
        wide = node.builder.cast(data, data_type(node.integer("stash_type"), "the statistics of GroupNormalization"))
    grouped = node.builder.reshape(wide, (shape[0], groups, product((size_at(data, 1) // groups, *shape[2:]))))
    normal, _, _ = _normalised(node, grouped, (2,), epsilon)
    normal = node.builder.cast(normal, dtype_of(data))
    scale, bias = node.input(1), node.input(2)
    if node.opset < 21:
        scaled = node.call("multiply", normal, _per_channel(node, scale, groups, 3, "scale"))
        result = node.call("add", scaled, _per_channel(node, bias, groups, 3, "bias"))
        return node.builder.reshape(result, shape)
    normal = node.builder.reshape(normal, shape)
    scaled = node.call("multiply", normal, _per_channel(node, scale, shape[1], len(shape), "scale"))
    return node.call("add", scaled, _per_channel(node, bias, shape[1], len(shape), "bias"))
