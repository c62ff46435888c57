"""Elementwise operators: unary functions, broadcasting binary functions, selection and conversion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.graph.ops.quantization import integer_range
from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INT32, INT64, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te.language import compute
from tilewright.te.tensor import Tensor
from tilewright.topi.fixed_point import Requantization, rescaled
from tilewright.topi.registry import compute_of, result_shape


def broadcast_index(tensor: Tensor, shape: tuple[PrimExpr, ...], indices: tuple[ExprLike, ...]) -> tuple[ExprLike, ...]:
    """Indices into a tensor that is broadcast (numpy rules) to a shape indexed by `indices`."""
    offset = len(shape) - tensor.ndim
    return tuple(
        0 if const_value(dim) == 1 and const_value(shape[offset + n]) != 1 else indices[offset + n]
        for n, dim in enumerate(tensor.shape)
    )


def _unary(name: str, function: Callable[[PrimExpr], PrimExpr]) -> None:
    @compute_of(name)
    def _compute(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        (x,) = inputs
        return compute(result_shape(result), lambda *i: function(x[i]), name.split(".")[-1])


def _sign(x: PrimExpr) -> PrimExpr:
    zero, one = const(0, x.dtype), const(1, x.dtype)
    minus = const(-1, x.dtype) if not x.dtype.is_uint else zero
    # x itself at zero and NaN, so that both are kept.
    return build.select(build.lt(zero, x), one, build.select(build.lt(x, zero), minus, x))


def _absolute(x: PrimExpr) -> PrimExpr:
    if x.dtype.is_float:
        return intrinsics.abs(x)
    if x.dtype.is_int:
        return build.select(build.lt(x, 0), build.neg(x), x)
    return x


def relu(x: PrimExpr) -> PrimExpr:
    """max(x, 0)."""
    return build.maximum(x, const(0, x.dtype))


def softplus(x: PrimExpr) -> PrimExpr:
    """log(1 + exp(x)), without overflow."""
    return relu(x) + intrinsics.log1p(intrinsics.exp(build.neg(intrinsics.abs(x))))


def _reciprocal(x: PrimExpr) -> PrimExpr:
    return build.div(const(1, x.dtype), x)


def _round_to_tf32(x: PrimExpr) -> PrimExpr:
    bits = intrinsics.reinterpret(x, DataType.of("uint32").with_lanes(x.dtype.lanes))

    def number(value: int) -> PrimExpr:
        return const(value, bits.dtype)

    sign, magnitude = build.bitwise_and(bits, number(0x80000000)), build.bitwise_and(bits, number(0x7FFFFFFF))
    # The sum must not run into the sign, which it would for some NaN.
    rounded = build.minimum(magnitude + number(0x1000), number(0x7FFFE000))
    rounded = build.bitwise_or(build.bitwise_and(rounded, number(0x7FFFE000)), sign)
    return intrinsics.reinterpret(rounded, x.dtype)


_UNARY: dict[str, Callable[[PrimExpr], PrimExpr]] = {
    "negative": build.neg,
    "abs": _absolute,
    "sign": _sign,
    "reciprocal": _reciprocal,
    "nn.relu": relu,
    "round_to_tf32": _round_to_tf32,
    "stop_gradient": lambda x: x,
    "logical_not": build.logical_not,
    "bitwise_not": build.bitwise_not,
    "nn.softplus": softplus,
}
for _name in (
    "exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid floor ceil round "
    "trunc log1p expm1 isnan isinf"
).split():
    _UNARY[_name] = getattr(intrinsics, _name)
for _name, _function in _UNARY.items():
    _unary(_name, _function)


@compute_of("cast")
def _cast(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs

    def convert(*i: ExprLike) -> PrimExpr:
        if attributes.dtype.is_bool:
            return build.ne(x[i], const(0, x.dtype))
        return cast(x[i], attributes.dtype)

    return compute(result_shape(result), convert, "cast")


@compute_of("reinterpret")
def _reinterpret(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    return compute(result_shape(result), lambda *i: intrinsics.reinterpret(x[i], attributes.dtype), "reinterpret")


@compute_of("clip")
def _clip(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (x,) = inputs
    low, high = attributes.minimum, attributes.maximum
    if x.dtype.is_integer:
        # Bounds beyond the range of the integer type are no bounds.
        least, greatest = x.dtype.min_value(), x.dtype.max_value()
        low = None if low is None or low <= least else min(math.ceil(min(low, greatest)), greatest)
        high = None if high is None or high >= greatest else max(math.floor(max(high, least)), least)

    def clip(*i: ExprLike) -> PrimExpr:
        value: PrimExpr = x[i]
        if low is not None:
            value = build.maximum(value, const(low, x.dtype))
        if high is not None:
            value = build.minimum(value, const(high, x.dtype))
        return value

    return compute(result_shape(result), clip, "clip")


def _parametric(name: str, function: Callable[[PrimExpr, Any], PrimExpr]) -> None:
    @compute_of(name)
    def _compute(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        (x,) = inputs
        return compute(result_shape(result), lambda *i: function(x[i], attributes), name.split(".")[-1])


def elu(x: PrimExpr, alpha: float) -> PrimExpr:
    """x, or alpha * (exp(x) - 1) where x is negative."""
    zero = const(0, x.dtype)
    low = intrinsics.expm1(build.minimum(x, zero)) * const(alpha, x.dtype)
    return build.select(build.lt(zero, x), x, low)


def _selu(x: PrimExpr, attributes: Any) -> PrimExpr:
    return elu(x, attributes.alpha) * const(attributes.gamma, x.dtype)


def leaky_relu(x: PrimExpr, alpha: float) -> PrimExpr:
    """x, or alpha * x where x is negative."""
    return build.select(build.lt(x, const(0, x.dtype)), x * const(alpha, x.dtype), x)


def hard_sigmoid(x: PrimExpr, alpha: float, beta: float) -> PrimExpr:
    """alpha * x + beta, cut to 0 .. 1."""
    line = x * const(alpha, x.dtype) + const(beta, x.dtype)
    return build.minimum(build.maximum(line, const(0, x.dtype)), const(1, x.dtype))


def _gelu(x: PrimExpr, attributes: Any) -> PrimExpr:
    half, one = const(0.5, x.dtype), const(1.0, x.dtype)
    if attributes.approximate:
        inner = const(0.7978845608028654, x.dtype) * (x + const(0.044715, x.dtype) * x * x * x)
        return half * x * (one + intrinsics.tanh(inner))
    return half * x * (one + intrinsics.erf(x * const(0.7071067811865476, x.dtype)))


for _name, _rule in {
    "nn.elu": lambda x, attributes: elu(x, attributes.alpha),
    "nn.selu": _selu,
    "nn.leaky_relu": lambda x, attributes: leaky_relu(x, attributes.alpha),
    "nn.hard_sigmoid": lambda x, attributes: hard_sigmoid(x, attributes.alpha, attributes.beta),
    "nn.gelu": _gelu,
}.items():
    _parametric(_name, _rule)


def _power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return intrinsics.pow(a, b) if a.dtype.is_float else _integer_power(a, b)


def _integer_power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Exact (wrapping) powers by repeated squaring; a negative power is 0 but for the bases 1 and -1.

    Exponents are taken modulo 64: larger ones overflow every integer type unless the base is 0, 1 or -1, for which
    the lowest bits decide, except that 0 to the power of 64 is 0.
    """
    one, zero = const(1, a.dtype), const(0, a.dtype)
    result, square = one, a
    for bit in range(6):
        chosen = build.ne(build.bitwise_and(b, const(1 << bit, b.dtype)), zero)
        result = build.select(chosen, result * square, result)
        square = square * square
    result = build.select(build.logical_and(build.eq(a, zero), build.ne(b, zero)), zero, result)
    if a.dtype.is_uint:
        return result
    odd = build.ne(build.bitwise_and(b, one), zero)
    unit = build.select(odd, a, one)
    is_unit = build.logical_or(build.eq(a, one), build.eq(a, const(-1, a.dtype)))
    return build.select(build.lt(b, zero), build.select(is_unit, unit, zero), result)


def _float_remainder(a: PrimExpr, b: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """The remainder of division toward zero, and whether division toward minus infinity is one less."""
    remainder = build.truncmod(a, b)
    zero = const(0, a.dtype)
    differs = build.ne(build.lt(remainder, zero), build.lt(b, zero))
    return remainder, build.logical_and(build.ne(remainder, zero), differs)


def _floor_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if not a.dtype.is_float:
        return build.floormod(a, b)
    remainder, lower = _float_remainder(a, b)
    return build.select(lower, remainder + b, remainder)


def _floor_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Of floats, the floor of the exact quotient: a / b may round up to the next whole number."""
    if not a.dtype.is_float:
        return build.floordiv(a, b)
    remainder, lower = _float_remainder(a, b)
    quotient = (a - remainder) / b
    quotient = build.select(lower, quotient - const(1, a.dtype), quotient)
    # The quotient is whole up to rounding, so the nearest whole number is the exact one.
    return build.select(build.eq(b, const(0, a.dtype)), a / b, intrinsics.round(quotient))


def _divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return build.div(a, b)


def _prelu(x: PrimExpr, slope: PrimExpr) -> PrimExpr:
    return build.select(build.lt(x, const(0, x.dtype)), x * slope, x)


_BINARY: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "add": build.add,
    "subtract": build.sub,
    "multiply": build.mul,
    "divide": _divide,
    "power": _power,
    "minimum": build.minimum,
    "maximum": build.maximum,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "fmod": build.truncmod,
    "equal": build.eq,
    "not_equal": build.ne,
    "less": build.lt,
    "less_equal": build.le,
    "greater": build.gt,
    "greater_equal": build.ge,
    "logical_and": build.logical_and,
    "logical_or": build.logical_or,
    "logical_xor": build.ne,
    "bitwise_and": build.bitwise_and,
    "bitwise_or": build.bitwise_or,
    "bitwise_xor": build.bitwise_xor,
    "left_shift": build.shift_left,
    "right_shift": build.shift_right,
    "nn.prelu": _prelu,
}


def _binary(name: str, function: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> None:
    @compute_of(name)
    def _compute(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
        a, b = inputs
        shape = result_shape(result)

        def element(*i: ExprLike) -> PrimExpr:
            return function(a[broadcast_index(a, shape, i)], b[broadcast_index(b, shape, i)])

        return compute(shape, element, name.split(".")[-1])


for _name, _operation in _BINARY.items():
    _binary(_name, _operation)


@compute_of("where")
def _where(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    condition, a, b = inputs
    shape = result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        return build.select(
            condition[broadcast_index(condition, shape, i)],
            a[broadcast_index(a, shape, i)],
            b[broadcast_index(b, shape, i)],
        )

    return compute(shape, element, "where")


@compute_of("nn.batch_norm")
def _batch_norm(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, scale, bias, mean, variance = inputs
    compute_type = data.dtype if data.dtype.bits >= 32 else FLOAT32

    def element(*i: ExprLike) -> PrimExpr:
        c = i[attributes.axis]
        wide = [cast(t[c], compute_type) for t in (scale, bias, mean, variance)]
        factor = wide[0] * intrinsics.rsqrt(wide[3] + const(attributes.epsilon, compute_type))
        return cast((cast(data[i], compute_type) - wide[2]) * factor + wide[1], data.dtype)

    return compute(result_shape(result), element, "batch_norm")


@compute_of("qnn.quantize")
def _quantize(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    x, scale, zero = inputs
    shape = result_shape(result)
    low, high = integer_range(attributes.dtype, attributes.bits)

    def steps(*i: ExprLike) -> PrimExpr:
        factor, shift = (item[broadcast_index(item, shape, i)] for item in (scale, zero))
        value = intrinsics.round(build.div(x[i], factor)) + cast(shift, x.dtype)
        kept = build.minimum(build.maximum(value, const(low, x.dtype)), const(high, x.dtype))
        return cast(kept, attributes.dtype)

    return compute(shape, steps, "quantize")


@compute_of("qnn.dequantize")
def _dequantize(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    x, scale, zero = inputs
    shape = result_shape(result)

    def numbers(*i: ExprLike) -> PrimExpr:
        factor, shift = (item[broadcast_index(item, shape, i)] for item in (scale, zero))
        return cast(cast(x[i], INT32) - cast(shift, INT32), scale.dtype) * factor

    return compute(shape, numbers, "dequantize")


@compute_of("qnn.high_product")
def _high_product(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return _of_two_words(inputs, result, intrinsics.high_product)


@compute_of("qnn.rounded_shift")
def _rounded_shift(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return _of_two_words(inputs, result, intrinsics.rounded_shift)


def _of_two_words(inputs: list[Tensor], result: Type, function: Callable[[ExprLike, ExprLike], PrimExpr]) -> Tensor:
    shape = result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        first, second = (item[broadcast_index(item, shape, i)] for item in inputs)
        return function(first, second)

    return compute(shape, element, function.__name__)


@compute_of("qnn.fixed_point")
def _fixed_point(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    shape = result_shape(result)
    form = Requantization(len(inputs) > 4, attributes.offset, attributes.low, attributes.high)

    def element(*i: ExprLike) -> PrimExpr:
        sums, bias, multiplier, shift, *residual = (item[broadcast_index(item, shape, i)] for item in inputs)
        added = (residual[0], residual[1], cast(residual[2], INT64)) if residual else None
        return rescaled(sums, bias, multiplier, cast(shift, INT64), added, form)

    return compute(shape, element, "fixed_point")
