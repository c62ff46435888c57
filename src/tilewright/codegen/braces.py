"""Languages of kernels that are text with braces, as C and WGSL are: what both say alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from tilewright.codegen.operators import KernelOperators
from tilewright.codegen.statements import KernelStatements
from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var
from tilewright.tir.stmt import LetStmt

OPERATORS: Final[dict[type, str]] = {e.Add: "+", e.Sub: "-", e.Mul: "*", e.EQ: "==", e.NE: "!=", e.LT: "<", e.LE: "<="}
"""Operators that are written between their operands."""
BITWISE: Final = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}


class BracedValues(KernelOperators):
    """Expressions of one kernel as text."""

    @abstractmethod
    def constant(self, kind: str, name: str, text: str) -> str:
        """The declaration of a constant."""

    @abstractmethod
    def variable(self, kind: str, name: str) -> str:
        """The declaration of a variable that is given its value later."""

    def truth(self, value: bool) -> str:
        """A constant condition."""
        return "true" if value else "false"

    def connect(self, conjunction: bool, a: str, b: str) -> str:
        """Both of two conditions, or one of them."""
        return f"({a} {'&&' if conjunction else '||'} {b})"

    def invert(self, condition: str) -> str:
        """The opposite of a condition."""
        return f"(!{condition})"

    def variable_value(self, var: Var) -> str:
        """A variable, by its name."""
        return self.name(var)

    def declare(self, kind: str, text: str) -> str:
        """A constant of a value; gives its name."""
        name = self.temporary()
        self.line(self.constant(kind, name, text))
        return name

    def share(self, expr: PrimExpr, text: str) -> str:
        """A constant of a value that is used more than once; gives its name."""
        return self.declare(self.type_of(expr), text)

    def choice(self, condition: str, kind: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """A value of one of two sides, only one of which is computed."""
        name = self.temporary()
        self.line(self.variable(kind, name))
        self.line(f"if ({condition}) {{")
        self._side(name, then)
        self.line("} else {")
        self._side(name, otherwise)
        self.line("}")
        return name

    def _side(self, name: str, side: Callable[[], str]) -> None:
        self.enter()
        text = side()
        self.line(f"{name} = {text};")
        self.leave()


B = TypeVar("B", bound=BracedValues)


class BracedStatements(KernelStatements[B]):
    """Statements of one kernel as text."""

    forever: str
    """How a loop begins that has no condition."""

    def inside(self, body: Callable[[], None]) -> None:
        """What stands between braces."""
        self.values.depth += 1
        body()
        self.values.depth -= 1

    def repeat(self, condition: Callable[[], str], body: Callable[[], None]) -> None:
        """An endless loop that is left where the condition, with what it needs, no longer holds."""
        self.values.line(f"{self.forever} {{")
        self.inside(lambda: self.values.line(f"if (!{condition()}) {{ break; }}"))
        self.inside(body)
        self.values.line("}")

    def branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        """An `if`."""
        self.values.line(f"if ({condition}) {{")
        self.inside(then)
        if otherwise is not None:
            self.values.line("} else {")
            self.inside(otherwise)
        self.values.line("}")

    def let(self, stmt: LetStmt, body: Callable[[], None]) -> None:
        """A constant in a block of its own."""
        c = self.values
        text = c.value(stmt.value)
        c.decide(stmt.var, c.is_narrow(stmt.value))
        c.line("{")
        c.depth += 1
        c.line(c.constant(c.type_of(stmt.value), c.name(stmt.var), text))
        body()
        c.depth -= 1
        c.line("}")
