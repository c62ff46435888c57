"""Softmax and the normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.expressions import (
    add,
    cast,
    item,
    multiply,
    negative,
    rank_of,
    reshape,
    sizes_of,
    subtract,
    sum_to,
    total,
    tuple_of,
    zeros_like,
)
from tilewright.graph.gradient.pullback import pull_back
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.gradient.rules.reduce import share_of
from tilewright.graph.ir.expr import Call, GraphExpr, TupleGet
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.normalization import BatchNormAttributes, LayerNormAttributes, SoftmaxAttributes
from tilewright.graph.ops.normalization_gradient import BatchNormSumsAttributes, LayerNormGradientAttributes
from tilewright.graph.ops.reduce import ReduceAttributes, sum_type


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
    """Given statistics are inputs like others; those that are the `moments` of the data are part of its cotangent.

    That is factor (y' - mean(y') - z mean(y' z)), with z the normalised data.
    """
    assert isinstance(call.attributes, BatchNormAttributes)
    channel, epsilon = call.attributes.axis, call.attributes.epsilon
    data, scale, bias, mean, variance = call.args
    axes = [axis for axis in range(rank_of(data)) if axis != channel]
    dtype = mean.tensor_type.dtype
    sums = make("nn.batch_norm_sums", data, cast(mean, sum_type(data.tensor_type.dtype)), cotangent, axis=channel)
    plain, along = (cast(item(sums, place), dtype) for place in range(2))
    inverse = make("rsqrt", add(variance, epsilon))
    factor = multiply(scale, inverse)

    def normalised(value: GraphExpr, by: GraphExpr, centre: GraphExpr) -> GraphExpr:
        return make("nn.batch_norm", value, by, zeros_like(bias), centre, variance, axis=channel, epsilon=epsilon)

    def of_data() -> GraphExpr:
        steady = normalised(cotangent, scale, share_of(plain, data, axes))
        slope = multiply(multiply(factor, inverse), share_of(along, data, axes))
        return subtract(steady, normalised(data, slope, mean))

    of_scale, of_bias = lambda: multiply(along, inverse), lambda: plain
    if _are_moments(data, axes, mean, variance):
        return [of_data, of_scale, of_bias, None, None]
    return [
        lambda: normalised(cotangent, scale, zeros_like(mean)),
        of_scale,
        of_bias,
        lambda: negative(multiply(plain, factor)),
        lambda: multiply(along, multiply(multiply(factor, multiply(inverse, inverse)), -0.5)),
    ]


def _are_moments(data: GraphExpr, axes: Sequence[int], mean: GraphExpr, variance: GraphExpr) -> bool:
    """Whether a mean and a variance are those of data over axes."""
    if not isinstance(mean, TupleGet) or not isinstance(variance, TupleGet) or mean.value is not variance.value:
        return False
    found = mean.value
    if (mean.index, variance.index) != (0, 1) or not isinstance(found, Call) or not is_call_to(found, "moments"):
        return False
    assert isinstance(found.attributes, ReduceAttributes)
    return found.args[0] is data and sorted(found.attributes.axes) == list(axes) and not found.attributes.keepdims


@reverse_rule("nn.batch_norm_sums")
def batch_norm_sums(call: Call, cotangents: Sequence[GraphExpr | None]) -> Cotangents:
    """With p' and a' those of the sums: p' + a' (x - mean) for the gradient y', y' a' for the data, -a' sum(y')."""
    assert isinstance(call.attributes, BatchNormSumsAttributes)
    channel = call.attributes.axis

    def build(data: GraphExpr, mean: GraphExpr, gradient: GraphExpr) -> GraphExpr:
        dtype = mean.tensor_type.dtype
        axes = [axis for axis in range(rank_of(data)) if axis != channel]
        column = [size if axis == channel else 1 for axis, size in enumerate(sizes_of(data))]
        given = cast(gradient, dtype)
        centred = subtract(cast(data, dtype), reshape(mean, column))
        return tuple_of([total(given, axes), total(multiply(given, centred), axes)])

    return pull_back(build, call.args, cotangents)
