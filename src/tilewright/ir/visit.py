"""Generic traversal: post-order walks, rewriting, substitution, free variables. Works on nodes of every floor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar, cast

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import BinaryExpr, Call, PrimExpr, Var
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
    # Nodes are equal only to themselves: a set of them costs less than one of their addresses.
    seen: set[Node] = set()
    stack: list[Node] = [root]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        yield item
        below = item.children()
        if below:
            stack.extend(below[::-1])


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


class _Rewritten(dict[Node, Node]):
    """What nodes become, worked out when one is asked for.

    A local function that calls itself would do the same, and be garbage that only the collector finds: a hundred a
    kernel, each with all that it made.
    """

    def __missing__(self, item: Node) -> Node:
        result = self[item] = item.rebuild(self.__getitem__)
        return result


def substitute(root: N, mapping: Mapping[Var, PrimExpr]) -> N:
    """Replace free occurrences of variables by expressions (binders are assumed unique, so nothing is captured)."""
    return rewrite_nodes(root, mapping)


def rewrite_nodes(root: N, mapping: Mapping[M, Node]) -> N:
    """Replace nodes, wherever they occur, by others of their kind (expressions are interned: equal ones are one)."""
    if not mapping:
        return root
    return cast(N, _Rewritten(mapping.items())[root])


_NO_VARIABLES: Final[frozenset[Var]] = frozenset()


def variables_in(expr: PrimExpr) -> frozenset[Var]:
    """The variables that occur in an expression, which keeps them."""
    try:
        return expr.variables
    except AttributeError:
        pass
    if isinstance(expr, BinaryExpr):
        known, below = variables_in(expr.a), variables_in(expr.b)
        # Most operands are constants, or say the same of the other's variables: one set then serves both.
        if below is not known and not below <= known:
            known = below if known <= below else known | below
        expr.variables = known
        return known
    known = frozenset((expr,)) if isinstance(expr, Var) else _NO_VARIABLES
    for child in expr.children():
        if isinstance(child, PrimExpr):
            below = variables_in(child)
        else:
            below = frozenset(variables(child)) if child.children() else _NO_VARIABLES
        if not below <= known:
            known = below if known <= below else known | below
    expr.variables = known
    return known


_NOTHING: Final[frozenset[DataType | str]] = frozenset()
_SETS: Final[dict[frozenset[DataType | str], frozenset[DataType | str]]] = {}


def made_of(expr: PrimExpr) -> frozenset[DataType | str]:
    """The types (of elements) and the names of called functions that occur in an expression, which keeps them.

    A pass that is about some types or functions need not look into expressions without them.
    """
    try:
        return expr.made_of
    except AttributeError:
        pass
    known: frozenset[DataType | str] = _NOTHING
    for child in expr.children():
        for part in (child,) if isinstance(child, PrimExpr) else find_all(child, PrimExpr) if child.children() else ():
            below = made_of(part)
            # Most parts are made of the same: one set then serves all.
            if below is not known and not below <= known:
                known = below if known <= below else known | below
    element = expr.dtype.element
    if element not in known:
        known |= {element}
    if type(expr) is Call and expr.name not in known:
        known |= {expr.name}
    # The same sets turn up all over a program.
    expr.made_of = known = _SETS.setdefault(known, known)
    return known


def variables(root: Node) -> list[Var]:
    """All variables that occur, in order of first occurrence (bound or free)."""
    return [item for item in pre_order(root) if type(item) is Var]


def uses_any(root: Node, wanted: Iterable[Var]) -> bool:
    """Whether any of the given variables occurs below the root."""
    if isinstance(root, PrimExpr):
        return not variables_in(root).isdisjoint(wanted)
    ids = {id(var) for var in wanted}
    return bool(ids) and any(id(item) in ids for item in pre_order(root))
