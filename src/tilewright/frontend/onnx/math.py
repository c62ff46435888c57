"""Converters of arithmetic, comparison, logic and conversion."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, is_plain, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.onnx.axes import by_data, count_of, from_end, to_end
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.small import converted
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, DataType
from tilewright.support.errors import UnsupportedError, UserError

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
_EXACT = 1 << 53
"""Whole numbers up to this are exact in an attribute that is a float."""


@converter(*_UNARY)
def unary(node: NodeContext) -> GraphExpr:
    """One operator, one input."""
    return node.call(_UNARY[node.node.op_type], node.input(0))


@converter(*_BINARY)
def binary(node: NodeContext) -> GraphExpr:
    """One operator, two inputs that broadcast."""
    first, second = node.input(0), node.input(1)
    if node.node.op_type == "Div":
        second = checked_divisor(node.builder, second)
    return node.call(_BINARY[node.node.op_type], first, second)


@converter("Pow")
def power(node: NodeContext) -> GraphExpr:
    """The exponent may be of another data type; small whole powers become products."""
    base, exponent = node.input(0), node.input(1)
    if dtype_of(exponent) is not dtype_of(base):
        if dtype_of(exponent).is_float and dtype_of(base).is_integer:
            result = node.call("power", node.builder.cast(base, dtype_of(exponent)), exponent)
            return node.builder.cast(result, dtype_of(base))
        exponent = node.builder.cast(exponent, dtype_of(base))
    value = evaluate(exponent)
    if value is not None and value.size == 1 and len(value.shape) <= rank_of(base):
        number = float(value.ravel()[0])
        if number == 1.0:
            return base
        if number == 2.0:
            return node.call("multiply", base, base)
        if number == 0.5 and dtype_of(base).is_float:
            return node.call("sqrt", base)
        if number == -1.0 and dtype_of(base).is_float:
            return node.call("reciprocal", base)
    return node.call("power", base, exponent)


@converter("Mod")
def modulo(node: NodeContext) -> GraphExpr:
    """fmod chooses the sign of the dividend."""
    a, b = node.input(0), checked_divisor(node.builder, node.input(1))
    if node.flag("fmod"):
        return node.call("fmod", a, b)
    return node.call("floor_mod", a, b)


@converter("BitShift")
def bit_shift(node: NodeContext) -> GraphExpr:
    """Shift in the direction of an attribute; by a negative amount or by all bits and more, everything goes out."""
    direction = node.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise UserError(f"direction must be LEFT or RIGHT, it is {direction!r}")
    name, data, amount = f"{direction.lower()}_shift", node.input(0), node.input(1)
    dtype = dtype_of(data)
    known = evaluate(amount)
    if known is not None and ((known >= 0) & (known < dtype.bits)).all():
        return node.call(name, data, amount)
    zero = node.builder.constant_like(0, amount)
    inside = node.call("less", amount, node.builder.constant_like(dtype.bits, amount))
    if dtype.is_int:
        inside = node.call("logical_and", inside, node.call("greater_equal", amount, zero))
        if direction == "RIGHT":
            most = node.builder.constant_like(dtype.bits - 1, amount)
            return node.call(name, data, node.call("where", inside, amount, most))
    shifted = node.call(name, data, node.call("where", inside, amount, zero))
    return node.call("where", inside, shifted, node.builder.constant_like(0, data))


@converter("Max", "Min", "Sum", "Mean")
def variadic(node: NodeContext) -> GraphExpr:
    """Any number of inputs, taken two at a time."""
    names = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}
    values = node.all_inputs()
    result = values[0]
    for value in values[1:]:
        result = node.call(names[node.node.op_type], result, value)
    if node.node.op_type == "Mean" and len(values) > 1:
        result = node.call("divide", result, node.builder.constant_like(len(values), result))
    return result


@converter("Clip", until=10)
def clip_by_attributes(node: NodeContext) -> GraphExpr:
    """Bounds as attributes."""
    low = node.number("min") if node.has_attribute("min") else None
    high = node.number("max") if node.has_attribute("max") else None
    return node.call("clip", node.input(0), minimum=low, maximum=high)


@converter("Clip", since=11)
def clip_by_inputs(node: NodeContext) -> GraphExpr:
    """Bounds as inputs: constants become attributes."""
    result = node.input(0)
    low = _bound(node, 1)
    high = _bound(node, 2)
    if not isinstance(low, GraphExpr) and not isinstance(high, GraphExpr):
        if low is None and high is None:
            return result
        return node.call("clip", result, minimum=low, maximum=high)
    if node.has_input(1):
        result = node.call("maximum", result, node.input(1))
    if node.has_input(2):
        result = node.call("minimum", result, node.input(2))
    return result


def _bound(node: NodeContext, index: int) -> GraphExpr | float | None:
    value = node.optional(index)
    if value is None:
        return None
    array = evaluate(value)
    if array is None or array.size != 1:
        return value
    number = array.ravel()[0]
    if array.dtype.kind in "iu" and abs(int(number)) > _EXACT:
        limits = np.iinfo(array.dtype)
        return None if int(number) == (limits.min if index == 1 else limits.max) else value
    return value if np.isnan(float(number)) else float(number)


@converter("Cast")
def cast(node: NodeContext) -> GraphExpr:
    """Convert to the element type that an attribute names."""
    return convert(node, data_type(node.integer("to"), "the result of Cast"))


def convert(node: NodeContext, to: DataType) -> GraphExpr:
    """The first input converted."""
    saturate, round_mode = node.flag("saturate", True), node.text("round_mode", "up")
    return converted(node.builder, node.input(0), to, saturate, round_mode)


@converter("CastLike")
def cast_like(node: NodeContext) -> GraphExpr:
    """Convert to the element type of another input."""
    return convert(node, dtype_of(node.input(1)))


@converter("BitCast")
def bit_cast(node: NodeContext) -> GraphExpr:
    """The same bits read as another type of the same width."""
    dtype = data_type(node.integer("to"), "the result of BitCast")
    value = evaluate(node.input(0))
    if value is not None and is_plain(dtype) and value.dtype.itemsize == dtype.itemsize:
        return node.builder.constant(np.ascontiguousarray(value).view(dtype.numpy()).reshape(value.shape), dtype)
    source = dtype_of(node.input(0))
    if source.bits == dtype.bits and source.is_integer and dtype.is_integer:
        return node.builder.cast(node.input(0), dtype)
    if BOOL in (source, dtype) and source.itemsize == dtype.itemsize:
        return node.builder.cast(node.input(0), dtype)
    if is_plain(source) and is_plain(dtype) and BOOL not in (source, dtype):
        return node.call("reinterpret", node.input(0), dtype=dtype)
    raise UnsupportedError(f"BitCast from {source} to {dtype} of a value that is not constant")


@converter("Where")
def where(node: NodeContext) -> GraphExpr:
    """One of two by a condition."""
    return node.call("where", node.input(0), node.input(1), node.input(2))


@converter("IsInf")
def is_infinite(node: NodeContext) -> GraphExpr:
    """Infinities of both signs or of one."""
    data = node.input(0)
    negative, positive = node.flag("detect_negative", True), node.flag("detect_positive", True)
    if negative and positive:
        return node.call("isinf", data)
    if not negative and not positive:
        return node.builder.broadcast_to(node.builder.constant(False, BOOL), sizes_of(data))
    bound = node.builder.constant_like(np.inf if positive else -np.inf, data)
    return node.call("equal", data, bound)


@converter("CumSum", "CumProd")
def cumulative(node: NodeContext) -> GraphExpr:
    """Running sums and products; the axis is an input."""
    data = node.input(0)
    name = "cumsum" if node.node.op_type == "CumSum" else "cumprod"
    options = {"exclusive": node.flag("exclusive"), "reverse": node.flag("reverse")}
    node.input(1)
    if count_of(node, 1) != 1:
        raise UserError(f"the axis must be one number, it has {count_of(node, 1)}")
    if by_data(node, 1) and rank_of(data):
        last = node.call(name, to_end(node, data, node.input(1)), axis=rank_of(data) - 1, **options)
        return from_end(node, last, node.input(1))
    axis = node.axis(node.constant_int(1, "the axis"), rank_of(data))
    return node.call(name, data, axis=axis, **options)
