"""Regions: the nodes of a function that are computed together, and what of it depends on chosen inputs.

A function's body is a region, and so is each branch of an `if` and each clause of a `match`. A node belongs to the
innermost region that contains all its uses; `let` opens none (values are shared nodes of the graph anyway).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.graph.gradient.registry import gradient_of
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Let, Match, Var
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.scopes import Scope, ScopeMap, find_scopes
from tilewright.graph.ir.traverse import children, pattern_variables, post_order
from tilewright.ir.function import TypeDefinition
from tilewright.ir.types import DataTypeCall, DataTypeName, OptionalType, SequenceType, TensorType, TupleType, Type


@dataclass(eq=False)
class Region:
    """Nodes that are computed together, needed ones first; the last value is `root`, which may be of a region around."""

    root: GraphExpr
    nodes: list[GraphExpr] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    """Identities of what the new program computes here on the way forward."""
    bindings: list[tuple[Var, GraphExpr]] = field(default_factory=list)
    """Values that give symbols their sizes, which stay in front of everything else."""
    late: list[tuple[Var, GraphExpr]] = field(default_factory=list)
    """Cotangents whose sizes are said again on the way back, in front of what reads them."""


class Regions:
    """The regions of a function."""

    def __init__(self, function: Function) -> None:
        self.order = post_order(function.body)
        self.scopes: ScopeMap = find_scopes(self.order)
        self.binder: dict[int, GraphExpr] = {}
        """The value that a variable stands for (of a pattern: is part of), by identity of the variable."""
        self.in_patterns: set[int] = set()
        """The variables that patterns bind."""
        self.by_identity = {id(item): item for item in self.order}
        self._homes: dict[int, Scope] = {}
        self._regions: dict[int, Region] = {}
        self.body = self._open(self.scopes.outermost, function.body)
        homes = self._variables()
        for item in self.order:
            home = homes.get(id(item)) if isinstance(item, Var) else self._home(self.scopes.scope(item))
            self._open(home or self.scopes.outermost, item).nodes.append(item)

    def inside(self, item: GraphExpr, position: int) -> Region:
        """The region that a node opens for its child of a position."""
        region = self._open(self._home(self.scopes.inside(item, position)), item)
        region.root = children(item)[position]
        return region

    def _variables(self) -> dict[int, Scope]:
        """The scopes of bound variables (those of parameters are left out); fills `binder`."""
        homes: dict[int, Scope] = {}
        for item in self.order:
            if isinstance(item, Let):
                homes[id(item.var)] = self._home(self.scopes.scope(item))
                self.binder[id(item.var)] = item.value
            elif isinstance(item, Match):
                for position, clause in enumerate(item.clauses):
                    home = self._home(self.scopes.inside(item, position + 1))
                    for var in pattern_variables(clause.pattern):
                        homes[id(var)] = home
                        self.binder[id(var)] = item.value
                        self.in_patterns.add(id(var))
        return homes

    def _open(self, home: Scope, root: GraphExpr) -> Region:
        return self._regions.setdefault(id(home), Region(root))

    def _home(self, scope: Scope) -> Scope:
        """The scope of a region: bodies of lets are looked through."""
        path: list[Scope] = []
        while id(scope) not in self._homes:
            if not isinstance(scope.owner, Let) or scope.parent is None:
                self._homes[id(scope)] = scope
                break
            path.append(scope)
            scope = scope.parent
        home = self._homes[id(scope)]
        for passed in path:
            self._homes[id(passed)] = home
        return home


def carries_floats(kind: Type | None, types: dict[str, TypeDefinition]) -> bool:
    """Whether values of a type have a derivative: whether there are floats in them."""
    seen: set[int] = set()
    stack: list[Type | None] = [kind]
    while stack:
        found = stack.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, TensorType):
            if found.dtype.is_float:
                return True
        elif isinstance(found, TupleType):
            stack.extend(found.items)
        elif isinstance(found, (SequenceType, OptionalType)):
            stack.append(found.item)
        elif isinstance(found, DataTypeName):
            stack.extend(_fields(found.name, types))
        elif isinstance(found, DataTypeCall):
            stack.extend((*found.arguments, *_fields(found.name.name, types)))
    return False


def _fields(name: str, types: dict[str, TypeDefinition]) -> Iterable[Type]:
    return [kind for constructor in types[name].constructors for kind in constructor.fields_types]


def active_nodes(regions: Regions, wrt: Iterable[Var], types: dict[str, TypeDefinition]) -> set[int]:
    """The nodes (by identity) that depend on some variables in a way that has a derivative."""
    active = {id(var) for var in wrt}
    for item in regions.order:
        if not carries_floats(item.type, types):
            continue
        if isinstance(item, Var):
            if id(regions.binder.get(id(item))) in active:
                active.add(id(item))
        elif any(id(child) in active for child in _sources(item)):
            active.add(id(item))
    return active


def _sources(item: GraphExpr) -> tuple[GraphExpr, ...]:
    """The children that a derivative may come from."""
    if isinstance(item, Let):
        return (item.body,)
    if isinstance(item, Call) and isinstance(item.callee, Operator):
        known = gradient_of(item.callee.name)
        return () if known is not None and known.blocks is not None else item.args
    return children(item)
