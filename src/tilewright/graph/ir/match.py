"""Exhaustiveness of match clauses: finds a case that no clause covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.graph.ir.expr import (
    ConstructorPattern,
    Pattern,
    TuplePattern,
    VarPattern,
    WildcardPattern,
)
from tilewright.ir.function import Constructor, TypeDefinition

Row = tuple[Pattern, ...]
_ANY = WildcardPattern()


def missing_case(patterns: Sequence[Pattern], types: Mapping[str, TypeDefinition]) -> str | None:
    """The text of a value that none of the patterns matches, or None if they cover everything."""
    found = _missing([(pattern,) for pattern in patterns], 1, types)
    return None if found is None else found[0]


def _missing(rows: list[Row], width: int, types: Mapping[str, TypeDefinition]) -> list[str] | None:
    """Texts of `width` values that no row matches (the classical matrix algorithm, one column at a time)."""
    if width == 0:
        return None if rows else []
    heads = [row[0] for row in rows]
    tuple_head = next((head for head in heads if isinstance(head, TuplePattern)), None)
    if tuple_head is not None:
        arity = len(tuple_head.patterns)
        found = _missing(_open_tuples(rows, arity), arity + width - 1, types)
        return None if found is None else [f"({', '.join(found[:arity])})", *found[arity:]]
    constructors = [head.constructor for head in heads if isinstance(head, ConstructorPattern)]
    if constructors and constructors[0].type_name in types:
        for constructor in types[constructors[0].type_name].constructors:
            arity = len(constructor.fields_types)
            found = _missing(_open_constructor(rows, constructor), arity + width - 1, types)
            if found is not None:
                return [f"{constructor.name}({', '.join(found[:arity])})", *found[arity:]]
        return None
    rest = [row[1:] for row in rows if isinstance(row[0], (WildcardPattern, VarPattern))]
    found = _missing(rest, width - 1, types)
    return None if found is None else ["_", *found]


def _open_tuples(rows: list[Row], arity: int) -> list[Row]:
    opened: list[Row] = []
    for head, *rest in rows:
        if isinstance(head, TuplePattern):
            opened.append((*head.patterns, *rest))
        elif isinstance(head, (WildcardPattern, VarPattern)):
            opened.append((*[_ANY] * arity, *rest))
    return opened


def _open_constructor(rows: list[Row], constructor: Constructor) -> list[Row]:
    arity = len(constructor.fields_types)
    opened: list[Row] = []
    for head, *rest in rows:
        if isinstance(head, ConstructorPattern):
            if head.constructor is constructor:
                opened.append((*head.patterns, *rest))
        elif isinstance(head, (WildcardPattern, VarPattern)):
            opened.append((*[_ANY] * arity, *rest))
    return opened
