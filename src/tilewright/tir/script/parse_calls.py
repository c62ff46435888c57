"""Parsing of calls in expressions: conversions, minimum and maximum, vectors, intrinsics."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from tilewright.ir import build, intrinsics
from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, INDEX, DataType, promote
from tilewright.ir.expr import FloatImm, PrimExpr
from tilewright.support.errors import UserError
from tilewright.tir.script.names import DTYPE_NAMES
from tilewright.tir.script.parse_expr import ExprParser, Value, convert, describe, is_number, plain

_NAMED: Final[dict[str, type[e.BinaryExpr]]] = {
    "min": e.Min,
    "max": e.Max,
    "truncdiv": e.Div,
    "truncmod": e.Mod,
}
_ALIASES: Final = {"fabs": "abs", "power": "pow"}


class CallParser(ExprParser):
    """Parses expressions with calls."""

    def callee(self, node: ast.Call) -> str:
        """The name of the function that a call names: `f(...)`, or `module.f(...)`."""
        if isinstance(node.func, ast.Name):
            return node.func.id
        if isinstance(node.func, ast.Attribute):
            return node.func.attr
        raise self.source.error(node.func, "a script calls functions by name")

    def arguments(self, node: ast.Call, low: int, high: int | None = None, keywords: tuple[str, ...] = ()) -> None:
        """Check the number of positional arguments and the names of the keywords of a call."""
        name, count = self.callee(node), len(node.args)
        high = low if high is None else high
        if not low <= count <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            raise self.source.error(node, f"{name} takes {expected} arguments, {count} are given")
        for keyword in node.keywords:
            if keyword.arg not in keywords:
                hint = f"it takes: {', '.join(keywords)}" if keywords else None
                raise self.source.error(keyword, f"{name} has no keyword {keyword.arg}", hint)

    def keyword(self, node: ast.Call, name: str) -> ast.expr | None:
        """The value of a keyword argument, if given."""
        return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)

    def call(self, node: ast.Call) -> Value:
        """What a call is."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            self.arguments(node, 1)
            return e.Cast(self.typed(node.func.value), self.dtype(node.args[0]))
        name = self.callee(node)
        name = _ALIASES.get(name, name)
        if name in DTYPE_NAMES:
            return self._conversion(node, DataType.of(name))
        if name in _NAMED:
            return self._named(node, name)
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, node)
        if name in intrinsics.table:
            return self._intrinsic(node, name)
        raise self.source.error(node, f"a script has no function {name} here")

    def _conversion(self, node: ast.Call, dtype: DataType) -> PrimExpr:
        self.arguments(node, 1)
        value = self.value(node.args[0])
        if isinstance(value, str):
            return FloatImm(_special_float(value, dtype), dtype)
        if is_number(value):
            assert isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))
            return build.const(value.item() if isinstance(value, np.generic) else value, dtype)
        expr = self.to_expr(value, node)
        return e.Cast(expr, dtype.with_lanes(expr.dtype.lanes))

    def _named(self, node: ast.Call, name: str) -> Value:
        self.arguments(node, 2, 2 if name.startswith("trunc") else 255)
        values = [self.value(item) for item in node.args]
        if all(plain(value) for value in values):
            table: dict[str, Callable[..., object]] = {
                "min": min,
                "max": max,
                "truncdiv": build.truncdiv_int,
                "truncmod": build.truncmod_int,
            }
            return table[name](*values)
        result = values[0]
        for value in values[1:]:
            a, b = self.pair(node, result, value)
            result = _NAMED[name](a, b)  # type: ignore[call-arg]
        return result

    def _cast(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 2)
        return e.Cast(self.typed(node.args[0]), self.dtype(node.args[1]))

    def _ramp(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 3)
        return e.Ramp(self.typed(node.args[0], INDEX), self.typed(node.args[1], INDEX), self.integer(node.args[2]))

    def _broadcast(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 2)
        return e.Broadcast(self.typed(node.args[0]), self.integer(node.args[1]))

    def _select(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 3)
        a, b = self.pair(node, self.value(node.args[1]), self.value(node.args[2]))
        return e.Select(self.condition(node.args[0]), a, b)

    def _generic(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 1, 255, ("dtype",))
        dtype = self.keyword(node, "dtype")
        if dtype is None:
            raise self.source.error(node, "call needs the keyword dtype")
        args = tuple(self._argument(item) for item in node.args[1:])
        return e.Call(self.text(node.args[0]), args, self.dtype(dtype))

    def _argument(self, node: ast.expr) -> PrimExpr:
        value = self.value(node)
        return e.StringImm(value) if isinstance(value, str) else self.to_expr(value, node)

    def _reinterpret(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 2)
        return e.Call("reinterpret", (self.typed(node.args[0]),), self.dtype(node.args[1]))

    def _barrier(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 0, 1)
        return intrinsics.barrier(self.text(node.args[0]) if node.args else "shared")

    def _call_extern(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 2, 255)
        args = (e.StringImm(self.text(node.args[1])), *(self._argument(item) for item in node.args[2:]))
        return e.Call("call_extern", args, self.dtype(node.args[0]))

    def _intrinsic(self, node: ast.Call, name: str) -> PrimExpr:
        arity = intrinsics.table[name].arity
        self.arguments(node, arity or 0, 255 if arity is None else arity)
        values = [self.value(item) for item in node.args]
        typed = next((value for value in values if isinstance(value, PrimExpr)), None)
        default = typed.dtype.element if typed is not None else None
        if typed is None and intrinsics.table[name].accepts == "float":
            default = FLOAT32
        args = [self.to_expr(value, item, default) for value, item in zip(values, node.args, strict=True)]
        target = args[0].dtype
        for arg in args[1:]:
            target = promote(target, arg.dtype)
        unified = tuple(convert(arg, target) for arg in args)
        intrinsic = intrinsics.check(name, unified)
        dtype = intrinsic.result_type(tuple(arg.dtype for arg in unified))
        assert dtype is not None
        return e.Call(name, unified, dtype)

    def _expr(self, node: ast.Call) -> PrimExpr:
        self.arguments(node, 1)
        return self._argument(node.args[0])

    def _dtype(self, node: ast.Call) -> DataType:
        self.arguments(node, 1)
        return self.dtype(node.args[0])

    def _float(self, node: ast.Call) -> float:
        self.arguments(node, 1)
        value = self.value(node.args[0])
        if isinstance(value, (str, int, float)):
            try:
                return float(value)
            except ValueError:
                pass
        raise self.source.error(node, f"{value!r} is not a float")

    def _length(self, node: ast.Call) -> int:
        self.arguments(node, 1)
        value = self.value(node.args[0])
        if isinstance(value, (tuple, list, str)):
            return len(value)
        raise self.source.error(node, f"{describe(value)} has no length")


_SPECIAL: Final[dict[str, Callable[[CallParser, ast.Call], Value]]] = {
    "cast": CallParser._cast,
    "ramp": CallParser._ramp,
    "broadcast": CallParser._broadcast,
    "select": CallParser._select,
    "call": CallParser._generic,
    "reinterpret": CallParser._reinterpret,
    "barrier": CallParser._barrier,
    "call_extern": CallParser._call_extern,
    "expr": CallParser._expr,
    "dtype": CallParser._dtype,
    "float": CallParser._float,
    "len": CallParser._length,
}


def _special_float(text: str, dtype: DataType) -> float:
    if not dtype.is_float:
        raise UserError(f"{text!r} is not a {dtype}")
    if text.startswith("nan:"):
        try:
            value: float = struct.unpack("<d", bytes.fromhex(text[4:]))[0]
        except (ValueError, struct.error):
            raise UserError(f"{text!r} is not a NaN with its bits") from None
        return value
    if text in ("nan", "inf", "-inf"):
        return math.nan if text == "nan" else float(text)
    raise UserError(f"{text!r} is not a number", hint='one of "nan", "inf", "-inf"')
