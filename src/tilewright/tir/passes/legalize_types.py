"""Narrow floats are computed in float32 where the processor has no arithmetic of their type.

    C[i] = A[i] + B[i]   (float16)   ->   C[i] = float16(float32(A[i]) + float32(B[i]))

Each operation is done in float32 and rounded back, which gives the same bits as arithmetic in the narrow type would
(float32 has more than twice the digits). bfloat16 is always treated so, and so are 8-bit floats where the processor
converts them (`legalize_small_types` makes bytes of others); float16 unless the processor computes in it.
Mathematical functions always go through float32.
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


def legalize_types(func: PrimFunc, options: LegalizeTypesOptions) -> PrimFunc:
    """The function with arithmetic only in types that the processor has."""
    rewriter = StmtRewriter()
    rewriter.expr = ExprRewriter(lambda expr: _legalize(expr, options.has_half))  # type: ignore[method-assign]
    return func.replace(body=rewriter.stmt(func.body))


def _legalize(expr: PrimExpr, has_half: bool) -> PrimExpr | None:
    if isinstance(expr, e.BinaryExpr) and _is_narrow(expr.a.dtype):
        if has_half and expr.a.dtype.code == "float" and not isinstance(expr, e.Mod):
            return None
        return _back(type(expr)(_wide(expr.a), _wide(expr.b)), expr.dtype)  # type: ignore[call-arg]
    if isinstance(expr, e.Call) and expr.name in machine.table:
        return None
    if isinstance(expr, e.Call) and expr.name not in _KEEPS_TYPES and any(_is_narrow(arg.dtype) for arg in expr.args):
        if has_half and expr.name in _NATIVE_CALLS and all(arg.dtype.code == "float" for arg in expr.args):
            return None
        result = FLOAT32.with_lanes(expr.dtype.lanes) if _is_narrow(expr.dtype) else expr.dtype
        return _back(e.Call(expr.name, tuple(_wide(arg) for arg in expr.args), result), expr.dtype)
    return None


def _is_narrow(dtype: DataType) -> bool:
    return dtype.is_float and dtype.bits <= 16


def _wide(expr: PrimExpr) -> PrimExpr:
    return e.Cast(expr, FLOAT32.with_lanes(expr.dtype.lanes)) if _is_narrow(expr.dtype) else expr


def _back(expr: PrimExpr, dtype: DataType) -> PrimExpr:
    return expr if expr.dtype is dtype else e.Cast(expr, dtype)
