"""Values of a kernel as a code generator meets them, whatever the language: names, what a statement shares, widths.

Values that a statement uses more than once are computed once. Indices are computed in 32 bits where bounds prove that
nothing overflows, in 64 bits otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, INT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.buffer import Buffer, BufferLoad

_LOW, _HIGH = INT32.min_value(), INT32.max_value()


class KernelValues(ABC):
    """Expressions of one kernel, emitted into lines of text."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.lines: list[str] = []
        self.depth = 1
        self._names: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set()
        self._known: list[dict[PrimExpr, str]] = [{}]
        self._uses: dict[PrimExpr, int] = {}
        self._narrow: dict[PrimExpr, bool] = {}
        self._temporaries = 0

    @abstractmethod
    def emit(self, expr: PrimExpr) -> str:
        """The text of an expression that was not met before."""

    @abstractmethod
    def share(self, expr: PrimExpr, text: str) -> str:
        """A constant of a value that is used more than once; gives its name."""

    @abstractmethod
    def type_of(self, expr: PrimExpr) -> str:
        """The type of an expression's text."""

    @abstractmethod
    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""

    # ---------------------------------------------------------------- names and lines

    def name(self, item: Var | Buffer) -> str:
        """The name of a variable or buffer. It ends in `_` and perhaps a number, as no word of the language does."""
        found = self._names.get(item)
        if found is None:
            clean = "".join(c if c.isascii() and c.isalnum() else "_" for c in item.name)
            base = f"{clean if clean and clean[0].isalpha() else 'v' + clean}_"
            found, number = base, 0
            while found in self._taken:
                number += 1
                found = f"{base}{number}"
            self._taken.add(found)
            self._names[item] = found
        return found

    def keep_apart(self, taken: set[str]) -> None:
        """Take no name that others with the same set have taken."""
        self._taken = taken

    def line(self, text: str) -> None:
        """One line of code."""
        self.lines.append("  " * self.depth + text)

    def temporary(self) -> str:
        """A name that was not used before."""
        self._temporaries += 1
        return f"t{self._temporaries}"

    # ---------------------------------------------------------------- statements begin and end

    def start(self, *roots: PrimExpr) -> None:
        """Begin a statement of some expressions: what they share is found, what was known is forgotten."""
        self._known = [{}]
        self._uses = {}
        seen: set[PrimExpr] = set()
        stack: list[PrimExpr] = list(roots)
        for root in roots:
            self._uses[root] = self._uses.get(root, 0) + 1
        while stack:
            item = stack.pop()
            if item in seen:
                continue
            seen.add(item)
            for child in item.children():
                if isinstance(child, PrimExpr):
                    self._uses[child] = self._uses.get(child, 0) + 1
                    stack.append(child)

    def know(self, expr: PrimExpr, text: str) -> None:
        """Let a value be found under a name in this statement."""
        self._known[-1][expr] = text

    # ---------------------------------------------------------------- types

    def is_narrow(self, expr: PrimExpr) -> bool:
        """Whether an index is an int in the text: it and everything it is computed from provably fit 32 bits."""
        if expr.dtype is not INDEX:
            return False
        found = self._narrow.get(expr)
        if found is None:
            found = self._narrow[expr] = self._fits(expr)
        return found

    def _fits(self, expr: PrimExpr) -> bool:
        if isinstance(expr, e.IntImm):
            return _LOW <= expr.value <= _HIGH
        if isinstance(expr, e.Cast):
            return expr.value.dtype.is_bool or (
                expr.value.dtype.is_integer and expr.value.dtype.bits <= 32 and expr.value.dtype.name != "uint32"
            )
        if isinstance(expr, (BufferLoad, e.Call)):
            return False
        if not all(
            self.is_narrow(child) for child in expr.children() if isinstance(child, PrimExpr) and child.dtype is INDEX
        ):
            return False
        low, high = self.analyzer.lower_bound(expr), self.analyzer.upper_bound(expr)
        return low is not None and high is not None and _LOW <= low and high <= _HIGH

    def is_short(self, low: PrimExpr, extent: PrimExpr) -> bool:
        """Whether an int counts the iterations of a loop."""
        if not self.is_narrow(low) or not self.is_narrow(extent):
            return False
        high = self.analyzer.upper_bound(low + extent)
        return high is not None and high <= _HIGH

    def decide(self, var: Var, narrow: bool) -> None:
        """Say whether a variable is an int in the text."""
        self._narrow[var] = narrow

    def divides_naturals(self, a: PrimExpr, b: PrimExpr) -> bool:
        """Whether an index that is not negative is divided by a positive one. Data is unbounded."""
        low, divisor = self.analyzer.lower_bound(a), self.analyzer.lower_bound(b)
        return low is not None and low >= 0 and divisor is not None and divisor > 0

    # ---------------------------------------------------------------- values

    def value(self, expr: PrimExpr) -> str:
        """The text of a value: a name, a constant or something in parentheses."""
        for known in reversed(self._known):
            found = known.get(expr)
            if found is not None:
                return found
        text = self.emit(expr)
        if self._uses.get(expr, 0) > 1 and not isinstance(expr, (Var, e.IntImm, e.FloatImm)):
            text = self.share(expr, text)
        self._known[-1][expr] = text
        return text

    def full(self, expr: PrimExpr) -> str:
        """The text of a value in its own type: indices in 64 bits."""
        text = self.value(expr)
        return self.widen(text) if self.is_narrow(expr) else text

    def pair(self, a: PrimExpr, b: PrimExpr) -> tuple[str, str, DataType]:
        """Two operands of one type, and that type."""
        if self.is_narrow(a) and self.is_narrow(b):
            return self.value(a), self.value(b), INT32
        return self.full(a), self.full(b), a.dtype

    def widened(self, expr: PrimExpr, text: str, dtype: DataType) -> str:
        """A result of 32 bits as the index that it is: the least integer by -1 is none of them."""
        return self.widen(text) if expr.dtype is INDEX and dtype is INT32 and not self.is_narrow(expr) else text

    def index(self, expr: PrimExpr) -> str:
        """The text of an index in 32 bits: the lowest where it is wider."""
        return self.value(expr) if self.is_narrow(expr) else self.value(e.Cast(expr, INT32))

    def enter(self) -> None:
        """Go into a block of code that does not always run: what is computed there is not known after it."""
        self.depth += 1
        self._known.append({})

    def leave(self) -> None:
        """Come back out of it."""
        self._known.pop()
        self.depth -= 1
