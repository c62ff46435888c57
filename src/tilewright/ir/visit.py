"""Generic traversal: post-order walks, rewriting, substitution, free variables. Works on nodes of every floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.node import Node

N = TypeVar("N", bound=Node)
M = TypeVar("M", bound=Node)


def post_order(root: Node) -> Iterator[Node]:
    """Every node below and including the root, children first, each object once (explicit stack)."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        item, expanded = stack.pop()
        if expanded:
            yield item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        stack.append((item, True))
        for child in reversed(item.children()):
            if id(child) not in seen:
                stack.append((child, False))


def pre_order(root: Node) -> Iterator[Node]:
    """Every node, parents first, each object once."""
    seen: set[int] = set()
    stack: list[Node] = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        below = item.children()
        if below:
            stack.extend(reversed(below))


def find_all(root: Node, kind: type[N]) -> list[N]:
    """All nodes of a kind, in pre-order."""
    return [item for item in pre_order(root) if isinstance(item, kind)]


def transform(root: N, function: Callable[[Node], Node | None]) -> N:
    """Rewrite bottom-up: `function` sees each node with rewritten children and returns a replacement or None.

    Shared nodes are rewritten once. Recursion depth follows the depth of the tree (loop nests and index
    expressions: shallow); graphs have their own worklist rewriters.
    """
    memo: dict[int, Node] = {}

    def visit(item: Node) -> Node:
        done = memo.get(id(item))
        if done is not None:
            return done
        rebuilt = item.rebuild(visit)
        result = function(rebuilt)
        if result is None:
            result = rebuilt
        memo[id(item)] = result
        return result

    return cast(N, visit(root))


def substitute(root: N, mapping: Mapping[Var, PrimExpr]) -> N:
    """Replace free occurrences of variables by expressions (binders are assumed unique, so nothing is captured)."""
    return rewrite_nodes(root, mapping)


def rewrite_nodes(root: N, mapping: Mapping[M, Node]) -> N:
    """Replace nodes, wherever they occur, by others of their kind (expressions are interned: equal ones are one)."""
    if not mapping:
        return root
    done: dict[int, Node] = {id(item): value for item, value in mapping.items()}

    def visit(item: Node) -> Node:
        result = done.get(id(item))
        if result is None:
            result = done[id(item)] = item.rebuild(visit)
        return result

    return cast(N, visit(root))


def variables(root: Node) -> list[Var]:
    """All variables that occur, in order of first occurrence (bound or free)."""
    return [item for item in pre_order(root) if type(item) is Var]


def uses_any(root: Node, wanted: Iterable[Var]) -> bool:
    """Whether any of the given variables occurs below the root."""
    ids = {id(var) for var in wanted}
    return bool(ids) and any(id(item) in ids for item in pre_order(root))
