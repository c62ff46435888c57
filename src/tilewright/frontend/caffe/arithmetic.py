"""Converters of elementwise layers, activations and reductions."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, shape_of, size_at, sizes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError


@converter("ReLU", "ReLU6")
def relu(layer: Layer) -> GraphExpr:
    """x, or a slope times x where it is negative."""
    if layer.message.type == "ReLU6":
        return layer.call("clip", layer.input(0), minimum=0.0, maximum=6.0)
    slope = layer.options("relu").negative_slope
    return layer.call("nn.leaky_relu", layer.input(0), alpha=slope) if slope else layer.call("nn.relu", layer.input(0))


@converter("PReLU")
def prelu(layer: Layer) -> GraphExpr:
    """With a slope of each channel, or one of all."""
    data = layer.input(0)
    if layer.options("prelu").channel_shared:
        slope = layer.blob(0, (1,))
    else:
        channels = size_at(data, 1)
        slope = layer.blob(0, (channels, *(1,) * (rank_of(data) - 2)))
    return layer.call("nn.prelu", data, slope)


@converter("ELU")
def elu(layer: Layer) -> GraphExpr:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return layer.call("nn.elu", layer.input(0), alpha=layer.options("elu").alpha)


_PLAIN = {"Sigmoid": "sigmoid", "TanH": "tanh", "AbsVal": "abs", "BNLL": "nn.softplus"}


@converter(*_PLAIN)
def plain(layer: Layer) -> GraphExpr:
    """One operator."""
    return layer.call(_PLAIN[layer.message.type], layer.input(0))


@converter("Swish")
def swish(layer: Layer) -> GraphExpr:
    """x * sigmoid(x)."""
    return layer.call("multiply", layer.input(0), layer.call("sigmoid", layer.input(0)))


@converter("Dropout")
def dropout(layer: Layer) -> GraphExpr:
    """Nothing: it concerns training."""
    return layer.input(0)


@converter("Softmax")
def softmax(layer: Layer) -> GraphExpr:
    """Along an axis."""
    data = layer.input(0)
    return layer.call("nn.softmax", data, axis=layer.axis(layer.options("softmax").axis, rank_of(data)))


def _linear(layer: Layer, options: Any) -> GraphExpr:
    """shift + scale * x."""
    value = layer.input(0)
    if options.scale != 1:
        value = layer.b.multiply(value, options.scale)
    return value if options.shift == 0 else layer.b.add(value, options.shift)


@converter("Power")
def power(layer: Layer) -> GraphExpr:
    """(shift + scale * x) ** power."""
    options = layer.options("power")
    value = _linear(layer, options)
    match options.power:
        case 1:
            return value
        case 2:
            return layer.call("multiply", value, value)
        case 0.5:
            return layer.call("sqrt", value)
    return layer.call("power", value, layer.b.constant_like(options.power, value))


@converter("Exp")
def exponential(layer: Layer) -> GraphExpr:
    """base ** (shift + scale * x)."""
    options = layer.options("exp")
    value = _linear(layer, options)
    return layer.call("exp", value if options.base == -1 else layer.b.multiply(value, _logarithm(options.base)))


@converter("Log")
def logarithm(layer: Layer) -> GraphExpr:
    """log(shift + scale * x) to a base."""
    options = layer.options("log")
    value = layer.call("log", _linear(layer, options))
    return value if options.base == -1 else layer.b.divide(value, _logarithm(options.base))


def _logarithm(base: float) -> float:
    if not base > 0 or base == 1:
        raise UserError(f"the base {base}: it must be positive, and not 1")
    return math.log(base)


@converter("Threshold")
def threshold(layer: Layer) -> GraphExpr:
    """1 above a threshold, else 0."""
    above = layer.b.compare("greater", layer.input(0), layer.options("threshold").threshold)
    return layer.b.cast(above, FLOAT32)


@converter("Eltwise")
def eltwise(layer: Layer) -> GraphExpr:
    """The product, weighted sum or maximum of bottoms."""
    options, values = layer.options("eltwise"), layer.all_inputs()
    names = {0: "multiply", 1: "add", 2: "maximum"}
    if options.operation not in names:
        raise UserError(f"the operation number {options.operation} of Eltwise is not known")
    if options.coeff:
        if len(options.coeff) != len(values) or options.operation != 1:
            raise UserError(f"{len(options.coeff)} coefficients do not fit {len(values)} bottoms")
        values = [
            value if factor == 1 else layer.b.multiply(value, factor)
            for value, factor in zip(values, options.coeff, strict=True)
        ]
    result = values[0]
    for value in values[1:]:
        result = layer.call(names[options.operation], result, value)
    return result


@converter("Scale", "Bias")
def scale(layer: Layer) -> GraphExpr:
    """Times (or plus) the second bottom, or weights, along some axes; perhaps plus a bias."""
    is_scale = layer.message.type == "Scale"
    options, data, b = layer.options("scale" if is_scale else "bias"), layer.input(0), layer.b
    rank = rank_of(data)
    axis = layer.axis(options.axis, rank) if rank else 0
    if layer.has_input(1):
        factor = layer.input(1)
        shape = sizes_of(factor)
    else:
        end = rank if options.num_axes == -1 else axis + options.num_axes
        if end > rank:
            raise UserError(f"{options.num_axes} axes from {axis} on are more than {rank} dimensions have")
        shape = shape_of_part(data, axis, end)
        factor = layer.blob(0, shape)
    if len(shape) + axis > rank:
        raise UserError(f"weights of shape {sizes_text(shape)} do not fit axis {axis} of {rank} dimensions")
    wide = (*shape, *(1,) * (rank - axis - len(shape))) if shape else ()
    result = layer.call("multiply" if is_scale else "add", data, b.reshape(factor, wide))
    if is_scale and options.bias_term:
        numbers = shape_of(factor)
        bias = layer.blob(0 if layer.has_input(1) else 1, numbers)
        result = layer.call("add", result, b.reshape(bias, wide))
    return result


def shape_of_part(data: GraphExpr, axis: int, end: int) -> tuple[int, ...]:
    """Some dimensions of the data, which must be numbers."""
    return tuple(size_at(data, at) for at in range(axis, end))


@converter("Axpy")
def axpy(layer: Layer) -> GraphExpr:
    """Channels of x times numbers, plus y."""
    factor, x, y = (layer.input(at) for at in range(3))
    batch, channels = sizes_of(x)[:2]
    wide = layer.b.reshape(factor, (batch, channels, *(1,) * (rank_of(x) - 2)))
    return layer.call("add", layer.call("multiply", x, wide), y)


@converter("Reduction")
def reduction(layer: Layer) -> GraphExpr:
    """The sum (of magnitudes, of squares) or the mean of everything from an axis on."""
    options, data, b = layer.options("reduction"), layer.input(0), layer.b
    rank = rank_of(data)
    axes = tuple(range(layer.axis(options.axis, rank) if rank else 0, rank))
    match options.operation:
        case 1 | 4:
            value = data
        case 2:
            value = layer.call("abs", data)
        case 3:
            value = layer.call("multiply", data, data)
        case other:
            raise UserError(f"the operation number {other} of Reduction is not known")
    result = b.reduce("mean" if options.operation == 4 else "sum", value, axes)
    return result if options.coeff == 1 else b.multiply(result, options.coeff)


@converter("ArgMax")
def argmax(layer: Layer) -> GraphExpr:
    """Places of the greatest elements as floats, or their values; of equal ones the last comes first."""
    options, data, b = layer.options("argmax"), layer.input(0), layer.b
    rank, count = rank_of(data), int(options.top_k)
    with_axis = options.HasField("axis")
    axis = layer.axis(options.axis, rank) if with_axis else 1
    values = data if with_axis else b.reshape(data, (sizes_of(data)[0], _rest(data)))
    size = size_at(values, axis)
    if not 1 <= count <= size:
        raise UserError(f"the {count} greatest of {size} elements")
    best = layer.call("topk", b.flip(values, (axis,)), axis=axis, k=count, largest=True)
    places = b.cast(b.subtract(b.constant(size - 1, "int64"), b.item(best, 1)), FLOAT32)
    if with_axis:
        return b.item(best, 0) if options.out_max_val else places
    batch = sizes_of(data)[0]
    tail = (1,) * max(0, rank - 3)
    if not options.out_max_val:
        return b.reshape(places, (batch, 1, count, *tail))
    both = b.stack([places, b.item(best, 0)], 1)
    return b.reshape(both, (batch, 2, count, *tail))


def _rest(data: GraphExpr) -> int:
    return math.prod(shape_of_part(data, 1, rank_of(data)))
