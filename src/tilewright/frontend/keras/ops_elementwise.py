"""Operations element by element: arithmetic, comparisons, functions of one number, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.frontend.core.arithmetic import Operand
from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.elementary import atan2, is_negative
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.layer import as_dtype
from tilewright.frontend.keras.registry import operation
from tilewright.frontend.keras.values import KerasBuilder, Value, promoted
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT32, DataType
from tilewright.support.errors import UserError


def operand(call: LayerCall, name: str, place: int) -> Operand:
    """An argument that is a tensor or a number."""
    value = call.argument(name, place)
    if isinstance(value, (bool, int, float)):
        return value
    return call.as_tensor(value)


def pair(call: LayerCall) -> tuple[Operand, Operand]:
    """The two operands of an operation."""
    return operand(call, "x1", 0), operand(call, "x2", 1)


def tensor(call: LayerCall, place: int = 0, name: str = "x") -> GraphExpr:
    """An argument as a tensor, whatever it was."""
    return call.as_tensor(call.argument(name, place))


def both(call: LayerCall, *, floats: bool = False) -> list[GraphExpr]:
    """Two operands of one type; `floats`: of floats."""
    b = call.builder
    values = pair(call)
    dtype = b.common_type(values)
    if floats and not dtype.is_float:
        dtype = FLOAT32
    return b.operands(*values, dtype=dtype)


# One number


def _unary(classes: str, name: str, *, floats: bool = True, **attributes: object) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        value = tensor(call)
        return call.call(name, call.builder.floating(value) if floats else value, **attributes)

    convert.__doc__ = f"`{name}` of each element."
    operation(*classes.split())(convert)


for _classes, _name in {
    "Arccos": "acos",
    "Arccosh": "acosh",
    "Arcsin": "asin",
    "Arcsinh": "asinh",
    "Arctan": "atan",
    "Arctanh": "atanh",
    "Cos": "cos",
    "Cosh": "cosh",
    "Sin": "sin",
    "Sinh": "sinh",
    "Tan": "tan",
    "Tanh": "tanh",
    "Exp": "exp",
    "Expm1": "expm1",
    "Log": "log",
    "Log1p": "log1p",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Erf": "erf",
    "Ceil": "ceil",
    "Floor": "floor",
    "Reciprocal": "reciprocal",
}.items():
    _unary(_classes, _name)
for _classes, _name in {"Negative": "negative", "Sign": "sign"}.items():
    _unary(_classes, _name, floats=False)


Of = Callable[[KerasBuilder, GraphExpr], GraphExpr]


def _composed(classes: str, function: Of) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        return function(call.builder, tensor(call))

    convert.__doc__ = f"{classes} of each element."
    operation(*classes.split())(convert)


def _factor(number: float) -> Of:
    return lambda b, x: b.multiply(b.floating(x), number)


def _whole_or(name: str) -> Of:
    """A function that leaves whole numbers as they are."""
    return lambda b, x: b.call(name, x) if dtype_of(x).is_float else x


def _log(base: float) -> Of:
    return lambda b, x: b.multiply(b.call("log", b.floating(x)), 1 / math.log(base))


def _finite(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    x = b.floating(x)
    return b.call("logical_not", b.call("logical_or", b.call("isnan", x), b.call("isinf", x)))


def _infinite(b: KerasBuilder, x: GraphExpr, sign: float) -> GraphExpr:
    return b.compare("equal", b.floating(x), sign * math.inf)


def _sinc(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    x = b.floating(x)
    angle = b.multiply(b.where(b.compare("equal", x, 0.0), 1e-20, x), math.pi)
    return b.divide(b.call("sin", angle), angle)


def _cube_root(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    x = b.floating(x)
    return b.multiply(b.call("sign", x), b.call("power", b.call("abs", x), b.scalar(1 / 3, dtype_of(x))))


def _sign_bit(b: KerasBuilder, x: GraphExpr) -> GraphExpr:
    return is_negative(b, x) if dtype_of(x).is_float else b.compare("less", x, 0)


_composed("Absolute Abs", lambda b, x: x if dtype_of(x).is_bool else b.call("abs", x))
_composed("Fabs", lambda b, x: b.call("abs", b.floating(x)))
_composed("Square", lambda b, x: b.multiply(*([b.cast(x, INT32) if dtype_of(x).is_bool else x] * 2)))
_composed("Log2", _log(2))
_composed("Log10", _log(10))
_composed("Exp2", lambda b, x: b.call("power", b.scalar(2, dtype_of(b.floating(x))), b.floating(x)))
_composed("Deg2rad", _factor(math.pi / 180))
_composed("Rad2deg", _factor(180 / math.pi))
_composed("Trunc", _whole_or("trunc"))
_composed("Erfc", lambda b, x: b.subtract(1.0, b.call("erf", b.floating(x))))
_composed("Isnan", lambda b, x: b.call("isnan", b.floating(x)))
_composed("Isinf", lambda b, x: b.call("isinf", b.floating(x)))
_composed("Isfinite", _finite)
_composed("Isposinf", lambda b, x: _infinite(b, x, 1.0))
_composed("Isneginf", lambda b, x: _infinite(b, x, -1.0))
_composed("Isreal", lambda b, x: b.filled(1, sizes_of(x), BOOL))
_composed("Sinc", _sinc)
_composed("Cbrt", _cube_root)
_composed("Signbit", _sign_bit)
_composed("LogicalNot", lambda b, x: b.call("logical_not", b.truth(x)))
_composed("Copy StopGradient Conjugate Conj Real", lambda b, x: x)
_composed("Imag", lambda b, x: b.filled(0, sizes_of(x), dtype_of(x)))
_composed("ZerosLike EmptyLike", lambda b, x: b.filled(0, sizes_of(x), dtype_of(x)))


@operation("BitwiseInvert", "BitwiseNot")
def invert(call: LayerCall) -> GraphExpr:
    """The complement of the bits."""
    value = tensor(call)
    return call.call("logical_not" if dtype_of(value).is_bool else "bitwise_not", value)


@operation("Round")
def rounded(call: LayerCall) -> GraphExpr:
    """To so many decimal places, halves to even."""
    b, value = call.builder, tensor(call)
    places = call.layer.integer("decimals", 0)
    if not dtype_of(value).is_float and places >= 0:
        return value if not dtype_of(value).is_bool else b.cast(value, INT32)
    if places == 0:
        return b.call("round", value)
    factor = 10.0**places
    result = b.divide(b.call("round", b.multiply(b.floating(value), factor)), factor)
    return b.cast(result, dtype_of(value))


@operation("Clip")
def clip(call: LayerCall) -> GraphExpr:
    """Between two numbers or tensors."""
    b, value = call.builder, tensor(call)
    low, high = (
        call.layer.option("x_min", call.argument("x_min", 1)),
        call.layer.option("x_max", call.argument("x_max", 2)),
    )
    value = b.cast(value, INT32) if dtype_of(value).is_bool else value
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is None:
            continue
        other: Operand = bound if isinstance(bound, (int, float)) else call.as_tensor(bound)
        value = b.call(name, *b.operands(value, other, dtype=b.common_type([value, other])))
    return value


@operation("NanToNum")
def nan_to_num(call: LayerCall) -> GraphExpr:
    """Numbers in the place of NaN and infinities."""
    b, value = call.builder, tensor(call)
    dtype = dtype_of(value)
    if not dtype.is_float:
        return value
    most = {16: 65504.0, 32: 3.4028234663852886e38}.get(dtype.bits, 1.7976931348623157e308)
    options = call.layer
    high = most if options.option("posinf") is None else options.number("posinf", most)
    low = -most if options.option("neginf") is None else options.number("neginf", -most)
    value = b.where(b.call("isnan", value), options.number("nan", 0.0), value)
    value = b.where(_infinite(b, value, 1.0), high, value)
    return b.where(_infinite(b, value, -1.0), low, value)


def target_type(call: LayerCall) -> DataType:
    """The type that an option names."""
    described = call.layer.option("dtype", call.argument("dtype", 1))
    name = described if isinstance(described, str) else None
    if isinstance(described, dict):
        config = described.get("config")
        name = config.get("name") if isinstance(config, dict) else None
    return as_dtype(name)


@operation("Cast", "View", "ConvertToTensor", "Array")
def cast(call: LayerCall) -> GraphExpr:
    """Another type."""
    value = tensor(call)
    if call.layer.kind == "View":
        return call.call("reinterpret", value, dtype=target_type(call))
    if call.layer.option("dtype", call.argument("dtype", 1)) is None:
        return value
    return call.builder.cast(value, target_type(call))


@operation("SaturateCast")
def saturate_cast(call: LayerCall) -> GraphExpr:
    """Another type, with what it cannot hold as its nearest number."""
    b, value, dtype = call.builder, tensor(call), target_type(call)
    if dtype_of(value).is_integer and dtype.is_integer:
        own = dtype_of(value)
        low, high = max(dtype.min_value(), own.min_value()), min(dtype.max_value(), own.max_value())
        value = b.call("clip", value, minimum=float(low), maximum=float(high))
    return b.cast(value, dtype)


@operation("OnesLike")
def ones_like(call: LayerCall) -> GraphExpr:
    """Ones of the same shape."""
    value = tensor(call)
    return call.builder.filled(1, sizes_of(value), _like_type(call, value))


def _like_type(call: LayerCall, value: GraphExpr) -> DataType:
    described = call.layer.option("dtype", call.kwargs.get("dtype"))
    return dtype_of(value) if described is None else as_dtype(described)


@operation("FullLike")
def full_like(call: LayerCall) -> GraphExpr:
    """One value in the same shape."""
    b, value = call.builder, tensor(call)
    fill = call.argument("fill_value", 1)
    return b.broadcast_to(b.cast(call.as_tensor(fill), _like_type(call, value)), sizes_of(value))


# Two numbers


def _binary(classes: str, name: str, *, floats: bool = False, truth: bool = False) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        if truth:
            return call.call(name, *(call.builder.truth(call.as_tensor(item)) for item in pair(call)))
        return call.call(name, *both(call, floats=floats))

    convert.__doc__ = f"`{name}` of two tensors."
    operation(*classes.split())(convert)


def _counted(values: list[GraphExpr], b: KerasBuilder, dtype: DataType = INT32) -> list[GraphExpr]:
    """Truth values as whole numbers."""
    return [b.cast(item, dtype) if dtype_of(item).is_bool else item for item in values]


@operation("Add", "Subtract", "Multiply")
def arithmetic(call: LayerCall) -> GraphExpr:
    """Sums, differences and products; of truth values, `or` and `and`."""
    values = both(call)
    name = call.layer.kind.lower()
    if dtype_of(values[0]).is_bool:
        return call.call({"add": "logical_or", "multiply": "logical_and"}.get(name, "logical_xor"), *values)
    return call.call(name, *values)


@operation("SquaredDifference")
def squared_difference(call: LayerCall) -> GraphExpr:
    """The square of a difference, a function of TensorFlow."""
    gap = call.builder.subtract(*both(call))
    return call.builder.multiply(gap, gap)


@operation("Divide", "TrueDivide")
def divide(call: LayerCall) -> GraphExpr:
    """x1 / x2, in floats."""
    return call.call("divide", *both(call, floats=True))


@operation("DivideNoNan")
def divide_no_nan(call: LayerCall) -> GraphExpr:
    """x1 / x2, and 0 where x2 is."""
    b = call.builder
    x, y = both(call, floats=True)
    empty = b.compare("equal", y, 0)
    return b.where(empty, 0.0, b.divide(x, b.where(empty, 1.0, y)))


@operation("FloorDivide", "Mod", "Fmod")
def whole_division(call: LayerCall) -> GraphExpr:
    """Whole quotients, and what they leave."""
    x, y = _counted(both(call), call.builder)
    name = {"FloorDivide": "floor_divide", "Mod": "floor_mod", "Fmod": "fmod"}[call.layer.kind]
    return call.call(name, x, checked_divisor(call.builder, y))


@operation("Power")
def power(call: LayerCall) -> GraphExpr:
    """x1 to the power of x2."""
    x, y = pair(call)
    b = call.builder
    if isinstance(x, GraphExpr) and isinstance(y, (int, float)) and y == 2:
        dtype = b.common_type([x, y])
        x = b.cast(x, dtype)
        return b.multiply(x, x)
    return call.call("power", *_counted(both(call), b))


for _classes, _name in {
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Equal": "equal",
    "NotEqual": "not_equal",
}.items():
    _binary(_classes, _name)
for _classes, _name in {"LogicalAnd": "logical_and", "LogicalOr": "logical_or", "LogicalXor": "logical_xor"}.items():
    _binary(_classes, _name, truth=True)


@operation("Greater", "GreaterEqual", "Less", "LessEqual")
def comparison(call: LayerCall) -> GraphExpr:
    """Which of two is greater."""
    name = {"Greater": "greater", "GreaterEqual": "greater_equal", "Less": "less", "LessEqual": "less_equal"}
    return call.builder.compare(name[call.layer.kind], *both(call))


@operation("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bits(call: LayerCall) -> GraphExpr:
    """Bits of two numbers."""
    values, name = both(call), call.layer.kind.removeprefix("Bitwise").lower()
    return call.call(f"logical_{name}" if dtype_of(values[0]).is_bool else f"bitwise_{name}", *values)


@operation("BitwiseLeftShift", "LeftShift", "BitwiseRightShift", "RightShift")
def shift(call: LayerCall) -> GraphExpr:
    """Bits moved."""
    name = "left_shift" if "Left" in call.layer.kind else "right_shift"
    return call.call(name, *_counted(both(call), call.builder))


@operation("Fmax", "Fmin")
def number_of_two(call: LayerCall) -> GraphExpr:
    """The greater or lesser; a number before NaN."""
    b = call.builder
    x, y = both(call)
    name = "maximum" if call.layer.kind == "Fmax" else "minimum"
    if not dtype_of(x).is_float:
        return call.call(name, x, y)
    best = b.call(name, x, y)
    return b.call("where", b.call("isnan", x), y, b.call("where", b.call("isnan", y), x, best))


@operation("Arctan2")
def arctan2(call: LayerCall) -> GraphExpr:
    """The angle of a point."""
    return atan2(call.builder, *both(call, floats=True))


@operation("Hypot")
def hypot(call: LayerCall) -> GraphExpr:
    """The length of (x1, x2)."""
    b = call.builder
    x, y = (b.call("abs", item) for item in both(call, floats=True))
    small, large = b.call("minimum", x, y), b.call("maximum", x, y)
    safe = b.where(b.compare("equal", large, 0.0), 1.0, large)
    ratio = b.divide(small, safe)
    return b.multiply(large, b.call("sqrt", b.add(b.multiply(ratio, ratio), 1.0)))


@operation("Logaddexp", "Logaddexp2")
def logaddexp(call: LayerCall) -> GraphExpr:
    """log(exp(x1) + exp(x2)), of base e or 2."""
    b = call.builder
    x, y = both(call, floats=True)
    base = math.log(2) if call.layer.kind == "Logaddexp2" else 1.0
    gap = b.call("negative", b.call("abs", b.multiply(b.subtract(x, y), base)))
    return b.add(b.call("maximum", x, y), b.divide(b.call("log1p", b.call("exp", gap)), base))


@operation("Heaviside")
def heaviside(call: LayerCall) -> GraphExpr:
    """0 below 0, 1 above, x2 at 0."""
    b = call.builder
    x, y = both(call, floats=True)
    sides = b.where(b.compare("greater", x, 0.0), 1.0, b.scalar(0.0, dtype_of(x)))
    sides = b.call("where", b.call("isnan", x), x, b.broadcast_to(sides, sizes_of(x)))
    return b.call("where", b.compare("equal", x, 0.0), y, sides)


@operation("Ldexp")
def ldexp(call: LayerCall) -> GraphExpr:
    """x1 * 2 ** x2."""
    b = call.builder
    x = b.floating(tensor(call, 0, "x1"))
    exponent = b.cast(tensor(call, 1, "x2"), dtype_of(x))
    return b.multiply(x, b.call("power", b.scalar(2.0, dtype_of(x)), exponent))


@operation("Isclose")
def isclose(call: LayerCall) -> GraphExpr:
    """Whether numbers differ by less than a tolerance."""
    b, options = call.builder, call.layer
    x, y = both(call, floats=True)
    rtol = options.number("rtol", call.kwargs.get("rtol", 1e-5))
    atol = options.number("atol", call.kwargs.get("atol", 1e-8))
    limit = b.add(b.multiply(b.call("abs", y), rtol), atol)
    close = b.call("less_equal", b.call("abs", b.subtract(x, y)), limit)
    finite = b.call("logical_and", _finite(b, x), _finite(b, y))
    result = b.call("logical_or", b.call("logical_and", close, finite), b.call("equal", x, y))
    if options.flag("equal_nan", bool(call.kwargs.get("equal_nan", False))):
        result = b.call("logical_or", result, b.call("logical_and", b.call("isnan", x), b.call("isnan", y)))
    return result


@operation("AllClose")
def allclose(call: LayerCall) -> GraphExpr:
    """Whether all numbers differ by less than a tolerance."""
    value = isclose(call)
    return call.builder.reduce("all", value, tuple(range(rank_of(value))))


@operation("Where")
def where(call: LayerCall) -> GraphExpr:
    """x1 where a condition holds, else x2."""
    b = call.builder
    condition = b.truth(tensor(call, 0, "condition"))
    if call.argument("x1", 1) is None:
        raise UserError("where needs values beside the condition here")
    x, y = operand(call, "x1", 1), operand(call, "x2", 2)
    return b.call("where", condition, *b.operands(x, y))


@operation("Select")
def select(call: LayerCall) -> GraphExpr:
    """The first choice whose condition holds."""
    b = call.builder
    conditions, choices = call.argument("condlist", 0), call.argument("choicelist", 1)
    default = call.argument("default", 2, 0)
    if not isinstance(conditions, (list, tuple)) or not isinstance(choices, (list, tuple)):
        raise UserError("select needs a list of conditions and a list of choices")
    values: list[Any] = [call.as_tensor(item) for item in choices]
    result: Operand = default if isinstance(default, (int, float)) else call.as_tensor(default)
    dtype = promoted([dtype_of(item) for item in values])
    for condition, value in reversed(list(zip(conditions, values, strict=True))):
        truth = b.truth(condition.expr if isinstance(condition, Value) else call.as_tensor(condition))
        result = b.call("where", truth, b.cast(value, dtype), b.operand(result, dtype))
    return b.operand(result, dtype)
