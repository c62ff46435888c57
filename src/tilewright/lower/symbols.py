"""Symbols of shapes on their way into an artifact: each gets a name, expressions of them become text."""

from __future__ import annotations

import keyword

from tilewright.ir.expr import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    BinaryExpr,
    Cast,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
)
from tilewright.runtime.core.artifact import Extent
from tilewright.support.errors import CompilerBug

_INFIX: dict[type[BinaryExpr], str] = {
    Add: "+",
    Sub: "-",
    Mul: "*",
    FloorDiv: "//",
    FloorMod: "%",
    LT: "<",
    LE: "<=",
    EQ: "==",
    NE: "!=",
}
_CALLS: dict[type[BinaryExpr], str] = {Min: "min", Max: "max"}


class SymbolTable:
    """Names of symbols: identifiers, one a symbol, after the symbol's own name where that is free."""

    def __init__(self) -> None:
        self._names: dict[Var, str] = {}
        self._used: set[str] = {"min", "max"}
        self._texts: dict[PrimExpr, str] = {}

    def name(self, symbol: Var) -> str:
        """The name of a symbol."""
        name = self._names.get(symbol)
        if name is None:
            base = _identifier(symbol.name)
            name, count = base, 0
            while name in self._used:
                count += 1
                name = f"{base}_{count}"
            self._used.add(name)
            self._names[symbol] = name
        return name

    def extent(self, expr: PrimExpr | int) -> Extent:
        """An expression as the artifact keeps it: a number, or text that `runtime/core/shapes.py` reads."""
        if isinstance(expr, int):
            return expr
        return expr.value if isinstance(expr, IntImm) else self._text(expr)

    def _text(self, expr: PrimExpr) -> str:
        text = self._texts.get(expr)
        if text is None:
            text = self._texts[expr] = self._print(expr)
        return text

    def _print(self, expr: PrimExpr) -> str:
        if isinstance(expr, IntImm):
            return str(expr.value)
        if isinstance(expr, Var):
            return self.name(expr)
        if isinstance(expr, BinaryExpr):
            if type(expr) in _CALLS:
                return f"{_CALLS[type(expr)]}({self._text(expr.a)}, {self._text(expr.b)})"
            if type(expr) in _INFIX:
                return f"{self._operand(expr.a)} {_INFIX[type(expr)]} {self._operand(expr.b)}"
        if isinstance(expr, Select):
            parts = (self._operand(part) for part in (expr.a, expr.condition, expr.b))
            return "{} if {} else {}".format(*parts)
        if isinstance(expr, Cast) and expr.dtype.is_integer:
            return self._text(expr.value)
        raise CompilerBug(f"{expr!r} cannot be the size of anything")

    def _operand(self, expr: PrimExpr) -> str:
        """The text of an expression inside another one: in brackets unless all of it is a name, a number or a call."""
        while isinstance(expr, Cast) and expr.dtype.is_integer:
            expr = expr.value
        text = self._text(expr)
        return text if text.isidentifier() or text.isdigit() or type(expr) in _CALLS else f"({text})"


def _identifier(text: str) -> str:
    cleaned = "".join(c if c.isalnum() and c.isascii() else "_" for c in text)
    if not cleaned or cleaned[0].isdigit() or keyword.iskeyword(cleaned):
        cleaned = f"d_{cleaned}"
    return cleaned
