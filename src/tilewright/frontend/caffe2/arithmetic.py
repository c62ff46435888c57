"""Converters of elementwise operators, comparisons and reductions."""

from __future__ import annotations

from tilewright.frontend.caffe2.files import type_name
from tilewright.frontend.caffe2.node import Node, converter
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.local_response import of_unit_length
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_UNARY = {
    "Relu": "nn.relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "nn.softplus",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Abs": "abs",
    "Sign": "sign",
    "Floor": "floor",
    "Ceil": "ceil",
    "Reciprocal": "reciprocal",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Erf": "erf",
    "Negative": "negative",
}


@converter(*_UNARY)
def unary(node: Node) -> GraphExpr:
    """One operator."""
    return node.call(_UNARY[node.kind], node.input(0))


@converter("Copy", "Alias", "StopGradient", "EnsureCPUOutput", "EnsureDense", "CopyGPUToCPU", "CopyCPUToGPU",
           "CopyFromCPUInput", "Dropout")  # fmt: skip
def same(node: Node) -> GraphExpr:
    """What changes nothing when a net runs."""
    return node.input(0)


@converter("Sqr", "Cube")
def small_power(node: Node) -> GraphExpr:
    """x * x, or x * x * x."""
    x = node.input(0)
    square = node.call("multiply", x, x)
    return square if node.kind == "Sqr" else node.call("multiply", square, x)


@converter("LeakyRelu")
def leaky_relu(node: Node) -> GraphExpr:
    """x, or a slope times x."""
    return node.call("nn.leaky_relu", node.input(0), alpha=node.number("alpha", 0.01))


@converter("Elu")
def elu(node: Node) -> GraphExpr:
    """x, or alpha * (exp(x) - 1)."""
    return node.call("nn.elu", node.input(0), alpha=node.number("alpha", 1.0))


@converter("Selu")
def selu(node: Node) -> GraphExpr:
    """A scaled exponential unit."""
    alpha, gamma = node.number("alpha", 1.6732632423543772), node.number("scale", 1.0507009873554805)
    return node.call("nn.selu", node.input(0), alpha=alpha, gamma=gamma)


@converter("Gelu")
def gelu(node: Node) -> GraphExpr:
    """x times the normal distribution function."""
    return node.call("nn.gelu", node.input(0), approximate=node.flag("fast_gelu"))


@converter("Softsign")
def softsign(node: Node) -> GraphExpr:
    """x / (1 + |x|)."""
    x = node.input(0)
    return node.call("divide", x, node.b.add(node.call("abs", x), 1.0))


@converter("Swish")
def swish(node: Node) -> GraphExpr:
    """x * sigmoid(x)."""
    return node.call("multiply", node.input(0), node.call("sigmoid", node.input(0)))


@converter("HardSigmoid")
def hard_sigmoid(node: Node) -> GraphExpr:
    """alpha * x + beta within 0 and 1."""
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    return node.call("nn.hard_sigmoid", node.input(0), alpha=alpha, beta=beta)


@converter("Clip")
def clip(node: Node) -> GraphExpr:
    """Within bounds."""
    low, high = node.number("min", float("-inf")), node.number("max", float("inf"))
    return node.call("clip", node.input(0), minimum=low, maximum=high)


@converter("Glu")
def glu(node: Node) -> GraphExpr:
    """One half times the sigmoid of the other."""
    x, b = node.input(0), node.b
    axis = node.axis(node.integer("dim", -1), rank_of(x))
    half = size_at(x, axis) // 2
    first, second = b.slice_axis(x, axis, 0, half), b.slice_axis(x, axis, half, 2 * half)
    return node.call("multiply", first, node.call("sigmoid", second))


# Two inputs

_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Pow": "power"}
_COMPARISONS = {
    "EQ": "equal",
    "NE": "not_equal",
    "LT": "less",
    "LE": "less_equal",
    "GT": "greater",
    "GE": "greater_equal",
}
_LOGIC = {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}


def _fitted(node: Node) -> tuple[GraphExpr, GraphExpr]:
    """Both inputs; the old form of broadcasting says at which axis the second one stands."""
    a, c = node.input(0), node.input(1)
    if node.flag("broadcast") and (node.has("axis") or node.has("axis_str")):
        if node.has("axis_str"):
            axis = node.text("order", "NCHW").find(node.text("axis_str", "C"))
        else:
            axis = node.axis(node.integer("axis", 0), rank_of(a))
        missing = rank_of(a) - axis - rank_of(c)
        if axis < 0 or missing < 0:
            raise UserError(f"{rank_of(c)} dimensions at axis {axis} do not fit {rank_of(a)}")
        c = node.b.reshape(c, (*sizes_of(c), *(1,) * missing))
    return a, c


@converter(*_BINARY)
def binary(node: Node) -> GraphExpr:
    """Arithmetic; a power may be an argument."""
    if node.kind == "Pow" and not node.has_input(1):
        return node.call("power", node.input(0), node.b.constant_like(node.number("exponent", 0.0), node.input(0)))
    return node.call(_BINARY[node.kind], *_fitted(node))


@converter(*_COMPARISONS)
def compare(node: Node) -> GraphExpr:
    """Truths."""
    return node.b.compare(_COMPARISONS[node.kind], *_fitted(node))


@converter(*_LOGIC)
def logic(node: Node) -> GraphExpr:
    """Truths of truths."""
    return node.call(_LOGIC[node.kind], *(node.b.cast(value, BOOL) for value in _fitted(node)))


@converter("Not")
def negation(node: Node) -> GraphExpr:
    """Not x."""
    return node.call("logical_not", node.b.cast(node.input(0), BOOL))


@converter("Where", "Conditional")
def where(node: Node) -> GraphExpr:
    """One or the other, by truths."""
    condition, a = node.b.cast(node.input(0), BOOL), node.input(1)
    if rank_of(condition) < rank_of(a):
        missing = rank_of(a) - rank_of(condition)
        condition = node.b.reshape(condition, (*sizes_of(condition), *(1,) * missing))
    return node.call("where", condition, a, node.input(2))


_MANY = {"Sum": "add", "SumRelu": "add", "Max": "maximum", "Min": "minimum", "Mean": "add"}


@converter(*_MANY)
def many(node: Node) -> GraphExpr:
    """All inputs put together, element by element."""
    values = node.all_inputs()
    total = values[0]
    for value in values[1:]:
        total = node.call(_MANY[node.kind], total, value)
    if node.kind == "Mean":
        return node.b.divide(total, float(len(values)))
    return node.call("nn.relu", total) if node.kind == "SumRelu" else total


@converter("Cast")
def cast(node: Node) -> GraphExpr:
    """Another type."""
    argument = node.arguments.get("to")
    if argument is None:
        raise UserError("Cast does not say its type")
    named = bytes(argument.s).decode("utf-8", "replace").lower()
    aliases = {"float": "float32", "double": "float64", "int": "int32"}
    return node.b.cast(node.input(0), aliases.get(named, named) if named else type_name(int(argument.i)))


# Reductions

_REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min"}


@converter(*_REDUCTIONS, "ReduceL1", "ReduceL2")
def reduce(node: Node) -> GraphExpr:
    """Over axes, which stay unless it says otherwise."""
    x = node.input(0)
    axes = tuple(sorted({node.axis(axis, rank_of(x)) for axis in node.ints("axes")})) or tuple(range(rank_of(x)))
    keep = node.flag("keepdims", True)
    match node.kind:
        case "ReduceL1":
            return node.call("sum", node.call("abs", x), axes=axes, keepdims=keep)
        case "ReduceL2":
            return node.call("sqrt", node.call("sum", node.call("multiply", x, x), axes=axes, keepdims=keep))
    return node.call(_REDUCTIONS[node.kind], x, axes=axes, keepdims=keep)


@converter(*(f"Reduce{side}{name}" for side in ("Front", "Back") for name in ("Sum", "Mean", "Max")))
def reduce_side(node: Node) -> GraphExpr:
    """Over the first or the last axes, which vanish."""
    x, count = node.input(0), node.integer("num_reduce_dim", 1)
    front = node.kind.startswith("ReduceFront")
    if not 1 <= count <= rank_of(x) or node.has_input(1):
        raise UnsupportedError(f"{node.kind} over {count} axes of {rank_of(x)}, or with lengths")
    axes = tuple(range(count)) if front else tuple(range(rank_of(x) - count, rank_of(x)))
    name = node.kind.removeprefix("ReduceFront").removeprefix("ReduceBack").lower()
    return node.call(name, x, axes=axes, keepdims=False)


@converter("ArgMax", "ArgMin")
def place_of_extreme(node: Node) -> GraphExpr:
    """The place of the greatest or the least."""
    axis = node.axis(node.integer("axis", -1), rank_of(node.input(0)))
    return node.call(node.kind.lower(), node.input(0), axis=axis, keepdims=node.flag("keepdims", True))


@converter("TopK")
def topk(node: Node) -> list[GraphExpr]:
    """The greatest elements and their places."""
    x, count = node.input(0), node.integer("k", 0)
    axis = node.axis(node.integer("axis", -1), rank_of(x))
    if not 1 <= count <= size_at(x, axis):
        raise UserError(f"the {count} greatest of {size_at(x, axis)} elements")
    both = node.call("topk", x, axis=axis, k=count, largest=True)
    return [node.b.item(both, 0), node.b.item(both, 1)]


@converter("Normalize", "NormalizeL1")
def normalize(node: Node) -> GraphExpr:
    """Divided by the length, or the sum of magnitudes, along an axis."""
    x, b = node.input(0), node.b
    axis = node.axis(node.integer("axis", -1), rank_of(x))
    if node.kind == "Normalize":
        return of_unit_length(b, x, (axis,), 1e-24)
    total = node.call("sum", node.call("abs", x), axes=(axis,), keepdims=True)
    return node.call("divide", x, b.where(b.compare("equal", total, 0.0), 1.0, total))


@converter("OneHot")
def one_hot(node: Node) -> GraphExpr:
    """Truths: one for each place, at its number."""
    places = node.b.cast(node.input(0), INT64)
    count = node.size(1, "the number of classes")
    return node.call("equal", node.b.expand_dims(places, (1,)), node.b.expand_dims(node.b.arange(count), (0,)))


@converter("ConstantFill", "GaussianFill", "UniformFill")
def constant_fill(node: Node) -> GraphExpr:
    """One number, in a shape or in that of the input."""
    if node.kind != "ConstantFill":
        raise UnsupportedError(f"{node.kind}: random numbers in a net that computes")
    kind = type_name(node.integer("dtype", 1))
    shape: Sizes = node.ints("shape")
    if node.has_input(0):
        shape = sizes_of(node.input(0))
        if node.flag("input_as_shape"):
            known = node.sizes(0, "the shape")
            if known is None:
                raise UnsupportedError("a shape that only a run knows")
            shape = known
        shape = (*shape, *node.ints("extra_shape"))
    filled = node.b.filled(node.number("value", 0.0), shape, FLOAT32)
    return node.b.cast(filled, kind) if dtype_of(filled).name != kind else filled
