"""A function with variables of its own: the same program, none of whose binders another function has."""

from __future__ import annotations

from tilewright.graph.ir.expr import (
    Clause,
    ConstructorPattern,
    Function,
    GraphExpr,
    Let,
    Match,
    Pattern,
    TuplePattern,
    Var,
    VarPattern,
)
from tilewright.graph.ir.traverse import bound_variables, children, post_order, with_children


def with_fresh_binders(function: Function) -> Function:
    """A typed copy of a function with new parameters, let variables and pattern variables."""
    made: dict[int, GraphExpr] = {}
    fresh: dict[Var, Var] = {}
    for var in bound_variables(function):
        fresh[var] = Var(var.name, var.annotation)
        fresh[var].type, fresh[var].span = var.type, var.span
        made[id(var)] = fresh[var]
    for item in post_order(function):
        if id(item) in made:
            continue
        rebuilt = _rebound(with_children(item, [made[id(child)] for child in children(item)]), fresh)
        if rebuilt.type is None:
            rebuilt.type = item.type
        if rebuilt.span is None:
            rebuilt.span = item.span
        made[id(item)] = rebuilt
    result = made[id(function)]
    assert isinstance(result, Function)
    return result


def _rebound(item: GraphExpr, fresh: dict[Var, Var]) -> GraphExpr:
    if isinstance(item, Let):
        return Let(fresh[item.var], item.value, item.body)
    if isinstance(item, Function):
        return item.replace(params=tuple(fresh[var] for var in item.params))
    if isinstance(item, Match):
        clauses = tuple(Clause(_renamed(clause.pattern, fresh), clause.body) for clause in item.clauses)
        return Match(item.value, clauses)
    return item


def _renamed(pattern: Pattern, fresh: dict[Var, Var]) -> Pattern:
    if isinstance(pattern, VarPattern):
        return VarPattern(fresh[pattern.var])
    if isinstance(pattern, TuplePattern):
        return TuplePattern(tuple(_renamed(part, fresh) for part in pattern.patterns))
    if isinstance(pattern, ConstructorPattern):
        return ConstructorPattern(pattern.constructor, tuple(_renamed(part, fresh) for part in pattern.patterns))
    return pattern


