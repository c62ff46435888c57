"""Converters of elementwise functions of several tensors or numbers: arithmetic, comparisons, logic, selection."""

from __future__ import annotations

import math

from tilewright.frontend.core.arithmetic import Number, Operand
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.elementary import atan2, is_negative
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType

_DIVISIONS = frozenset({"divide", "floor_divide", "floor_mod", "fmod"})


def _binary(b: TorchBuilder, name: str, x: Operand, other: Operand) -> GraphExpr:
    """In the type of the result; whole numbers are not divided by zero."""
    second = b.operand(other, b.dtype)
    if name in _DIVISIONS:
        second = checked_divisor(b, second)
    return b.call(name, b.operand(x, b.dtype), second)


@converter("add")
def add(b: TorchBuilder, x: Operand, other: Operand, alpha: Number = 1) -> GraphExpr:
    """x + alpha * other; of truth values, or."""
    if b.dtype.is_bool:
        return _binary(b, "logical_or", x, other)
    return _binary(b, "add", x, _scaled(b, other, alpha))


@converter("sub")
def subtract(b: TorchBuilder, x: Operand, other: Operand, alpha: Number = 1) -> GraphExpr:
    """x - alpha * other."""
    return _binary(b, "subtract", x, _scaled(b, other, alpha))


@converter("rsub")
def reverse_subtract(b: TorchBuilder, x: Operand, other: Operand, alpha: Number = 1) -> GraphExpr:
    """other - alpha * x."""
    return _binary(b, "subtract", other, _scaled(b, x, alpha))


def _scaled(b: TorchBuilder, value: Operand, alpha: Number) -> Operand:
    return value if alpha == 1 else _binary(b, "multiply", value, alpha)


@converter("mul")
def multiply(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
    """x * other; of truth values, and."""
    return _binary(b, "logical_and" if b.dtype.is_bool else "multiply", x, other)


@converter("div", "true_divide")
def divide(b: TorchBuilder, x: Operand, other: Operand, rounding_mode: str | None = None) -> GraphExpr:
    """x / other, perhaps rounded toward zero or down."""
    if rounding_mode is None:
        return _binary(b, "divide", x, other)
    if rounding_mode == "floor":
        return floor_divide(b, x, other)
    quotient = _binary(b, "divide", x, other)
    return b.call("trunc", quotient) if b.dtype.is_float else quotient


@converter("floor_divide")
def floor_divide(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
    """x / other rounded down; floats as Python does it: by the remainder."""
    first, second = b.operand(x, b.dtype), b.operand(other, b.dtype)
    if not b.dtype.is_float:
        return _binary(b, "floor_divide", first, second)
    rest = b.call("fmod", first, second)
    quotient = b.divide(b.subtract(first, rest), second)
    opposite = b.call(
        "logical_and",
        b.compare("not_equal", rest, 0),
        b.call("not_equal", b.compare("less", rest, 0), b.compare("less", second, 0)),
    )
    quotient = b.where(opposite, b.subtract(quotient, 1), quotient)
    whole = b.call("floor", quotient)
    whole = b.where(b.compare("greater", b.subtract(quotient, whole), 0.5), b.add(whole, 1), whole)
    whole = b.where(b.compare("equal", quotient, 0), b.multiply(b.divide(first, second), 0), whole)
    return b.where(b.compare("equal", second, 0), b.divide(first, second), whole)


@converter("remainder")
def remainder(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
    """The remainder with the sign of the divisor."""
    return _binary(b, "floor_mod", x, other)


@converter("fmod")
def fmod(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
    """The remainder with the sign of the dividend."""
    return _binary(b, "fmod", x, other)


@converter("pow")
def power(b: TorchBuilder, x: Operand, exponent: Operand) -> GraphExpr:
    """x to the power of the exponent; small constant powers are products."""
    if isinstance(exponent, (int, float)) and isinstance(x, GraphExpr) and b.dtype.is_float:
        value = b.cast(x, b.dtype)
        match float(exponent):
            case 1.0:
                return value
            case 2.0:
                return b.multiply(value, value)
            case 3.0:
                return b.multiply(b.multiply(value, value), value)
            case 0.5:
                return b.call("sqrt", value)
            case -0.5:
                return b.call("rsqrt", value)
            case -1.0:
                return b.call("reciprocal", value)
    return _binary(b, "power", x, exponent)


def _extreme(name: str) -> Converter:
    def convert(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
        if b.dtype.is_bool:
            return _binary(b, "logical_or" if name == "maximum" else "logical_and", x, other)
        return _binary(b, name, x, other)

    convert.__doc__ = f"The {name} of two; NaN if either is."
    return convert


converter("maximum", "max.other")(_extreme("maximum"))
converter("minimum", "min.other")(_extreme("minimum"))


def _number_extreme(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
        first, second = b.operand(x, b.dtype), b.operand(other, b.dtype)
        if not b.dtype.is_float:
            integer: GraphExpr = _extreme(name)(b, first, second)
            return integer
        found = b.call(name, first, second)
        return b.where(b.call("isnan", first), second, b.where(b.call("isnan", second), first, found))

    convert.__doc__ = f"The {name} of two; a number wins over NaN."
    return convert


converter("fmax")(_number_extreme("maximum"))
converter("fmin")(_number_extreme("minimum"))


@converter("clamp", "clip")
def clamp(b: TorchBuilder, x: GraphExpr, min: Operand | None = None, max: Operand | None = None) -> GraphExpr:
    """x between bounds, which may be tensors; the upper bound wins."""
    result = b.cast(x, b.dtype)
    if min is not None:
        result = b.call("maximum", result, b.operand(min, b.dtype))
    if max is not None:
        result = b.call("minimum", result, b.operand(max, b.dtype))
    return result


@converter("clamp_min")
def clamp_min(b: TorchBuilder, x: GraphExpr, min: Operand) -> GraphExpr:
    """x, at least the bound."""
    return clamp(b, x, min=min)


@converter("clamp_max")
def clamp_max(b: TorchBuilder, x: GraphExpr, max: Operand) -> GraphExpr:
    """x, at most the bound."""
    return clamp(b, x, max=max)


def _comparison(name: str) -> Converter:
    def convert(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
        return b.compare(name, x, other)

    convert.__doc__ = f"{name}, in the common type of both."
    return convert


for _torch_name, _name in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    converter(_torch_name)(_comparison(_name))


def _logical(name: str) -> Converter:
    def convert(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
        return b.call(name, b.truth(x), b.truth(other))

    convert.__doc__ = f"{name} of whether elements are not zero."
    return convert


for _torch_name in ("logical_and", "logical_or", "logical_xor"):
    converter(_torch_name)(_logical(_torch_name))


def _bits(name: str) -> Converter:
    def convert(b: TorchBuilder, x: Operand, other: Operand) -> GraphExpr:
        return _binary(b, name, x, other)

    convert.__doc__ = f"{name} of integers or truth values."
    return convert


for _torch_name, _name in {
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "__lshift__": "left_shift",
    "__rshift__": "right_shift",
}.items():
    converter(_torch_name)(_bits(_name))


@converter("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(b: TorchBuilder, condition: GraphExpr, x: Operand, other: Operand) -> GraphExpr:
    """x where the condition holds, else other."""
    return b.call("where", b.truth(condition), b.operand(x, b.dtype), b.operand(other, b.dtype))


@converter("masked_fill")
def masked_fill(b: TorchBuilder, x: GraphExpr, mask: GraphExpr, value: Operand) -> GraphExpr:
    """A value where the mask holds."""
    return b.call("where", mask, b.operand(value, b.dtype), x)


@converter("atan2")
def angle_of(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
    """The angle of the point (other, x), in all four quadrants."""
    return atan2(b, b.operand(x, b.dtype), b.operand(other, b.dtype))


@converter("copysign")
def copysign(b: TorchBuilder, x: GraphExpr, other: Operand) -> GraphExpr:
    """The size of x with the sign of the other."""
    size, sign = b.call("abs", b.operand(x, b.dtype)), b.operand(other, b.dtype)
    return b.where(is_negative(b, sign), b.call("negative", size), size)


@converter("hypot")
def hypot(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
    """The length of the hypotenuse, in wide numbers so that squares do not overflow."""
    wide = "float32" if b.dtype.bits == 16 else "float64"
    first, second = b.cast(b.operand(x, b.dtype), wide), b.cast(b.operand(other, b.dtype), wide)
    return b.cast(b.call("sqrt", b.add(b.multiply(first, first), b.multiply(second, second))), b.dtype)


@converter("heaviside")
def heaviside(b: TorchBuilder, x: GraphExpr, values: GraphExpr) -> GraphExpr:
    """0 below zero, 1 above, a value at zero."""
    above = b.cast(b.compare("greater", x, 0), b.dtype)
    return b.where(b.compare("equal", x, 0), b.operand(values, b.dtype), above)


@converter("lerp")
def lerp(b: TorchBuilder, x: GraphExpr, end: GraphExpr, weight: Operand) -> GraphExpr:
    """Between two values; from the nearer end, so that both ends are exact."""
    share = b.operand(weight, b.dtype)
    width = b.subtract(end, x)
    near = b.add(x, b.multiply(share, width))
    far = b.subtract(end, b.multiply(width, b.subtract(1.0, share)))
    return b.where(b.compare("less", b.call("abs", share), 0.5), near, far)


@converter("addcmul")
def addcmul(b: TorchBuilder, x: GraphExpr, tensor1: GraphExpr, tensor2: GraphExpr, value: Number = 1) -> GraphExpr:
    """x + value * tensor1 * tensor2."""
    product = _binary(b, "multiply", _scaled(b, tensor1, value), tensor2)
    return _binary(b, "add", x, product)


@converter("addcdiv")
def addcdiv(b: TorchBuilder, x: GraphExpr, tensor1: GraphExpr, tensor2: GraphExpr, value: Number = 1) -> GraphExpr:
    """x + value * tensor1 / tensor2."""
    quotient = _binary(b, "divide", _scaled(b, tensor1, value), tensor2)
    return _binary(b, "add", x, quotient)


@converter("nextafter")
def nextafter(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
    """The neighbour of x on the way to the other: the next number in the order of the bits."""
    bits_type = DataType.of(f"int{b.dtype.bits}")
    bits = b.call("reinterpret", x, dtype=bits_type)
    away = b.call("not_equal", b.compare("less", x, other), b.compare("less", x, 0))
    moved = b.call("reinterpret", b.where(away, b.add(bits, 1), b.subtract(bits, 1)), dtype=b.dtype)
    least = b.call("reinterpret", b.scalar(1, bits_type), dtype=b.dtype)
    from_zero = b.where(b.compare("less", other, 0), b.call("negative", least), least)
    result = b.where(b.compare("equal", x, 0), from_zero, moved)
    result = b.where(b.compare("equal", x, other), other, result)
    odd = b.call("logical_or", b.call("isnan", x), b.call("isnan", other))
    return b.where(odd, math.nan, result)


@converter("logaddexp")
def logaddexp(b: TorchBuilder, x: GraphExpr, other: GraphExpr) -> GraphExpr:
    """log(exp(x) + exp(other)), by their difference."""
    first, second = b.operand(x, b.dtype), b.operand(other, b.dtype)
    gap = b.call("negative", b.call("abs", b.subtract(first, second)))
    total = b.add(b.call("maximum", first, second), b.call("log1p", b.call("exp", gap)))
    same = b.call("logical_and", b.call("isinf", first), b.call("equal", first, second))
    return b.where(same, first, total)
