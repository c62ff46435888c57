"""Traversal of graph expressions: children, post-order, users, bottom-up rewriting, free variables. Never recursive.

Only graph expressions are visited (not types, attributes or binders), so that walking a model of ten thousand nodes
is quick. A node that is shared is visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from operator import is_
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from tilewright.graph.ir.expr import (
    Call,
    Clause,
    Constant,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Pattern,
    Tuple,
    TupleGet,
    TuplePattern,
    Var,
    VarPattern,
)
from tilewright.graph.ir.op import Operator
from tilewright.ir.function import IRModule
from tilewright.support.errors import CompilerBug
from tilewright.support.order import children_first

Children = tuple[GraphExpr, ...]
FunctionOrModule = TypeVar("FunctionOrModule", Function, IRModule)


def _none(item: GraphExpr) -> Children:
    return ()


def _call(item: Call) -> Children:
    return item.args if type(item.callee) is Operator else (item.callee, *item.args)


_CHILDREN: dict[type, Callable[..., Children]] = {
    Var: _none,
    Constant: _none,
    GlobalVar: _none,
    ConstructorRef: _none,
    Operator: _none,
    Call: _call,
    Tuple: lambda item: item.items,
    TupleGet: lambda item: (item.value,),
    Let: lambda item: (item.value, item.body),
    If: lambda item: (item.condition, item.then_value, item.else_value),
    Function: lambda item: (item.body,),
    Match: lambda item: (item.value, *(clause.body for clause in item.clauses)),
}


def children(item: GraphExpr) -> Children:
    """The expressions directly below one, in order of evaluation; binders and operators are left out."""
    return _CHILDREN[type(item)](item)


def with_children(item: GraphExpr, new: Sequence[GraphExpr]) -> GraphExpr:
    """The expression with other children, in the order of `children`; the same object when nothing changed.

    The span is kept, and the type where those of the children stay the same.
    """
    before = children(item)
    if len(before) == len(new) and all(map(is_, before, new)):
        return item
    same_types = all(old.type is child.type for old, child in zip(before, new, strict=True) if old is not child)
    result: GraphExpr
    if isinstance(item, Call):
        if type(item.callee) is Operator:
            result = Call(item.callee, tuple(new), item.attributes)
        else:
            result = Call(new[0], tuple(new[1:]), item.attributes)
    elif isinstance(item, Tuple):
        result = Tuple(tuple(new))
    elif isinstance(item, TupleGet):
        result = TupleGet(new[0], item.index)
    elif isinstance(item, Let):
        result = Let(item.var, new[0], new[1])
    elif isinstance(item, If):
        result = If(new[0], new[1], new[2])
    elif isinstance(item, Function):
        result = item.replace(body=new[0])
    elif isinstance(item, Match):
        clauses = tuple(
            clause if clause.body is body else Clause(clause.pattern, body)
            for clause, body in zip(item.clauses, new[1:], strict=True)
        )
        result = Match(new[0], clauses)
    else:
        raise CompilerBug(f"{type(item).__name__} has no children")
    result.span = item.span
    if same_types:
        result.type = item.type
    return result


def post_order(*roots: GraphExpr, closures: bool = True) -> list[GraphExpr]:
    """Every expression below and including the roots, children first, each object once.

    With `closures=False` the bodies of functions below the roots are not entered (a root that is a function is).
    """
    if closures:
        whole = roots[0] if len(roots) == 1 else None
        return _order_of(whole) if isinstance(whole, Function) else children_first(roots, children)
    entered = {id(root) for root in roots}

    def below(item: GraphExpr) -> Sequence[GraphExpr]:
        return () if type(item) is Function and id(item) not in entered else children(item)

    return children_first(roots, below)


_ORDERS: Final[WeakKeyDictionary[Function, list[GraphExpr]]] = WeakKeyDictionary()


def _order_of(function: Function) -> list[GraphExpr]:
    """The post-order of a function, remembered while it lives: most passes walk what the one before has left."""
    below = _ORDERS.get(function)
    if below is None:
        # Without the function itself, which would live for ever.
        below = _ORDERS[function] = children_first((function.body,), children)
    return [*below, function]


def users(order: Sequence[GraphExpr]) -> dict[int, list[GraphExpr]]:
    """For each expression (by identity) of a post-order, the expressions that use it, once per use."""
    result: dict[int, list[GraphExpr]] = {id(item): [] for item in order}
    for item in order:
        for child in children(item):
            found = result.get(id(child))
            if found is not None:
                found.append(item)
    return result


def count_uses(order: Sequence[GraphExpr]) -> dict[int, int]:
    """For each expression (by identity) of a post-order, how often others use it."""
    result = dict.fromkeys(map(id, order), 0)
    for item in order:
        for child in _CHILDREN[type(item)](item):
            result[id(child)] += 1
    return result


def rewrite(
    root: GraphExpr,
    function: Callable[[GraphExpr, GraphExpr], GraphExpr | None],
    mapping: Mapping[int, GraphExpr] | None = None,
) -> GraphExpr:
    """Rewrite bottom-up: `function(old, rebuilt)` returns a replacement of a node whose children are rewritten.

    None keeps the rebuilt node. `mapping` (by identity of old nodes) gives replacements known beforehand, which are
    not entered.
    """
    memo: dict[int, GraphExpr] = dict(mapping or {})
    known = frozenset(memo)
    order = (
        children_first((root,), lambda item: () if id(item) in known else children(item)) if memo else post_order(root)
    )
    for item in order:
        if id(item) in known:
            continue
        rebuilt, below = item, children(item)
        for child in below:
            if memo[id(child)] is not child:
                rebuilt = with_children(item, [memo[id(child)] for child in below])
                break
        result = function(item, rebuilt)
        if result is None:
            result = rebuilt
        elif result.span is None and isinstance(result, Call):
            result.span = item.span
        memo[id(item)] = result
    return memo[id(root)]


def substitute(root: GraphExpr, mapping: Mapping[Var, GraphExpr]) -> GraphExpr:
    """Replace variables by expressions (binders are unique, so nothing is captured)."""
    return rewrite(root, lambda old, new: None, {id(var): value for var, value in mapping.items()})


def pattern_variables(pattern: Pattern) -> Iterator[Var]:
    """The variables that a match pattern binds, from left to right."""
    stack = [pattern]
    while stack:
        item = stack.pop()
        if isinstance(item, VarPattern):
            yield item.var
        elif isinstance(item, (ConstructorPattern, TuplePattern)):
            stack.extend(reversed(item.patterns))


def bound_variables(root: GraphExpr) -> set[Var]:
    """The variables bound somewhere below a root: parameters, let variables, pattern variables."""
    bound: set[Var] = set()
    for item in post_order(root):
        if isinstance(item, Function):
            bound.update(item.params)
        elif isinstance(item, Let):
            bound.add(item.var)
        elif isinstance(item, Match):
            for clause in item.clauses:
                bound.update(pattern_variables(clause.pattern))
    return bound


def free_variables(root: GraphExpr) -> list[Var]:
    """The variables used but not bound below a root (binders are unique), in order of first use."""
    bound = bound_variables(root)
    return [item for item in post_order(root) if isinstance(item, Var) and item not in bound]


def graph_functions(module: IRModule) -> dict[str, Function]:
    """The graph functions of a module, by name."""
    return {name: function for name, function in module.functions.items() if isinstance(function, Function)}


def map_functions(value: FunctionOrModule, function: Callable[[Function], Function]) -> FunctionOrModule:
    """Apply a transform to a function, or to each graph function of a module."""
    if isinstance(value, Function):
        return function(value)
    changed = {name: function(item) for name, item in graph_functions(value).items()}
    return value.with_functions({**value.functions, **changed})


def settling(transform: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """A transform that is not run again on a function that it has left as it was: nodes never change.

    What comes between two runs of a pass that tidies up mostly finds nothing to do.
    """
    settled: WeakSet[Function] = WeakSet()

    @wraps(transform)
    def run(function: Function) -> Function:
        if function in settled:
            return function
        result = transform(function)
        # Types are filled later, and transforms do more where they are known.
        if result is function and function.type is not None:
            settled.add(function)
        return result

    return run
