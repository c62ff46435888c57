"""Converters of functions of each element, and of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.matrices import inverse, turned
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import Size, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32
from tilewright.support.errors import UnsupportedError

_PLAIN = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceiling": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Negative": "negative",
    "ReLU": "nn.relu",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "SoftPlus": "nn.softplus",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
    "BitwiseNot": "bitwise_not",
}
_BINARY = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "Power": "power",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "BitwiseLeftShift": "left_shift",
    "BitwiseRightShift": "right_shift",
    "FloorMod": "floor_mod",
    "Mod": "fmod",
}
_COMPARISONS = {
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
}
_LOGICAL = {"LogicalAnd": "logical_and", "LogicalOr": "logical_or", "LogicalXor": "logical_xor", "Xor": "logical_xor"}


@converter(*_PLAIN)
def plain(node: NodeContext) -> GraphExpr:
    """A function of each element."""
    return node.call(_PLAIN[node.layer.kind], node.input(0))


@converter("Identity")
def identity(node: NodeContext) -> GraphExpr:
    """The value itself."""
    return node.input(0)


@converter("LogicalNot")
def logical_not(node: NodeContext) -> GraphExpr:
    """Not x."""
    return node.call("logical_not", node.builder.truth(node.input(0)))


@converter("IsNaN", "IsInf", "IsFinite")
def classify(node: NodeContext) -> GraphExpr:
    """Whether elements are NaN, infinite, or neither."""
    b, x = node.builder, node.input(0)
    if node.layer.kind == "IsNaN":
        return b.call("isnan", x)
    if node.layer.kind == "IsInf":
        low, high = node.flag("detect_negative", True), node.flag("detect_positive", True)
        return node.onnx("IsInf", x, detect_negative=low, detect_positive=high)
    return b.call("logical_not", b.call("logical_or", b.call("isnan", x), b.call("isinf", x)))


@converter("Round")
def rounded(node: NodeContext) -> GraphExpr:
    """The nearest whole number; halves to even, or away from zero."""
    b, x = node.builder, node.input(0)
    if node.text("mode", "half_to_even") == "half_to_even":
        return b.call("round", x)
    return b.multiply(b.call("sign", x), b.call("floor", b.add(b.call("abs", x), 0.5)))


@converter("Clamp")
def clamp(node: NodeContext) -> GraphExpr:
    """x kept within bounds."""
    return node.call("clip", node.input(0), minimum=node.number("min"), maximum=node.number("max"))


@converter("HSwish")
def hard_swish(node: NodeContext) -> GraphExpr:
    """x * min(max(x + 3, 0), 6) / 6."""
    return node.onnx("HardSwish", node.input(0))


@converter("HSigmoid")
def fixed_hard_sigmoid(node: NodeContext) -> GraphExpr:
    """min(max(x + 3, 0), 6) / 6."""
    return node.call("nn.hard_sigmoid", node.input(0), alpha=1 / 6, beta=0.5)


@converter("HardSigmoid")
def hard_sigmoid(node: NodeContext) -> GraphExpr:
    """alpha * x + beta within 0 and 1."""
    alpha, beta = node.known_number(1, 0.2), node.known_number(2, 0.5)
    return node.call("nn.hard_sigmoid", node.input(0), alpha=alpha, beta=beta)


@converter("Elu")
def elu(node: NodeContext) -> GraphExpr:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return node.call("nn.elu", node.input(0), alpha=node.number("alpha"))


@converter("Selu")
def selu(node: NodeContext) -> GraphExpr:
    """lambda * x, or lambda * alpha * (exp(x) - 1) where it is negative."""
    alpha, scale = node.known_number(1, 1.6732632423543772), node.known_number(2, 1.0507009873554805)
    return node.call("nn.selu", node.input(0), alpha=alpha, gamma=scale)


@converter("PReLU")
def prelu(node: NodeContext) -> GraphExpr:
    """x, or slope * x where it is negative; a slope of one dimension that fits the channels is for them."""
    b, x, slope = node.builder, node.input(0), node.input(1)
    rank = rank_of(x)
    if rank_of(slope) == 1 and rank > 1 and same(sizes_of(slope)[0], sizes_of(x)[1]):
        shape: list[Size] = [1] * rank
        shape[1] = sizes_of(slope)[0]
        slope = b.reshape(slope, shape)
    return node.call("nn.prelu", x, slope)


@converter("Gelu")
def gelu(node: NodeContext) -> GraphExpr:
    """x times the normal distribution function of x."""
    return node.call("nn.gelu", node.input(0), approximate=node.text("approximation_mode", "erf") == "tanh")


@converter("Mish")
def mish(node: NodeContext) -> GraphExpr:
    """x * tanh(softplus(x))."""
    return node.builder.multiply(node.input(0), node.builder.chain(node.input(0), "nn.softplus", "tanh"))


@converter("SoftSign")
def softsign(node: NodeContext) -> GraphExpr:
    """x / (1 + |x|)."""
    return node.builder.divide(node.input(0), node.builder.add(node.call("abs", node.input(0)), 1.0))


@converter("Swish")
def swish(node: NodeContext) -> GraphExpr:
    """x * sigmoid(beta * x)."""
    b, x = node.builder, node.input(0)
    inner = b.multiply(x, b.reshape(node.input(1), ())) if node.has_input(1) else x
    return b.multiply(x, b.call("sigmoid", inner))


@converter("SoftMax", "Softmax", "LogSoftmax")
def softmax(node: NodeContext) -> GraphExpr:
    """The softmax along an axis, or its logarithm."""
    x = node.input(0)
    default = -1 if node.layer.kind == "LogSoftmax" else 1
    axis = node.axis(node.integer("axis", default), rank_of(x))
    return node.call("nn.log_softmax" if node.layer.kind == "LogSoftmax" else "nn.softmax", x, axis=axis)


@converter("Convert")
def convert(node: NodeContext) -> GraphExpr:
    """Another element type."""
    return node.builder.cast(node.input(0), node.dtype("destination_type"))


@converter("ConvertLike")
def convert_like(node: NodeContext) -> GraphExpr:
    """The element type of another tensor."""
    return node.builder.cast(node.input(0), dtype_of(node.input(1)))


@converter("ConvertPromoteTypes")
def promote(node: NodeContext) -> Sequence[GraphExpr]:
    """Two tensors in a type that holds both."""
    b, x, y = node.builder, node.input(0), node.input(1)
    first, second = dtype_of(x), dtype_of(y)
    if first is second:
        return [x, y]
    if first.is_float != second.is_float:
        common = first if first.is_float else second
    elif first.is_uint == second.is_uint or first.bits != second.bits:
        common = first if first.bits >= second.bits else second
    else:
        raise UnsupportedError(f"a common type of {first} and {second}")
    return [b.cast(x, common), b.cast(y, common)]


def aligned(node: NodeContext) -> tuple[GraphExpr, GraphExpr]:
    """Two operands as they broadcast; `pdpd` begins the second one at an axis."""
    b, x, y = node.builder, node.input(0), node.input(1)
    if node.text("auto_broadcast", "numpy") == "pdpd" and rank_of(y) < rank_of(x):
        axis = node.integer("axis", -1)
        start = rank_of(x) - rank_of(y) if axis < 0 else axis
        y = b.reshape(y, (*sizes_of(y), *(1,) * (rank_of(x) - start - rank_of(y))))
    return x, y


@converter(*_BINARY)
def arithmetic(node: NodeContext) -> GraphExpr:
    """Arithmetic of two tensors."""
    x, y = aligned(node)
    name = _BINARY[node.layer.kind]
    if name in ("floor_mod", "fmod"):
        y = checked_divisor(node.builder, y)
    if name.startswith("bitwise") and dtype_of(x).is_bool:
        name = name.replace("bitwise", "logical")
    return node.call(name, x, y)


@converter("Divide")
def divide(node: NodeContext) -> GraphExpr:
    """A quotient; of integers it is rounded down, or toward zero."""
    x, y = aligned(node)
    if dtype_of(x).is_float:
        return node.call("divide", x, y)
    name = "floor_divide" if node.flag("m_pythondiv", True) else "divide"
    return node.call(name, x, checked_divisor(node.builder, y))


@converter("SquaredDifference")
def squared_difference(node: NodeContext) -> GraphExpr:
    """(x - y)^2."""
    difference = node.call("subtract", *aligned(node))
    return node.call("multiply", difference, difference)


@converter(*_COMPARISONS)
def compare(node: NodeContext) -> GraphExpr:
    """A comparison of two tensors."""
    x, y = aligned(node)
    return node.builder.compare(_COMPARISONS[node.layer.kind], x, y)


@converter(*_LOGICAL)
def logical(node: NodeContext) -> GraphExpr:
    """A combination of truth values."""
    return node.call(_LOGICAL[node.layer.kind], *(node.builder.truth(item) for item in aligned(node)))


@converter("Select")
def select(node: NodeContext) -> GraphExpr:
    """One tensor or another, by a condition."""
    return node.builder.where(node.builder.truth(node.input(0)), node.input(1), node.input(2))


@converter("MatMul")
def matmul(node: NodeContext) -> GraphExpr:
    """The product of matrices, each of which may be transposed."""
    b, x, y = node.builder, node.input(0), node.input(1)
    turn_x, turn_y = node.flag("transpose_a"), node.flag("transpose_b")
    if rank_of(x) == 1 or rank_of(y) == 1:
        orders = [[*range(rank_of(value))] for value in (x, y)]
        for order, turn in zip(orders, (turn_x, turn_y), strict=True):
            if turn and len(order) > 1:
                order[-2:] = [order[-1], order[-2]]
        return node.onnx("MatMul", b.transpose(x, orders[0]), b.transpose(y, orders[1]))
    return node.call("matmul", x, y, transpose_a=turn_x, transpose_b=turn_y)


@converter("Inverse")
def matrix_inverse(node: NodeContext) -> GraphExpr:
    """The inverse of matrices, or of their transposes."""
    b, x = node.builder, node.input(0)
    return inverse(b, turned(b, x) if node.flag("adjoint") else x)


@converter("Einsum")
def einsum(node: NodeContext) -> GraphExpr:
    """Einstein's summation."""
    return node.onnx("Einsum", *node.all_inputs(), equation=node.layer.options.get("equation", ""))


@converter("ScaledDotProductAttention")
def attention(node: NodeContext) -> GraphExpr:
    """softmax(query @ key' * scale + mask) @ value."""
    b = node.builder
    query, key, value = (node.input(at) for at in range(3))
    dtype = dtype_of(query)
    scores = b.call("matmul", query, key, transpose_b=True)
    scale = size_at(query, rank_of(query) - 1) ** -0.5
    scores = b.multiply(scores, b.reshape(node.input(4), ()) if node.has_input(4) else scale)
    hidden = b.scalar(float("-inf"), dtype)
    if node.flag("causal"):
        rows, columns = sizes_of(scores)[-2:]
        down, across = b.reshape(b.arange(rows), (rows, 1)), b.arange(columns)
        scores = b.where(b.call("greater", across, down), hidden, scores)
    elif node.has_input(3):
        mask = node.input(3)
        if dtype_of(mask) is BOOL:
            scores = b.where(mask, scores, hidden)
        else:
            scores = b.add(scores, b.cast(mask, dtype if dtype.is_float else FLOAT32))
    return b.call("matmul", b.call("nn.softmax", scores, axis=rank_of(scores) - 1), value)
