"""Converters of softmax and the normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.support.errors import CompilerBug


def _softmax(name: str) -> Converter:
    def convert(
        b: TorchBuilder,
        x: GraphExpr,
        dim: int,
        half_to_float: bool = False,
        dtype: DataType | None = None,
    ) -> GraphExpr:
        value = b.cast(x, b.dtype)
        if not rank_of(x):
            return b.filled(1 if name == "nn.softmax" else 0, (), b.dtype)
        return value if 0 in sizes_of(x) else b.call(name, value, axis=b.axis(dim, rank_of(x)))

    convert.__doc__ = f"{name} along an axis."
    return convert


converter("_softmax", "softmax", "special_softmax")(_softmax("nn.softmax"))
converter("_log_softmax", "log_softmax", "special_log_softmax")(_softmax("nn.log_softmax"))


@converter("_safe_softmax")
def safe_softmax(b: TorchBuilder, x: GraphExpr, dim: int, dtype: DataType | None = None) -> GraphExpr:
    """Softmax; 0 where everything is minus infinity."""
    softmax = _softmax("nn.softmax")
    if not rank_of(x) or 0 in sizes_of(x):
        plain: GraphExpr = softmax(b, x, dim)
        return plain
    value = b.cast(x, b.dtype)
    top = b.reduce("max", value, (b.axis(dim, rank_of(x)),), True)
    blind = b.compare("equal", top, -math.inf)
    # Softmax never meets such a row: its gradient would be NaN, times 0.
    return b.where(blind, 0.0, softmax(b, b.where(blind, 0.0, value), dim))


def _parameter(
    b: TorchBuilder, value: GraphExpr | None, default: float, shape: Sequence[int], dtype: DataType
) -> GraphExpr:
    return b.filled(default, shape, dtype) if value is None else b.cast(value, dtype)


@converter("layer_norm")
def layer_norm(
    b: TorchBuilder,
    input: GraphExpr,
    normalized_shape: Sequence[int],
    weight: GraphExpr | None = None,
    bias: GraphExpr | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> GraphExpr:
    """Normalised over the last axes, then scaled and shifted."""
    if 0 in sizes_of(input):
        return input
    scale = _parameter(b, weight, 1.0, normalized_shape, dtype_of(input))
    shift = _parameter(b, bias, 0.0, normalized_shape, dtype_of(input))
    return b.call("nn.layer_norm", input, scale, shift, axis=rank_of(input) - len(normalized_shape), epsilon=eps)


@converter("native_layer_norm")
def native_layer_norm(
    b: TorchBuilder,
    input: GraphExpr,
    normalized_shape: Sequence[int],
    weight: GraphExpr | None,
    bias: GraphExpr | None,
    eps: float,
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Layer normalisation with the mean and the inverse deviation."""
    axes = range(rank_of(input) - len(normalized_shape), rank_of(input))
    mean, spread = _statistics(b, input, axes, eps)
    return layer_norm(b, input, normalized_shape, weight, bias, eps), mean, spread


def _statistics(b: TorchBuilder, x: GraphExpr, axes: Sequence[int], eps: float) -> tuple[GraphExpr, GraphExpr]:
    """The mean and 1 / sqrt(variance + eps) over axes, which stay as 1."""
    mean = b.reduce("mean", x, axes, True)
    distance = b.subtract(x, mean)
    variance = b.reduce("mean", b.multiply(distance, distance), axes, True)
    return mean, b.call("rsqrt", b.add(variance, eps))


def _by_channel(b: TorchBuilder, value: GraphExpr, rank: int) -> GraphExpr:
    return b.reshape(value, (shape_of(value)[0], *(1,) * (rank - 2)))


@converter("_native_batch_norm_legit_no_training")
def batch_norm(
    b: TorchBuilder,
    input: GraphExpr,
    weight: GraphExpr | None,
    bias: GraphExpr | None,
    running_mean: GraphExpr,
    running_var: GraphExpr,
    momentum: float,
    eps: float,
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """With given statistics; what a gradient would need is empty on CPUs, and these statistics on GPUs, as in torch."""
    if isinstance(b.meta, (tuple, list)) and tuple(b.meta[1].shape) != (0,):
        kept = (running_mean, b.call("rsqrt", b.add(running_var, eps)))
    else:
        kept = (b.empty((0,), dtype_of(running_mean)),) * 2
    if 0 in sizes_of(input):
        return input, *kept
    channels = (size_at(input, 1),)
    dtype = dtype_of(input)
    parts = [
        _parameter(b, weight, 1.0, channels, dtype),
        _parameter(b, bias, 0.0, channels, dtype),
        b.cast(running_mean, dtype),
        b.cast(running_var, dtype),
    ]
    return b.call("nn.batch_norm", input, *parts, epsilon=eps, axis=1), *kept


@converter("batch_norm")
def batch_norm_alone(
    b: TorchBuilder,
    input: GraphExpr,
    weight: GraphExpr | None,
    bias: GraphExpr | None,
    running_mean: GraphExpr | None,
    running_var: GraphExpr | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> GraphExpr:
    """With given statistics: in training it is taken apart."""
    if training or running_mean is None or running_var is None:
        raise CompilerBug("batch normalisation with the statistics of the batch was not taken apart")
    return batch_norm(b, input, weight, bias, running_mean, running_var, momentum, eps)[0]


@converter("native_group_norm")
def native_group_norm(
    b: TorchBuilder,
    input: GraphExpr,
    weight: GraphExpr | None,
    bias: GraphExpr | None,
    N: Size,
    C: int,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Normalised over groups of channels, with the mean and the inverse deviation."""
    if 0 in sizes_of(input):
        nothing = b.empty((N, group), dtype_of(input)) if 0 in (N, group) else b.filled(0, (N, group), dtype_of(input))
        return input, nothing, nothing
    grouped = b.reshape(input, (N, group, dimensions.multiply(C // group, HxW)))
    mean, spread = _statistics(b, grouped, (2,), eps)
    normal = b.reshape(b.multiply(b.subtract(grouped, mean), spread), sizes_of(input))
    rank = rank_of(input)
    if weight is not None:
        normal = b.multiply(normal, _by_channel(b, weight, rank))
    if bias is not None:
        normal = b.add(normal, _by_channel(b, bias, rank))
    return normal, b.reshape(mean, (N, group)), b.reshape(spread, (N, group))


@converter("rms_norm")
def rms_norm(
    b: TorchBuilder,
    input: GraphExpr,
    normalized_shape: Sequence[int],
    weight: GraphExpr | None = None,
    eps: float | None = None,
) -> GraphExpr:
    """Divided by the root of the mean square over the last axes."""
    if 0 in sizes_of(input):
        return input
    wide = FLOAT32 if dtype_of(input).bits < 32 else dtype_of(input)
    value = b.cast(input, wide)
    axes = range(rank_of(input) - len(normalized_shape), rank_of(input))
    least = eps if eps is not None else (2.0**-52 if wide.bits == 64 else 2.0**-23)
    square = b.reduce("mean", b.multiply(value, value), tuple(axes), True)
    normal = b.cast(b.multiply(value, b.call("rsqrt", b.add(square, least))), dtype_of(input))
    return normal if weight is None else b.multiply(normal, weight)
