"""Types, dimensions and attributes as text of the graph dialect."""

from __future__ import annotations

from tilewright.graph.text.words import Names, literal
from tilewright.ir import expr as e
from tilewright.ir.expr import IntImm, PrimExpr
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
from tilewright.support.errors import UnsupportedError


def dimension_text(dim: PrimExpr | None, names: Names) -> str:
    """A dimension: a number, None, or an expression of named dimensions."""
    if dim is None:
        return "None"
    if isinstance(dim, IntImm):
        return str(dim.value)
    if isinstance(dim, e.Var):
        return names.outermost.give(dim, dim.name)
    if isinstance(dim, (e.Min, e.Max)):
        name = "min" if isinstance(dim, e.Min) else "max"
        return f"{name}({dimension_text(dim.a, names)}, {dimension_text(dim.b, names)})"
    if isinstance(dim, (e.Add, e.Sub, e.Mul, e.FloorDiv, e.FloorMod)):
        return f"({dimension_text(dim.a, names)} {dim.symbol} {dimension_text(dim.b, names)})"
    raise UnsupportedError(f"a dimension with a {type(dim).__name__} has no text form")


def attribute_text(value: object, names: Names) -> str | None:
    """The value of an attribute: a literal, a size, a type, or a tuple of these; None if it has no text form."""
    if isinstance(value, PrimExpr):
        return dimension_text(value, names)
    if isinstance(value, Type):
        return type_text(value, names)
    if isinstance(value, tuple):
        parts = [attribute_text(item, names) for item in value]
        texts = [part for part in parts if part is not None]
        return _group(texts) if len(texts) == len(parts) else None
    return literal(value)


def _group(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def type_text(value: Type, names: Names) -> str:
    """A type."""
    if isinstance(value, TensorType):
        shape = "None" if value.shape is None else _group([dimension_text(dim, names) for dim in value.shape])
        return f'Tensor[{shape}, "{value.dtype}"]'
    if isinstance(value, TupleType):
        return f"Tuple[{_items(value.items, names)}]"
    if isinstance(value, (SequenceType, OptionalType)):
        word = "Sequence" if isinstance(value, SequenceType) else "Optional"
        return f"{word}[{type_text(value.item, names)}]"
    if isinstance(value, FunctionType):
        if value.type_parameters:
            fresh = ", ".join(names.outermost.give(parameter, parameter.name) for parameter in value.type_parameters)
            inner = ", ".join(type_text(part, names) for part in value.parameters)
            return f"Function[[{inner}], {type_text(value.result, names)}, [{fresh}]]"
        inner = ", ".join(type_text(part, names) for part in value.parameters)
        return f"Function[[{inner}], {type_text(value.result, names)}]"
    if isinstance(value, DataTypeCall):
        return f"{value.name.name}[{_items(value.arguments, names)}]"
    if isinstance(value, DataTypeName):
        return value.name
    if isinstance(value, TypeVariable):
        return names.outermost.give(value, value.name)
    raise UnsupportedError(f"the type {value!r} has no text form")


def _items(values: tuple[Type, ...], names: Names) -> str:
    if not values:
        return "()"
    return ", ".join(type_text(value, names) for value in values)
