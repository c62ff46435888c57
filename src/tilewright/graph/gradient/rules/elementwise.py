"""Elementwise operators of one input. At kinks the derivative is the one PyTorch has (`docs/gradients.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.graph.gradient.expressions import (
    add,
    cast,
    compare,
    divide,
    multiply,
    negative,
    number,
    subtract,
    where,
)
from tilewright.graph.gradient.registry import Cotangents, blocks_gradient, linear, refuses_gradient, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.elementwise import (
    AlphaAttributes,
    CastAttributes,
    ClipAttributes,
    EluAttributes,
    GeluAttributes,
    HardSigmoidAttributes,
    SeluAttributes,
)


def _slope(name: str, derivative: Callable[[GraphExpr, GraphExpr], GraphExpr]) -> None:
    """Register an operator by its derivative, an expression of its input and its result."""

    def rule(call: Call, cotangent: GraphExpr) -> Cotangents:
        return [multiply(cotangent, derivative(call.args[0], call))]

    rule.__doc__ = "dx times the derivative at x."
    reverse_rule(name)(rule)


def _one_minus_square(x: GraphExpr) -> GraphExpr:
    return subtract(1, multiply(x, x))


def _root(x: GraphExpr) -> GraphExpr:
    return make("sqrt", x)


_slope("exp", lambda x, y: y)
_slope("expm1", lambda x, y: add(y, 1))
_slope("rsqrt", lambda x, y: multiply(divide(y, x), -0.5))
_slope("reciprocal", lambda x, y: negative(multiply(y, y)))
_slope("sin", lambda x, y: make("cos", x))
_slope("cos", lambda x, y: negative(make("sin", x)))
_slope("tan", lambda x, y: add(multiply(y, y), 1))
_slope("sinh", lambda x, y: make("cosh", x))
_slope("cosh", lambda x, y: make("sinh", x))
_slope("tanh", lambda x, y: _one_minus_square(y))
_slope("asin", lambda x, y: make("rsqrt", _one_minus_square(x)))
_slope("acos", lambda x, y: negative(make("rsqrt", _one_minus_square(x))))
_slope("atan", lambda x, y: divide(1, add(multiply(x, x), 1)))
_slope("asinh", lambda x, y: make("rsqrt", add(multiply(x, x), 1)))
_slope("acosh", lambda x, y: divide(1, multiply(_root(subtract(x, 1)), _root(add(x, 1)))))
_slope("atanh", lambda x, y: divide(1, _one_minus_square(x)))
_slope("erf", lambda x, y: multiply(make("exp", negative(multiply(x, x))), 2 / math.sqrt(math.pi)))
_slope("sigmoid", lambda x, y: multiply(y, subtract(1, y)))
_slope("nn.softplus", lambda x, y: make("sigmoid", x))


@reverse_rule("log")
def log(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d log x = dx / x."""
    return [divide(cotangent, call.args[0])]


@reverse_rule("log1p")
def log1p(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d log(1 + x) = dx / (1 + x)."""
    return [divide(cotangent, add(call.args[0], 1))]


@reverse_rule("sqrt")
def sqrt(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d sqrt x = dx / (2 sqrt x): infinite at 0, and NaN for a cotangent of 0 there."""
    return [divide(cotangent, multiply(call, 2))]


@linear("negative")
def negative_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(-x) = -dx."""
    return [negative(cotangent)]


@reverse_rule("abs")
def absolute(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx or -dx; 0 at 0, and at NaN."""
    (x,) = call.args
    return [where(compare("greater", x, 0), cotangent, where(compare("less", x, 0), negative(cotangent), 0))]


@reverse_rule("nn.relu")
def relu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx where the result is positive; 0 at 0."""
    return [where(compare("less_equal", call, 0), 0, cotangent)]


@reverse_rule("nn.leaky_relu")
def leaky_relu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx above 0, alpha dx elsewhere."""
    assert isinstance(call.attributes, AlphaAttributes)
    return [where(compare("greater", call.args[0], 0), cotangent, multiply(cotangent, call.attributes.alpha))]


@reverse_rule("nn.elu")
def elu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx above 0, else alpha exp(x) dx."""
    assert isinstance(call.attributes, EluAttributes)
    (x,) = call.args
    below = multiply(make("exp", make("minimum", x, _zero(x))), call.attributes.alpha)
    return [where(compare("less_equal", x, 0), multiply(cotangent, below), cotangent)]


@reverse_rule("nn.selu")
def selu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """gamma dx above 0, else gamma alpha exp(x) dx."""
    assert isinstance(call.attributes, SeluAttributes)
    (x,) = call.args
    scaled = multiply(cotangent, call.attributes.gamma)
    below = multiply(make("exp", make("minimum", x, _zero(x))), call.attributes.alpha)
    return [where(compare("less_equal", x, 0), multiply(scaled, below), scaled)]


def _zero(x: GraphExpr) -> GraphExpr:
    return number(0, x.tensor_type.dtype)


@reverse_rule("nn.hard_sigmoid")
def hard_sigmoid(call: Call, cotangent: GraphExpr) -> Cotangents:
    """alpha dx strictly between the bounds."""
    assert isinstance(call.attributes, HardSigmoidAttributes)
    inside = make("logical_and", compare("greater", call, 0), compare("less", call, 1))
    return [where(inside, multiply(cotangent, call.attributes.alpha), 0)]


@reverse_rule("nn.gelu")
def gelu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The distribution function and x times the density, or the derivative of the tanh form."""
    assert isinstance(call.attributes, GeluAttributes)
    (x,) = call.args
    if call.attributes.approximate:
        factor = math.sqrt(2 / math.pi)
        cube = multiply(multiply(x, x), x)
        bent = make("tanh", multiply(add(x, multiply(cube, 0.044715)), factor))
        inner = multiply(add(multiply(multiply(x, x), 3 * 0.044715), 1), factor)
        tail = multiply(multiply(multiply(x, 0.5), _one_minus_square(bent)), inner)
        return [multiply(cotangent, add(multiply(add(bent, 1), 0.5), tail))]
    distribution = multiply(add(make("erf", multiply(x, 1 / math.sqrt(2))), 1), 0.5)
    density = multiply(make("exp", multiply(multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return [multiply(cotangent, add(distribution, multiply(x, density)))]


@reverse_rule("clip")
def clip(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx within the bounds, and at them unless they are flat: then the result tells where it is at one."""
    assert isinstance(call.attributes, ClipAttributes)
    (x,) = call.args
    low, high = call.attributes.minimum, call.attributes.maximum
    if call.attributes.flat_bounds:
        for comparison, bound in (("greater_equal", high), ("less_equal", low)):
            if bound is not None:
                cotangent = where(compare(comparison, call, bound), 0, cotangent)
        return [cotangent]
    if high is not None:
        cotangent = where(compare("less_equal", x, high), cotangent, 0)
    if low is not None:
        cotangent = where(compare("greater_equal", x, low), cotangent, 0)
    return [cotangent]


@linear("cast")
def cast_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Between floats: the cotangent in the data type of the input. Integers have none."""
    assert isinstance(call.attributes, CastAttributes)
    return [cast(cotangent, call.args[0].tensor_type.dtype)]


@reverse_rule("round_to_tf32")
def round_to_tf32(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Rounding to a float type is differentiated as the identity, as a cast is."""
    return [cotangent]


blocks_gradient("piecewise constant", "floor", "ceil", "round", "trunc", "sign")
blocks_gradient("so says the program", "stop_gradient")
blocks_gradient("the result is not a float", "isnan", "isinf", "logical_not", "bitwise_not")
refuses_gradient("bits are no numbers", "reinterpret")
