"""Converters of activation functions."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import Size, product, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@converter("Relu")
def relu(node: NodeContext) -> GraphExpr:
    """max(x, 0)."""
    return node.call("nn.relu", node.input(0))


@converter("LeakyRelu")
def leaky_relu(node: NodeContext) -> GraphExpr:
    """A slope on the negative side."""
    return node.call("nn.leaky_relu", node.input(0), alpha=node.number("alpha", 0.01))


@converter("Elu")
def elu(node: NodeContext) -> GraphExpr:
    """An exponential on the negative side."""
    return node.call("nn.elu", node.input(0), alpha=node.number("alpha", 1.0))


@converter("Celu")
def celu(node: NodeContext) -> GraphExpr:
    """alpha * elu(x / alpha)."""
    data, alpha = node.input(0), node.number("alpha", 1.0)
    if alpha == 1.0:
        return node.call("nn.elu", data, alpha=1.0)
    scale = node.builder.constant_like(alpha, data)
    return node.call("multiply", scale, node.call("nn.elu", node.call("divide", data, scale), alpha=1.0))


@converter("Selu")
def selu(node: NodeContext) -> GraphExpr:
    """Scaled elu."""
    alpha = node.number("alpha", 1.67326319217681884765625)
    gamma = node.number("gamma", 1.05070102214813232421875)
    return node.call("nn.selu", node.input(0), alpha=alpha, gamma=gamma)


@converter("PRelu")
def prelu(node: NodeContext) -> GraphExpr:
    """Slopes as an input; broadcast in both directions, as runtimes do beyond what the standard asks."""
    data, slope = node.input(0), node.input(1)
    missing = rank_of(slope) - rank_of(data)
    if missing > 0:
        data = node.builder.reshape(data, (*(1,) * missing, *sizes_of(data)))
    if dtype_of(data).is_float:
        return node.call("nn.prelu", data, slope)
    zero = node.builder.constant_like(0, data)
    return node.call("where", node.call("less", data, zero), node.call("multiply", data, slope), data)


@converter("HardSigmoid")
def hard_sigmoid(node: NodeContext) -> GraphExpr:
    """A line kept within 0 and 1."""
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    return node.call("nn.hard_sigmoid", node.input(0), alpha=alpha, beta=beta)


@converter("HardSwish")
def hard_swish(node: NodeContext) -> GraphExpr:
    """x * hard_sigmoid(x)."""
    data = node.input(0)
    return node.call("multiply", data, node.call("nn.hard_sigmoid", data, alpha=1 / 6, beta=0.5))


@converter("Softplus")
def softplus(node: NodeContext) -> GraphExpr:
    """log(1 + exp(x))."""
    return node.call("nn.softplus", node.input(0))


@converter("Softsign")
def softsign(node: NodeContext) -> GraphExpr:
    """x / (1 + |x|)."""
    return build_softsign(node, node.input(0))


def build_softsign(node: NodeContext, data: GraphExpr) -> GraphExpr:
    """x / (1 + |x|) of a value."""
    return node.call("divide", data, node.call("add", node.builder.constant_like(1, data), node.call("abs", data)))


@converter("ThresholdedRelu")
def thresholded_relu(node: NodeContext) -> GraphExpr:
    """x where it is above a threshold, else 0."""
    return build_thresholded_relu(node, node.input(0), node.number("alpha", 1.0))


def build_thresholded_relu(node: NodeContext, data: GraphExpr, alpha: float) -> GraphExpr:
    """x where it is above alpha, else 0, of a value."""
    above = node.call("greater", data, node.builder.constant_like(alpha, data))
    return node.call("where", above, data, node.builder.constant_like(0, data))


@converter("Mish")
def mish(node: NodeContext) -> GraphExpr:
    """x * tanh(softplus(x))."""
    data = node.input(0)
    return node.call("multiply", data, node.call("tanh", node.call("nn.softplus", data)))


@converter("Swish")
def swish(node: NodeContext) -> GraphExpr:
    """x * sigmoid(alpha * x)."""
    data, alpha = node.input(0), node.number("alpha", 1.0)
    inner = data if alpha == 1.0 else node.call("multiply", data, node.builder.constant_like(alpha, data))
    return node.call("multiply", data, node.call("sigmoid", inner))


@converter("Gelu")
def gelu(node: NodeContext) -> GraphExpr:
    """The erf or the tanh form."""
    form = node.text("approximate", "none")
    if form not in ("none", "tanh"):
        raise UserError(f"approximate must be none or tanh, it is {form!r}")
    return node.call("nn.gelu", node.input(0), approximate=form == "tanh")


@converter("Shrink")
def shrink(node: NodeContext) -> GraphExpr:
    """Values near 0 become 0, others move toward it by a bias."""
    data = node.input(0)
    bias, bound = node.number("bias", 0.0), node.number("lambd", 0.5)
    zero = node.builder.constant_like(0, data)
    low = node.call("less", data, node.builder.constant_like(-bound, data))
    high = node.call("greater", data, node.builder.constant_like(bound, data))
    moved = node.builder.constant_like(bias, data)
    inner = node.call("where", high, node.call("subtract", data, moved), zero)
    return node.call("where", low, node.call("add", data, moved), inner)


@converter("Softmax", "LogSoftmax", since=13)
def softmax(node: NodeContext) -> GraphExpr:
    """Along one axis."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    return node.call("nn.softmax" if node.node.op_type == "Softmax" else "nn.log_softmax", data, axis=axis)


@converter("Softmax", "LogSoftmax", until=12)
def softmax_flattened(node: NodeContext) -> GraphExpr:
    """Before opset 13: over all axes from one on, as if they were one."""
    data = node.input(0)
    shape = sizes_of(data)
    name = "nn.softmax" if node.node.op_type == "Softmax" else "nn.log_softmax"
    axis = node.axis(node.integer("axis", 1), len(shape))
    if all(same(dim, 1) for dim in shape[axis + 1 :]):
        return node.call(name, data, axis=axis)
    if all(same(dim, 1) for dim in shape[axis:-1]):
        return node.call(name, data, axis=len(shape) - 1)
    flat = node.builder.reshape(data, (product(shape[:axis]), product(shape[axis:])))
    return node.builder.reshape(node.call(name, flat, axis=1), shape)


@converter("Hardmax")
def hardmax(node: NodeContext) -> GraphExpr:
    """1 at the first greatest element along an axis, else 0."""
    data = node.input(0)
    shape = sizes_of(data)
    if node.opset >= 13:
        axis, flat = node.axis(node.integer("axis", -1), len(shape)), shape
    else:
        first = node.axis(node.integer("axis", 1), len(shape))
        axis, flat = 1, (product(shape[:first]), product(shape[first:]))
    if flat[axis] == 0:
        return data
    value = node.builder.reshape(data, flat)
    place = node.call("argmax", value, axis=axis, keepdims=True, select_last=False)
    counter: list[Size] = [1] * len(flat)
    counter[axis] = flat[axis]
    order = node.builder.arange(flat[axis])
    hit = node.call("equal", place, node.builder.reshape(order, counter))
    return node.builder.reshape(node.builder.cast(hit, dtype_of(data)), shape)
