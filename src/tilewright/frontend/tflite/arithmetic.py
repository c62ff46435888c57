"""Converters of arithmetic, comparison, logic and conversion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, evaluate, is_plain, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.fake_quantization import fake_quantized
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import away, same_levels
from tilewright.frontend.tflite.quantized_arithmetic import (
    compared,
    quantized_abs,
    quantized_product,
    quantized_sum,
    requantized,
    squared_difference,
)
from tilewright.frontend.tflite.reciprocals import quantized_quotient
from tilewright.frontend.tflite.registry import converter
from tilewright.frontend.tflite.tables import by_function
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import BOOL, INT32
from tilewright.support.errors import UnsupportedError, UserError

_UNARY = {
    "ABS": "abs",
    "CEIL": "ceil",
    "COS": "cos",
    "EXP": "exp",
    "FLOOR": "floor",
    "LOG": "log",
    "LOGICAL_NOT": "logical_not",
    "NEG": "negative",
    "ROUND": "round",
    "RSQRT": "rsqrt",
    "SIGN": "sign",
    "SIN": "sin",
    "SQRT": "sqrt",
    "STABLEHLO_ABS": "abs",
    "STABLEHLO_COSINE": "cos",
    "STABLEHLO_EXPONENTIAL": "exp",
    "STABLEHLO_FLOOR": "floor",
    "STABLEHLO_LOG": "log",
    "STABLEHLO_LOGISTIC": "sigmoid",
    "STABLEHLO_NEGATE": "negative",
    "STABLEHLO_RSQRT": "rsqrt",
    "STABLEHLO_TANH": "tanh",
}
_TABLES: dict[str, Callable[[Array], Array]] = {
    "CEIL": np.ceil,
    "COS": np.cos,
    "EXP": np.exp,
    "FLOOR": np.floor,
    "LOG": np.log,
    "NEG": np.negative,
    "RSQRT": lambda x: np.float32(1) / np.sqrt(x),
    "SIN": np.sin,
    "SQRT": np.sqrt,
}
_SUMS = {"ADD": "add", "SUB": "subtract"}
_COMPARISONS = {
    "EQUAL": "equal",
    "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal",
    "LESS": "less",
    "LESS_EQUAL": "less_equal",
    "NOT_EQUAL": "not_equal",
}
_BINARY = {
    "BITWISE_XOR": "bitwise_xor",
    "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or",
    "POW": "power",
    "RIGHT_SHIFT": "right_shift",
    "STABLEHLO_ADD": "add",
    "STABLEHLO_DIVIDE": "divide",
    "STABLEHLO_MAXIMUM": "maximum",
    "STABLEHLO_MINIMUM": "minimum",
    "STABLEHLO_MULTIPLY": "multiply",
    "STABLEHLO_POWER": "power",
    "STABLEHLO_REMAINDER": "fmod",
    "STABLEHLO_SHIFT_LEFT": "left_shift",
    "STABLEHLO_SUBTRACT": "subtract",
}
_DIRECTIONS = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")
"""Comparisons of STABLEHLO_COMPARE, by number."""


@converter(*_UNARY)
def unary(node: NodeContext) -> GraphExpr:
    """Functions of one value; of quantised ones by a table."""
    data, name = node.input(0), node.node.name
    if node.is_quantized() and name == "ABS":
        return quantized_abs(node)
    if node.is_quantized() and name in _TABLES:
        # The kernel of SQRT cuts off what others round.
        rounded = np.trunc if name == "SQRT" else away
        levels, result = node.levels(0), node.output_levels()
        return by_function(node.builder, data, levels, result, node.output_dtype(), _TABLES[name], rounded)
    return node.call(_UNARY[name], data)


@converter("SQUARE")
def square(node: NodeContext) -> GraphExpr:
    """x * x."""
    data = node.input(0)
    if node.is_quantized():
        return by_function(node.builder, data, node.levels(0), node.output_levels(), node.output_dtype(), np.square)
    return node.call("multiply", data, data)


@converter("STABLEHLO_CBRT")
def cube_root(node: NodeContext) -> GraphExpr:
    """The number whose cube is x."""
    data = node.input(0)
    third = node.builder.constant_like(1 / 3, data)
    return node.call("multiply", node.call("sign", data), node.call("power", node.call("abs", data), third))


@converter("ADD", "SUB")
def add_or_subtract(node: NodeContext) -> GraphExpr:
    """Sums and differences with an activation."""
    if node.is_quantized():
        return quantized_sum(node)
    result = node.call(_SUMS[node.node.name], node.input(0), node.input(1))
    return activated(node.builder, result, node.activation)


@converter("MUL")
def multiply(node: NodeContext) -> GraphExpr:
    """A product with an activation."""
    if node.is_quantized():
        return quantized_product(node)
    return activated(node.builder, node.call("multiply", node.input(0), node.input(1)), node.activation)


@converter("DIV")
def divide(node: NodeContext) -> GraphExpr:
    """A quotient with an activation; of whole numbers, toward zero."""
    if node.is_quantized():
        return quantized_quotient(node)
    divisor = checked_divisor(node.builder, node.input(1))
    return activated(node.builder, node.call("divide", node.input(0), divisor), node.activation)


@converter("FLOOR_DIV")
def floor_divide(node: NodeContext) -> GraphExpr:
    """A quotient rounded down."""
    return node.call("floor_divide", node.input(0), checked_divisor(node.builder, node.input(1)))


@converter("FLOOR_MOD")
def floor_mod(node: NodeContext) -> GraphExpr:
    """The remainder with the sign of the divisor."""
    return node.call("floor_mod", node.input(0), checked_divisor(node.builder, node.input(1)))


@converter(*_BINARY)
def binary(node: NodeContext) -> GraphExpr:
    """Functions of two values."""
    return node.call(_BINARY[node.node.name], node.input(0), node.input(1))


@converter("STABLEHLO_AND", "STABLEHLO_OR")
def bits(node: NodeContext) -> GraphExpr:
    """Of truth values or of bits."""
    kind = "logical" if dtype_of(node.input(0)) is BOOL else "bitwise"
    return node.call(f"{kind}_{node.node.name[10:].lower()}", node.input(0), node.input(1))


@converter("MAXIMUM", "MINIMUM")
def extreme(node: NodeContext) -> GraphExpr:
    """The greater or the lesser; of quantised values that share their levels, of the integers."""
    if node.is_quantized() and not same_levels([node.levels(0), node.levels(1), node.output_levels()]):
        raise UserError(f"{node.node.name} of quantised tensors needs one scale and zero point for all of them")
    return node.call(node.node.name.lower(), node.input(0), node.input(1))


@converter(*_COMPARISONS)
def compare(node: NodeContext) -> GraphExpr:
    """Comparisons; of quantised values in steps of a common scale."""
    name = _COMPARISONS[node.node.name]
    if node.is_quantized() and node.is_quantized(1):
        return compared(node, name)
    return node.call(name, node.input(0), node.input(1))


@converter("STABLEHLO_COMPARE")
def compare_by_option(node: NodeContext) -> GraphExpr:
    """The comparison that an option names."""
    number = node.integer("comparison_direction")
    if not 0 <= number < len(_DIRECTIONS):
        raise UserError(f"the comparison number {number} is not known")
    return node.call(_DIRECTIONS[number], node.input(0), node.input(1))


@converter("SQUARED_DIFFERENCE")
def squared(node: NodeContext) -> GraphExpr:
    """(a - b)^2."""
    if node.is_quantized():
        return squared_difference(node)
    difference = node.call("subtract", node.input(0), node.input(1))
    return node.call("multiply", difference, difference)


@converter("ADD_N")
def add_n(node: NodeContext) -> GraphExpr:
    """The sum of any number of tensors."""
    first, *others = node.all_inputs()
    for value in others:
        first = node.call("add", first, value)
    return first


@converter("ATAN2")
def atan2(node: NodeContext) -> GraphExpr:
    """The angle of the point (x, y) from the x axis."""
    builder, call = node.builder, node.call
    y, x = node.input(0), node.input(1)
    zero, one = builder.constant_like(0, x), builder.constant_like(1, x)
    pi = builder.constant_like(np.pi, x)
    on_axis = call("equal", x, zero)
    angle = call("atan", call("divide", y, call("where", on_axis, one, x)))
    below = call("less", y, zero)
    turned = call("where", below, call("subtract", angle, pi), call("add", angle, pi))
    half = call("multiply", call("sign", y), builder.constant_like(np.pi / 2, x))
    return call("where", on_axis, half, call("where", call("less", x, zero), turned, angle))


@converter("SELECT", "SELECT_V2", "STABLEHLO_SELECT")
def select(node: NodeContext) -> GraphExpr:
    """One of two by a condition; in the older form the condition may be one for each row."""
    condition, a, b = node.input(0), node.input(1), node.input(2)
    if node.node.name == "SELECT" and len(sizes_of(condition)) == 1 and len(sizes_of(a)) > 1:
        condition = node.builder.reshape(condition, (sizes_of(condition)[0], *(1,) * (len(sizes_of(a)) - 1)))
    if node.is_quantized(1):
        a, b = requantized(node, a, 1), requantized(node, b, 2)
    return node.call("where", condition, a, b)


@converter("STABLEHLO_CLAMP")
def clamp(node: NodeContext) -> GraphExpr:
    """x between two bounds."""
    return node.call("minimum", node.call("maximum", node.input(1), node.input(0)), node.input(2))


@converter("CAST", "STABLEHLO_CONVERT")
def cast(node: NodeContext) -> GraphExpr:
    """Convert to the type of the result; of complex numbers the real part."""
    if node.pair(0):
        pairs = node.input(0)
        real = node.builder.slice_axis(pairs, len(sizes_of(pairs)) - 1, 0, 1)
        return node.builder.cast(node.builder.reshape(real, sizes_of(pairs)[:-1]), node.output_dtype())
    return node.builder.cast(node.input(0), node.output_dtype())


@converter("BITCAST")
def bitcast(node: NodeContext) -> GraphExpr:
    """The same bits read as another type: of another width along the last axis."""
    data, to = node.input(0), node.output_dtype()
    known, source = evaluate(data), dtype_of(data)
    if source is to:
        return data
    if known is not None and is_plain(to):
        if source.bits > to.bits:
            known = known[..., None]
        view = np.ascontiguousarray(known).view(to.numpy())
        return node.builder.constant(view[..., 0] if source.bits < to.bits else view, to)
    if source.bits != to.bits or not is_plain(source) or not is_plain(to) or BOOL in (source, to):
        raise UnsupportedError(f"reading the bits of {source} as {to}")
    return node.call("reinterpret", data, dtype=to)


@converter("CUMSUM")
def cumulative_sum(node: NodeContext) -> GraphExpr:
    """Running sums along an axis that is an input."""
    data = node.input(0)
    axis = node.axis(node.constant_int(1, "the axis"), len(sizes_of(data)))
    return node.call("cumsum", data, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))


@converter("BUCKETIZE")
def bucketize(node: NodeContext) -> GraphExpr:
    """How many boundaries lie at or below each value."""
    data = node.input(0)
    boundaries = np.asarray(node.option("boundaries", ()), np.float32)
    wide = node.builder.expand_dims(node.builder.cast(data, "float32"), (len(sizes_of(data)),))
    below = node.call("greater_equal", wide, node.builder.constant(boundaries, "float32"))
    return node.call("sum", node.builder.cast(below, INT32), axes=(len(sizes_of(data)),))


@converter("FAKE_QUANT")
def fake_quant(node: NodeContext) -> GraphExpr:
    """Rounded to the steps between two bounds, as a quantised tensor would be."""
    bounds = [np.asarray(node.number(key), np.float32) for key in ("min", "max")]
    return fake_quantized(
        node.builder, node.input(0), bounds[0], bounds[1], node.integer("num_bits"), node.flag("narrow_range")
    )
