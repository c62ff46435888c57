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
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.normalization import BatchNormAttributes, LayerNormAttributes, SoftmaxAttributes


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
    axes = tuple(range(call.attributes.axis, rank_of(data)))

    def mean(value: GraphExpr) -> GraphExpr:
        return make("mean", value, axes=axes, keepdims=True)

    centred = subtract(data, mean(data))
    inverse = make("rsqrt", add(mean(multiply(centred, centred)), call.attributes.epsilon))
    normal = multiply(centred, inverse)

    def of_data() -> GraphExpr:
        given = multiply(cotangent, scale)
        left = subtract(given, add(mean(given), multiply(normal, mean(multiply(given, normal)))))
        return sum_to(multiply(inverse, left), data)

    return [of_data, lambda: sum_to(multiply(cotangent, normal), scale), lambda: sum_to(cotangent, bias)]


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
