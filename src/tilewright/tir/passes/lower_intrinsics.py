"""Mathematical functions become arithmetic that runs on whole vectors.

    B[ramp(i, 1, 8)] = exp(A[ramp(i, 1, 8)])   ->   ... products, sums and bit operations on float32x8

float32 functions expand to polynomials after a range reduction (`exponentials`, `trigonometry`: errors of a few
units in the last place, NaN, infinities and subnormals kept). float64 keeps its calls of the C library, except what is
a formula of others. Powers with a small constant exponent become products or roots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from tilewright.ir.build import const, eq, lt, select
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Add, Broadcast, Call, FloatImm, PrimExpr, Sub
from tilewright.tir.expansion import exponentials, fixed_point, single_trigonometry, trigonometry
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter

_Table = dict[str, Callable[..., PrimExpr]]


def _table(module: ModuleType, names: str) -> _Table:
    return {name: getattr(module, name) for name in names.split()}


def _exp(x: PrimExpr) -> PrimExpr:
    return exponentials.exp_of_difference(x) if type(x) is Sub else exponentials.exp(x)


_ERF_PLUS_ONE: Final = "erf_plus_one"
"""What a sum of 1 and `erf` is called inside this pass: it needs no exact values near 0."""
_FLOAT32: Final[_Table] = {
    "exp": _exp,
    **_table(exponentials, "exp2 expm1 log log2 log10 log1p tanh sigmoid erf sinh cosh asinh acosh atanh rsqrt"),
    _ERF_PLUS_ONE: exponentials.erf_plus_one,
    **_table(trigonometry, "sin cos tan asin acos atan atan2 pow"),
}


def _by_instruction(x: PrimExpr) -> PrimExpr:
    expand = exponentials.exp_of_difference if type(x) is Sub else exponentials.exp
    return expand(x, exponentials.scaled_by_instruction)


_SCALE_LANES: Final = 16
"""Lanes of the instruction of AVX-512 that multiplies by a power of two."""
_FLOAT32_SCALED: Final[_Table] = {
    **_FLOAT32,
    "exp": _by_instruction,
    "exp2": lambda x: exponentials.exp2(x, exponentials.scaled_by_instruction),
    "sigmoid": lambda x: exponentials.sigmoid(x, exponentials.scaled_by_instruction),
}


def _without_magic(expand: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
    return lambda *args: single_trigonometry.without_magic(expand(*args))


_FLOAT32_ALONE: Final[_Table] = {
    **{name: _without_magic(expand) for name, expand in _FLOAT32.items()},
    **_table(single_trigonometry, "sin cos tan pow"),
}


_INTEGER: Final[_Table] = _table(fixed_point, "high_product rounded_shift")
_ROUNDED_LANES: Final = 4
"""Lanes of the instructions that round products and shifts of words; more are taken some at a time."""


@dataclass(frozen=True, slots=True)
class LowerIntrinsicsOptions:
    """Which functions become arithmetic, and of what."""

    names: frozenset[str] | None = None
    """The functions; None for all."""
    has_double: bool = True
    """Whether the processor has float64; else angles and powers are computed in float32 alone."""
    has_scale: bool = False
    """Whether an instruction multiplies whole vectors by powers of two."""
    has_rounded_products: bool = False
    """Whether instructions round products of fixed point, and shifts, of whole vectors."""


_USUAL: Final = LowerIntrinsicsOptions()


def lower_intrinsics(func: PrimFunc, options: LowerIntrinsicsOptions = _USUAL) -> PrimFunc:
    """The function with its mathematics expanded."""
    table, names = _FLOAT32 if options.has_double else _FLOAT32_ALONE, options.names
    if names is not None:
        joined = [_ERF_PLUS_ONE] if "erf" in names else []
        table = {name: table[name] for name in (*names, *joined)}

    def lowered(expr: PrimExpr) -> PrimExpr | None:
        if type(expr) is Call and expr.name in _INTEGER:
            by_instruction = options.has_rounded_products and expr.dtype.lanes % _ROUNDED_LANES == 0
            return None if by_instruction else _INTEGER[expr.name](*expr.args)
        whole = options.has_scale and expr.dtype.lanes % _SCALE_LANES == 0
        return _lower(expr, _FLOAT32_SCALED if whole else table)

    body = func.body
    for rule in (_joined, lowered) if _ERF_PLUS_ONE in table else (lowered,):
        rewriter = StmtRewriter()
        rewriter.expr = ExprRewriter(rule, _has_calls)  # type: ignore[method-assign]
        body = rewriter.stmt(body)
    return func.replace(body=body)


def _has_calls(parts: frozenset[DataType | str]) -> bool:
    return any(isinstance(part, str) for part in parts)


def _joined(expr: PrimExpr) -> PrimExpr | None:
    """The sum of 1 and `erf` as one function."""
    if type(expr) is not Add or expr.dtype.element.name != "float32":
        return None
    for function, other in ((expr.a, expr.b), (expr.b, expr.a)):
        one = other.value if isinstance(other, Broadcast) else other
        if isinstance(one, FloatImm) and one.value == 1.0 and type(function) is Call and function.name == "erf":
            return Call(_ERF_PLUS_ONE, function.args, function.dtype)
    return None


def _lower(expr: PrimExpr, table: _Table) -> PrimExpr | None:
    if type(expr) is not Call or not expr.dtype.is_float:
        return None
    if expr.name == "pow":
        simple = _simple_power(expr.args[0], expr.args[1])
        if simple is not None:
            return simple
    if expr.dtype.element.name == "float32":
        expand = table.get(expr.name)
        return None if expand is None else expand(*expr.args)
    if expr.dtype.element.name == "float64":
        return _double(expr)
    return None


def _double(expr: Call) -> PrimExpr | None:
    x = expr.args[0]
    if expr.name == "rsqrt":
        return 1.0 / Call("sqrt", (x,), x.dtype)
    if expr.name == "sigmoid":
        decayed = Call("exp", (exponentials.absolute(x) * -1.0,), x.dtype)
        return select(lt(x, 0.0), decayed, const(1.0, x.dtype)) / (decayed + 1.0)
    return None


def _simple_power(x: PrimExpr, exponent: PrimExpr) -> PrimExpr | None:
    value = exponent.value if isinstance(exponent, Broadcast) else exponent
    if not isinstance(value, FloatImm):
        return None
    match value.value:
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            return x * x * x
        case -1.0:
            return 1.0 / x
        case 0.5:
            # sqrt(-0.0) is -0.0 and sqrt(-inf) is NaN; pow gives 0 and infinity.
            root = Call("sqrt", (x + 0.0,), x.dtype)
            return select(eq(x, -math.inf), const(math.inf, x.dtype), root)
        case _:
            return None
