"""Activations of Keras by their names, and the layers that apply them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import Layer, read_layer, variables
from tilewright.frontend.keras.registry import layer, operation
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT16
from tilewright.support.errors import UnsupportedError, UserError

Activation = Callable[..., GraphExpr]
_MASKED = -3e4
"""What Keras puts in the place of a hidden element of float16 before a softmax; -1e9 otherwise."""


def _plain(name: str, **attributes: object) -> Activation:
    def apply(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
        return b.call(name, b.floating(x), **attributes)

    return apply


def linear(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """The data itself."""
    return x


def relu(
    b: KerasBuilder, x: GraphExpr, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> GraphExpr:
    """x above a threshold, no more than a maximum; below, a slope."""
    if max_value is None and threshold == 0:
        return b.call("nn.relu", x) if negative_slope == 0 else leaky_relu(b, x, negative_slope)
    positive = b.where(b.compare("greater", x, threshold), x, 0) if threshold != 0 else b.call("nn.relu", x)
    if max_value is not None:
        positive = b.call("clip", positive, minimum=0.0, maximum=float(max_value))
    if negative_slope == 0:
        return positive
    negative = b.call("nn.relu", b.subtract(threshold, x))
    return b.subtract(positive, b.multiply(negative, negative_slope))


def relu6(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """Between 0 and 6."""
    return b.call("clip", x, minimum=0.0, maximum=6.0)


def leaky_relu(b: KerasBuilder, x: GraphExpr, negative_slope: float = 0.2) -> GraphExpr:
    """x, or a slope where it is negative."""
    return b.call("nn.leaky_relu", b.floating(x), alpha=float(negative_slope))


def elu(b: KerasBuilder, x: GraphExpr, alpha: float = 1.0) -> GraphExpr:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return b.call("nn.elu", b.floating(x), alpha=float(alpha))


def celu(b: KerasBuilder, x: GraphExpr, alpha: float = 1.0) -> GraphExpr:
    """x, or alpha * (exp(x / alpha) - 1) where it is negative."""
    x = b.floating(x)
    negative = b.multiply(b.call("expm1", b.divide(b.call("minimum", x, b.scalar(0, dtype_of(x))), alpha)), alpha)
    return b.add(b.call("nn.relu", x), negative)


def gelu(b: KerasBuilder, x: GraphExpr, approximate: bool = False) -> GraphExpr:
    """x times the normal distribution function of x."""
    return b.call("nn.gelu", b.floating(x), approximate=bool(approximate))


def silu(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x * sigmoid(x)."""
    x = b.floating(x)
    return b.multiply(x, b.call("sigmoid", x))


def hard_sigmoid(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x / 6 + 1/2 between 0 and 1."""
    return b.call("nn.hard_sigmoid", b.floating(x), alpha=1 / 6, beta=0.5)


def hard_silu(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x * hard_sigmoid(x)."""
    return b.multiply(b.floating(x), hard_sigmoid(b, x))


def mish(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x * tanh(softplus(x))."""
    x = b.floating(x)
    return b.multiply(x, b.chain(x, "nn.softplus", "tanh"))


def softsign(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x / (1 + |x|)."""
    x = b.floating(x)
    return b.divide(x, b.add(b.call("abs", x), 1.0))


def soft_shrink(b: KerasBuilder, x: GraphExpr, threshold: float = 0.5) -> GraphExpr:
    """x, nearer to 0 by the threshold."""
    above, below = b.compare("greater", x, threshold), b.compare("less", x, -threshold)
    return b.where(above, b.subtract(x, threshold), b.where(below, b.add(x, threshold), 0.0))


def hard_shrink(b: KerasBuilder, x: GraphExpr, threshold: float = 0.5) -> GraphExpr:
    """x where it is further from 0 than the threshold."""
    return b.where(b.compare("greater", b.call("abs", x), threshold), x, 0.0)


def tanh_shrink(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """x - tanh(x)."""
    x = b.floating(x)
    return b.subtract(x, b.call("tanh", x))


def above(b: KerasBuilder, x: GraphExpr, threshold: float, default_value: float) -> GraphExpr:
    """x above a threshold, else another value."""
    return b.where(b.compare("greater", x, threshold), x, default_value)


def sparse_plus(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """0 below -1, x above 1, a parabola between."""
    x = b.floating(x)
    more = b.add(x, 1.0)
    between = b.multiply(b.multiply(more, more), 0.25)
    return b.where(b.compare("less_equal", x, -1.0), 0.0, b.where(b.compare("less", x, 1.0), between, x))


def squareplus(b: KerasBuilder, x: GraphExpr, factor: float = 4.0) -> GraphExpr:
    """(x + sqrt(x * x + b)) / 2."""
    x = b.floating(x)
    return b.multiply(b.add(x, b.call("sqrt", b.add(b.multiply(x, x), float(factor)))), 0.5)


def sparse_sigmoid(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """(x + 1) / 2 between 0 and 1."""
    return b.call("clip", b.multiply(b.add(b.floating(x), 1.0), 0.5), minimum=0.0, maximum=1.0)


def log_sigmoid(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    """The logarithm of the sigmoid."""
    return b.call("negative", b.call("nn.softplus", b.call("negative", b.floating(x))))


def glu(b: KerasBuilder, x: GraphExpr, axis: int = -1) -> GraphExpr:
    """One half of an axis times the sigmoid of the other."""
    axis = b.axis(axis, rank_of(x))
    size = size_at(x, axis)
    if size % 2:
        raise UserError(f"glu needs an even size, it is {size}")
    first = b.slice_axis(x, axis, 0, size // 2)
    return b.multiply(first, b.call("sigmoid", b.slice_axis(x, axis, size // 2, size)))


def softmax(b: KerasBuilder, x: GraphExpr, axis: Any = -1) -> GraphExpr:
    """exp(x) divided by its sum along an axis, several or all."""
    return _over_axes(b, "nn.softmax", b.floating(x), axis)


def log_softmax(b: KerasBuilder, x: GraphExpr, axis: Any = -1) -> GraphExpr:
    """The logarithm of the softmax."""
    return _over_axes(b, "nn.log_softmax", b.floating(x), axis)


def _over_axes(b: KerasBuilder, name: str, x: GraphExpr, axis: Any) -> GraphExpr:
    rank = rank_of(x)
    axes = b.axes(list(axis) if isinstance(axis, tuple) else axis, rank)
    if rank == 0:
        return b.reshape(b.call(name, b.reshape(x, (1,)), axis=0), ())
    if len(axes) == 1:
        return b.call(name, x, axis=axes[0])
    rest = [at for at in range(rank) if at not in axes]
    order = [*rest, *axes]
    turned = b.transpose(x, order)
    sizes = sizes_of(turned)
    flat = b.flatten_from(turned, len(rest))
    result = b.reshape(b.call(name, flat, axis=len(rest)), sizes)
    return b.transpose(result, [order.index(at) for at in range(rank)])


def sparsemax(b: KerasBuilder, x: GraphExpr, axis: int = -1) -> GraphExpr:
    """Zero below a threshold that the greatest elements decide, by the sum of their running sums, as Keras has it."""
    x = b.floating(x)
    axis = b.axis(axis, rank_of(x))
    count = size_at(x, axis)
    ordered = b.item(b.call("topk", x, axis=axis, k=count), 0)
    sums = b.call("cumsum", ordered, axis=axis)
    shape = [1] * rank_of(x)
    shape[axis] = count
    place = b.constant((b.count(count) + 1).reshape(shape), dtype_of(x))
    support = b.call("greater", b.subtract(ordered, b.divide(b.subtract(sums, 1.0), place)), b.scalar(0, dtype_of(x)))
    size = b.reduce("sum", b.cast(support, dtype_of(x)), (axis,), True)
    total = b.reduce("sum", b.where(support, sums, 0.0), (axis,), True)
    return b.call("nn.relu", b.subtract(x, b.divide(b.subtract(total, 1.0), size)))


ACTIVATIONS: dict[str, Activation] = {
    "linear": linear,
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "celu": celu,
    "selu": _plain("nn.selu"),
    "softplus": _plain("nn.softplus"),
    "softsign": softsign,
    "soft_shrink": soft_shrink,
    "hard_shrink": hard_shrink,
    "tanh_shrink": tanh_shrink,
    "sparse_plus": sparse_plus,
    "squareplus": squareplus,
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "glu": glu,
    "tanh": _plain("tanh"),
    "hard_tanh": _plain("clip", minimum=-1.0, maximum=1.0),
    "threshold": above,
    "sigmoid": _plain("sigmoid"),
    "exponential": _plain("exp"),
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": hard_silu,
    "hard_swish": hard_silu,
    "mish": mish,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "log_sigmoid": log_sigmoid,
    "sparse_sigmoid": sparse_sigmoid,
    "sparsemax": sparsemax,
}
"""Activations by the names that configurations have for them."""


def activation_name(described: Any) -> str | None:
    """The name of an activation in a configuration; None if it is a layer."""
    if described is None:
        return "linear"
    if isinstance(described, dict) and isinstance(described.get("config"), str):
        return str(described["config"])
    if isinstance(described, dict):
        return None
    if not isinstance(described, str):
        raise UserError(f"the activation {str(described)[:60]!r} is not known")
    return described


def activated(call: LayerCall, value: GraphExpr, described: Any) -> GraphExpr:
    """A value with the activation of a configuration applied: a name, or a layer."""
    name = activation_name(described)
    if name is None:
        return call.one(_as_layer(call.layer, described), value)
    if name in call.session.own:
        return call.one(Layer(name, name, {}, call.layer.weights), value)
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"the activation '{name}' is not known",
            hint=f"say what it means: from_keras(..., layers={{{name!r}: function}})",
        )
    if name == "hard_sigmoid" and call.session.version < 3:
        return call.call("nn.hard_sigmoid", value, alpha=0.2, beta=0.5)
    return ACTIVATIONS[name](call.builder, value)


def _as_layer(outer: Layer, described: Any) -> Layer:
    return outer.parts.setdefault(
        "activation", read_layer(described, outer.weights.child("activation"), outer.depth + 1)
    )


def configured(call: LayerCall, value: GraphExpr) -> GraphExpr:
    """A value with the option `activation` applied."""
    return activated(call, value, call.layer.option("activation"))


@layer("Activation", keeps_mask=True)
def activation(call: LayerCall) -> GraphExpr:
    """An activation by its name."""
    return configured(call, call.input(0))


@layer("ReLU", keeps_mask=True)
def relu_layer(call: LayerCall) -> GraphExpr:
    """Rectified, with a slope, a threshold and a maximum."""
    options = call.layer
    most = options.option("max_value")
    slope, threshold = options.option("negative_slope") or 0.0, options.option("threshold") or 0.0
    return relu(
        call.builder, call.input(0), _number(slope), None if most is None else _number(most), _number(threshold)
    )


def _number(value: Any) -> float:
    """A number that a configuration may have as an array of one element."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        value = value["config"].get("value")
    if isinstance(value, (int, float)):
        return float(value)
    raise UserError(f"a number is needed here, not {str(value)[:60]!r}")


@layer("LeakyReLU", keeps_mask=True)
def leaky_relu_layer(call: LayerCall) -> GraphExpr:
    """A slope below 0."""
    slope = call.layer.option("negative_slope", call.layer.option("alpha", 0.3))
    return leaky_relu(call.builder, call.input(0), _number(slope))


@layer("ELU", keeps_mask=True)
def elu_layer(call: LayerCall) -> GraphExpr:
    """Exponential below 0."""
    return elu(call.builder, call.input(0), _number(call.layer.option("alpha", 1.0)))


@layer("ThresholdedReLU", keeps_mask=True)
def thresholded_relu(call: LayerCall) -> GraphExpr:
    """x above a threshold, else 0."""
    return above(call.builder, call.input(0), _number(call.layer.option("theta", 1.0)), 0.0)


@layer("PReLU", variables=lambda item: variables(1), keeps_mask=True)
def prelu(call: LayerCall) -> GraphExpr:
    """A slope for each element, or for each along axes that are not shared."""
    return call.call("nn.prelu", call.input(0), call.weight("vars/0"))


@layer("Softmax", keeps_mask=True)
def softmax_layer(call: LayerCall) -> GraphExpr:
    """Over an axis or several, without what a mask hides."""
    b, data = call.builder, call.input(0)
    axis = call.layer.option("axis", -1)
    hidden = call.tensor("mask", 1)
    if hidden is None:
        return softmax(b, data, axis)
    hidden = b.truth(hidden) if not dtype_of(hidden).is_float else b.compare("greater", hidden, 0.5)
    result = softmax(b, b.where(hidden, data, _MASKED if dtype_of(data) is FLOAT16 else -1e9), axis)
    return b.where(hidden, result, 0.0)


def _operation(name: str, *options: str) -> None:
    """An operation whose class is an activation with some options."""
    function = ACTIVATIONS[name]

    def convert(call: LayerCall) -> GraphExpr:
        given = {key: call.layer.config[key] for key in options if call.layer.config.get(key) is not None}
        if "b" in given:
            given["factor"] = given.pop("b")
        return function(call.builder, call.input(0), **given)

    convert.__doc__ = f"The activation {name}."
    operation(_OPERATIONS.get(name, "".join(part.capitalize() for part in name.split("_"))))(convert)


_OPERATIONS = {"glu": "Glu", "relu6": "Relu6"}
for _name, _options in {
    "relu": (),
    "relu6": (),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha",),
    "celu": ("alpha",),
    "selu": (),
    "softplus": (),
    "softsign": (),
    "soft_shrink": ("threshold",),
    "hard_shrink": ("threshold",),
    "tanh_shrink": (),
    "sparse_plus": (),
    "squareplus": ("b",),
    "silu": (),
    "gelu": ("approximate",),
    "glu": ("axis",),
    "hard_tanh": (),
    "threshold": ("threshold", "default_value"),
    "sigmoid": (),
    "hard_sigmoid": (),
    "hard_silu": (),
    "mish": (),
    "softmax": ("axis",),
    "log_softmax": ("axis",),
    "log_sigmoid": (),
    "sparse_sigmoid": (),
    "sparsemax": ("axis",),
}.items():
    _operation(_name, *_options)


@operation("ReLU")
def relu_operation(call: LayerCall) -> GraphExpr:
    """The function `keras.activations.relu` with its options."""
    return relu_layer(call)
