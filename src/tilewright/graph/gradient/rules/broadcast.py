"""Elementwise operators of several inputs: the cotangent of an input is summed where it was repeated."""

from __future__ import annotations


from tilewright.graph.gradient.expressions import (
    compare,
    divide,
    multiply,
    negative,
    subtract,
    sum_to,
    where,
)
from tilewright.graph.gradient.registry import Cotangents, blocks_gradient, reverse_rule
from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.rewrite import make


@reverse_rule("add")
def add_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(a + b) = da + db."""
    a, b = call.args
    return [lambda: sum_to(cotangent, a), lambda: sum_to(cotangent, b)]


@reverse_rule("subtract")
def subtract_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(a - b) = da - db."""
    a, b = call.args
    return [lambda: sum_to(cotangent, a), lambda: sum_to(negative(cotangent), b)]


@reverse_rule("multiply")
def multiply_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(a b) = b da + a db."""
    a, b = call.args
    return [lambda: sum_to(multiply(cotangent, b), a), lambda: sum_to(multiply(cotangent, a), b)]


@reverse_rule("divide")
def divide_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(a / b) = da / b - a db / b^2."""
    a, b = call.args
    return [
        lambda: sum_to(divide(cotangent, b), a),
        lambda: sum_to(negative(multiply(cotangent, divide(call, b))), b),
    ]


@reverse_rule("power")
def power(call: Call, cotangent: GraphExpr) -> Cotangents:
    """d(a^b) = b a^(b-1) da + log(a) a^b db, where 0 whatever b is 0, and log(0) 0^b is 0 for b >= 0."""
    a, b = call.args

    def of_base() -> GraphExpr:
        slope = multiply(b, make("power", a, subtract(b, 1)))
        if isinstance(b, Constant) and bool((b.data != 0).all()):
            return sum_to(multiply(cotangent, slope), a)
        return sum_to(where(compare("equal", b, 0), 0, multiply(cotangent, slope)), a)

    def of_exponent() -> GraphExpr:
        flat = make("logical_and", compare("equal", a, 0), compare("greater_equal", b, 0))
        return sum_to(where(flat, 0, multiply(cotangent, multiply(call, make("log", a)))), b)

    return [of_base, of_exponent]


@reverse_rule("maximum", "minimum")
def extreme(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The cotangent goes to the input that won; a tie gives half to each."""
    a, b = call.args
    order = "greater" if getattr(call.callee, "name", "") == "maximum" else "less"

    def share(mine: GraphExpr, other: GraphExpr) -> GraphExpr:
        half = multiply(cotangent, 0.5)
        beaten = compare(order, other, mine)
        return where(beaten, 0, where(compare("equal", mine, other), half, cotangent))

    return [lambda: sum_to(share(a, b), a), lambda: sum_to(share(b, a), b)]


@reverse_rule("floor_mod", "fmod")
def remainder(call: Call, cotangent: GraphExpr) -> Cotangents:
    """a - b * q with q a whole number: da, and -q db."""
    a, b = call.args
    toward = "floor" if getattr(call.callee, "name", "") == "floor_mod" else "trunc"
    return [
        lambda: sum_to(cotangent, a),
        lambda: sum_to(negative(multiply(cotangent, make(toward, divide(a, b)))), b),
    ]


@reverse_rule("where")
def where_(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Each side gets the cotangent where it was taken, and 0 elsewhere, whatever the other side holds."""
    condition, a, b = call.args
    return [
        None,
        lambda: sum_to(where(condition, cotangent, 0), a),
        lambda: sum_to(where(condition, 0, cotangent), b),
    ]


@reverse_rule("nn.prelu")
def prelu(call: Call, cotangent: GraphExpr) -> Cotangents:
    """dx above 0, slope dx elsewhere; of the slope, x where it is at or below 0."""
    data, slope = call.args
    above = compare("greater", data, 0)
    return [
        lambda: sum_to(where(above, cotangent, multiply(cotangent, slope)), data),
        lambda: sum_to(where(above, 0, multiply(cotangent, data)), slope),
    ]


blocks_gradient("piecewise constant", "floor_divide")
blocks_gradient(
    "the result is not a float",
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
)
