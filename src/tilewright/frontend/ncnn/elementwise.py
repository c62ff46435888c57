"""Converters of activations, elementwise layers and reductions."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.ncnn.layer import Layer, converter
from tilewright.graph.ir.dimensions import same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UnsupportedError, UserError

_PLAIN = {
    "AbsVal": "abs",
    "BNLL": "nn.softplus",
    "Sigmoid": "sigmoid",
    "TanH": "tanh",
    "Softplus": "nn.softplus",
    "Erf": "erf",
}


@converter(*_PLAIN)
def plain(layer: Layer) -> GraphExpr:
    """One operator."""
    return layer.call(_PLAIN[layer.kind], layer.input(0))


@converter("ReLU")
def relu(layer: Layer) -> GraphExpr:
    """x, or a slope times x."""
    slope = layer.number(0)
    return layer.call("nn.leaky_relu", layer.input(0), alpha=slope) if slope else layer.call("nn.relu", layer.input(0))


@converter("Clip")
def clip(layer: Layer) -> GraphExpr:
    """Within bounds."""
    return layer.call("clip", layer.input(0), minimum=layer.number(0, -math.inf), maximum=layer.number(1, math.inf))


@converter("ELU", "CELU")
def elu(layer: Layer) -> GraphExpr:
    """x, or alpha * (exp(x) - 1); the other kind divides x by alpha first."""
    x, alpha = layer.input(0), layer.number(0, 0.1 if layer.kind == "ELU" else 1.0)
    if layer.kind == "ELU":
        return layer.call("nn.elu", x, alpha=alpha)
    return layer.b.multiply(layer.call("nn.elu", layer.b.divide(x, alpha), alpha=1.0), alpha)


@converter("SELU")
def selu(layer: Layer) -> GraphExpr:
    """A scaled exponential unit."""
    alpha, gamma = layer.number(0, 1.67326324), layer.number(1, 1.050700987)
    return layer.call("nn.selu", layer.input(0), alpha=alpha, gamma=gamma)


@converter("GELU")
def gelu(layer: Layer) -> GraphExpr:
    """x times the normal distribution function."""
    return layer.call("nn.gelu", layer.input(0), approximate=bool(layer.integer(0)))


@converter("Mish")
def mish(layer: Layer) -> GraphExpr:
    """x * tanh(softplus(x))."""
    x = layer.input(0)
    return layer.b.multiply(x, layer.call("tanh", layer.call("nn.softplus", x)))


@converter("Swish")
def swish(layer: Layer) -> GraphExpr:
    """x * sigmoid(x)."""
    return layer.b.multiply(layer.input(0), layer.call("sigmoid", layer.input(0)))


@converter("HardSigmoid", "HardSwish")
def hard_sigmoid(layer: Layer) -> GraphExpr:
    """alpha * x + beta within 0 and 1, perhaps times x."""
    x = layer.input(0)
    inner = layer.call("nn.hard_sigmoid", x, alpha=layer.number(0, 0.2), beta=layer.number(1, 0.5))
    return inner if layer.kind == "HardSigmoid" else layer.b.multiply(x, inner)


@converter("Shrink")
def shrink(layer: Layer) -> GraphExpr:
    """Nothing near 0, and less by a bias elsewhere."""
    x, b = layer.input(0), layer.b
    bias, limit = layer.number(0, 0.0), layer.number(1, 0.5)
    low = b.where(b.compare("less", x, -limit), b.add(x, bias), 0.0)
    return b.where(b.compare("greater", x, limit), b.subtract(x, bias), low)


@converter("Dropout")
def dropout(layer: Layer) -> GraphExpr:
    """A factor, mostly 1."""
    factor = layer.number(0, 1.0)
    return layer.input(0) if factor == 1 else layer.b.multiply(layer.input(0), factor)


@converter("Noop", "Split", "DeepCopy", "Packing")
def copies(layer: Layer) -> list[GraphExpr]:
    """The same for each top."""
    return [layer.input(min(at, len(layer.inputs) - 1)) for at in range(layer.tops)]


@converter("Cast")
def cast(layer: Layer) -> GraphExpr:
    """Other floats: results are floats of 32 bits here."""
    if any(layer.integer(at) not in (0, 1, 2, 4) for at in (0, 1)):
        raise UnsupportedError("Cast from or to integers")
    return layer.input(0)


@converter("Threshold")
def threshold(layer: Layer) -> GraphExpr:
    """1 above a threshold, else 0."""
    return layer.b.cast(layer.b.compare("greater", layer.input(0), layer.number(0)), FLOAT32)


def _linear(layer: Layer) -> GraphExpr:
    """shift + scale * x."""
    scale, shift = layer.number(1, 1.0), layer.number(2)
    value = layer.input(0) if scale == 1 else layer.b.multiply(layer.input(0), scale)
    return value if shift == 0 else layer.b.add(value, shift)


@converter("Exp", "Log", "Power")
def powers(layer: Layer) -> GraphExpr:
    """Powers and logarithms of shift + scale * x."""
    value, base = _linear(layer), layer.number(0, 1.0 if layer.kind == "Power" else -1.0)
    if layer.kind == "Power":
        return value if base == 1 else layer.call("power", value, layer.b.constant_like(base, value))
    if base != -1 and (base <= 0 or base == 1):
        raise UserError(f"the base {base}: it must be positive, and not 1")
    factor = 1.0 if base == -1 else math.log(base)
    if layer.kind == "Exp":
        return layer.call("exp", value if factor == 1 else layer.b.multiply(value, factor))
    return layer.b.divide(layer.call("log", value), factor)


@converter("Softmax")
def softmax(layer: Layer) -> GraphExpr:
    """Along an axis."""
    axis = layer.integer(0)
    if not layer.integer(1) and axis != 0:
        raise UnsupportedError("Softmax of old files, whose axis was wrong", hint="convert the model again")
    return layer.call("nn.softmax", layer.input(0), axis=layer.axis(axis, rank_of(layer.input(0))))


@converter("GLU")
def glu(layer: Layer) -> GraphExpr:
    """One half times the sigmoid of the other."""
    x, b = layer.input(0), layer.b
    axis = layer.axis(layer.integer(0), rank_of(x))
    half = size_at(x, axis) // 2
    first, second = b.slice_axis(x, axis, 0, half), b.slice_axis(x, axis, half, 2 * half)
    return b.multiply(first, layer.call("sigmoid", second))


_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "subtract", "divide", "power")
_TURNED = (7, 8, 9)


def _spread(layer: Layer, value: GraphExpr, other: GraphExpr) -> GraphExpr:
    """A value of fewer dimensions: a list goes along the channels where it is as long, else along the last axis."""
    rank, own = rank_of(other), rank_of(value)
    if own >= rank:
        return value
    sizes = sizes_of(value)
    if own == 1 and not same(sizes[0], sizes_of(other)[0]):
        return layer.b.reshape(value, (*(1,) * (rank - 1), sizes[0]))
    return layer.b.reshape(value, (*sizes, *(1,) * (rank - own)))


@converter("BinaryOp")
def binary(layer: Layer) -> GraphExpr:
    """Arithmetic of two bottoms, or of one and a number."""
    kind, b = layer.integer(0), layer.b
    if not 0 <= kind < len(_BINARY):
        raise UnsupportedError(f"BinaryOp number {kind}")
    first: GraphExpr = layer.input(0)
    if layer.integer(1) or not layer.has_input(1):
        number = layer.number(2)
        return b.binary(_BINARY[kind], number, first) if kind in _TURNED else b.binary(_BINARY[kind], first, number)
    second = layer.input(1)
    first, second = _spread(layer, first, second), _spread(layer, second, first)
    return layer.call(_BINARY[kind], second, first) if kind in _TURNED else layer.call(_BINARY[kind], first, second)


_UNARY = (
    "abs negative floor ceil square sqrt rsqrt exp log sin cos tan asin acos atan reciprocal tanh log10 round trunc"
).split()


@converter("UnaryOp")
def unary(layer: Layer) -> GraphExpr:
    """One function."""
    kind, x = layer.integer(0), layer.input(0)
    if not 0 <= kind < len(_UNARY):
        raise UnsupportedError(f"UnaryOp number {kind}")
    match _UNARY[kind]:
        case "square":
            return layer.b.multiply(x, x)
        case "log10":
            return layer.b.multiply(layer.call("log", x), 1 / math.log(10))
        case name:
            return layer.call(name, x)


@converter("Eltwise")
def eltwise(layer: Layer) -> GraphExpr:
    """The product, weighted sum or maximum of bottoms."""
    values, factors = layer.all_inputs(), layer.floats(1)
    names = {0: "multiply", 1: "add", 2: "maximum"}
    kind = layer.integer(0)
    if kind not in names or (factors and len(factors) != len(values)):
        raise UserError(f"Eltwise number {kind} of {len(values)} bottoms with {len(factors)} factors")
    if factors and kind == 1:
        values = [layer.b.multiply(value, factor) for value, factor in zip(values, factors, strict=True)]
    result = values[0]
    for value in values[1:]:
        result = layer.call(names[kind], result, value)
    return result


@converter("Reduction")
def reduction(layer: Layer) -> GraphExpr:
    """Sums, means, extremes, products and norms, times a factor."""
    x, b, kind = layer.input(0), layer.b, layer.integer(0)
    rank, keep = rank_of(x), bool(layer.integer(4))
    everything = bool(layer.integer(1, 1)) or not layer.floats(3)
    if not everything and not layer.integer(5):
        raise UnsupportedError("Reduction of old files, whose axes were wrong", hint="convert the model again")
    axes = tuple(range(rank)) if everything else tuple(sorted({layer.axis(at, rank) for at in layer.ints(3)}))
    names = ("sum", "sum", "sum", "mean", "max", "min", "prod", "sum", "sum", "sum", "sum")
    if not 0 <= kind < len(names):
        raise UserError(f"Reduction number {kind} is not known")
    value = x
    if kind in (1, 7):
        value = layer.call("abs", x)
    elif kind in (2, 8):
        value = b.multiply(x, x)
    elif kind == 10:
        value = layer.call("exp", x)
    result = layer.call(names[kind], value, axes=axes, keepdims=keep)
    if kind == 8:
        result = layer.call("sqrt", result)
    elif kind in (9, 10):
        result = layer.call("log", result)
    factor = layer.number(2, 1.0)
    result = result if factor == 1 else b.multiply(result, factor)
    return result if rank_of(result) else b.reshape(result, (1,))


@converter("CumulativeSum")
def cumulative_sum(layer: Layer) -> GraphExpr:
    """Running sums along an axis."""
    return layer.call("cumsum", layer.input(0), axis=layer.axis(layer.integer(0), rank_of(layer.input(0))))


@converter("ArgMax")
def argmax(layer: Layer) -> GraphExpr:
    """The greatest elements' places, or values and places."""
    b, count = layer.b, layer.count(1, 1, 1)
    flat = b.flatten(layer.input(0))
    if count > size_at(flat, 0):
        raise UserError(f"the {count} greatest of {size_at(flat, 0)} elements")
    both = layer.call("topk", flat, axis=0, k=count, largest=True)
    places = b.cast(b.item(both, 1), FLOAT32)
    return b.stack([b.item(both, 0), places], 0) if layer.integer(0) else places
