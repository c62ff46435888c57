"""Building scalar expressions: conversion of Python values, type promotion, constant folding of the obvious.

The Python operators on expressions come here. Folding keeps freshly built programs small (x + 0, 2 * 3);
everything that needs knowledge about variables is the work of `tilewright.arith`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final

import numpy as np

from tilewright.ir import expr as e
from tilewright.ir import small_floats
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, DataType, promote
from tilewright.ir.expr import ExprLike, FloatImm, IntImm, PrimExpr
from tilewright.support.errors import UserError

_INDEX_LIMIT: Final = 1 << 63
_MOST_SMALL: Final = 1024
_SMALL: Final[dict[int, IntImm]] = {}
"""Small indices: they are made all the time, and would die in between."""


def const(value: int | float | bool, dtype: DataType | str | None = None) -> PrimExpr:
    """A constant; the type defaults to bool, int64 (index) or float32 by the Python type. Integers wrap to fit."""
    if (dtype is None or dtype is INDEX) and type(value) is int and -_INDEX_LIMIT <= value < _INDEX_LIMIT:
        known = _SMALL.get(value)
        if known is None:
            known = IntImm(value, INDEX)
            if -_MOST_SMALL <= value <= _MOST_SMALL:
                _SMALL[value] = known
        return known
    if dtype is None:
        if isinstance(value, (bool, np.bool_)):
            dtype = BOOL
        elif isinstance(value, (int, np.integer)):
            dtype = INDEX
        else:
            dtype = FLOAT32
    dtype = DataType.of(dtype)
    scalar = dtype.element
    result: PrimExpr
    if scalar.is_float:
        result = FloatImm(_round_float(float(value), scalar), scalar)
    elif scalar.is_bool:
        result = IntImm(int(bool(value)), scalar)
    elif isinstance(value, float) and not value.is_integer():
        raise UserError(f"the constant {value} is not a {scalar}", hint="cast it, or use a float type")
    else:
        result = IntImm(wrap_int(int(value), scalar), scalar)
    return result if dtype.is_scalar else e.Broadcast(result, dtype.lanes)


def _round_float(value: float, dtype: DataType) -> float:
    if dtype.bits == 32:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    if dtype.name == "float16":
        with np.errstate(over="ignore"):
            return float(np.float16(value))
    if dtype.name == "bfloat16":
        return round_bfloat16(value)
    if dtype.is_small_float:
        return small_floats.rounded(value, dtype.name)
    return value


def round_bfloat16(value: float) -> float:
    """The nearest bfloat16 (ties to even) of a value, as a Python float."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        return float(single)
    bits = int(single.view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


def wrap_int(value: int, dtype: DataType) -> int:
    """An integer reduced modulo 2**bits into the range of its type."""
    value &= (1 << dtype.bits) - 1
    if dtype.is_int and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def as_expr(value: ExprLike, dtype: DataType | str | None = None) -> PrimExpr:
    """A Python number as a constant (of a type, if given); an expression as itself."""
    if isinstance(value, PrimExpr):
        return value
    if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
        return const(value, dtype)
    convert = getattr(value, "as_prim_expr", None)
    if convert is not None:
        result = convert()
        assert isinstance(result, PrimExpr)
        return result
    raise UserError(f"{value!r} is not a number or an expression")


def _pair(a: ExprLike, b: ExprLike) -> tuple[PrimExpr, PrimExpr]:
    """Both operands as expressions of one type: Python numbers take the type of the other side."""
    # The common cases first: this is the hottest path of building programs.
    if isinstance(a, PrimExpr):
        if isinstance(b, PrimExpr):
            if a.dtype is b.dtype:
                return a, b
        elif type(b) is int and a.dtype is INDEX:
            return a, const(b, INDEX)
    a_literal = not isinstance(a, PrimExpr) and not hasattr(a, "as_prim_expr")
    b_literal = not isinstance(b, PrimExpr) and not hasattr(b, "as_prim_expr")
    if a_literal and not b_literal:
        right = as_expr(b)
        return _literal(a, right.dtype), (right if not _widens(a, right) else cast(right, FLOAT32))
    if b_literal and not a_literal:
        left = as_expr(a)
        return (left if not _widens(b, left) else cast(left, FLOAT32)), _literal(b, left.dtype)
    left, right = as_expr(a), as_expr(b)
    target = promote(left.dtype, right.dtype)
    return _to(left, target), _to(right, target)


def _widens(literal: ExprLike, other: PrimExpr) -> bool:
    return isinstance(literal, float) and not other.dtype.is_float


def _literal(value: ExprLike, dtype: DataType) -> PrimExpr:
    if isinstance(value, float) and not dtype.is_float:
        return const(value, FLOAT32.with_lanes(dtype.lanes))
    if isinstance(value, int) and not isinstance(value, bool) and dtype.is_bool:
        return const(value, BOOL.with_lanes(dtype.lanes))
    return as_expr(value, dtype)


def _to(value: PrimExpr, dtype: DataType) -> PrimExpr:
    if value.dtype.lanes != dtype.lanes:
        if value.dtype.lanes != 1:
            raise UserError(f"vectors of {value.dtype.lanes} and {dtype.lanes} lanes do not mix")
        value = e.Broadcast(value, dtype.lanes)
    return cast(value, dtype)


def cast(value: ExprLike, dtype: DataType | str) -> PrimExpr:
    """`value` converted to a data type; constants fold, and limits that the conversion itself keeps to are dropped."""
    target = DataType.of(dtype)
    value = as_expr(value)
    if value.dtype.lanes != target.lanes and target.lanes == 1:
        target = target.with_lanes(value.dtype.lanes)
    if value.dtype is target:
        return value
    if isinstance(value, IntImm) and not target.is_small_float:
        return const(value.value, target)
    if isinstance(value, FloatImm) and (target.is_float or math.isfinite(value.value)):
        if target.is_float:
            return const(value.value, target)
        truncated = math.trunc(value.value)
        if target.is_integer and target.min_value() <= truncated <= target.max_value():
            return const(truncated, target)
    if value.dtype.is_float and target.is_integer:
        value = _without_limits(value, target)
    return e.Cast(value, target)


def _without_limits(value: PrimExpr, target: DataType) -> PrimExpr:
    """A float without the limits around it that lie outside an integer type: conversion to it has narrower ones.

    NaN passes all limits and becomes zero either way.
    """
    while isinstance(value, (e.Min, e.Max)):
        kept, limit = (value.a, value.b) if isinstance(value.b, FloatImm) else (value.b, value.a)
        if not isinstance(limit, FloatImm):
            break
        outside = limit.value >= target.max_value() if isinstance(value, e.Min) else limit.value <= target.min_value()
        if not outside:
            break
        value = kept
    return value


def truncdiv_int(a: int, b: int) -> int:
    """Integer division toward zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def truncmod_int(a: int, b: int) -> int:
    """The remainder of division toward zero."""
    return a - b * truncdiv_int(a, b)


_FOLD_INT: Final[dict[type, Callable[[int, int], int]]] = {
    e.Add: operator.add,
    e.Sub: operator.sub,
    e.Mul: operator.mul,
    e.FloorDiv: operator.floordiv,
    e.FloorMod: operator.mod,
    e.Div: truncdiv_int,
    e.Mod: truncmod_int,
    e.Min: min,
    e.Max: max,
    e.EQ: operator.eq,
    e.NE: operator.ne,
    e.LT: operator.lt,
    e.LE: operator.le,
}
_FOLD_FLOAT: Final[dict[type, Callable[[float, float], float]]] = {
    e.Add: operator.add,
    e.Sub: operator.sub,
    e.Mul: operator.mul,
    e.EQ: operator.eq,
    e.NE: operator.ne,
    e.LT: operator.lt,
    e.LE: operator.le,
}
_CONSTANTS: Final = (IntImm, FloatImm)
_DIVISIONS: Final = (e.FloorDiv, e.FloorMod, e.Div, e.Mod)


def fold_binary(kind: type[e.BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """The constant that `kind(a, b)` is when both are constants and the operation is defined, else None."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        if kind in _DIVISIONS and b.value == 0:
            return None
        fold = _FOLD_INT.get(kind)
        if fold is None:
            return None
        result = BOOL if issubclass(kind, e.CompareExpr) else a.dtype
        return const(fold(a.value, b.value), result)
    if isinstance(a, FloatImm) and isinstance(b, FloatImm) and a.dtype.bits >= 32:
        fold_float = _FOLD_FLOAT.get(kind)
        if fold_float is not None:
            value = fold_float(a.value, b.value)
            return const(value, BOOL if issubclass(kind, e.CompareExpr) else a.dtype)
    return None


def _binary(kind: type[e.BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if isinstance(a, _CONSTANTS) and isinstance(b, _CONSTANTS):
        folded = fold_binary(kind, a, b)
        if folded is not None:
            return folded
    return kind(a, b)  # type: ignore[call-arg]


def _is_int(expr: PrimExpr, value: int) -> bool:
    return isinstance(expr, IntImm) and expr.value == value


def add(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a + b."""
    x, y = _pair(a, b)
    if type(x) is IntImm or type(y) is IntImm:
        if _is_int(x, 0) and not x.dtype.is_bool:
            return y
        if _is_int(y, 0) and not y.dtype.is_bool:
            return x
    return _binary(e.Add, x, y)


def sub(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a - b."""
    x, y = _pair(a, b)
    if _is_int(y, 0):
        return x
    if x is y and x.dtype.is_integer and x.dtype.is_scalar:
        return const(0, x.dtype)
    return _binary(e.Sub, x, y)


def mul(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a * b."""
    x, y = _pair(a, b)
    if type(x) is IntImm or type(y) is IntImm:
        if _is_int(x, 1) or _is_int(y, 0):
            return y
        if _is_int(y, 1) or _is_int(x, 0):
            return x
    return _binary(e.Mul, x, y)


def div(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a / b of floats; integers divide toward zero."""
    x, y = _pair(a, b)
    if x.dtype.is_bool:
        raise UserError("bool values do not divide")
    return _binary(e.Div, x, y)


def truncmod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The remainder with the sign of a."""
    x, y = _pair(a, b)
    return _binary(e.Mod, x, y)


def floordiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a // b, rounding toward minus infinity (floats: floor(a / b))."""
    x, y = _pair(a, b)
    if x.dtype.is_float:
        return e.Call("floor", (div(x, y),), x.dtype)
    if _is_int(y, 1):
        return x
    return _binary(e.FloorDiv, x, y)


def floormod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a % b, with the sign of b."""
    x, y = _pair(a, b)
    if x.dtype.is_float:
        return sub(x, mul(floordiv(x, y), y))
    if _is_int(y, 1):
        return const(0, x.dtype)
    return _binary(e.FloorMod, x, y)


def minimum(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The lesser of two values."""
    x, y = _pair(a, b)
    if x is y:
        return x
    return _binary(e.Min, x, y)


def maximum(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The greater of two values."""
    x, y = _pair(a, b)
    if x is y:
        return x
    return _binary(e.Max, x, y)


def _compare(kind: type[e.CompareExpr]) -> Callable[[ExprLike, ExprLike], PrimExpr]:
    def build(a: ExprLike, b: ExprLike) -> PrimExpr:
        x, y = _pair(a, b)
        return _binary(kind, x, y)

    build.__doc__ = f"The comparison {kind.__name__}."
    return build


eq = _compare(e.EQ)
ne = _compare(e.NE)
lt = _compare(e.LT)
le = _compare(e.LE)


def gt(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a > b, kept as b < a."""
    return lt(b, a)


def ge(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a >= b, kept as b <= a."""
    return le(b, a)


def _truth(value: ExprLike) -> PrimExpr:
    result = as_expr(value, BOOL) if isinstance(value, (bool, np.bool_)) else as_expr(value)
    if not result.dtype.is_bool:
        raise UserError(f"a condition must be bool, not {result.dtype}", hint="compare it, e.g. x.ne(0)")
    return result


def logical_and(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a and b, short-circuit."""
    x, y = _truth(a), _truth(b)
    if _is_int(x, 1) or _is_int(y, 0):
        return y
    if _is_int(y, 1) or _is_int(x, 0) or x is y:
        return x
    return e.And(x, y)


def logical_or(a: ExprLike, b: ExprLike) -> PrimExpr:
    """a or b, short-circuit."""
    x, y = _truth(a), _truth(b)
    if _is_int(x, 1) or _is_int(y, 0):
        return x
    if _is_int(y, 1) or _is_int(x, 0) or x is y:
        return y
    return e.Or(x, y)


def logical_not(a: ExprLike) -> PrimExpr:
    """not a."""
    x = _truth(a)
    if isinstance(x, IntImm):
        return const(not x.value, BOOL)
    return x.a if isinstance(x, e.Not) else e.Not(x)


def all_of(conditions: Iterable[PrimExpr]) -> PrimExpr:
    """The conjunction of conditions (true when there are none)."""
    return reduce(logical_and, conditions, const(True))


def any_of(conditions: Iterable[PrimExpr]) -> PrimExpr:
    """The disjunction of conditions (false when there are none)."""
    return reduce(logical_or, conditions, const(False))


def select(condition: ExprLike, a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a` where the condition holds, else `b`; only the chosen side is evaluated."""
    test = _truth(condition)
    x, y = _pair(a, b)
    if isinstance(test, IntImm):
        return x if test.value else y
    return x if x is y else e.Select(test, x, y)


def neg(a: ExprLike) -> PrimExpr:
    """-a (floats keep the sign of zero)."""
    x = as_expr(a)
    if isinstance(x, FloatImm):
        return FloatImm(-x.value, x.dtype)
    if x.dtype.is_float:
        return mul(x, const(-1.0, x.dtype))
    return sub(const(0, x.dtype), x)


def _bitwise(name: str) -> Callable[[ExprLike, ExprLike], PrimExpr]:
    logical = {"bitwise_and": logical_and, "bitwise_or": logical_or}.get(name)

    def build(a: ExprLike, b: ExprLike) -> PrimExpr:
        x, y = _pair(a, b)
        if x.dtype.is_bool:
            if logical is not None:
                return logical(x, y)
            if name == "bitwise_xor":
                return ne(x, y)
        if not x.dtype.is_integer:
            raise UserError(f"{name} needs integers, not {x.dtype}")
        return e.Call(name, (x, y), x.dtype)

    build.__doc__ = f"The intrinsic {name}."
    return build


bitwise_and = _bitwise("bitwise_and")
bitwise_or = _bitwise("bitwise_or")
bitwise_xor = _bitwise("bitwise_xor")
shift_left = _bitwise("shift_left")
shift_right = _bitwise("shift_right")


def bitwise_not(a: ExprLike) -> PrimExpr:
    """Logical not of bools, bit complement of integers."""
    x = as_expr(a)
    return logical_not(x) if x.dtype.is_bool else e.Call("bitwise_not", (x,), x.dtype)


e.operators.update(
    {
        "add": add,
        "sub": sub,
        "mul": mul,
        "div": div,
        "floordiv": floordiv,
        "floormod": floormod,
        "neg": neg,
        "lt": lt,
        "le": le,
        "gt": gt,
        "ge": ge,
        "eq": eq,
        "ne": ne,
        "and": bitwise_and,
        "or": bitwise_or,
        "xor": bitwise_xor,
        "shift_left": shift_left,
        "shift_right": shift_right,
        "not": bitwise_not,
        "cast": cast,
    }
)


BINARY_BUILDERS: Final[dict[type, Callable[[ExprLike, ExprLike], PrimExpr]]] = {
    e.Add: add,
    e.Sub: sub,
    e.Mul: mul,
    e.Div: div,
    e.Mod: truncmod,
    e.FloorDiv: floordiv,
    e.FloorMod: floormod,
    e.Min: minimum,
    e.Max: maximum,
    e.LT: lt,
    e.LE: le,
    e.EQ: eq,
    e.NE: ne,
    e.And: logical_and,
    e.Or: logical_or,
}
"""What builds a node of two operands again, with folding."""
