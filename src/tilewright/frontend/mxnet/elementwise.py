"""Converters of elementwise operators: with tensors, with numbers, activations and conversions."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.dimensions import Sizes, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL
from tilewright.support.errors import UnsupportedError, UserError

_PLAIN = (
    "tanh exp log log1p expm1 sqrt rsqrt abs sign floor ceil trunc sin cos tan sinh cosh erf reciprocal "
    "negative sigmoid"
).split()
for _name in _PLAIN:
    converter(_name, f"_npi_{_name}")(lambda node, name=_name: node.call(name, node.input(0)))  # type: ignore[misc]
for _name, _target in (
    ("relu", "nn.relu"),
    ("rint", "round"),
    ("fix", "trunc"),
    ("arcsin", "asin"),
    ("arccos", "acos"),
    ("arctan", "atan"),
    ("arcsinh", "asinh"),
    ("arccosh", "acosh"),
    ("arctanh", "atanh"),
):
    converter(_name, f"_npx_{_name}")(lambda node, name=_target: node.call(name, node.input(0)))  # type: ignore[misc]


@converter("square", "_npi_square")
def square(node: Node) -> GraphExpr:
    """x * x."""
    return node.call("multiply", node.input(0), node.input(0))


@converter("round")
def away(node: Node) -> GraphExpr:
    """The nearest whole number, halves away from zero."""
    x = node.input(0)
    return node.call("multiply", node.call("floor", node.b.add(node.call("abs", x), 0.5)), node.call("sign", x))


@converter("log2", "log10")
def logarithm(node: Node) -> GraphExpr:
    """To the base 2 or 10."""
    return node.b.multiply(node.call("log", node.input(0)), 1 / math.log(2 if node.op == "log2" else 10))


@converter("cbrt", "rcbrt")
def cube_root(node: Node) -> GraphExpr:
    """The root of order 3, of negative numbers too, or its inverse."""
    x = node.input(0)
    root = node.call("power", node.call("abs", x), node.b.constant_like(1 / 3, x))
    result = node.call("multiply", root, node.call("sign", x))
    return node.call("reciprocal", result) if node.op == "rcbrt" else result


@converter("degrees", "radians")
def angle(node: Node) -> GraphExpr:
    """One in the other."""
    return node.b.multiply(node.input(0), 180 / math.pi if node.op == "degrees" else math.pi / 180)


@converter("softsign")
def softsign(node: Node) -> GraphExpr:
    """x / (1 + |x|)."""
    x = node.input(0)
    return node.call("divide", x, node.b.add(node.call("abs", x), 1.0))


@converter("hard_sigmoid")
def hard_sigmoid(node: Node) -> GraphExpr:
    """alpha * x + beta within 0 and 1."""
    return node.call("nn.hard_sigmoid", node.input(0), alpha=node.number("alpha", 0.2), beta=node.number("beta", 0.5))


@converter("smooth_l1")
def smooth_l1(node: Node) -> GraphExpr:
    """Squares near 0, magnitudes elsewhere."""
    x, b, factor = node.input(0), node.b, node.number("scalar", 1.0) ** 2
    size = node.call("abs", x)
    near = b.multiply(b.multiply(x, x), 0.5 * factor)
    return b.where(b.compare("less", size, 1 / factor), near, b.subtract(size, 0.5 / factor))


@converter("clip", "_npi_clip")
def clip(node: Node) -> GraphExpr:
    """Within bounds."""
    return node.call(
        "clip", node.input(0), minimum=node.number("a_min", -math.inf), maximum=node.number("a_max", math.inf)
    )


@converter("Activation", "_npx_activation")
def activation(node: Node) -> GraphExpr:
    """By name."""
    x, b, kind = node.input(0), node.b, node.text("act_type")
    match kind:
        case "relu":
            return node.call("nn.relu", x)
        case "sigmoid" | "tanh":
            return node.call(kind, x)
        case "softrelu":
            return node.call("nn.softplus", x)
        case "softsign":
            return node.call("divide", x, b.add(node.call("abs", x), 1.0))
        case "log_sigmoid":
            return node.call("negative", node.call("nn.softplus", node.call("negative", x)))
        case "mish":
            return b.multiply(x, node.call("tanh", node.call("nn.softplus", x)))
    raise UnsupportedError(f"the activation {kind!r}")


@converter("LeakyReLU", "_npx_leaky_relu")
def leaky_relu(node: Node) -> GraphExpr:
    """Units with a slope, weights, or an exponential below 0."""
    x, kind = node.input(0), node.text("act_type", "leaky")
    slope = node.number("slope", 0.25)
    match kind:
        case "leaky":
            return node.call("nn.leaky_relu", x, alpha=slope)
        case "rrelu":
            middle = (node.number("lower_bound", 0.125) + node.number("upper_bound", 0.334)) / 2
            return node.call("nn.leaky_relu", x, alpha=middle)
        case "elu":
            return node.call("nn.elu", x, alpha=slope)
        case "selu":
            return node.call("nn.selu", x)
        case "gelu":
            return node.call("nn.gelu", x)
        case "prelu":
            weight = node.input(1)
            if rank_of(weight) == 1 and size_at(weight, 0) > 1:
                weight = node.b.reshape(weight, (size_at(weight, 0), *(1,) * max(0, rank_of(x) - 2)))
            return node.call("nn.prelu", x, weight)
    raise UnsupportedError(f"the unit {kind!r}")


# Two inputs, or one and a number

_ARITHMETIC = {
    "add": "add",
    "plus": "add",
    "sub": "subtract",
    "minus": "subtract",
    "mul": "multiply",
    "div": "divide",
    "mod": "floor_mod",
    "power": "power",
    "pow": "power",
    "maximum": "maximum",
    "minimum": "minimum",
}
_COMPARISONS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "lesser": "less",
    "lesser_equal": "less_equal",
    "less": "less",
    "less_equal": "less_equal",
}
_LOGIC = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}


def _computed(node: Node, key: str, a: GraphExpr | float, b: GraphExpr | float) -> GraphExpr:
    """An operator; comparisons give numbers of the type of what they compare, 0 or 1."""
    build = node.b
    if key in _ARITHMETIC:
        return build.binary(_ARITHMETIC[key], a, b)
    first, second = build.operands(a, b)
    kind = dtype_of(first)
    if key in _COMPARISONS:
        return build.cast(build.compare(_COMPARISONS[key], first, second), kind)
    truths = [node.call("not_equal", value, build.constant_like(0, value)) for value in (first, second)]
    return build.cast(node.call(_LOGIC[key], *truths), kind)


def _binary_names(key: str) -> list[str]:
    names = [f"broadcast_{key}", f"_{key}", f"_npi_{key}"]
    if key in ("add", "sub", "mul", "div"):
        names.append(f"elemwise_{key}")
    if key in ("plus", "minus", "mul", "div", "power", "maximum", "minimum"):
        names.append(f"_{key.title()}")
    return names


def _scalar_names(key: str) -> list[str]:
    names = [f"_{key}_scalar", f"_npi_{key}_scalar"]
    return (
        [*names, f"_{key.title()}Scalar"]
        if key in ("plus", "minus", "mul", "div", "power", "maximum", "minimum")
        else names
    )


def _register(key: str) -> None:
    converter(*_binary_names(key))(lambda node: _computed(node, key, node.input(0), node.input(1)))
    converter(*_scalar_names(key))(lambda node: _computed(node, key, node.input(0), node.number("scalar")))
    if key in ("minus", "div", "mod", "power", "sub", "pow"):
        names = [f"_r{key}_scalar", f"_npi_r{key}_scalar", f"_R{key.title()}Scalar"]
        names = [*names, f"_r{key.title()}Scalar"]
        converter(*names)(lambda node: _computed(node, key, node.number("scalar"), node.input(0)))


for _key in (*_ARITHMETIC, *_COMPARISONS, *_LOGIC):
    _register(_key)


@converter("add_n", "ElementWiseSum", "_sum")
def add_n(node: Node) -> GraphExpr:
    """The sum of all inputs."""
    values = node.all_inputs()
    total = values[0]
    for value in values[1:]:
        total = node.call("add", total, value)
    return total


@converter("broadcast_hypot", "_hypot")
def hypotenuse(node: Node) -> GraphExpr:
    """sqrt(a * a + b * b)."""
    a, b = node.input(0), node.input(1)
    return node.call("sqrt", node.call("add", node.call("multiply", a, a), node.call("multiply", b, b)))


@converter("logical_not")
def logical_not(node: Node) -> GraphExpr:
    """1 where it is 0, else 0."""
    x = node.input(0)
    return node.b.cast(node.b.compare("equal", x, 0), dtype_of(x))


@converter("where")
def where(node: Node) -> GraphExpr:
    """One or the other, by a condition an element, or a row."""
    condition, a = node.b.cast(node.input(0), BOOL), node.input(1)
    if rank_of(condition) == 1 and rank_of(a) > 1:
        condition = node.b.reshape(condition, (*sizes_of(condition), *(1,) * (rank_of(a) - 1)))
    return node.call("where", condition, a, node.input(2))


@converter("Cast", "cast", "amp_cast")
def cast(node: Node) -> GraphExpr:
    """Another type."""
    return node.b.cast(node.input(0), node.dtype())


@converter("amp_multicast")
def multicast(node: Node) -> list[GraphExpr]:
    """All inputs in the widest of their types."""
    values = node.all_inputs()
    widest = max((dtype_of(value) for value in values), key=lambda kind: kind.bits)
    return [node.b.cast(value, widest) for value in values]


@converter("zeros_like", "ones_like")
def filled_like(node: Node) -> GraphExpr:
    """One number in the shape of another tensor."""
    x = node.input(0)
    return node.b.filled(int(node.op == "ones_like"), sizes_of(x), dtype_of(x))


@converter("_zeros", "_ones", "_full", "_npi_zeros", "_npi_ones")
def filled(node: Node) -> GraphExpr:
    """One number in a shape."""
    value = node.number("value") if node.op == "_full" else float(node.op.endswith("ones"))
    shape = node.ints("shape", ())
    if any(size < 1 for size in shape):
        raise UserError(f"a tensor of shape {shape}, which is not known", hint="give the batch when exporting")
    return node.b.filled(value, shape, node.dtype())


@converter("_arange", "_npi_arange")
def arange(node: Node) -> GraphExpr:
    """Numbers by a step, each several times."""
    start, step = node.number("start", 0.0), node.number("step", 1.0)
    if not node.has("stop"):
        start, stop = 0.0, start
    else:
        stop = node.number("stop")
    repeat = node.integer("repeat", 1)
    if step == 0 or repeat < 1 or abs(stop - start) / abs(step) > 1 << 24:
        raise UserError(f"numbers from {start} to {stop} by {step}, {repeat} times each")
    count = max(0, math.ceil((stop - start) / step))
    values = (start + node.b.count(count) * step).repeat(repeat)
    return node.b.constant(values.astype(node.dtype().numpy()), node.dtype())


@converter("_contrib_arange_like")
def arange_like(node: Node) -> GraphExpr:
    """Numbers as many as an axis has elements, or as a tensor has."""
    x, b = node.input(0), node.b
    start, step = node.number("start", 0.0), node.number("step", 1.0)
    sizes = sizes_of(x)
    shape: Sizes = (sizes[node.axis(node.integer("axis"), rank_of(x))],) if node.has("axis") else sizes
    numbers = b.cast(b.arange(product(shape)), dtype_of(x))
    return b.reshape(b.add(b.multiply(numbers, step), start), shape)


@converter("_contrib_div_sqrt_dim")
def div_sqrt_dim(node: Node) -> GraphExpr:
    """Divided by the root of the last size."""
    return node.b.multiply(node.input(0), 1 / math.sqrt(size_at(node.input(0), rank_of(node.input(0)) - 1)))
