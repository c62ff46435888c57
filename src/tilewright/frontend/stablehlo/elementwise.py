"""Converters of operations that compute element by element: arithmetic, functions, bits, comparisons."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.elementary import atan2, is_negative
from tilewright.frontend.stablehlo import complex_numbers
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import Converter, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, DataType
from tilewright.support.errors import UnsupportedError

_SAME = {
    "ceil": "ceil",
    "cosine": "cos",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "floor": "floor",
    "log": "log",
    "log_plus_one": "log1p",
    "logistic": "sigmoid",
    "negate": "negative",
    "round_nearest_even": "round",
    "rsqrt": "rsqrt",
    "sine": "sin",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "chlo.acos": "acos",
    "chlo.acosh": "acosh",
    "chlo.asin": "asin",
    "chlo.asinh": "asinh",
    "chlo.atan": "atan",
    "chlo.atanh": "atanh",
    "chlo.cosh": "cosh",
    "chlo.sinh": "sinh",
    "chlo.tan": "tan",
    "chlo.erf": "erf",
}
"""Operations of one operand that the graph has as they are."""
_SAME_OF_TWO = {"subtract": "subtract", "power": "power"}


def _of_one(operator: str) -> Converter:
    def convert(b: StableBuilder, operation: Operation, x: Tensor) -> Tensor:
        if isinstance(x, Complex):
            return complex_numbers.function(b, operator, x)
        return b.elementwise(operator, x)

    convert.__doc__ = f"{operator}(x)."
    return convert


def _of_two(operator: str) -> Converter:
    def convert(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(x, Complex) or isinstance(y, Complex):
            return complex_numbers.binary(b, operator, x, y)
        return b.elementwise(operator, x, y)

    convert.__doc__ = f"{operator}(x, y)."
    return convert


for _name, _operator in _SAME.items():
    converter(_name, of_complex="taken")(_of_one(_operator))
for _name, _operator in _SAME_OF_TWO.items():
    converter(_name, of_complex="taken")(_of_two(_operator))


def _logical(truth: str, plain: str) -> Converter:
    """Of truth values one operator, of numbers another."""

    def convert(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(x, Complex) or isinstance(y, Complex):
            return complex_numbers.binary(b, plain, x, y)
        return b.elementwise(truth if dtype_of(x).is_bool else plain, x, y)

    convert.__doc__ = f"{plain}(x, y); of truth values {truth}."
    return convert


for _name, _truth, _plain in (
    ("add", "logical_or", "add"),
    ("multiply", "logical_and", "multiply"),
    ("maximum", "logical_or", "maximum"),
    ("minimum", "logical_and", "minimum"),
    ("and", "logical_and", "bitwise_and"),
    ("or", "logical_or", "bitwise_or"),
    ("xor", "logical_xor", "bitwise_xor"),
):
    converter(_name, of_complex="taken")(_logical(_truth, _plain))


@converter("not")
def invert(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Not x; of numbers, of each bit."""
    return b.elementwise("logical_not" if dtype_of(x).is_bool else "bitwise_not", x)


def scalar_like(b: StableBuilder, value: float | int, x: GraphExpr) -> GraphExpr:
    """A number of the type of a value, which broadcasts."""
    return b.scalar(value, dtype_of(x))


@converter("divide", of_complex="taken")
def divide(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> Tensor:
    """x / y; whole numbers toward zero, and -1 where they are divided by zero, as XLA has it."""
    if isinstance(x, Complex) or isinstance(y, Complex):
        return complex_numbers.binary(b, "divide", x, y)
    if not dtype_of(x).is_integer or _is_never_zero(b, y):
        return b.elementwise("divide", x, y)
    is_zero = b.elementwise("equal", y, scalar_like(b, 0, y))
    safe = b.elementwise("where", is_zero, scalar_like(b, 1, y), y)
    return b.elementwise("where", is_zero, scalar_like(b, -1, y), b.elementwise("divide", x, safe))


@converter("remainder")
def remainder(b: StableBuilder, operation: Operation, x: GraphExpr, y: GraphExpr) -> GraphExpr:
    """What is left of x, with its sign; of whole numbers, x itself where y is zero."""
    if not dtype_of(x).is_integer or _is_never_zero(b, y):
        return b.elementwise("fmod", x, y)
    is_zero = b.elementwise("equal", y, scalar_like(b, 0, y))
    safe = b.elementwise("where", is_zero, scalar_like(b, 1, y), y)
    return b.elementwise("where", is_zero, x, b.elementwise("fmod", x, safe))


def _is_never_zero(b: StableBuilder, value: GraphExpr) -> bool:
    known = evaluate(b.narrow(value))
    return known is not None and bool(known.all())


@converter("abs", of_complex="taken")
def absolute(b: StableBuilder, operation: Operation, x: Tensor) -> GraphExpr:
    """The magnitude."""
    if isinstance(x, Complex):
        return complex_numbers.magnitude(b, x)
    return x if dtype_of(x).is_uint else b.elementwise("abs", x)


@converter("sign", of_complex="taken")
def sign(b: StableBuilder, operation: Operation, x: Tensor) -> Tensor:
    """-1, 0 or 1; zeros and NaN as they are."""
    if isinstance(x, Complex):
        return complex_numbers.sign(b, x)
    if not dtype_of(x).is_float:
        return b.elementwise("sign", x)
    return b.elementwise("where", b.elementwise("equal", x, scalar_like(b, 0, x)), x, b.elementwise("sign", x))


@converter("atan2", of_complex="refused")
def atan2_converter(b: StableBuilder, operation: Operation, y: GraphExpr, x: GraphExpr) -> GraphExpr:
    """The angle of the point (x, y)."""
    return atan2(b, y, x)


@converter("cbrt")
def cube_root(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The cube root: a power of the magnitude, made better by one step of Newton's."""
    size = b.elementwise("abs", x)
    guess = b.elementwise("power", size, scalar_like(b, 1 / 3, x))
    square = b.elementwise("multiply", guess, guess)
    better = b.elementwise(
        "subtract",
        guess,
        b.elementwise(
            "divide",
            b.elementwise("subtract", guess, b.elementwise("divide", size, square)),
            scalar_like(b, 3, x),
        ),
    )
    is_plain = b.elementwise(
        "logical_and",
        b.elementwise("greater", square, scalar_like(b, 0, x)),
        b.elementwise("less", guess, scalar_like(b, math.inf, x)),
    )
    root = b.elementwise("where", is_plain, better, guess)
    return b.elementwise("where", is_negative(b, x), b.elementwise("negative", root), root)


@converter("is_finite", "chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def is_finite(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Whether a number is finite (or one of the infinities)."""
    infinity = scalar_like(b, math.inf, x)
    match operation.name:
        case "chlo.is_pos_inf":
            return b.elementwise("equal", x, infinity)
        case "chlo.is_neg_inf":
            return b.elementwise("equal", x, scalar_like(b, -math.inf, x))
        case "chlo.is_inf":
            return b.elementwise("equal", b.elementwise("abs", x), infinity)
    return b.elementwise("less", b.elementwise("abs", x), infinity)


@converter("round_nearest_afz")
def round_away(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The nearest whole number, halves away from zero."""
    size = b.elementwise("abs", x)
    whole = b.elementwise("floor", size)
    # The difference is exact, where a half added to the number might round up.
    up = b.elementwise("greater_equal", b.elementwise("subtract", size, whole), scalar_like(b, 0.5, x))
    rounded = b.elementwise("where", up, b.elementwise("add", whole, scalar_like(b, 1, x)), whole)
    return b.elementwise("where", is_negative(b, x), b.elementwise("negative", rounded), rounded)


# Choices


@converter("select", of_complex="taken")
def select(b: StableBuilder, operation: Operation, condition: GraphExpr, x: Tensor, y: Tensor) -> Tensor:
    """x where a condition holds, else y."""
    if isinstance(x, Complex) and isinstance(y, Complex):
        return Complex(*(b.elementwise("where", condition, p, q) for p, q in zip(x.parts, y.parts, strict=True)))
    assert isinstance(x, GraphExpr)
    assert isinstance(y, GraphExpr)
    return b.elementwise("where", condition, x, y)


@converter("clamp")
def clamp(b: StableBuilder, operation: Operation, low: GraphExpr, x: GraphExpr, high: GraphExpr) -> GraphExpr:
    """min(max(x, low), high)."""
    return b.elementwise("minimum", b.elementwise("maximum", x, low), high)


_RELATIONS = {
    "EQ": "equal",
    "NE": "not_equal",
    "LT": "less",
    "LE": "less_equal",
    "GT": "greater",
    "GE": "greater_equal",
}


@converter("compare", of_complex="taken")
def compare(b: StableBuilder, operation: Operation, x: Tensor, y: Tensor) -> GraphExpr:
    """A comparison; in the total order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    direction = b.word_of("comparison_direction")
    if direction not in _RELATIONS:
        raise UnsupportedError(f"the comparison {direction!r} is not known")
    relation = _RELATIONS[direction]
    if isinstance(x, Complex) and isinstance(y, Complex):
        return complex_numbers.compare(b, relation, x, y)
    assert isinstance(x, GraphExpr)
    assert isinstance(y, GraphExpr)
    if b.word_of("compare_type") == "TOTALORDER" and dtype_of(x).is_float:
        return b.elementwise(relation, total_order(b, x), total_order(b, y))
    if dtype_of(x).is_bool and relation not in ("equal", "not_equal"):
        x, y = (b.elementwise("cast", value, dtype=DataType.of("int8")) for value in (x, y))
    return b.elementwise(relation, x, y)


def total_order(b: StableBuilder, x: GraphExpr) -> GraphExpr:
    """Whole numbers in the order of the bits of floats: negative ones turned around."""
    whole = DataType.of(f"int{dtype_of(x).bits}")
    bits = b.elementwise("reinterpret", x, dtype=whole)
    turned = b.elementwise("bitwise_xor", bits, b.scalar(whole.max_value(), whole))
    return b.elementwise("where", b.elementwise("less", bits, b.scalar(0, whole)), turned, bits)


# Types


@converter("convert", of_complex="taken")
def convert(b: StableBuilder, operation: Operation, x: Tensor) -> Tensor:
    """Of another type: floats to whole numbers are truncated and kept within the type, whole numbers wrap."""
    spec = b.result
    if isinstance(x, Complex):
        if spec.is_complex:
            return Complex(*(_cast(b, part, spec.dtype) for part in x.parts))
        if spec.dtype.is_bool:
            return complex_numbers.is_not_zero(b, x)
        return _cast(b, x.real, spec.dtype)
    real = _cast(b, x, spec.dtype)
    return Complex(real, _zeros_like(b, real)) if spec.is_complex else real


def _zeros_like(b: StableBuilder, x: GraphExpr) -> GraphExpr:
    zero = b.scalar(0, dtype_of(x))
    if not rank_of(x):
        return zero
    return b.repeated(b.reshape(zero, (1,) * rank_of(x)), sizes_of(x))


def _cast(b: StableBuilder, x: GraphExpr, dtype: DataType) -> GraphExpr:
    return x if dtype_of(x) is dtype else b.elementwise("cast", x, dtype=dtype)


@converter("reduce_precision")
def reduce_precision(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """Rounded to fewer bits of exponent and mantissa, halves to even; what is too large becomes infinite."""
    exponent, mantissa = b.number_of("exponent_bits"), b.number_of("mantissa_bits")
    dtype = dtype_of(x)
    digits, powers = {"float32": (23, 8), "float64": (52, 11), "float16": (10, 5), "bfloat16": (7, 8)}[dtype.name]
    if mantissa >= digits and exponent >= powers:
        return x
    if dtype.bits < 32:
        wide = reduce_precision(b, operation, b.elementwise("cast", x, dtype=FLOAT32))
        return b.elementwise("cast", wide, dtype=dtype)
    whole = DataType.of(f"int{dtype.bits}")

    def number(value: int) -> GraphExpr:
        return b.scalar(value, whole)

    bits = b.elementwise("reinterpret", x, dtype=whole)
    if mantissa < digits:
        drop = digits - mantissa
        odd = b.elementwise("bitwise_and", b.elementwise("right_shift", bits, number(drop)), number(1))
        step = b.elementwise("add", odd, number((1 << (drop - 1)) - 1))
        bits = b.elementwise("bitwise_and", b.elementwise("add", bits, step), number(-(1 << drop)))
    if exponent < powers:
        bias, least = (1 << (powers - 1)) - 1, (1 << (exponent - 1)) - 1
        field = number(((1 << powers) - 1) << digits)
        size = b.elementwise("bitwise_and", bits, field)
        signs = b.elementwise("bitwise_and", bits, number(whole.min_value()))
        infinite = b.elementwise("bitwise_or", signs, field)
        above = b.elementwise("greater", size, number((bias + least) << digits))
        below = b.elementwise("less_equal", size, number((bias - least) << digits))
        bits = b.elementwise("where", above, infinite, b.elementwise("where", below, signs, bits))
    rounded = b.elementwise("reinterpret", bits, dtype=dtype)
    return b.elementwise("where", b.elementwise("not_equal", x, x), x, rounded)


@converter("bitcast_convert", of_complex="refused")
def bitcast(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """The same bits as another type; narrower elements lie along a new last axis."""
    return bitcast_to(b, x, b.result_dtype)


def bitcast_to(b: StableBuilder, x: GraphExpr, wanted: DataType) -> GraphExpr:
    """The same bits as another type."""
    given = dtype_of(x)
    if given.bits == wanted.bits:
        return x if given is wanted else b.elementwise("reinterpret", x, dtype=wanted)
    if min(given.bits, wanted.bits) < 8:
        raise UnsupportedError(f"the bits of {given} as {wanted}")
    if given.bits > wanted.bits:
        return _narrower(b, x, given, wanted)
    parts = wanted.bits // given.bits
    whole = DataType.of(f"uint{wanted.bits}")
    words = b.cast(_reinterpret(b, x, DataType.of(f"uint{given.bits}")), whole)
    shifts = b.constant([given.bits * at for at in range(parts)], whole)
    axis = rank_of(words) - 1
    joined = b.reduce("sum", b.call("left_shift", words, shifts), (axis,))
    return _reinterpret(b, joined, wanted)


def _reinterpret(b: StableBuilder, x: GraphExpr, dtype: DataType) -> GraphExpr:
    return x if dtype_of(x) is dtype else b.call("reinterpret", x, dtype=dtype)


def _narrower(b: StableBuilder, x: GraphExpr, given: DataType, wanted: DataType) -> GraphExpr:
    parts = given.bits // wanted.bits
    whole = DataType.of(f"uint{given.bits}")
    words = b.expand_dims(_reinterpret(b, x, whole), (rank_of(x),))
    shifts = b.constant([wanted.bits * at for at in range(parts)], whole)
    pieces = b.call("right_shift", words, shifts)
    low = b.call("bitwise_and", pieces, b.scalar((1 << wanted.bits) - 1, whole))
    return _reinterpret(b, b.cast(low, DataType.of(f"uint{wanted.bits}")), wanted)


# Bits


def _shift(operator: str, fills_with_sign: bool) -> Converter:
    def convert(b: StableBuilder, operation: Operation, x: GraphExpr, y: GraphExpr) -> GraphExpr:
        dtype = dtype_of(x)
        unsigned, signed = (DataType.of(f"{code}{dtype.bits}") for code in ("uint", "int"))
        kind = signed if fills_with_sign else unsigned
        data, amount = _bits_as(b, x, kind), _bits_as(b, y, unsigned)
        known = evaluate(b.narrow(amount))
        shifted = b.elementwise(operator, data, _bits_as(b, amount, kind))
        if known is None or bool((known >= dtype.bits).any()):
            # A shift by all bits or more leaves nothing; the graph's shifts count modulo the width.
            whole = b.elementwise("greater_equal", amount, b.scalar(dtype.bits, unsigned))
            rest = b.scalar(0, kind)
            if fills_with_sign:
                rest = b.elementwise("right_shift", data, b.scalar(dtype.bits - 1, kind))
            shifted = b.elementwise("where", whole, rest, shifted)
        return _bits_as(b, shifted, dtype)

    convert.__doc__ = f"{operator} by y bits; by the width or more, nothing is left."
    return convert


def _bits_as(b: StableBuilder, x: GraphExpr, dtype: DataType) -> GraphExpr:
    return x if dtype_of(x) is dtype else b.elementwise("reinterpret", x, dtype=dtype)


converter("shift_left")(_shift("left_shift", False))
converter("shift_right_logical")(_shift("right_shift", False))
converter("shift_right_arithmetic")(_shift("right_shift", True))


@converter("popcnt")
def count_ones(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """How many bits are set: pairs, fours, eights ... are added up."""
    dtype = dtype_of(x)
    whole = DataType.of(f"uint{dtype.bits}")
    return _bits_as(b, _ones(b, _bits_as(b, x, whole), whole), dtype)


def _ones(b: StableBuilder, x: GraphExpr, whole: DataType) -> GraphExpr:
    width = 1
    while width < whole.bits:
        mask = 0
        for start in range(0, whole.bits, 2 * width):
            mask |= ((1 << width) - 1) << start
        high = b.elementwise("right_shift", x, b.scalar(width, whole))
        parts = [b.elementwise("bitwise_and", part, b.scalar(mask, whole)) for part in (x, high)]
        x = b.elementwise("add", parts[0], parts[1])
        width *= 2
    return x


@converter("count_leading_zeros")
def leading_zeros(b: StableBuilder, operation: Operation, x: GraphExpr) -> GraphExpr:
    """How many zeros come before the first bit that is set: all bits below it are set, and counted."""
    dtype = dtype_of(x)
    whole = DataType.of(f"uint{dtype.bits}")
    bits = _bits_as(b, x, whole)
    width = 1
    while width < dtype.bits:
        bits = b.elementwise("bitwise_or", bits, b.elementwise("right_shift", bits, b.scalar(width, whole)))
        width *= 2
    count = b.elementwise("subtract", b.scalar(dtype.bits, whole), _ones(b, bits, whole))
    return _bits_as(b, count, dtype)


@converter("map")
def map_elements(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """A region of scalars on all elements."""
    (made,) = b.run_wide(operation.regions[0], operands)
    shape = sizes_of(operands[0]) if operands else b.target_shape(())
    if isinstance(made, Complex) or sizes_of(made) == shape:
        return made
    return b.repeated(b.reshape(made, (1,) * len(shape)), shape) if not rank_of(made) else made


@converter("optimization_barrier", of_complex="taken")
def barrier(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """The operands as they are."""
    return list(operands)


def truth(b: StableBuilder, x: GraphExpr) -> GraphExpr:
    """A scalar condition."""
    return b.reshape(b.cast(x, BOOL), ())
