"""Private constants of a library's wrapper as LLVM IR: texts, and rows of what structures point to."""

from __future__ import annotations

from collections.abc import Sequence


def c_string(text: str) -> str:
    """A text and the zero that ends it, as an LLVM constant with its type."""
    content = text.encode() + b"\0"
    # Only what would end an LLVM string, or is no plain letter, is escaped.
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}" for byte in content)
    return f'[{len(content)} x i8] c"{escaped}"'


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
