"""Cotangents while they come together: sums over the uses of a value, zeros that are never built, items of tuples.

The cotangent of a value has its type. That of a tuple is kept as `Parts`, one an item, None for an item that has none;
a cotangent that nobody contributed to is not there at all. Only where a whole value is asked for (at the edge of a
function or a branch) zeros are built. What has no derivative (integers in a tuple) is filled with the value itself,
which nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.graph.gradient.expressions import add, item, tuple_of, with_type, zeros_like
from tilewright.graph.ir.expr import (
    Call,
    Clause,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    Match,
    Pattern,
    Var,
    VarPattern,
    WildcardPattern,
)
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make
from tilewright.ir.function import Constructor, TypeDefinition
from tilewright.ir.types import (
    DataTypeCall,
    DataTypeName,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    TypeVariable,
)
from tilewright.support.errors import UserError


@dataclass(frozen=True, eq=False)
class Parts:
    """The cotangent of a tuple, item by item."""

    items: tuple[Cotangent | None, ...]


@dataclass(frozen=True, eq=False)
class OneItem:
    """A cotangent of one item of a tuple."""

    index: int
    value: Cotangent


Cotangent = GraphExpr | Parts
Contribution = Cotangent | OneItem


class DataCotangents:
    """Zeros and sums of algebraic data, which are functions of the module, one a type, made when they are needed."""

    def __init__(self, types: dict[str, TypeDefinition], name_for: Callable[[str], str]) -> None:
        self.types = types
        self.functions: dict[str, Function] = {}
        self._names: dict[tuple[str, Type], str] = {}
        self._name_for = name_for

    def combine(self, contributions: Sequence[Contribution], kind: Type | None) -> Cotangent:
        """The sum of what the uses of a value contribute."""
        if isinstance(kind, TupleType):
            items: list[list[Contribution]] = [[] for _ in kind.items]
            for given in contributions:
                if isinstance(given, OneItem):
                    items[given.index].append(given.value)
                    continue
                for index, part in enumerate(self.parts(given, kind).items):
                    if part is not None:
                        items[index].append(part)
            merged = zip(items, kind.items, strict=True)
            return Parts(tuple(self.combine(part, found) if part else None for part, found in merged))
        result: GraphExpr | None = None
        for given in contributions:
            assert isinstance(given, GraphExpr)
            result = given if result is None else self._sum(result, given, kind)
        assert result is not None
        return result

    def parts(self, value: Cotangent, kind: TupleType) -> Parts:
        """The cotangent of a tuple by items."""
        if isinstance(value, Parts):
            return value
        return Parts(tuple(item(value, index) for index in range(len(kind.items))))

    def whole(self, value: Cotangent | None, primal: GraphExpr) -> GraphExpr:
        """A cotangent as one expression, with zeros where there is none."""
        if isinstance(primal.type, TupleType):
            parts = Parts((None,) * len(primal.type.items)) if value is None else self.parts(value, primal.type)
            return tuple_of([self.whole(part, item(primal, index)) for index, part in enumerate(parts.items)])
        if value is None:
            return self.zeros(primal)
        assert isinstance(value, GraphExpr)
        return with_type(value, primal.type)

    def zeros(self, primal: GraphExpr) -> GraphExpr:
        """The zero of the type of a value."""
        kind = primal.type
        if isinstance(kind, TensorType):
            return zeros_like(primal) if kind.dtype.is_float else primal
        if isinstance(kind, TupleType):
            return tuple_of([self.zeros(item(primal, index)) for index in range(len(kind.items))])
        if isinstance(kind, (DataTypeCall, DataTypeName)):
            return self._call("zeros", kind, primal)
        return zero_sequence(primal)

    def _sum(self, a: GraphExpr, b: GraphExpr, kind: Type | None) -> GraphExpr:
        if isinstance(kind, TensorType):
            return add(with_type(a, kind), with_type(b, kind)) if kind.dtype.is_float else a
        if isinstance(kind, TupleType):
            pairs = enumerate(kind.items)
            return tuple_of([self._sum(item(a, index), item(b, index), found) for index, found in pairs])
        if isinstance(kind, (DataTypeCall, DataTypeName)):
            return self._call("sum", kind, a, b)
        assert isinstance(kind, (SequenceType, OptionalType, type(None)))
        raise UserError("the gradient of a sequence that is used more than once", hint="use its items instead")

    def _call(self, what: str, kind: DataTypeCall | DataTypeName, *args: GraphExpr) -> GraphExpr:
        name = self._names.get((what, kind))
        if name is None:
            plain = kind.name.name if isinstance(kind, DataTypeCall) else kind.name
            name = self._names[(what, kind)] = self._name_for(f"{what}_of_{plain}")
            params = tuple(Var(f"value_{number}", kind) for number in range(len(args)))
            body = self._zero_body(params[0], kind) if what == "zeros" else self._sum_body(*params, kind)
            self.functions[name] = Function(name, params, body, kind)
        result = Call(GlobalVar(name), args)
        result.type = kind
        return result

    def _constructors(self, kind: DataTypeCall | DataTypeName) -> list[tuple[Constructor, list[Type]]]:
        """The constructors of a type with the types of their fields."""
        name = kind.name.name if isinstance(kind, DataTypeCall) else kind.name
        definition = self.types[name]
        arguments = kind.arguments if isinstance(kind, DataTypeCall) else ()
        known = dict(zip(definition.type_parameters, arguments, strict=True))
        return [(made, [instantiated(field, known) for field in made.fields_types]) for made in definition.constructors]

    def fields_of(self, made: Constructor, kind: Type | None) -> list[Type]:
        """The types of the fields of a constructor in a value of a type."""
        assert isinstance(kind, (DataTypeCall, DataTypeName))
        return next(fields for found, fields in self._constructors(kind) if found is made)

    def _zero_body(self, value: Var, kind: DataTypeCall | DataTypeName) -> GraphExpr:
        clauses = []
        for made, fields in self._constructors(kind):
            pattern, variables = constructor_pattern(made, fields)
            clauses.append(Clause(pattern, construct(made, [self.zeros(var) for var in variables], kind)))
        return _match(value, clauses, kind)

    def _sum_body(self, a: Var, b: Var, kind: DataTypeCall | DataTypeName) -> GraphExpr:
        clauses = []
        choices = self._constructors(kind)
        for made, fields in choices:
            first, mine = constructor_pattern(made, fields)
            second, other = constructor_pattern(made, fields)
            merged = [self._sum(x, y, found) for x, y, found in zip(mine, other, fields, strict=True)]
            # Two cotangents of one value have one structure: the other clause is never taken.
            never = [Clause(WildcardPattern(), a)] if len(choices) > 1 else []
            inner = [Clause(second, construct(made, merged, kind)), *never]
            clauses.append(Clause(first, _match(b, inner, kind)))
        return _match(a, clauses, kind)


def zero_sequence(primal: GraphExpr) -> GraphExpr:
    """The zero of a sequence whose items are known."""
    if isinstance(primal, Call) and is_call_to(primal, "sequence.make"):
        return make("sequence.make", *map(zeros_like, primal.args), result=primal.type)
    raise UserError(
        "the gradient needs a zero for a sequence or an optional value, which a run alone knows the length of",
        where=None if primal.span is None else str(primal.span),
    )


def instantiated(kind: Type, known: dict[TypeVariable, Type]) -> Type:
    """A type with its type variables replaced."""
    if isinstance(kind, TypeVariable):
        return known[kind]
    if isinstance(kind, TupleType):
        return TupleType(tuple(instantiated(part, known) for part in kind.items))
    if isinstance(kind, DataTypeCall):
        return DataTypeCall(kind.name, tuple(instantiated(part, known) for part in kind.arguments))
    return kind


def constructor_pattern(made: Constructor, fields: Sequence[Type]) -> tuple[Pattern, list[Var]]:
    """A pattern for values of a constructor, and the variables that it binds to their fields."""
    variables = []
    for number, kind in enumerate(fields):
        var = Var(f"field_{number}")
        var.type = kind
        variables.append(var)
    return ConstructorPattern(made, tuple(VarPattern(var) for var in variables)), variables


def construct(made: Constructor, fields: Sequence[GraphExpr], kind: Type | None) -> GraphExpr:
    """A value of a constructor."""
    result = Call(ConstructorRef(made), tuple(fields))
    result.type = kind
    return result


def _match(value: GraphExpr, clauses: list[Clause], kind: Type) -> GraphExpr:
    result = Match(value, tuple(clauses))
    result.type = kind
    return result
