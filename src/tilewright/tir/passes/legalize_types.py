"""Narrow floats are computed in float32 where the processor has no arithmetic of their type.

    C[i] = A[i] + B[i]   (float16)   ->   C[i] = float16(float32(A[i]) + float32(B[i]))

Each operation is done in float32 and rounded back, which gives the same bits as arithmetic in the narrow type would
(float32 has more than twice the digits). bfloat16 is always treated so, and so are 8-bit floats where the processor
converts them (`legalize_small_types` makes bytes of others); float16 unless the processor computes in it.
Mathematical functions always go through float32.

Where precision is kept, what one operation of 16 bits gives another is not rounded on the way (`docs/semantics.md`
allows it): a value is rounded where it is stored, or cast to another type.

    D[i] = A[i] * B[i] + C[i]        ->   D[i] = float16(float32(A[i]) * float32(B[i]) + float32(C[i]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.tir import machine
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter

_NATIVE_CALLS: Final = frozenset("sqrt floor ceil round trunc abs copysign fma isnan isinf isfinite".split())
"""Intrinsics that float16 arithmetic units compute themselves."""


_KEEPS_TYPES: Final = ("reinterpret", "access_ptr", "element_distance", "async_copy")
"""Calls that are about bits and addresses, not values."""


@dataclass(frozen=True, slots=True)
class LegalizeTypesOptions:
    """The types that a processor computes in."""

    has_half: bool
    """Whether float16 is one of them."""
    keeps_precision: bool = False
    """Whether values of 16 bits are rounded only where they are stored."""
    half_functions: frozenset[str] = frozenset()
    """Mathematical functions that have a form with the digits of half precision (`half_exp`)."""


def legalize_types(func: PrimFunc, options: LegalizeTypesOptions) -> PrimFunc:
    """The function with arithmetic only in types that the processor has."""
    types = _Types(options)
    rewriter = StmtRewriter()
    rewriter.expr = ExprRewriter(types.legalized, _has_narrow)  # type: ignore[method-assign]
    return func.replace(body=rewriter.stmt(func.body))


class _Types:
    """Operations in float32, for one function."""

    def __init__(self, options: LegalizeTypesOptions) -> None:
        self._options = options

    def legalized(self, expr: PrimExpr) -> PrimExpr | None:
        """An expression, whose parts are legal, in types that the processor has; None if it is."""
        has_half = self._options.has_half
        if isinstance(expr, e.BinaryExpr) and _is_narrow(expr.a.dtype):
            if has_half and expr.a.dtype.code == "float" and not isinstance(expr, e.Mod):
                return None
            wide = type(expr)(self._wide(expr.a), self._wide(expr.b))  # type: ignore[call-arg]
            return _back(self._with_addend(wide), expr.dtype)
        if not isinstance(expr, e.Call) or expr.name in machine.table or expr.name in _KEEPS_TYPES:
            return None
        if not any(_is_narrow(arg.dtype) for arg in expr.args):
            return None
        if has_half and expr.name in _NATIVE_CALLS and all(arg.dtype.code == "float" for arg in expr.args):
            return None
        result = FLOAT32.with_lanes(expr.dtype.lanes) if _is_narrow(expr.dtype) else expr.dtype
        name = f"half_{expr.name}" if expr.name in self._options.half_functions else expr.name
        return _back(e.Call(name, tuple(self._wide(arg) for arg in expr.args), result), expr.dtype)

    def _with_addend(self, expr: PrimExpr) -> PrimExpr:
        """1 + erf(x) as one function, if there is one: a difference from 1 that is not wanted need not be exact."""
        if isinstance(expr, e.Add) and "erf_plus_one" in self._options.half_functions:
            for item, other in ((expr.a, expr.b), (expr.b, expr.a)):
                if isinstance(item, e.Call) and item.name == "half_erf" and _is_one(other):
                    return e.Call("half_erf_plus_one", item.args, item.dtype)
        return expr

    def _wide(self, expr: PrimExpr) -> PrimExpr:
        if not _is_narrow(expr.dtype):
            return expr
        wide = FLOAT32.with_lanes(expr.dtype.lanes)
        is_rounded = isinstance(expr, e.Cast) and expr.dtype.bits == 16 and expr.value.dtype is wide
        if self._options.keeps_precision and is_rounded:
            assert isinstance(expr, e.Cast)
            return expr.value
        return e.Cast(expr, wide)


def _back(expr: PrimExpr, dtype: DataType) -> PrimExpr:
    return expr if expr.dtype is dtype else e.Cast(expr, dtype)


def _has_narrow(parts: frozenset[DataType | str]) -> bool:
    return any(isinstance(part, DataType) and _is_narrow(part) for part in parts)


def _is_narrow(dtype: DataType) -> bool:
    return dtype.is_float and dtype.bits <= 16


def _is_one(expr: PrimExpr) -> bool:
    while isinstance(expr, (e.Cast, e.Broadcast)):
        expr = expr.value
    return isinstance(expr, e.FloatImm) and expr.value == 1.0
