"""Parts of the interpreter's source that run as a whole, and what is computed in each before the parts inside it.

for i in range(8):                      region 1: i is known
 n0 = (i // 4) * 64                     kept here, asked for in region 2
 for k in range(64):                    region 2: k is known
  total[i] = total[i] + a[n0 + k]
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.expr import Var
from tilewright.tir.stmt import Stmt


@dataclass
class _Region:
    """The body of a function, a loop or a branch: where its header stands, and names of values that are known in it."""

    line: int
    depth: int
    names: dict[object, str] = field(default_factory=dict)


class Regions:
    """The lines made so far (each with its statement), and the regions that are open at their end."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Stmt | None]] = []
        self.bound: dict[Var, int] = {}
        """The region in which a variable gets its value."""
        self._open = [_Region(0, 0)]

    @property
    def level(self) -> int:
        """The number of the innermost region."""
        return len(self._open) - 1

    def names(self, level: int) -> dict[object, str]:
        """Names of values that are known in a region."""
        return self._open[level].names

    def enter(self, depth: int, line: int | None = None) -> None:
        """Begin a region whose header is the next line, or an earlier one (that of an `else` is its `if`)."""
        self._open.append(_Region(len(self.lines) if line is None else line, depth))

    def leave(self) -> int:
        """End a region; gives the place of its header."""
        return self._open.pop().line

    def bind(self, var: Var, level: int | None = None) -> None:
        """A variable has its value in a region (the innermost)."""
        if var in self.bound:
            for region in self._open:
                region.names.clear()
        self.bound[var] = self.level if level is None else level

    def insert(self, level: int, text: str) -> None:
        """A line in an outer region, before what is open inside it."""
        inside = self._open[level + 1 :]
        self.lines.insert(inside[0].line, (" " * inside[0].depth + text, None))
        for region in inside:
            region.line += 1
