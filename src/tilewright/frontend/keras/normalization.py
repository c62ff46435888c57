"""Normalisation: batch, layer, group, unit and root-mean-square; in float32 where data is of half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer, variables
from tilewright.frontend.keras.registry import Slot, layer, operation
from tilewright.frontend.keras.values import KerasBuilder, promoted
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.support.errors import UserError


def axes_of(call: LayerCall, described: Any, rank: int) -> tuple[int, ...]:
    """Axes of a configuration, counted from the front."""
    listed = list(described) if isinstance(described, (list, tuple)) else [described]
    return tuple(call.axis(item, rank) for item in listed)


def wide(data: GraphExpr) -> DataType:
    """The type that statistics are computed in."""
    return promoted([dtype_of(data), FLOAT32])


def _batch_slots(item: Layer) -> Sequence[Slot]:
    count = item.flag("scale", True) + item.flag("center", True)
    rest = 2 if not item.flag("renorm") else 5
    return [*variables(count), *(Slot(f"vars/{count + number}", False) for number in range(rest))]


@layer("BatchNormalization", "BatchNormalizationV1", "SyncBatchNormalization", variables=_batch_slots, keeps_mask=True)
def batch_normalization(call: LayerCall) -> GraphExpr:
    """By the mean and variance that training gathered."""
    b, data, options = call.builder, call.input(0), call.layer
    axes = axes_of(call, options.option("axis", -1), rank_of(data))
    if len(axes) != 1:
        raise UserError(f"a batch normalisation over the axes {axes}")
    channels, kind = size_at(data, axes[0]), wide(data)
    names = [f"vars/{place}" for place in range(4)]
    scale = call.weight(names.pop(0), (channels,), kind) if options.flag("scale", True) else None
    shift = call.weight(names.pop(0), (channels,), kind) if options.flag("center", True) else None
    mean, variance = (call.weight(names.pop(0), (channels,), kind) for _ in range(2))
    result = call.call(
        "nn.batch_norm",
        b.cast(data, kind),
        b.filled(1, (channels,), kind) if scale is None else scale,
        b.filled(0, (channels,), kind) if shift is None else shift,
        mean,
        variance,
        epsilon=options.number("epsilon", 1e-3),
        axis=axes[0],
    )
    return b.cast(result, options.dtype)


def _scale_and_center(item: Layer) -> Sequence[Slot]:
    return variables(item.flag("scale", True) + item.flag("center", True))


def _layer_slots(item: Layer) -> Sequence[Slot]:
    return variables(1) if item.flag("rms_scaling") else _scale_and_center(item)


@layer("LayerNormalization", variables=_layer_slots, keeps_mask=True, autocast=False)
def layer_normalization(call: LayerCall) -> GraphExpr:
    """By the mean and variance over axes of each sample."""
    b, data, options = call.builder, call.input(0), call.layer
    axes = axes_of(call, options.option("axis", -1), rank_of(data))
    kind = wide(data)
    names = iter(["vars/0", "vars/1"])
    rms = options.flag("rms_scaling")
    scale = call.weight(next(names), dtype=kind) if options.flag("scale", True) or rms else None
    shift = call.weight(next(names), dtype=kind) if options.flag("center", True) and not rms else None
    epsilon = options.number("epsilon", 1e-3)
    result = normalized(b, b.cast(data, kind), axes, epsilon, scale, shift, rms=rms)
    return b.cast(result, options.dtype)


def normalized(
    b: KerasBuilder,
    data: GraphExpr,
    axes: Sequence[int],
    epsilon: float,
    scale: GraphExpr | None,
    shift: GraphExpr | None,
    *,
    rms: bool = False,
) -> GraphExpr:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift; `rms`: without the mean, as Keras once had it."""
    rank = rank_of(data)
    spread = [_along(b, item, data, axes) for item in (scale, shift)]
    ordered = tuple(sorted(axes))
    if not rms and ordered == tuple(range(rank - len(axes), rank)):
        wanted = [sizes_of(data)[axis] for axis in ordered]
        if all(isinstance(size, int) for size in wanted):
            one = b.filled(1, wanted, dtype_of(data)) if spread[0] is None else b.reshape(spread[0], wanted)
            zero = b.filled(0, wanted, dtype_of(data)) if spread[1] is None else b.reshape(spread[1], wanted)
            return b.call("nn.layer_norm", data, one, zero, axis=ordered[0], epsilon=float(epsilon))
    mean = b.reduce("mean", data, ordered, True)
    centred = b.subtract(data, mean)
    variance = b.reduce("mean", b.multiply(centred, centred), ordered, True)
    factor = b.call("rsqrt", b.add(variance, epsilon))
    result = b.multiply(data if rms else centred, factor)
    result = result if spread[0] is None else b.multiply(result, spread[0])
    return result if spread[1] is None else b.add(result, spread[1])


def _along(b: KerasBuilder, value: GraphExpr | None, data: GraphExpr, axes: Sequence[int]) -> GraphExpr | None:
    """A factor with the dimensions of axes, as one that broadcasts with the data."""
    if value is None:
        return None
    if rank_of(value) in (0, rank_of(data)):
        return value
    if rank_of(value) != len(axes):
        raise UserError(f"a factor of {rank_of(value)} dimensions does not fit {len(axes)} axes")
    order = sorted(range(len(axes)), key=lambda place: axes[place])
    shape: list[Size] = [1] * rank_of(data)
    for place in order:
        shape[axes[place]] = sizes_of(value)[place]
    return b.reshape(b.transpose(value, order), shape)


@layer("GroupNormalization", variables=_scale_and_center, keeps_mask=True, autocast=False)
def group_normalization(call: LayerCall) -> GraphExpr:
    """By the mean and variance of groups of channels of each sample."""
    b, data, options = call.builder, call.input(0), call.layer
    rank = rank_of(data)
    axis = call.axis(options.option("axis", -1), rank)
    channels, groups = size_at(data, axis), options.integer("groups", 32)
    groups = channels if groups == -1 else groups
    if groups < 1 or channels % groups:
        raise UserError(f"{groups} groups do not divide {channels} channels")
    kind, sizes = wide(data), sizes_of(data)
    grouped = b.reshape(b.cast(data, kind), (*sizes[:axis], groups, channels // groups, *sizes[axis + 1 :]))
    reduced = [at for at in range(1, rank + 1) if at != axis]
    mean = b.reduce("mean", grouped, reduced, True)
    centred = b.subtract(grouped, mean)
    variance = b.reduce("mean", b.multiply(centred, centred), reduced, True)
    result = b.multiply(centred, b.call("rsqrt", b.add(variance, options.number("epsilon", 1e-3))))
    result = b.reshape(result, sizes)
    shape = [channels if at == axis else 1 for at in range(rank)]
    names = iter(["vars/0", "vars/1"])
    if options.flag("scale", True):
        result = b.multiply(result, b.reshape(call.weight(next(names), (channels,), kind), shape))
    if options.flag("center", True):
        result = b.add(result, b.reshape(call.weight(next(names), (channels,), kind), shape))
    return b.cast(b.cast(result, dtype_of(data)), options.dtype)


@layer("RMSNormalization", variables=lambda item: variables(1))
def rms_normalization(call: LayerCall) -> GraphExpr:
    """x divided by the root of the mean of its squares, times a factor."""
    data = call.input(0)
    axes = axes_of(call, call.layer.option("axis", -1), rank_of(data))
    scale = call.weight("vars/0", dtype=wide(data))
    return _root_mean_square(call.builder, data, axes, call.layer.number("epsilon", 1e-6), scale)


def _root_mean_square(
    b: KerasBuilder, data: GraphExpr, axes: Sequence[int], epsilon: float, scale: GraphExpr | None
) -> GraphExpr:
    value = b.cast(data, wide(data))
    square = b.reduce("mean", b.multiply(value, value), sorted(axes), True)
    result = b.multiply(value, b.call("rsqrt", b.add(square, epsilon)))
    if scale is not None:
        factor = scale if rank_of(scale) == 1 and axes[-1] == rank_of(data) - 1 else _along(b, scale, data, axes)
        assert factor is not None
        result = b.multiply(result, factor)
    return b.cast(result, dtype_of(data))


@layer("UnitNormalization", keeps_mask=True)
def unit_normalization(call: LayerCall) -> GraphExpr:
    """x divided by its length along axes."""
    data = call.input(0)
    axes = axes_of(call, call.layer.option("axis", -1), rank_of(data))
    return of_length_one(call.builder, data, axes, 2, 1e-12)


def of_length_one(b: KerasBuilder, data: GraphExpr, axes: Sequence[int], order: float, epsilon: float) -> GraphExpr:
    """x divided by its norm along axes; what is shorter than epsilon counts as that."""
    data = b.floating(data)
    if order == 2:
        total = b.reduce("sum", b.multiply(data, data), axes, True)
        return b.multiply(data, b.call("rsqrt", b.call("maximum", total, b.scalar(epsilon**2, dtype_of(data)))))
    magnitude = b.call("abs", data)
    if np.isinf(order):
        norm = b.reduce("max", magnitude, axes, True)
    elif order == 1:
        norm = b.reduce("sum", magnitude, axes, True)
    else:
        sums = b.reduce("sum", b.call("power", magnitude, b.scalar(order, dtype_of(data))), axes, True)
        norm = b.call("power", sums, b.scalar(1 / order, dtype_of(data)))
    return b.divide(data, b.call("maximum", norm, b.scalar(epsilon, dtype_of(data))))


# Operations


@operation("LayerNorm")
def layer_norm_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.layer_normalization`."""
    b, data = call.builder, call.input(0)
    axes = axes_of(call, call.layer.option("axis", -1), rank_of(data))
    epsilon = call.layer.option("epsilon")
    kind = wide(data)
    scale, shift = call.tensor("gamma", 1), call.tensor("beta", 2)
    result = normalized(
        b,
        b.cast(data, kind),
        axes,
        1e-7 if epsilon is None else call.layer.number("epsilon", 1e-7),
        None if scale is None else b.cast(scale, kind),
        None if shift is None else b.cast(shift, kind),
        rms=call.layer.flag("rms_scaling"),
    )
    return b.cast(result, dtype_of(data))


@operation("RMSNorm")
def rms_norm_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.rms_normalization`."""
    b, data = call.builder, call.input(0)
    axes = axes_of(call, call.layer.option("axis", -1), rank_of(data))
    scale = call.tensor("scale", 1)
    epsilon = 1e-7 if call.layer.option("epsilon") is None else call.layer.number("epsilon", 1e-7)
    return _root_mean_square(b, data, axes, epsilon, None if scale is None else b.cast(scale, wide(data)))


@operation("Normalize")
def normalize_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.normalize`."""
    data, options = call.input(0), call.layer
    axes = axes_of(call, options.option("axis", -1), rank_of(data))
    epsilon = 1e-7 if options.option("epsilon") is None else options.number("epsilon", 1e-7)
    return of_length_one(call.builder, data, axes, options.number("order", 2), epsilon)


@operation("BatchNorm", "BatchNormalization")
def batch_norm_operation(call: LayerCall) -> GraphExpr:
    """`keras.ops.batch_normalization`, with statistics that are tensors."""
    b, data, options = call.builder, call.input(0), call.layer
    axis = call.axis(options.option("axis", -1), rank_of(data))
    shape: list[Size] = [1] * rank_of(data)
    shape[axis] = sizes_of(data)[axis]
    given = [call.tensor(name, place) for place, name in enumerate(("x", "mean", "variance", "offset", "scale"))]
    mean, variance, offset, scale = (None if item is None else b.reshape(item, shape) for item in given[1:])
    if mean is None or variance is None:
        raise UserError("batch_normalization needs a mean and a variance")
    factor = b.call("rsqrt", b.add(variance, options.number("epsilon", 1e-3)))
    factor = factor if scale is None else b.multiply(factor, scale)
    result = b.multiply(b.subtract(data, mean), factor)
    return result if offset is None else b.add(result, offset)
