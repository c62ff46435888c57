"""Extents as extents.js evaluates them: numbers, names of symbols, [operator, operands ...]."""

from __future__ import annotations

import ast
from typing import Any, Final

from tilewright.runtime.core.artifact import Extent
from tilewright.runtime.core.shapes import parse_extent
from tilewright.support.errors import CompilerBug

_OPERATORS: Final[dict[type[ast.AST], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def describe_extent(extent: Extent) -> Any:
    """An extent as plain data."""
    return extent if isinstance(extent, int) else _expression(parse_extent(extent))


def _expression(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=operation, right=right):
            return [_OPERATORS[type(operation)], _expression(left), _expression(right)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ["-", 0, _expression(operand)]
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            return [name, _expression(left), _expression(right)]
        case ast.IfExp(test=test, body=body, orelse=other):
            return ["if", _expression(test), _expression(body), _expression(other)]
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return [_OPERATORS[type(comparison)], _expression(left), _expression(right)]
    raise CompilerBug(f"the extent {ast.unparse(node)!r} is not arithmetic over symbols")
