"""Symbolic extents at run time: which values the symbols of a signature take in a call, and checking the rest."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache

from tilewright.runtime.core.artifact import Extent, Shape
from tilewright.support.errors import CompilerBug, UserError

_Evaluator = Callable[[dict[str, int]], int]


def _divided(a: int, b: int) -> int:
    """Division by zero gives 0, as in compiled code."""
    return a // b if b else 0


def _remainder(a: int, b: int) -> int:
    return a % b if b else 0


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _divided,
    ast.Mod: _remainder,
}
_LONGEST, _DEEPEST = 10_000, 200
"""Letters of an extent, and how deep it may nest: more is damage."""
_CALLS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], int]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@lru_cache(maxsize=4096)
def parse_extent(text: str) -> ast.expr:
    """The syntax tree of an extent."""
    try:
        with warnings.catch_warnings():
            # Of `1 is 2` Python only warns; it is refused when it is looked at.
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CompilerBug(f"the extent {text[:100]!r} is not arithmetic over symbols") from None


def check_extent(extent: Extent) -> None:
    """A `CompilerBug` unless the extent can be evaluated once its symbols have values."""
    if isinstance(extent, int):
        return
    if len(extent) > _LONGEST:
        raise CompilerBug(f"the extent {extent[:100]!r}... has {len(extent)} letters")
    # Nested no deeper than it is long, so that evaluating it cannot use up Python's stack.
    stack: list[tuple[ast.expr, int]] = [(parse_extent(extent), 0)]
    while stack:
        node, depth = stack.pop()
        match node:
            case ast.Constant(value=int()) | ast.Name():
                parts: list[ast.expr] = []
            case ast.BinOp(op=operation) if type(operation) in _BINARY:
                parts = [node.left, node.right]
            case ast.UnaryOp(op=ast.USub()):
                parts = [node.operand]
            case ast.Call(func=ast.Name(id=name), args=[_, _], keywords=[]) if name in _CALLS:
                parts = node.args
            case ast.IfExp():
                parts = [node.test, node.body, node.orelse]
            case ast.Compare(ops=[comparison], comparators=[_]) if type(comparison) in _COMPARE:
                parts = [node.left, node.comparators[0]]
            case _:
                raise CompilerBug(f"the extent {extent[:100]!r} is not arithmetic over symbols")
        if depth > _DEEPEST:
            raise CompilerBug(f"the extent {extent[:100]!r} nests too deep")
        stack.extend((part, depth + 1) for part in parts)


def symbols(text: str) -> list[str]:
    """The symbols in an extent, in the order they appear: 'min(n, 4) + m' -> ['n', 'm']."""
    return list(_symbols(text))


@lru_cache(maxsize=4096)
def _symbols(text: str) -> tuple[str, ...]:
    names = [node for node in ast.walk(parse_extent(text)) if isinstance(node, ast.Name) and node.id not in _CALLS]
    names.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in names))


def symbols_in(extent: Extent) -> list[str]:
    """The symbols in an extent; a number has none."""
    return [] if isinstance(extent, int) else symbols(extent)


def trailing_symbols(shapes: Iterable[Shape | None], scalars: Iterable[str]) -> list[str]:
    """The symbols passed after the declared parameters: those of the shapes that are no scalar parameter."""
    known = set(scalars)
    trailing: dict[str, None] = {}
    for shape in shapes:
        for extent in shape or ():
            if isinstance(extent, str):
                trailing.update(dict.fromkeys(name for name in symbols(extent) if name not in known))
    return list(trailing)


def evaluate(extent: Extent, values: dict[str, int]) -> int | None:
    """The value of an extent, or None when a symbol in it has none yet."""
    if isinstance(extent, int):
        return extent
    value = values.get(extent)
    if value is not None:
        return value
    if extent.isidentifier():
        return None
    for name in _symbols(extent):
        if name not in values:
            return None
    return _function(extent)(values)


@lru_cache(maxsize=4096)
def _function(text: str) -> _Evaluator:
    """What computes an extent from values of its symbols: its tree is looked at once, however often it is evaluated."""
    return _evaluator(parse_extent(text))


def _evaluator(node: ast.expr) -> _Evaluator:
    match node:
        case ast.Constant(value=int(number)):
            return lambda values: number
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _BINARY:
            return _applied(_BINARY[type(operation)], left, right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _evaluator(operand)
            return lambda values: -positive(values)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            return _applied(_CALLS[name], left, right)
        case ast.IfExp(test=test, body=body, orelse=other):
            holds, then, otherwise = _evaluator(test), _evaluator(body), _evaluator(other)
            return lambda values: then(values) if holds(values) else otherwise(values)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if type(comparison) in _COMPARE:
            return _applied(_COMPARE[type(comparison)], left, right)
    raise CompilerBug(f"the extent {ast.unparse(node)!r} is not arithmetic over symbols")


def _applied(function: Callable[[int, int], int], left: ast.expr, right: ast.expr) -> _Evaluator:
    a, b = _evaluator(left), _evaluator(right)
    return lambda values: function(a(values), b(values))


def bind_shape(shape: Shape, actual: tuple[int, ...], values: dict[str, int], where: str) -> None:
    """Match an array's shape against the declared one: plain symbols without a value take the array's extent."""
    if len(shape) != len(actual):
        raise UserError(
            f"{where} has the shape {list(actual)} ({len(actual)} dimensions), "
            f"expected {show_shape(shape)} ({len(shape)} dimensions)"
        )
    for axis, (declared, extent) in enumerate(zip(shape, actual, strict=True)):
        expected = evaluate(declared, values)
        if expected is None and isinstance(declared, str) and declared.isidentifier():
            values[declared] = extent
        elif expected is not None and expected != extent:
            meaning = "" if isinstance(declared, int) else f" ({declared} = {expected} here)"
            raise UserError(
                f"{where} has the shape {list(actual)}, expected {show_shape(shape)}: "
                f"axis {axis} must be {expected}{meaning}, not {extent}"
            )


def show_shape(shape: Shape) -> str:
    """(1, 'n') -> '[1, n]'."""
    return f"[{', '.join(map(str, shape))}]"
