"""Reading Python syntax trees: errors that show the line, dotted names, literals."""

from __future__ import annotations

import ast
import math

from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError


class Source:
    """A text and its name, for messages that show the place."""

    def __init__(self, text: str, name: str) -> None:
        self.text = str(text)
        self.name = name
        self.lines = self.text.splitlines()

    def parse(self) -> ast.Module:
        """The syntax tree of the text."""
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            column = max(0, (error.offset or 1) - 1)
            raise self._at(error.lineno or 1, column, f"not valid Python: {error.msg}", None) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"not valid Python: {error}", where=self.name) from None

    def error(self, place: ast.AST, message: str, hint: str | None = None) -> UserError:
        """The error of a place: the message, the line, and a caret below it."""
        return self._at(getattr(place, "lineno", 1), getattr(place, "col_offset", 0), message, hint)

    def _at(self, line: int, column: int, message: str, hint: str | None) -> UserError:
        shown = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        # The column counts bytes of UTF-8.
        before = shown.encode()[:column].decode(errors="ignore")
        text = f"{message}\n    {shown}\n    {' ' * len(before)}^"
        return UserError(text, where=f"{self.name}:{line}:{column + 1}", hint=hint)


def dotted(place: ast.expr) -> str | None:
    """`a.b.c` as a text, or None if the expression is not a dotted name."""
    parts: list[str] = []
    while isinstance(place, ast.Attribute):
        parts.append(place.attr)
        place = place.value
    if not isinstance(place, ast.Name):
        return None
    parts.append(place.id)
    return ".".join(reversed(parts))


def read_literal(place: ast.expr, source: Source) -> object:
    """The value of a literal: numbers, texts, tuples, lists, dictionaries, data types, inf and nan."""
    if isinstance(place, ast.Constant) and isinstance(place.value, (int, float, str, bool, type(None))):
        return place.value
    if isinstance(place, ast.UnaryOp) and isinstance(place.op, ast.USub):
        value = read_literal(place.operand, source)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(place, ast.Tuple):
        return tuple(read_literal(item, source) for item in place.elts)
    if isinstance(place, ast.List):
        return [read_literal(item, source) for item in place.elts]
    if isinstance(place, ast.Dict):
        keys = [read_literal(key, source) for key in place.keys if key is not None]
        return dict(zip(keys, (read_literal(item, source) for item in place.values), strict=False))
    if isinstance(place, ast.Name):
        if place.id == "inf":
            return math.inf
        if place.id == "nan":
            return math.nan
        try:
            return DataType.of(place.id)
        except UserError:
            raise source.error(place, f"{place.id} is not a value") from None
    raise source.error(place, "expected a literal")
