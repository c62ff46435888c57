"""Constant bounds of integer expressions: results that the interpreter need not wrap, indices it need not check."""

from __future__ import annotations

from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Var

Interval = tuple[int, int]


def type_range(dtype: DataType) -> Interval:
    """The least and greatest value of an integer type or bool."""
    return (0, 1) if dtype.is_bool else (dtype.element.min_value(), dtype.element.max_value())


class Bounds:
    """Constant bounds of integer expressions under known bounds of variables."""

    def __init__(self) -> None:
        self.variables: dict[Var, Interval] = {}
        self._memo: dict[PrimExpr, Interval] = {}

    def bind(self, var: Var, interval: Interval | None) -> None:
        """Set or forget the bounds of a variable."""
        if var in self.variables or self._memo:
            self._memo.clear()
        if interval is None:
            self.variables.pop(var, None)
        else:
            self.variables[var] = interval

    def exact(self, expr: PrimExpr) -> Interval:
        """Bounds of the mathematical result of the last operation: it may lie outside the type's range."""
        if isinstance(expr, (e.Add, e.Sub, e.Mul)):
            (a, b), (c, d) = self.of(expr.a), self.of(expr.b)
            if isinstance(expr, e.Add):
                return a + c, b + d
            if isinstance(expr, e.Sub):
                return a - d, b - c
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        return self.of(expr)

    def of(self, expr: PrimExpr) -> Interval:
        """Bounds of the value of an integer expression (all lanes)."""
        bounds = self._memo.get(expr)
        if bounds is None:
            whole = type_range(expr.dtype)
            low, high = self._compute(expr, whole)
            bounds = (low, high) if whole[0] <= low and high <= whole[1] else whole
            self._memo[expr] = bounds
        return bounds

    def _compute(self, expr: PrimExpr, whole: Interval) -> Interval:
        if isinstance(expr, e.IntImm):
            return expr.value, expr.value
        if isinstance(expr, Var):
            return self.variables.get(expr, whole)
        if isinstance(expr, (e.Add, e.Sub, e.Mul)):
            return self.exact(expr)
        if isinstance(expr, e.Ramp):
            (a, b), (c, d) = self.of(expr.base), self.of(expr.stride)
            return min(a, a + c * (expr.lanes - 1)), max(b, b + d * (expr.lanes - 1))
        if isinstance(expr, e.Broadcast):
            return self.of(expr.value)
        if isinstance(expr, e.Cast) and not expr.value.dtype.is_float:
            return self.of(expr.value)
        if isinstance(expr, (e.Min, e.Max, e.Select)):
            (a, b), (c, d) = self.of(expr.a), self.of(expr.b)
            if isinstance(expr, e.Min):
                return min(a, c), min(b, d)
            return (max(a, c), max(b, d)) if isinstance(expr, e.Max) else (min(a, c), max(b, d))
        if isinstance(expr, (e.FloorDiv, e.FloorMod)):
            (a, b), (c, d) = self.of(expr.a), self.of(expr.b)
            if c == d and c > 0:
                if isinstance(expr, e.FloorDiv):
                    return a // c, b // c
                return (a % c, b % c) if a // c == b // c else (0, c - 1)
        return whole
