"""Converters of functions of single elements: arithmetic, comparison, logic, activations, conversion."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, is_plain, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.core.fake_quantization import fake_quantized
from tilewright.frontend.tensorflow import complex_numbers
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.values import Value
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT32
from tilewright.support.errors import UnsupportedError

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Expm1": "expm1",
    "Floor": "floor",
    "IsInf": "isinf",
    "IsNan": "isnan",
    "Log": "log",
    "Log1p": "log1p",
    "LogicalNot": "logical_not",
    "Neg": "negative",
    "Rint": "round",
    "Round": "round",
    "Rsqrt": "rsqrt",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "nn.softplus",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
    "Invert": "bitwise_not",
    "Reciprocal": "reciprocal",
    "Inv": "reciprocal",
}
_OF_INTEGERS_AS_THEY_ARE = ("Ceil", "Floor", "Round", "Rint")
_BINARY = {
    "Add": "add",
    "AddV2": "add",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Mul": "multiply",
    "Sub": "subtract",
    "LeftShift": "left_shift",
    "RightShift": "right_shift",
}
_COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "NotEqual": "not_equal",
}
_DIVISIONS = {
    "Div": "divide",
    "FloorDiv": "floor_divide",
    "FloorMod": "floor_mod",
    "Mod": "fmod",
    "RealDiv": "divide",
    "TruncateDiv": "divide",
    "TruncateMod": "fmod",
}


@converter(*_UNARY)
def unary(node: NodeContext) -> Value:
    """Functions of one value."""
    value = node.value(0)
    if isinstance(value, Complex):
        return complex_numbers.unary(node, value)
    if node.operator in _OF_INTEGERS_AS_THEY_ARE and not dtype_of(node.input(0)).is_float:
        return value
    return node.call(_UNARY[node.operator], node.input(0))


@converter(*_BINARY)
def binary(node: NodeContext) -> Value:
    """Functions of two values, which broadcast."""
    values = (node.value(0), node.value(1))
    if any(isinstance(value, Complex) for value in values):
        return complex_numbers.binary(node, *values)
    if dtype_of(node.input(0)).name == "string" and node.operator in ("Add", "AddV2"):
        return node.call("text.concat", node.input(0), node.input(1))
    return node.call(_BINARY[node.operator], node.input(0), node.input(1))


@converter(*_DIVISIONS)
def divide(node: NodeContext) -> Value:
    """Quotients and remainders; whole numbers are never divided by zero."""
    values = (node.value(0), node.value(1))
    if any(isinstance(value, Complex) for value in values):
        return complex_numbers.binary(node, *values)
    divisor = checked_divisor(node.builder, node.input(1))
    return node.call(_DIVISIONS[node.operator], node.input(0), divisor)


@converter(*_COMPARISONS)
def compare(node: NodeContext) -> GraphExpr:
    """Comparisons, of texts for equality too."""
    first, second = node.input(0), node.input(1)
    if dtype_of(first).name == "string":
        equal = node.call("text.equal", first, second)
        if node.operator not in ("Equal", "NotEqual"):
            raise UnsupportedError(f"{node.operator} of texts")
        return equal if node.operator == "Equal" else node.call("logical_not", equal)
    return node.builder.compare(_COMPARISONS[node.operator], first, second)


@converter("ApproximateEqual")
def approximately_equal(node: NodeContext) -> GraphExpr:
    """Whether two values are nearer than a tolerance."""
    distance = node.call("abs", node.call("subtract", node.input(0), node.input(1)))
    return node.builder.compare("less", distance, node.number("tolerance", 1e-5))


@converter("Square")
def square(node: NodeContext) -> Value:
    """x * x."""
    value = node.value(0)
    return (
        complex_numbers.product(node.builder, value, value)
        if isinstance(value, Complex)
        else node.call("multiply", node.input(0), node.input(0))
    )


@converter("SquaredDifference")
def squared_difference(node: NodeContext) -> GraphExpr:
    """(a - b)^2."""
    difference = node.call("subtract", node.input(0), node.input(1))
    return node.call("multiply", difference, difference)


@converter("Pow")
def power(node: NodeContext) -> GraphExpr:
    """a to the power of b."""
    return node.call("power", node.input(0), node.input(1))


@converter("DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py")
def guarded(node: NodeContext) -> GraphExpr:
    """Products and quotients that are 0 where one operand is 0."""
    b, x, y = node.builder, node.input(0), node.input(1)
    guard = y if node.operator in ("DivNoNan", "MulNoNan") else x
    is_zero = b.compare("equal", guard, 0)
    match node.operator:
        case "DivNoNan" | "Xdivy":
            result = b.divide(x, b.where(b.compare("equal", y, 0), 1, y) if node.operator == "DivNoNan" else y)
        case "MulNoNan":
            result = b.multiply(x, y)
        case _:
            result = b.multiply(x, node.call("log1p" if node.operator == "Xlog1py" else "log", y))
    return b.where(is_zero, b.constant_like(0, x), result)


@converter("AddN", "AccumulateNV2")
def add_all(node: NodeContext) -> GraphExpr:
    """The sum of any number of tensors."""
    first, *others = [node.input(at) for at in range(len(node.values))]
    for value in others:
        first = node.call("add", first, value)
    return first


@converter("Atan2")
def angle_of(node: NodeContext) -> GraphExpr:
    """The angle of the point (x, y) from the x axis."""
    return atan2(node.builder, *node.builder.operands(node.input(0), node.input(1)))


@converter("IsFinite")
def is_finite(node: NodeContext) -> GraphExpr:
    """Whether x is a number, and not infinite."""
    data = node.input(0)
    odd = node.call("logical_or", node.call("isnan", data), node.call("isinf", data))
    return node.call("logical_not", odd)


@converter("Erfc")
def erfc(node: NodeContext) -> GraphExpr:
    """1 - erf(x)."""
    return node.builder.subtract(1.0, node.call("erf", node.input(0)))


@converter("Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Softsign")
def activation(node: NodeContext) -> GraphExpr:
    """Activations."""
    b, data = node.builder, node.input(0)
    match node.operator:
        case "Relu":
            return node.call("nn.relu", data)
        case "Relu6":
            return node.call("clip", data, minimum=0.0, maximum=6.0)
        case "Elu":
            return node.call("nn.elu", data, alpha=1.0)
        case "Selu":
            return node.call("nn.selu", data)
        case "LeakyRelu":
            return node.call("nn.leaky_relu", data, alpha=node.number("alpha", 0.2))
    return b.divide(data, b.add(node.call("abs", data), 1.0))


@converter("ClipByValue")
def clip_by_value(node: NodeContext) -> GraphExpr:
    """x between two bounds, which are tensors."""
    return node.call("maximum", node.call("minimum", node.input(0), node.input(2)), node.input(1))


@converter("Select", "SelectV2")
def select(node: NodeContext) -> Value:
    """One of two by a condition; in the older form the condition may be one for each row."""
    condition, a, b = node.input(0), node.value(1), node.value(2)
    if isinstance(a, Complex) and isinstance(b, Complex):
        return Complex(node.call("where", condition, a.real, b.real), node.call("where", condition, *_imaginary(a, b)))
    first, second = node.input(1), node.input(2)
    if node.operator == "Select" and rank_of(condition) == 1 and rank_of(first) > 1:
        condition = node.builder.reshape(condition, (sizes_of(condition)[0], *(1,) * (rank_of(first) - 1)))
    if dtype_of(first).name == "string":
        return node.call("text.where", condition, first, second)
    return node.call("where", condition, first, second)


def _imaginary(a: Complex, b: Complex) -> tuple[GraphExpr, GraphExpr]:
    return a.imaginary, b.imaginary


@converter("Cast")
def cast(node: NodeContext) -> Value:
    """Converted to another type; floats are cut off to whole numbers, which wrap."""
    b, value = node.builder, node.value(0)
    if node.is_complex("DstT"):
        return value if isinstance(value, Complex) else complex_numbers.of_real(b, b.cast(node.input(0), FLOAT32))
    to = node.dtype("DstT")
    if isinstance(value, Complex):
        return b.cast(value.real, to)
    return b.cast(node.input(0), to)


@converter("Bitcast")
def bitcast(node: NodeContext) -> GraphExpr:
    """The same bits read as another type of the same width."""
    data, to = node.input(0), node.dtype("type")
    source, known = dtype_of(data), evaluate(data)
    if source is to:
        return data
    if known is not None and is_plain(to) and is_plain(source):
        if source.bits > to.bits:
            known = known[..., None]
        view = np.ascontiguousarray(known).view(to.numpy())
        return node.builder.constant(view[..., 0] if source.bits < to.bits else view, to)
    if source.bits != to.bits or not is_plain(source) or not is_plain(to) or BOOL in (source, to):
        raise UnsupportedError(f"reading the bits of {source} as {to}")
    return node.call("reinterpret", data, dtype=to)


@converter("Bucketize")
def bucketize(node: NodeContext) -> GraphExpr:
    """How many boundaries lie at or below each value."""
    data, b = node.input(0), node.builder
    boundaries = np.asarray(node.numbers("boundaries"), np.float32)
    wide = b.expand_dims(b.cast(data, FLOAT32), (rank_of(data),))
    below = node.call("greater_equal", wide, b.constant(boundaries, FLOAT32))
    return node.call("sum", b.cast(below, INT32), axes=(rank_of(data),))


@converter("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant(node: NodeContext) -> GraphExpr:
    """Rounded to the steps between two bounds, as a quantised tensor would be."""
    if node.operator.endswith("Args"):
        bounds = [np.asarray(value, np.float32) for value in (node.number("min", -6.0), node.number("max", 6.0))]
    else:
        bounds = [node.constant(at, "a bound") for at in (1, 2)]
    bits, narrow = node.integer("num_bits", 8), node.flag("narrow_range")
    return fake_quantized(node.builder, node.input(0), bounds[0], bounds[1], bits, narrow)


@converter("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
def quantize_and_back(node: NodeContext) -> GraphExpr:
    """Rounded to steps of a scale that keeps zero at zero."""
    b, data, bits = node.builder, node.input(0), node.integer("num_bits", 8)
    if not node.flag("signed_input", True) or node.integer("axis", -1) != -1 or not node.flag("range_given"):
        raise UnsupportedError(f"{node.operator} without a range, of channels, or of unsigned numbers")
    if node.operator.endswith("V3"):
        bits = node.constant_int(3, "the bits")
    low, high = (float(node.constant(at, "a bound").item()) for at in (1, 2))
    least = -(1 << (bits - 1)) + (1 if node.flag("narrow_range") else 0)
    most = (1 << (bits - 1)) - 1
    # The bound that is farther from zero, in steps, says how wide a step is.
    scale = min(least / low if low * least > 0 else math.inf, most / high if high * most > 0 else math.inf)
    start, end = np.float32(least / scale), np.float32(most / scale)
    kept = node.call("clip", data, minimum=float(start), maximum=float(end))
    steps = node.call("round", b.multiply(kept, float(np.float32(scale))))
    return b.multiply(steps, float(np.float32(1 / scale)))
