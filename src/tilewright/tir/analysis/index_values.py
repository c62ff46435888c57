"""Index expressions evaluated at many settings of their variables at once: arrays in place of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order

Numbers = npt.NDArray[Any]
"""The values of an expression at all settings; an axis along which it does not vary has length 1 or is missing."""


class NotAnIndex(Exception):
    """An expression has more in it than arithmetic on integers of known variables."""


def _quotient(a: Numbers, b: Numbers) -> Numbers:
    """Division toward zero."""
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1)))


_BINARY: Final[Mapping[type[PrimExpr], Callable[[Numbers, Numbers], Numbers]]] = {
    e.Add: np.add,
    e.Sub: np.subtract,
    e.Mul: np.multiply,
    e.FloorDiv: np.floor_divide,
    e.FloorMod: np.mod,
    e.Div: _quotient,
    e.Mod: lambda a, b: a - _quotient(a, b) * b,
    e.Min: np.minimum,
    e.Max: np.maximum,
    e.EQ: np.equal,
    e.NE: np.not_equal,
    e.LT: np.less,
    e.LE: np.less_equal,
    e.And: np.logical_and,
    e.Or: np.logical_or,
}


def is_index(root: PrimExpr) -> bool:
    """Whether an expression is arithmetic on integers of variables and constants alone."""
    return all(
        type(item) in _BINARY
        or isinstance(item, (Var, e.IntImm, e.Not, e.Select, e.Cast))
        or (isinstance(item, e.Call) and item.name == "likely")
        for item in pre_order(root)
        if isinstance(item, PrimExpr)
    ) and not any(isinstance(item, PrimExpr) and item.dtype.is_float for item in pre_order(root))


def evaluate(expr: PrimExpr, values: Mapping[Var, Numbers], known: dict[PrimExpr, Numbers] | None = None) -> Numbers:
    """The values of an expression, given those of its variables; `known` keeps those of parts that occur again.

    Lanes of a vector are the last axis.
    """
    result = None if known is None else known.get(expr)
    if result is None:
        result = np.asarray(_evaluate(expr, values, known))
        if known is not None:
            known[expr] = result
    return result


def _evaluate(expr: PrimExpr, values: Mapping[Var, Numbers], known: dict[PrimExpr, Numbers] | None) -> Numbers:
    def value(part: PrimExpr) -> Numbers:
        return evaluate(part, values, known)

    match expr:
        case e.IntImm():
            return np.asarray(expr.value)
        case Var() if expr in values:
            return values[expr]
        case e.BinaryExpr() if type(expr) in _BINARY:
            return _BINARY[type(expr)](value(expr.a), value(expr.b))
        case e.Not():
            return np.asarray(np.logical_not(value(expr.a)))
        case e.Select():
            return np.where(value(expr.condition), value(expr.a), value(expr.b))
        case e.Cast() if expr.dtype.is_integer or expr.dtype.is_bool:
            return value(expr.value).astype(bool if expr.dtype.is_bool else np.int64, copy=False)
        case e.Ramp():
            return np.asarray(value(expr.base) + value(expr.stride) * np.arange(expr.lanes))
        case e.Broadcast():
            return value(expr.value)
        case e.Call(name="likely"):
            return value(expr.args[0])
        case _:
            raise NotAnIndex
