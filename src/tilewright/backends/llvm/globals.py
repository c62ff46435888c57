"""Private constants of a library's wrapper as LLVM IR: texts, and rows of what structures point to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BACKSLASH: Final = ord("\\")
_PLAIN: Final = frozenset(range(32, 127)) - {_BACKSLASH, ord('"')}
"""Characters that an LLVM string has as they are."""


def c_string(text: str) -> str:
    """A text and the zero that ends it, as an LLVM constant with its type."""
    content = text.encode() + b"\0"
    escaped = content
    # The backslash first, with which all others begin that take the place of one. Whole texts at a time: descriptions
    # of models are long.
    for byte in sorted({*content} - _PLAIN, key=lambda byte: byte != _BACKSLASH):
        escaped = escaped.replace(bytes([byte]), b"\\%02X" % byte)
    return f'[{len(content)} x i8] c"{escaped.decode()}"'


class Globals:
    """Definitions that others point to, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def place(self, content: str) -> str:
        """The address of a constant, given with its type."""
        symbol = f"@interface.{len(self.lines)}"
        self.lines.append(f"{symbol} = private constant {content}")
        return f"ptr {symbol}"

    def pointer(self, text: str) -> str:
        """The address of a text that a zero ends."""
        return self.place(c_string(text))

    def row(self, kind: str, items: Sequence[str]) -> str:
        """The address of constants of one type, one after the other; null where there is none."""
        return self.place(f"[{len(items)} x {kind}] [{', '.join(items)}]") if items else "ptr null"
