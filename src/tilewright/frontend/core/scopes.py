"""What the names of a graph mean while its operators are imported: shared by importers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.graph.ir.expr import Constant, GraphExpr, Var
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.span import Span

Captures = list[tuple[GraphExpr, Var]]
"""Values from outside of a function's body, and the parameters that stand for them."""


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor stored in the model; types that numpy lacks are held as their bits, integers of few bits in bytes."""

    array: Array
    dtype: DataType


Lazy = Callable[[], TensorValue]
"""A stored tensor that is decoded when it is used."""


class Scope:
    """Names to values: initializers decode at first use; inner scopes see outer ones.

    The scope of a function's body (`captures` is a list) sees outer values as parameters: what is used is captured.
    """

    def __init__(self, parent: Scope | None = None, captures: Captures | None = None) -> None:
        self.parent = parent
        self.captures = captures
        self.values: dict[str, GraphExpr] = {}
        self.stored: Mapping[str, Lazy] = {}

    def find(self, name: str) -> GraphExpr | None:
        """The value of a name, if it has one already."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                return value
            if name in scope.stored:
                tensor_value = scope.stored[name]()
                value = Constant(tensor_value.array, tensor_value.dtype)
                value.span = Span(name)
                scope.values[name] = value
                return value
            if scope.captures is not None and scope.parent is not None:
                return scope.capture(name, scope.parent.find(name))
            scope = scope.parent
        return None

    def capture(self, name: str, value: GraphExpr | None) -> GraphExpr | None:
        """A value from outside as a parameter; constants and sizes are known here as well."""
        if value is None or symbolic_value(value) is not None or isinstance(value, Constant):
            return value
        assert self.captures is not None
        var = next((known for outer, known in self.captures if outer is value), None)
        if var is None:
            var = Var(name, value.type)
            var.span = Span(name)
            self.captures.append((value, var))
        self.values[name] = var
        return var

    def names_of(self, value: GraphExpr) -> list[str]:
        """The names of a value, here and outside."""
        found: list[str] = []
        scope: Scope | None = self
        while scope is not None:
            found += [name for name, known in scope.values.items() if known is value]
            scope = scope.parent
        return found

    def __contains__(self, name: str) -> bool:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values or name in scope.stored:
                return True
            scope = scope.parent
        return False
