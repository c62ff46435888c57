"""Softmax and the normalisations."""

from __future__ import annotations

from tilewright.graph.gradient.expressions import (
    add,
    multiply,
    negative,
    rank_of,
    reshape,
    sizes_of,
    subtract,
    sum_to,
    total,
)
from tilewright.graph.gradient.pullback import pull_back
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.normalization import BatchNormAttributes, LayerNormAttributes, SoftmaxAttributes
from tilewright.graph.ops.normalization_gradient import LayerNormGradientAttributes


def softmax_cotangent(weights: GraphExpr, cotangent: GraphExpr, axis: int) -> GraphExpr:
    """The cotangent of what a softmax was taken of."""
    weighted = multiply(cotangent, weights)
    return subtract(weighted, multiply(weights, total(weighted, [axis], keepdims=True)))


@reverse_rule("nn.softmax")
def softmax(call: Call, cotangent: GraphExpr) -> Cotangents:
    """y (y' - sum(y' y))."""
    assert isinstance(call.attributes, SoftmaxAttributes)
    return [softmax_cotangent(call, cotangent, call.attributes.axis)]


@reverse_rule("nn.log_softmax")
def log_softmax(call: Call, cotangent: GraphExpr) -> Cotangents:
    """y' - softmax(x) sum(y')."""
    assert isinstance(call.attributes, SoftmaxAttributes)
    whole = total(cotangent, [call.attributes.axis], keepdims=True)
    return [subtract(cotangent, multiply(make("exp", call), whole))]


@reverse_rule("nn.layer_norm")
def layer_norm(call: Call, cotangent: GraphExpr) -> Cotangents:
    """With z the normalised data and g = y' scale: (g - mean(g) - z mean(g z)) / deviation."""
    assert isinstance(call.attributes, LayerNormAttributes)
    data, scale, bias = call.args

    axis = call.attributes.axis
    mean = _mean_of_rows(data, axis)
    centred = subtract(data, mean)
    variance = _mean_of_rows(multiply(centred, centred), axis)
    inverse = make("rsqrt", add(variance, call.attributes.epsilon))
    return [
        lambda: make("nn.layer_norm_gradient", data, scale, cotangent, mean, inverse, axis=axis),
        lambda: sum_to(multiply(cotangent, multiply(centred, inverse)), scale),
        lambda: sum_to(cotangent, bias),
    ]


@reverse_rule("nn.rms_norm")
def rms_norm(call: Call, cotangent: GraphExpr) -> Cotangents:
    """With z the normalised data and g = y' scale: (g - z mean(g z)) / root of the mean square."""
    assert isinstance(call.attributes, LayerNormAttributes)
    data, scale = call.args
    axis, dtype = call.attributes.axis, data.tensor_type.dtype
    inverse = make("rsqrt", add(_mean_of_rows(multiply(data, data), axis), call.attributes.epsilon))
    normalised = multiply(data, inverse)
    same = scale if scale.tensor_type.dtype is dtype else make("cast", scale, dtype=dtype)

    def of_data() -> GraphExpr:
        given = multiply(cotangent, same)
        along = multiply(normalised, _mean_of_rows(multiply(given, normalised), axis))
        return multiply(subtract(given, along), inverse)

    def of_scale() -> GraphExpr:
        found = sum_to(multiply(cotangent, normalised), same)
        return found if same is scale else make("cast", found, dtype=scale.tensor_type.dtype)

    return [of_data, of_scale]


def _mean_of_rows(value: GraphExpr, axis: int) -> GraphExpr:
    return make("mean", value, axes=tuple(range(axis, rank_of(value))), keepdims=True)


@reverse_rule("nn.layer_norm_gradient")
def layer_norm_gradient(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The chain through what it is made of; given statistics are inputs like others."""
    assert isinstance(call.attributes, LayerNormGradientAttributes)
    axis = call.attributes.axis

    def build(data: GraphExpr, scale: GraphExpr, gradient: GraphExpr, mean: GraphExpr, inverse: GraphExpr) -> GraphExpr:
        normal, given = multiply(subtract(data, mean), inverse), multiply(gradient, scale)
        along = multiply(normal, _mean_of_rows(multiply(given, normal), axis))
        return multiply(inverse, subtract(given, add(_mean_of_rows(given, axis), along)))

    return pull_back(build, call.args, cotangent)


@reverse_rule("nn.batch_norm")
def batch_norm(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Given statistics are inputs like others."""
    assert isinstance(call.attributes, BatchNormAttributes)
    channel = call.attributes.axis
    data, scale, bias, mean, variance = call.args
    shape = [size if axis == channel else 1 for axis, size in enumerate(sizes_of(data))]

    def channels(value: GraphExpr) -> GraphExpr:
        return reshape(value, shape)

    def summed(value: GraphExpr, target: GraphExpr) -> GraphExpr:
        axes = [axis for axis in range(rank_of(data)) if axis != channel]
        return reshape(total(value, axes), sizes_of(target))

    inverse = make("rsqrt", add(variance, call.attributes.epsilon))
    factor = multiply(scale, inverse)
    centred = subtract(data, channels(mean))

    def of_variance() -> GraphExpr:
        slope = multiply(multiply(factor, multiply(inverse, inverse)), -0.5)
        return multiply(summed(multiply(cotangent, centred), variance), slope)

    return [
        lambda: multiply(cotangent, channels(factor)),
        lambda: multiply(summed(multiply(cotangent, centred), scale), inverse),
        lambda: summed(cotangent, bias),
        lambda: negative(multiply(summed(cotangent, mean), factor)),
        of_variance,
    ]
