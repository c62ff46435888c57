"""Scopes: where in the nest of branches, clauses, let bodies and closures each shared node belongs.

A node belongs to the innermost scope that contains all its uses. The printer places statements by it; fusion merges
only nodes of one scope, so that nothing moves out of a branch; the virtual machine computes a value there, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.graph.ir.expr import Function, GraphExpr, If, Let, Match
from tilewright.graph.ir.traverse import children


@dataclass(eq=False)
class Scope:
    """A place for nodes: inside `owner`, as its child number `position` (None: the outermost)."""

    parent: Scope | None = None
    owner: GraphExpr | None = None
    position: int = 0
    depth: int = 0

    def around(self) -> Iterator[Scope]:
        """The scopes that this one is in, the innermost first."""
        scope = self.parent
        while scope is not None:
            yield scope
            scope = scope.parent


Needs = Callable[[GraphExpr], Iterable[tuple[GraphExpr, int | None]]]
"""What a node needs, each with the number of the scope that the node opens for it, or None."""


def _common(a: Scope, b: Scope) -> Scope:
    while a is not b:
        if a.depth >= b.depth and a.parent is not None:
            a = a.parent
        elif b.parent is not None:
            b = b.parent
    return a


def _opens_scope(item: GraphExpr, position: int) -> bool:
    """Whether a child of a node lives in a scope of its own."""
    if isinstance(item, Function):
        return True
    if isinstance(item, (Let, If, Match)):
        return position > 0
    return False


@dataclass(eq=False)
class ScopeMap:
    """The scope of every node, and the scopes that a node opens for its children."""

    outermost: Scope
    of_node: dict[int, Scope]
    opened: dict[tuple[int, int], Scope]

    def scope(self, item: GraphExpr) -> Scope:
        """The scope that a node belongs to."""
        return self.of_node[id(item)]

    def inside(self, item: GraphExpr, position: int) -> Scope:
        """The scope that a node opens for its child of a position."""
        return self.opened[(id(item), position)]


def find_scopes(order: Sequence[GraphExpr]) -> ScopeMap:
    """Scopes of the nodes of a post-order; the last node is the root and belongs to the outermost scope."""
    known = {id(item) for item in order}

    def needs(item: GraphExpr) -> Iterator[tuple[GraphExpr, int | None]]:
        for position, child in enumerate(children(item)):
            if id(child) in known:
                yield child, position if _opens_scope(item, position) else None

    return place(order, needs)


def place(order: Sequence[GraphExpr], needs: Needs) -> ScopeMap:
    """Scopes of nodes of which each stands after what it needs, the root last."""
    outermost = Scope()
    of_node: dict[int, Scope] = {id(order[-1]): outermost}
    opened: dict[tuple[int, int], Scope] = {}
    for item in reversed(order):
        own = of_node.setdefault(id(item), outermost)
        for child, position in needs(item):
            scope = own
            if position is not None:
                scope = opened.setdefault((id(item), position), Scope(own, item, position, own.depth + 1))
            before = of_node.get(id(child))
            of_node[id(child)] = scope if before is None else _common(before, scope)
    return ScopeMap(outermost, of_node, opened)
