"""Reading types and dimensions of the graph dialect from syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tilewright.graph.text.reading import Source, read_literal
from tilewright.graph.text.words import data_type_names
from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.function import TypeDefinition
from tilewright.ir.types import (
    DataTypeCall,
    DataTypeName,
    FunctionType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    TypeVariable,
)
from tilewright.support.errors import UserError

_OPERATORS: Mapping[type[ast.operator], Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    ast.Add: e.Add,
    ast.Sub: e.Sub,
    ast.Mult: e.Mul,
    ast.FloorDiv: e.FloorDiv,
    ast.Mod: e.FloorMod,
}


_LITERAL_NAMES = data_type_names() | {"inf", "nan"}
"""Names that are values of attributes of their own; other names are dimensions."""


class TypeReader:
    """Types of one text: symbolic dimensions of the same name are the same variable."""

    def __init__(self, source: Source, types: Mapping[str, TypeDefinition]) -> None:
        self.source = source
        self.types = types
        self.dimensions: dict[str, e.Var] = {}
        self._variables: list[Mapping[str, TypeVariable]] = []

    @contextmanager
    def type_variables(self, variables: Mapping[str, TypeVariable]) -> Iterator[None]:
        """Make type variables known inside a `with` body."""
        self._variables.append(variables)
        try:
            yield
        finally:
            self._variables.pop()

    def read(self, place: ast.expr, variables: Mapping[str, TypeVariable] | None = None) -> Type:
        """The type that an expression names."""
        if variables is not None:
            with self.type_variables(variables):
                return self.read(place)
        if isinstance(place, ast.Name):
            for known in reversed(self._variables):
                if place.id in known:
                    return known[place.id]
            return DataTypeName(place.id)
        if not (isinstance(place, ast.Subscript) and isinstance(place.value, ast.Name)):
            raise self.source.error(place, 'expected a type, e.g. Tensor[(1, 3), "float32"]')
        items = place.slice.elts if isinstance(place.slice, ast.Tuple) else [place.slice]
        name = place.value.id
        if name == "Tensor":
            return self._tensor(place, items)
        if name == "Tuple":
            return TupleType(tuple(self.read(item) for item in items))
        if name in ("Sequence", "Optional"):
            if len(items) != 1:
                raise self.source.error(place, f"expected {name}[item]")
            item = self.read(items[0])
            return SequenceType(item) if name == "Sequence" else OptionalType(item)
        if name == "Function":
            return self._function(place, items)
        return DataTypeCall(DataTypeName(name), tuple(self.read(item) for item in items))

    def _tensor(self, place: ast.expr, items: list[ast.expr]) -> Type:
        if len(items) != 2:
            raise self.source.error(place, 'expected Tensor[shape, "dtype"]')
        dtype = read_literal(items[1], self.source)
        try:
            found = DataType.of(dtype)  # type: ignore[arg-type]
        except UserError as error:
            raise self.source.error(items[1], error.message, error.hint) from None
        if isinstance(items[0], ast.Constant) and items[0].value is None:
            return TensorType(None, found)
        if not isinstance(items[0], ast.Tuple):
            raise self.source.error(items[0], "a shape is a tuple of dimensions, or None")
        return TensorType(tuple(self.dimension(item) for item in items[0].elts), found)

    def _function(self, place: ast.expr, items: list[ast.expr]) -> Type:
        if len(items) not in (2, 3) or not isinstance(items[0], ast.List):
            raise self.source.error(place, "expected Function[[parameters], result]")
        variables: dict[str, TypeVariable] = {}
        if len(items) == 3 and isinstance(items[2], ast.List):
            names = [item.id for item in items[2].elts if isinstance(item, ast.Name)]
            variables = {name: TypeVariable(name) for name in names}
        with self.type_variables(variables):
            parameters = tuple(self.read(item) for item in items[0].elts)
            return FunctionType(parameters, self.read(items[1]), tuple(variables.values()))

    def attribute(self, place: ast.expr) -> object:
        """The value of an attribute: a literal, a size, a type, or a tuple of these."""
        if isinstance(place, ast.Tuple):
            return tuple(self.attribute(item) for item in place.elts)
        if isinstance(place, ast.Subscript):
            return self.read(place)
        if isinstance(place, (ast.BinOp, ast.Call)):
            return self._dimension(place)
        if isinstance(place, ast.Name) and place.id not in _LITERAL_NAMES:
            return self._dimension(place)
        return read_literal(place, self.source)

    def dimension(self, place: ast.expr) -> PrimExpr | None:
        """A dimension: a number, None, a name, or arithmetic on these."""
        if isinstance(place, ast.Constant) and place.value is None:
            return None
        return self._dimension(place)

    def _dimension(self, place: ast.expr) -> PrimExpr:
        if isinstance(place, ast.Constant) and isinstance(place.value, int):
            return IntImm(place.value)
        if (
            isinstance(place, ast.UnaryOp)
            and isinstance(place.op, ast.USub)
            and isinstance(place.operand, ast.Constant)
        ):
            value = place.operand.value
            if isinstance(value, int):
                return IntImm(-value)
        if isinstance(place, ast.Name):
            return self.dimensions.setdefault(place.id, e.Var(place.id))
        if isinstance(place, ast.BinOp) and type(place.op) in _OPERATORS:
            kind = _OPERATORS[type(place.op)]
            return kind(self._dimension(place.left), self._dimension(place.right))
        if isinstance(place, ast.Call) and isinstance(place.func, ast.Name) and len(place.args) == 2:
            a, b = (self._dimension(arg) for arg in place.args)
            if place.func.id in ("min", "max"):
                return e.Min(a, b) if place.func.id == "min" else e.Max(a, b)
        raise self.source.error(place, "expected a dimension")
