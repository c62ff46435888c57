"""Operations of Core ML that compute each element by itself: arithmetic, comparisons, activations, conversion."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.coreml.operation import Operation, filled_like, operation
from tilewright.frontend.coreml.types import named_dtype
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError

_UNARY = {
    name: name
    for name in (
        "abs acos asin atan asinh acosh atanh ceil cos cosh erf exp floor round sign sin sinh sqrt tan tanh sigmoid"
    ).split()
} | {"logical_not": "logical_not", "relu": "nn.relu", "softplus": "nn.softplus"}
_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "real_div": "divide",
    "floor_div": "floor_divide",
    "mod": "floor_mod",
    "pow": "power",
    "maximum": "maximum",
    "minimum": "minimum",
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "less",
    "less_equal": "less_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
}
_LOGICAL = ("logical_and", "logical_or", "logical_xor")


@operation(*_UNARY)
def unary(op: Operation) -> GraphExpr:
    """A function of each element."""
    return op.call(_UNARY[op.kind], op.value())


@operation(*_BINARY)
def binary(op: Operation) -> GraphExpr:
    """Two inputs that broadcast, of one type: a number takes that of the tensor it meets."""
    x, y = op.value("x"), op.value("y")
    common = _common(x, y)
    x, y = op.builder.cast(x, common), op.builder.cast(y, common)
    if dtype_of(x).is_bool and op.kind not in ("equal", "not_equal"):
        x, y = op.builder.cast(x, "int32"), op.builder.cast(y, "int32")
    return op.call(_BINARY[op.kind], x, y)


def _common(x: GraphExpr, y: GraphExpr) -> DataType:
    """The type of both: floats before integers, that of a tensor before that of a number."""
    first, second = dtype_of(x), dtype_of(y)
    if first.is_float is not second.is_float:
        return first if first.is_float else second
    return second if rank_of(y) and not rank_of(x) else first


@operation(*_LOGICAL)
def logical(op: Operation) -> GraphExpr:
    """Truth values that broadcast."""
    return op.call(op.kind, op.builder.truth(op.value("x")), op.builder.truth(op.value("y")))


@operation("identity")
def identity(op: Operation) -> GraphExpr:
    """The input."""
    return op.value()


@operation("square")
def square(op: Operation) -> GraphExpr:
    """x * x."""
    return op.call("multiply", op.value(), op.value())


@operation("exp2")
def exp2(op: Operation) -> GraphExpr:
    """2 to the power of x."""
    x = op.value()
    return op.call("power", op.builder.constant_like(2, x), x)


@operation("inverse", "log", "rsqrt")
def with_epsilon(op: Operation) -> GraphExpr:
    """1 / x, the logarithm or 1 / sqrt(x), of x plus a small number."""
    x = op.value()
    name, default = {"inverse": ("reciprocal", 1e-4), "log": ("log", 1e-45), "rsqrt": ("rsqrt", 1e-12)}[op.kind]
    return op.call(name, op.builder.add(x, filled_like(op, x, "epsilon", default)))


@operation("threshold")
def threshold(op: Operation) -> GraphExpr:
    """At least alpha."""
    return op.call("maximum", op.value(), filled_like(op, op.value(), "alpha", 0.0))


@operation("clip")
def clip(op: Operation) -> GraphExpr:
    """Within alpha and beta."""
    return op.call("clip", op.value(), minimum=op.number("alpha"), maximum=op.number("beta"))


@operation("relu6")
def relu6(op: Operation) -> GraphExpr:
    """Within 0 and 6."""
    return op.call("clip", op.value(), minimum=0.0, maximum=6.0)


@operation("cast")
def cast(op: Operation) -> GraphExpr:
    """Converted to a type by its name."""
    return op.builder.cast(op.value(), named_dtype(op.text("dtype")))


@operation("select")
def select(op: Operation) -> GraphExpr:
    """a where the condition holds, else b."""
    a, b = op.value("a"), op.value("b")
    if dtype_of(a) is not dtype_of(b):
        b = op.builder.cast(b, dtype_of(a))
    return op.call("where", op.builder.truth(op.value("cond")), a, b)


# Activations


@operation("leaky_relu")
def leaky_relu(op: Operation) -> GraphExpr:
    """x, or alpha * x where x is negative."""
    return op.call("nn.leaky_relu", op.value(), alpha=op.number("alpha"))


@operation("elu")
def elu(op: Operation) -> GraphExpr:
    """x, or alpha * (exp(x) - 1) where x is negative."""
    return op.call("nn.elu", op.value(), alpha=op.number("alpha"))


@operation("clamped_relu")
def clamped_relu(op: Operation) -> GraphExpr:
    """A leaky unit that is at most beta."""
    value = op.call("nn.leaky_relu", op.value(), alpha=op.number("alpha"))
    return op.call("minimum", value, filled_like(op, value, "beta", 0.0))


@operation("linear_activation")
def linear_activation(op: Operation) -> GraphExpr:
    """alpha * x + beta."""
    x = op.value()
    product = op.call("multiply", x, filled_like(op, x, "alpha", 1.0))
    return op.call("add", product, filled_like(op, x, "beta", 0.0))


@operation("scaled_tanh")
def scaled_tanh(op: Operation) -> GraphExpr:
    """alpha * tanh(beta * x)."""
    x = op.value()
    inner = op.call("tanh", op.call("multiply", x, filled_like(op, x, "beta", 1.0)))
    return op.call("multiply", inner, filled_like(op, x, "alpha", 1.0))


@operation("sigmoid_hard")
def sigmoid_hard(op: Operation) -> GraphExpr:
    """alpha * x + beta, within 0 and 1."""
    return op.call("nn.hard_sigmoid", op.value(), alpha=op.number("alpha", 0.2), beta=op.number("beta", 0.5))


@operation("silu")
def silu(op: Operation) -> GraphExpr:
    """x * sigmoid(x)."""
    return op.call("multiply", op.value(), op.call("sigmoid", op.value()))


@operation("softsign")
def softsign(op: Operation) -> GraphExpr:
    """x / (1 + |x|)."""
    return op.onnx("Softsign", op.value())


@operation("thresholded_relu")
def thresholded_relu(op: Operation) -> GraphExpr:
    """x, or 0 where x is below alpha."""
    x = op.value()
    below = op.call("less", x, filled_like(op, x, "alpha", 1.0))
    return op.call("where", below, op.builder.constant_like(0, x), x)


@operation("gelu")
def gelu(op: Operation) -> GraphExpr:
    """x times the normal distribution function of x, or an approximation."""
    x, mode = op.value(), op.text("mode", "EXACT")
    if mode == "SIGMOID_APPROXIMATION":
        return op.call("multiply", x, op.call("sigmoid", op.builder.multiply(x, 1.702)))
    if mode not in ("EXACT", "TANH_APPROXIMATION"):
        raise UserError(f"the mode {mode!r} of gelu is not known")
    return op.call("nn.gelu", x, approximate=mode == "TANH_APPROXIMATION")


def by_channel(op: Operation, name: str, axis: int = 1) -> GraphExpr:
    """An argument with one number a channel, so that it broadcasts to x."""
    x, value = op.value(), op.value(name)
    count = math.prod(np.shape(op.array(name)))
    shape = [1] * rank_of(x)
    if len(shape) > axis:
        shape[axis] = count
    if count not in (1, sizes_of(x)[axis] if len(shape) > axis else 1):
        raise UserError(f"{count} numbers of '{name}' do not fit data of {rank_of(x)} dimensions")
    return op.builder.cast(op.builder.reshape(value, shape if count > 1 else (1,) * len(shape)), dtype_of(x))


@operation("prelu")
def prelu(op: Operation) -> GraphExpr:
    """x, or alpha * x where x is negative, with one alpha a channel."""
    return op.call("nn.prelu", op.value(), by_channel(op, "alpha"))


@operation("softplus_parametric")
def softplus_parametric(op: Operation) -> GraphExpr:
    """alpha * log(1 + exp(beta * x)), with one alpha and beta a channel."""
    inner = op.call("nn.softplus", op.call("multiply", op.value(), by_channel(op, "beta")))
    return op.call("multiply", inner, by_channel(op, "alpha"))


@operation("softmax")
def softmax(op: Operation) -> GraphExpr:
    """Exponentials along an axis that sum up to 1."""
    x = op.value()
    return op.call("nn.softmax", x, axis=op.axis("axis", rank_of(x), -1))
