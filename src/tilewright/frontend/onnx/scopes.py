"""Scopes: what the names of a graph mean while its nodes are imported, and which of them are used later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.onnx.context import Captures
from tilewright.frontend.onnx.model import Lazy, OnnxNode
from tilewright.frontend.onnx.order import used_names
from tilewright.graph.ir.expr import Constant, GraphExpr, Var
from tilewright.support.span import Span


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


@dataclass(frozen=True)
class Rest:
    """The nodes of a graph from a fork on; `wanted` are the names that are used after the last one."""

    nodes: Sequence[OnnxNode]
    scope: Scope
    opsets: Mapping[str, int]
    wanted: Sequence[str]
    start: int
    """The place of the first of these nodes in its graph."""
    last_uses: Mapping[str, int]
    """The place of the last node of the graph that uses a name."""

    def live(self, count: int, value: GraphExpr | None) -> list[str]:
        """The names that the first nodes give values, and those of a value that they know more of, that are used later.

        In the order in which they are given.
        """
        given = dict.fromkeys(name for node in self.nodes[:count] for name in node.outputs if name)
        if value is not None:
            given.update(dict.fromkeys(self.scope.names_of(value)))
        after = self.start + count
        return [name for name in given if name in self.wanted or self.last_uses.get(name, -1) >= after]


def last_uses(nodes: Sequence[OnnxNode]) -> dict[str, int]:
    """The place of the last node that uses a name, by the name."""
    return {name: place for place, node in enumerate(nodes) for name in used_names(node)}
