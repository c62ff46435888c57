"""Source text of scripts: where it came from, and errors that show the line with a caret."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.support.errors import UserError
from tilewright.support.span import Span


class ScriptError(UserError):
    """A script cannot be read: the place is shown with its source line."""


@dataclass(slots=True)
class Source:
    """A text, the file it is from, and where in the file it starts."""

    text: str
    name: str = "<script>"
    first_line: int = 1
    indent: int = 0
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")

    def span(self, node: ast.AST) -> Span:
        """The place of a syntax node in the file."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        return Span(self.name, line + self.first_line - 1, self._characters(line, column) + self.indent + 1)

    def error(self, node: ast.AST, message: str, hint: str | None = None) -> ScriptError:
        """An error at a syntax node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        start = self._characters(line, column)
        end = start + 1
        if getattr(node, "end_lineno", None) == line:
            end = max(end, self._characters(line, getattr(node, "end_col_offset", column + 1)))
        return self._error_at(line, start, end, message, hint)

    def _characters(self, line: int, column: int) -> int:
        """A column in bytes, as `ast` counts, as a column in characters."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return len(text.encode()[:column].decode(errors="ignore"))

    def _error_at(self, line: int, start: int, end: int, message: str, hint: str | None) -> ScriptError:
        span = Span(self.name, line + self.first_line - 1, start + self.indent + 1)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        margin = len(text) - len(text.lstrip())
        caret = " " * (start - min(margin, start)) + "^" * max(1, min(end, len(text)) - start)
        return ScriptError(message, where=f"{span}\n    {text.strip()}\n    {caret}", hint=hint)

    def parse(self) -> ast.Module:
        """The syntax tree."""
        try:
            return ast.parse(self.text)
        except SyntaxError as error:
            line, column = error.lineno or 1, (error.offset or 1) - 1
            raise self._error_at(line, column, column + 1, f"not valid Python: {error.msg}", None) from None

    @staticmethod
    def of_live(item: Callable[..., object] | type) -> Source:
        """The source of a function or class that exists in the running program."""
        name = getattr(item, "__name__", "script")
        try:
            lines, first = inspect.getsourcelines(item)
            path = inspect.getsourcefile(item) or "<script>"
        except (OSError, TypeError) as error:
            raise ScriptError(
                f"the source of {name} cannot be found",
                hint="define it in a file, or give the text to parse_script",
            ) from error
        text = "".join(lines)
        dedented = textwrap.dedent(text)
        indent = len(text) - len(text.lstrip(" \t")) - (len(dedented) - len(dedented.lstrip(" \t")))
        return Source(dedented, path, first, indent)
