"""The table of intrinsics (pure mathematics and bits, a few effects) and the functions that build calls of them.

`table[name]` says how many arguments an intrinsic takes, which types it accepts, the type of its result, whether it is
pure, and its numpy reference. The meaning of each is in `docs/semantics.md`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilewright.ir import build
from tilewright.ir.dtype import BOOL, INT32, DataType, promote
from tilewright.ir.expr import Broadcast, Call, ExprLike, IntImm, PrimExpr, StringImm
from tilewright.support.errors import UserError

Reference = Callable[..., Any]
"""An elementwise numpy function. Float references take and give float64 (the caller rounds); the others keep types."""


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One intrinsic.

    `accepts` is the kind of its arguments: "float", "integer", "number" (either), "byte" (an integer of 8 bits), "word"
    (int32), "bool" or "any". `result` is "same" (as the first argument), "bool", "word" or "given" (named by the
    caller). `pure` calls may be duplicated, moved or dropped.
    """

    name: str
    arity: int | None
    accepts: str
    result: str
    reference: Reference | None
    pure: bool
    doc: str

    def result_type(self, arguments: tuple[DataType, ...]) -> DataType | None:
        """The type of the result for argument types, or None if the caller must say."""
        if self.result == "bool":
            return BOOL.with_lanes(max([dtype.lanes for dtype in arguments], default=1))
        if self.result == "word":
            return INT32.with_lanes(max([dtype.lanes for dtype in arguments], default=1))
        return arguments[0] if self.result == "same" and arguments else None

    def accepts_type(self, dtype: DataType) -> bool:
        """Whether an argument may have this type."""
        if self.accepts == "float":
            return dtype.is_float
        if self.accepts == "integer":
            return dtype.is_integer
        if self.accepts == "number":
            return dtype.is_float or dtype.is_integer
        if self.accepts == "byte":
            return dtype.is_integer and dtype.bits == 8
        if self.accepts == "word":
            return dtype.element is INT32
        return dtype.is_bool if self.accepts == "bool" else True


table: Final[dict[str, Intrinsic]] = {}
"""Every intrinsic by name."""


def define(
    name: str,
    arity: int | None,
    accepts: str,
    reference: Reference | None,
    doc: str,
    *,
    result: str = "same",
    pure: bool = True,
) -> Intrinsic:
    """Add an intrinsic to the table (back ends and accelerators add their own)."""
    intrinsic = Intrinsic(name, arity, accepts, result, reference, pure, doc)
    table[name] = intrinsic
    return intrinsic


def is_pure(call: Call) -> bool:
    """Whether a call may be duplicated, moved or dropped: a known pure intrinsic."""
    intrinsic = table.get(call.name)
    return intrinsic is not None and intrinsic.pure


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


_erf: Final[Reference] = np.frompyfunc(math.erf, 1, 1)


def _erf_reference(x: Any) -> Any:
    return np.asarray(_erf(x), dtype=np.float64)[()]


def round_to_odd_sum(a: float, b: float) -> float:
    """a + b in float64 rounded to odd, so that a later rounding to a narrower type is as if done once."""
    total = a + b
    if not math.isfinite(total):
        return total
    rest = total - a
    error = (a - (total - rest)) + (b - rest)
    if error == 0.0 or int(np.float64(total).view(np.int64)) & 1:
        return total
    return float(np.nextafter(total, np.inf if error > 0 else -np.inf))


def fma_reference(a: float, b: float, c: float, bits: int) -> float:
    """a * b + c rounded once (to float64 if bits is 64; else to odd, for the caller to round to 32 or 16 bits)."""
    a, b, c = float(a), float(b), float(c)
    if bits < 64:
        return round_to_odd_sum(a * b, c)
    if not all(math.isfinite(value) for value in (a, b, c)):
        return a * b + c
    x, y, z = (value.as_integer_ratio() for value in (a, b, c))
    numerator = x[0] * y[0] * z[1] + z[0] * x[1] * y[1]
    if numerator == 0:
        return a * b + c
    try:
        return numerator / (x[1] * y[1] * z[1])
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def popcount_int(value: int, bits: int) -> int:
    """The number of one bits of an integer of a width."""
    return (value & ((1 << bits) - 1)).bit_count()


def dot4_reference(a: Any, b: Any) -> Any:
    """The sum of the products of the four signed bytes of two words."""
    return builtins.sum((((a >> n & 255) ^ 128) - 128) * (((b >> n & 255) ^ 128) - 128) for n in (0, 8, 16, 24))


def _word_reference(*parts: Any) -> Any:
    bits = builtins.sum((part & 255) << 8 * n for n, part in enumerate(parts))
    return (bits ^ 1 << 31) - (1 << 31)


def high_product_reference(a: Any, b: Any) -> Any:
    """The upper half of twice the product of two words, halves up; the least word squared is cut off."""
    return min(int(a) * int(b) + (1 << 30) >> 31, (1 << 31) - 1)


def rounded_shift_reference(x: Any, n: Any) -> Any:
    """x * 2**n for n from -31 to 0, rounded, halves up."""
    return int(x) + (1 << (-n & 31) >> 1) >> (-n & 31)


def clz_int(value: int, bits: int) -> int:
    """The number of zero bits above the highest one bit; the width for zero."""
    return bits - (value & ((1 << bits) - 1)).bit_length()


_FLOAT_UNARY: Final[dict[str, tuple[Reference, str]]] = {
    "exp": (np.exp, "e to the power x"),
    "exp2": (np.exp2, "2 to the power x"),
    "log": (np.log, "natural logarithm"),
    "log2": (np.log2, "logarithm to base 2"),
    "log10": (np.log10, "logarithm to base 10"),
    "log1p": (np.log1p, "log(1 + x), precise near 0"),
    "expm1": (np.expm1, "exp(x) - 1, precise near 0"),
    "sqrt": (np.sqrt, "square root, correctly rounded"),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), "1 / sqrt(x)"),
    "sin": (np.sin, "sine"),
    "cos": (np.cos, "cosine"),
    "tan": (np.tan, "tangent"),
    "asin": (np.arcsin, "arc sine"),
    "acos": (np.arccos, "arc cosine"),
    "atan": (np.arctan, "arc tangent"),
    "sinh": (np.sinh, "hyperbolic sine"),
    "cosh": (np.cosh, "hyperbolic cosine"),
    "tanh": (np.tanh, "hyperbolic tangent"),
    "asinh": (np.arcsinh, "inverse hyperbolic sine"),
    "acosh": (np.arccosh, "inverse hyperbolic cosine"),
    "atanh": (np.arctanh, "inverse hyperbolic tangent"),
    "erf": (_erf_reference, "error function"),
    "sigmoid": (_sigmoid, "1 / (1 + exp(-x))"),
    "floor": (np.floor, "the greatest integer not above x"),
    "ceil": (np.ceil, "the least integer not below x"),
    "round": (np.rint, "the nearest integer, halves to even"),
    "trunc": (np.trunc, "the integer part"),
}
ROUNDINGS: Final = frozenset(["floor", "ceil", "round", "trunc"])
"""Intrinsics that leave integers as they are."""

for _name, (_reference, _doc) in _FLOAT_UNARY.items():
    define(_name, 1, "float", _reference, _doc)
HALF_FUNCTIONS: Final = ("exp", "tanh", "erf", "erf_plus_one", "sigmoid")
"""Functions that processors may compute of half precision in fewer steps than of float32."""
_ERF_PLUS_ONE: Final = (lambda x: 1.0 + _erf_reference(x), "1 + erf(x), as in GELU")
for _name in HALF_FUNCTIONS:
    _reference, _doc = _FLOAT_UNARY.get(_name, _ERF_PLUS_ONE)
    define(f"half_{_name}", 1, "float", _reference, f"{_doc}, of a float32, with the digits that half precision has")
define("abs", 1, "number", np.abs, "the value without its sign; the least signed integer stays (it wraps)")
# np.power takes a square root for an exponent of 0.5, which is wrong at minus infinity; float_power does not.
define("pow", 2, "float", np.float_power, "x to the power y, as IEEE 754 pow")
define("atan2", 2, "float", np.arctan2, "the angle of the point (x, y), arguments y, x")
define("copysign", 2, "float", np.copysign, "the magnitude of the first with the sign of the second")
define("scale_by_power", 2, "any", lambda x, n: x * np.exp2(n), "x * 2**n of a whole number n", result="given")
define("fma", 3, "float", None, "a * b + c, rounded once")
define("isnan", 1, "float", np.isnan, "whether x is not a number", result="bool")
define("isinf", 1, "float", np.isinf, "whether x is an infinity", result="bool")
define("isfinite", 1, "float", np.isfinite, "whether x is neither infinite nor NaN", result="bool")
define("bitwise_and", 2, "integer", np.bitwise_and, "bits set in both")
define("bitwise_or", 2, "integer", np.bitwise_or, "bits set in either")
define("bitwise_xor", 2, "integer", np.bitwise_xor, "bits set in one of the two")
define("bitwise_not", 1, "integer", np.bitwise_not, "all bits flipped")
define("shift_left", 2, "integer", None, "x * 2**n wrapped; n is taken modulo the width")
define("shift_right", 2, "integer", None, "shift right, filling with the sign (signed) or 0; n modulo the width")
define("popcount", 1, "integer", None, "the number of one bits")
define("clz", 1, "integer", None, "the number of leading zero bits; the width for 0")
define("dot4", 2, "word", dot4_reference, "the sum of the products of the four signed bytes of two words")
define("high_product", 2, "word", high_product_reference, "a * b / 2**31 of words, halves up; -2**31 squared saturates")
define("rounded_shift", 2, "word", rounded_shift_reference, "x * 2**n of a word, n from -31 to 0, halves up")
define("word", 4, "byte", _word_reference, "four bytes as a word of 32 bits, the lowest first", result="word")
define("likely", 1, "bool", lambda x: x, "its argument; a hint that it is mostly true")
define("reinterpret", 1, "any", None, "the same bits as another type of the same width", result="given")
define("barrier", 1, "any", None, "threads of a group wait for each other", result="given", pure=False)
define("async_copy", 1, "any", lambda x: x, "x; stored to shared memory it may come late", result="given")
define("async_commit", 1, "any", lambda x: x, "copies since the last commit are a group", result="given", pure=False)
define("async_wait", 1, "any", lambda x: x, "wait until at most n groups are under way", result="given", pure=False)
define("access_ptr", 3, "any", None, "address of the first of two elements, for extern calls", result="given")
define("element_distance", 2, "any", None, "elements in memory from the first element to the second", result="given")
define("call_extern", None, "any", None, "call a function by its symbol name", result="given", pure=False)


_KINDS: Final = {
    "float": "floating-point values",
    "number": "numbers",
    "byte": "integers of 8 bits",
    "word": "words of four bytes (int32)",
}


def check(name: str, arguments: tuple[PrimExpr, ...]) -> Intrinsic:
    """The intrinsic of a name, if it takes such arguments; a `UserError` otherwise."""
    intrinsic = table.get(name)
    if intrinsic is None:
        raise UserError(f"unknown intrinsic {name!r}", hint=f"known: {', '.join(sorted(table))}")
    if intrinsic.arity is not None and len(arguments) != intrinsic.arity:
        raise UserError(f"{name} takes {intrinsic.arity} arguments, not {len(arguments)}")
    for argument in arguments:
        if not intrinsic.accepts_type(argument.dtype):
            wanted = _KINDS.get(intrinsic.accepts, intrinsic.accepts)
            raise UserError(f"{name} needs {wanted}, not {argument.dtype}", hint="convert it with astype")
    return intrinsic


def _unify(arguments: tuple[ExprLike, ...]) -> tuple[PrimExpr, ...]:
    """Arguments brought to one type; Python numbers take the type of the expressions."""
    typed = [build.as_expr(a) for a in arguments if not isinstance(a, (bool, int, float, np.number, np.bool_))]
    if not typed:
        return tuple(build.as_expr(float(a) if isinstance(a, int) else a) for a in arguments)
    target = typed[0].dtype
    for expr in typed[1:]:
        target = promote(target, expr.dtype)
    unified = []
    for argument in arguments:
        expr = build.as_expr(argument, target if not isinstance(argument, PrimExpr) else None)
        if expr.dtype.lanes != target.lanes:
            expr = Broadcast(expr, target.lanes)
        unified.append(build.cast(expr, target))
    return tuple(unified)


def call(name: str, *arguments: ExprLike) -> PrimExpr:
    """A call of an intrinsic whose result type follows from its arguments; the arguments are brought to one type."""
    args = _unify(arguments)
    if len(args) == 1 and args[0].dtype.is_integer and (name in ROUNDINGS or (name == "abs" and args[0].dtype.is_uint)):
        return args[0]
    intrinsic = check(name, args)
    dtype = intrinsic.result_type(tuple(arg.dtype for arg in args))
    if dtype is None:
        raise UserError(f"the result type of {name} must be given")
    return Call(name, args, dtype)


def _unary(name: str) -> Callable[[ExprLike], PrimExpr]:
    def function(x: ExprLike) -> PrimExpr:
        return call(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{table[name].doc}."
    return function


def _binary(name: str) -> Callable[[ExprLike, ExprLike], PrimExpr]:
    def function(x: ExprLike, y: ExprLike) -> PrimExpr:
        return call(name, x, y)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{table[name].doc}."
    return function


exp = _unary("exp")
exp2 = _unary("exp2")
log = _unary("log")
log2 = _unary("log2")
log10 = _unary("log10")
log1p = _unary("log1p")
expm1 = _unary("expm1")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
erf = _unary("erf")
sigmoid = _unary("sigmoid")
floor = _unary("floor")
ceil = _unary("ceil")
round = _unary("round")
trunc = _unary("trunc")
abs = _unary("abs")
fabs = abs
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")
popcount = _unary("popcount")
clz = _unary("clz")
likely = _unary("likely")
dot4 = _binary("dot4")
high_product = _binary("high_product")
rounded_shift = _binary("rounded_shift")
pow = _binary("pow")
power = pow
atan2 = _binary("atan2")
copysign = _binary("copysign")
bitwise_and = build.bitwise_and
bitwise_or = build.bitwise_or
bitwise_xor = build.bitwise_xor
bitwise_not = build.bitwise_not
shift_left = build.shift_left
shift_right = build.shift_right


def fma(a: ExprLike, b: ExprLike, c: ExprLike) -> PrimExpr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def reinterpret(value: ExprLike, dtype: DataType | str) -> PrimExpr:
    """The bits of a value as another type of the same total width."""
    x, target = build.as_expr(value), DataType.of(dtype)
    if x.dtype.bits * x.dtype.lanes != target.bits * target.lanes:
        raise UserError(f"reinterpret from {x.dtype} to {target}: the widths differ")
    return x if x.dtype is target else Call("reinterpret", (x,), target)


def word(*parts: PrimExpr) -> PrimExpr:
    """Four bytes as a word of 32 bits, the lowest first. Read from neighbouring places, they are read at once."""
    intrinsic = check("word", parts)
    dtype = intrinsic.result_type(tuple(part.dtype for part in parts))
    assert dtype is not None
    return Call("word", parts, dtype)


def async_copy(value: PrimExpr) -> PrimExpr:
    """A value on its way from global to shared memory, where the thread need not wait for it."""
    return Call("async_copy", (value,), value.dtype)


def async_commit() -> PrimExpr:
    """The copies that a thread has started since the last commit become one group."""
    return Call("async_commit", (IntImm(0, INT32),), INT32)


def async_wait(groups: int) -> PrimExpr:
    """Wait until at most so many groups of a thread's copies (the latest ones) are under way."""
    return Call("async_wait", (IntImm(groups, INT32),), INT32)


def barrier(scope: str = "shared") -> PrimExpr:
    """All threads of a group wait here for each other; writes to memory of `scope` are then seen by all."""
    return Call("barrier", (StringImm(scope),), INT32)


def call_extern(dtype: DataType | str, name: str, *arguments: ExprLike) -> PrimExpr:
    """Call a function by its symbol name; the result has the given type."""
    return Call("call_extern", (StringImm(name), *(build.as_expr(a) for a in arguments)), DataType.of(dtype))


def infinity(dtype: DataType | str) -> PrimExpr:
    """The greatest value of a type: infinity, or the largest integer."""
    target = DataType.of(dtype)
    return build.const(math.inf if target.is_float else target.element.max_value(), target)


def lowest(dtype: DataType | str) -> PrimExpr:
    """The least value of a type: minus infinity, or the smallest integer."""
    target = DataType.of(dtype)
    return build.const(-math.inf if target.is_float else target.element.min_value(), target)


def builders() -> dict[str, Callable[..., PrimExpr]]:
    """The building function of each intrinsic whose result type follows from its arguments (for parsers)."""
    names = [name for name, item in table.items() if item.result != "given" and item.pure]
    return {name: globals()[name] for name in builtins.sorted(names) if name in globals()}
