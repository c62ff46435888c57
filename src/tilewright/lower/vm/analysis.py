"""A graph function seen as what the machine does: values without lets, the block each belongs to, who needs whom.

Lets are looked through: a variable is the value it is bound to. What stays are calls, tuples, control flow, closures
and leaves. Each value belongs to the innermost block (the body of a function, a branch, a clause) that holds all its
uses, and is computed there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import (
    Call,
    Constant,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Tuple,
    TupleGet,
    Var,
)
from tilewright.graph.ir.op import Operator, introduces_symbols
from tilewright.graph.ir.scopes import Scope, place
from tilewright.graph.ir.traverse import children, pattern_variables, post_order
from tilewright.graph.passes.fuse import is_primitive
from tilewright.graph.views import is_view
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.order import children_first


def host_call(item: GraphExpr) -> Call | None:
    """The call to a host operator that an expression is, also inside a primitive function of its own."""
    if isinstance(item, Call) and isinstance(item.callee, Function) and is_primitive(item.callee):
        body = item.callee.body
        return body if isinstance(body, Call) and isinstance(body.callee, Operator) and body.callee.host else None
    return item if isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.host else None


def is_kernel(item: GraphExpr) -> bool:
    """Whether an expression is a call that becomes a kernel."""
    return isinstance(item, Call) and is_primitive(item.callee) and host_call(item) is None


class Analysis:
    """What a global function and the closures in it compute, and where."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._bound: dict[int, GraphExpr] = {}
        self._introducers: dict[Symbol, GraphExpr] = {}
        given = set(symbols_of(tuple(param.type for param in function.params)))
        for item in _around_kernels(function):
            if isinstance(item, Let):
                self._bound[id(item.var)] = item.value
            call = host_call(item)
            if call is not None and introduces_symbols(call):
                # A later call that mentions the symbol only checks it.
                for symbol in _plain_dimensions(item.type):
                    if symbol not in given:
                        self._introducers.setdefault(symbol, item)
        self._children: dict[int, list[tuple[GraphExpr, int]]] = {}
        self.order = self._order()
        self._scopes = place(self.order, self._opening)
        self.body = self._scopes.outermost
        self.block_of = self._blocks()
        self._computed: dict[int, list[GraphExpr]] = {}
        for item in self.order:
            self._computed.setdefault(id(self.block_of[id(item)]), []).append(item)
        self.users: dict[int, list[GraphExpr]] = {id(item): [] for item in self.order}
        for item in self.order:
            for child, _ in self.children(item):
                self.users[id(child)].append(item)

    def value(self, item: GraphExpr) -> GraphExpr:
        """The expression that computes a value, behind lets, variables and tuples taken apart at once."""
        while True:
            if isinstance(item, Let):
                item = item.body
            elif isinstance(item, Var) and id(item) in self._bound:
                item = self._bound[id(item)]
            elif isinstance(item, TupleGet) and isinstance(self.value(item.value), Tuple):
                whole = self.value(item.value)
                assert isinstance(whole, Tuple)
                item = whole.items[item.index]
            else:
                return item

    def children(self, item: GraphExpr) -> list[tuple[GraphExpr, int]]:
        """The values that a value needs, each with the number of the block it opens for it (0: its own block)."""
        children = self._children.get(id(item))
        if children is None:
            children = [(self.value(child), position) for child, position in self._needs(item)]
            self._children[id(item)] = children
        return children

    def _needs(self, item: GraphExpr) -> Iterator[tuple[GraphExpr, int]]:
        if isinstance(item, Call):
            if not (isinstance(item.callee, (Operator, GlobalVar, ConstructorRef)) or is_primitive(item.callee)):
                yield item.callee, 0
            for arg in item.args:
                yield arg, 0
            if is_kernel(item) or is_view(item):
                yield from ((self._introducers[s], 0) for s in self.symbols(item) if s in self._introducers)
        elif isinstance(item, Tuple):
            for part in item.items:
                yield part, 0
        elif isinstance(item, TupleGet):
            yield item.value, 0
        elif isinstance(item, If):
            yield item.condition, 0
            yield item.then_value, 1
            yield item.else_value, 2
        elif isinstance(item, Match):
            yield item.value, 0
            for number, clause in enumerate(item.clauses, 1):
                yield clause.body, number
        elif isinstance(item, Function) and not is_primitive(item):
            yield item.body, 1

    @staticmethod
    def symbols(item: GraphExpr) -> list[Symbol]:
        """The symbols that a kernel or a view computes with."""
        assert isinstance(item, Call)
        symbols = dict.fromkeys(symbols_of((item.type, item.attributes)))
        if isinstance(item.callee, Function):
            for inner in post_order(item.callee):
                attributes = inner.attributes if isinstance(inner, Call) else None
                symbols.update(dict.fromkeys(symbols_of((inner.type, attributes))))
        return list(symbols)

    def _order(self) -> list[GraphExpr]:
        """All values, those that are needed first. A closure that calls itself comes after its body."""
        return children_first(
            [self.value(self.function.body)], lambda item: [child for child, _ in self.children(item)]
        )

    def _opening(self, item: GraphExpr) -> Iterator[tuple[GraphExpr, int | None]]:
        return ((child, position or None) for child, position in self.children(item))

    def _blocks(self) -> dict[int, Scope]:
        """The block of each value; a variable belongs where it is bound, wherever it is used."""
        blocks = {**self._scopes.of_node, **dict.fromkeys(map(id, self.function.params), self.body)}
        for block in self._scopes.opened.values():
            assert block.owner is not None
            blocks.update(dict.fromkeys(map(id, _bound_by(block.owner, block.position)), block))
        return blocks

    def inside(self, item: GraphExpr, position: int) -> Scope:
        """The block that a value opens."""
        return self._scopes.inside(item, position)

    def computed_in(self, block: Scope) -> list[GraphExpr]:
        """The values of a block, those that are needed first."""
        return self._computed.get(id(block), [])

    def reaches(self, item: GraphExpr, blocks: Iterable[Scope]) -> list[GraphExpr]:
        """The values of some blocks that the inside of a branch or closure needs, in order of first use."""
        wanted = set(map(id, blocks))
        reached: dict[int, GraphExpr] = {}
        seen: set[int] = {id(item)}
        stack = [child for child, position in reversed(self.children(item)) if position]
        depth = self.block_of[id(item)].depth
        while stack:
            part = stack.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            block = self.block_of[id(part)]
            if id(block) in wanted:
                reached[id(part)] = part
            if block.depth > depth:
                stack.extend(child for child, _ in reversed(self.children(part)))
        return list(reached.values())


def _around_kernels(function: Function) -> Iterator[GraphExpr]:
    """Every expression of a function and its closures, needed ones first, without the insides of primitives."""
    roots: list[GraphExpr] = [function]
    return iter(children_first(roots, lambda item: () if is_primitive(item) else children(item)))


def _plain_dimensions(kind: Type | None) -> Iterator[Symbol]:
    """The symbols that are dimensions of the tensors of a value."""
    if isinstance(kind, TupleType):
        for item in kind.items:
            yield from _plain_dimensions(item)
    elif isinstance(kind, TensorType):
        yield from (dim for dim in kind.shape or () if isinstance(dim, Symbol))


def _bound_by(item: GraphExpr, position: int) -> Iterable[Var]:
    """The variables that an expression binds in one of its blocks."""
    if isinstance(item, Function):
        return item.params
    return pattern_variables(item.clauses[position - 1].pattern) if isinstance(item, Match) else ()


def is_leaf(item: GraphExpr) -> bool:
    """Whether a value is made where it is needed, at no cost: it is never captured."""
    return isinstance(item, (Constant, GlobalVar, ConstructorRef, Operator))
