"""Unification of graph types: holes, instantiation of polymorphic and shape-polymorphic functions, showing types."""

from __future__ import annotations

from tilewright.graph.ir.dimensions import as_dim, same
from tilewright.ir.expr import BinaryExpr, IntImm, Max, Min, PrimExpr
from tilewright.ir.expr import Var as DimensionVar
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
from tilewright.ir.visit import substitute, variables


class Mismatch(Exception):
    """Two types do not unify; the text says which parts differ."""


def same_dimension(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two dimensions are provably equal."""
    return a is b or same(a, b)


class Unifier:
    """A set of holes (unknown types) and what is known about them."""

    def __init__(self) -> None:
        self._holes: dict[int, TypeVariable] = {}
        self._values: dict[int, Type] = {}

    def hole(self, name: str) -> TypeVariable:
        """A new unknown type."""
        result = TypeVariable(name)
        self._holes[id(result)] = result
        return result

    def is_hole(self, value: Type) -> bool:
        """Whether a resolved type is still unknown."""
        return id(value) in self._holes

    def is_ground(self, value: Type) -> bool:
        """Whether a resolved type has no unknown part."""
        if not self._holes or isinstance(value, TensorType):
            return True
        if isinstance(value, TypeVariable):
            return id(value) not in self._holes
        return all(self.is_ground(part) for part in _parts(value))

    def resolve(self, value: Type) -> Type:
        """The type with everything known about holes filled in."""
        if not self._values or isinstance(value, TensorType):
            return value
        if isinstance(value, TypeVariable):
            found = self._values.get(id(value))
            return value if found is None else self.resolve(found)
        return _map_parts(value, self.resolve)

    def instantiate(self, value: FunctionType) -> FunctionType:
        """A polymorphic function type with a new hole for each type parameter."""
        if not value.type_parameters:
            return value
        fresh = {id(parameter): self.hole(parameter.name) for parameter in value.type_parameters}

        def replace(part: Type) -> Type:
            if isinstance(part, TypeVariable):
                return fresh.get(id(part), part)
            return _map_parts(part, replace)

        return FunctionType(tuple(replace(p) for p in value.parameters), replace(value.result))

    def value_type(self, value: Type) -> Type:
        """The type of a use of a value: polymorphic functions are instantiated."""
        value = self.resolve(value)
        return self.instantiate(value) if isinstance(value, FunctionType) else value

    def bind_dimensions(self, callee: FunctionType, arguments: list[Type]) -> FunctionType:
        """A function type with the symbolic dimensions of its parameters replaced by those of the arguments."""
        mapping: dict[DimensionVar, PrimExpr] = {}
        for parameter, argument in zip(callee.parameters, arguments, strict=True):
            self._match_dimensions(parameter, argument, mapping)
        mapping = {var: value for var, value in mapping.items() if var is not value}
        if not mapping:
            return callee

        def replace(part: Type) -> Type:
            if not isinstance(part, TensorType):
                return _map_parts(part, replace)
            changed = substitute(part, mapping)
            if changed is part or changed.shape is None:
                return changed
            return TensorType(tuple(None if dim is None else as_dim(dim) for dim in changed.shape), changed.dtype)

        return FunctionType(tuple(replace(p) for p in callee.parameters), replace(callee.result))

    def _match_dimensions(self, parameter: Type, argument: Type, mapping: dict[DimensionVar, PrimExpr]) -> None:
        argument = self.resolve(argument)
        if isinstance(parameter, TensorType) and isinstance(argument, TensorType):
            if parameter.shape is None or argument.shape is None or len(parameter.shape) != len(argument.shape):
                return
            for expected, given in zip(parameter.shape, argument.shape, strict=True):
                if isinstance(expected, DimensionVar) and given is not None:
                    mapping.setdefault(expected, given)
        elif isinstance(parameter, TupleType) and isinstance(argument, TupleType):
            for a, b in zip(parameter.items, argument.items, strict=False):
                self._match_dimensions(a, b, mapping)
        elif isinstance(parameter, (SequenceType, OptionalType)) and type(parameter) is type(argument):
            self._match_dimensions(parameter.item, _parts(argument)[0], mapping)

    def unify(self, a: Type, b: Type) -> Type:
        """Make two types equal by filling holes; the common type, or `Mismatch`. Unknown dimensions fit any."""
        if a is b:
            return a
        a, b = self._shallow(a), self._shallow(b)
        if a is b:
            return a
        if self.is_hole(a):
            return self._fill(a, b)
        if self.is_hole(b):
            return self._fill(b, a)
        a, b = _as_call(a), _as_call(b)
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            return _join_tensors(a, b)
        if isinstance(a, TupleType) and isinstance(b, TupleType):
            if len(a.items) != len(b.items):
                raise Mismatch(f"tuples of {len(a.items)} and {len(b.items)} items")
            return TupleType(tuple(self.unify(x, y) for x, y in zip(a.items, b.items, strict=True)))
        if isinstance(a, SequenceType) and isinstance(b, SequenceType):
            return SequenceType(self.unify(a.item, b.item))
        if isinstance(a, OptionalType) and isinstance(b, OptionalType):
            return OptionalType(self.unify(a.item, b.item))
        if isinstance(a, FunctionType) and isinstance(b, FunctionType):
            a, b = self.instantiate(a), self.instantiate(b)
            if len(a.parameters) != len(b.parameters):
                raise Mismatch(f"functions of {len(a.parameters)} and {len(b.parameters)} parameters")
            parameters = tuple(self.unify(x, y) for x, y in zip(a.parameters, b.parameters, strict=True))
            return FunctionType(parameters, self.unify(a.result, b.result))
        if isinstance(a, DataTypeCall) and isinstance(b, DataTypeCall) and a.name is b.name:
            if len(a.arguments) != len(b.arguments):
                raise Mismatch(f"{a.name.name} with {len(a.arguments)} and {len(b.arguments)} type arguments")
            return DataTypeCall(a.name, tuple(self.unify(x, y) for x, y in zip(a.arguments, b.arguments, strict=True)))
        raise Mismatch(f"{show_type(self.resolve(a))} is not {show_type(self.resolve(b))}")

    def join(self, a: Type, b: Type) -> Type:
        """The type of a value that is of one type or another: what differs in their shapes is not known of it."""
        a, b = self.resolve(a), self.resolve(b)
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is b.dtype:
            if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
                return TensorType(None, a.dtype)
            pairs = zip(a.shape, b.shape, strict=True)
            return TensorType(tuple(x if x is not None and y is not None and same_dimension(x, y) else None
                                    for x, y in pairs), a.dtype)  # fmt: skip
        if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.items) == len(b.items):
            return TupleType(tuple(self.join(x, y) for x, y in zip(a.items, b.items, strict=True)))
        if isinstance(a, SequenceType) and isinstance(b, SequenceType):
            return SequenceType(self.join(a.item, b.item))
        if isinstance(a, OptionalType) and isinstance(b, OptionalType):
            return OptionalType(self.join(a.item, b.item))
        return self.unify(a, b)

    def _shallow(self, value: Type) -> Type:
        while isinstance(value, TypeVariable) and id(value) in self._values:
            value = self._values[id(value)]
        return value

    def _fill(self, hole: Type, value: Type) -> Type:
        if self._occurs(hole, value):
            raise Mismatch("the type would contain itself")
        self._values[id(hole)] = value
        return value

    def _occurs(self, hole: Type, value: Type) -> bool:
        value = self.resolve(value)
        return value is hole or any(self._occurs(hole, part) for part in _parts(value))


def _as_call(value: Type) -> Type:
    return DataTypeCall(value, ()) if isinstance(value, DataTypeName) else value


def _parts(value: Type) -> tuple[Type, ...]:
    if isinstance(value, TupleType):
        return value.items
    if isinstance(value, (SequenceType, OptionalType)):
        return (value.item,)
    if isinstance(value, FunctionType):
        return (*value.parameters, value.result)
    if isinstance(value, DataTypeCall):
        return value.arguments
    return ()


def _map_parts(value: Type, function: object) -> Type:
    assert callable(function)
    if isinstance(value, TupleType):
        return TupleType(tuple(function(part) for part in value.items))
    if isinstance(value, (SequenceType, OptionalType)):
        return type(value)(function(value.item))
    if isinstance(value, FunctionType):
        parameters = tuple(function(part) for part in value.parameters)
        return FunctionType(parameters, function(value.result), value.type_parameters)
    if isinstance(value, DataTypeCall):
        return DataTypeCall(value.name, tuple(function(part) for part in value.arguments))
    return value


def _join_tensors(a: TensorType, b: TensorType) -> TensorType:
    if a.dtype is not b.dtype:
        raise Mismatch(f"data types {a.dtype} and {b.dtype}")
    if a.shape is None or b.shape is None:
        return TensorType(None, a.dtype)
    if len(a.shape) != len(b.shape):
        raise Mismatch(f"ranks {len(a.shape)} and {len(b.shape)}")
    dims: list[PrimExpr | None] = []
    for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
        if x is None or y is None:
            dims.append(None)
        elif same_dimension(x, y):
            dims.append(x)
        else:
            raise Mismatch(f"dimension {axis} is {show_dimension(x)} and {show_dimension(y)}")
    return TensorType(tuple(dims), a.dtype)


def show_dimension(dim: PrimExpr | None) -> str:
    """A dimension as short text for messages."""
    if dim is None:
        return "?"
    if isinstance(dim, IntImm):
        return str(dim.value)
    if isinstance(dim, DimensionVar):
        return dim.name
    if isinstance(dim, (Min, Max)):
        return f"{type(dim).__name__.lower()}({show_dimension(dim.a)}, {show_dimension(dim.b)})"
    if isinstance(dim, BinaryExpr) and dim.symbol:
        return f"({show_dimension(dim.a)} {dim.symbol} {show_dimension(dim.b)})"
    return f"an expression of {', '.join(var.name for var in variables(dim))}"


def show_type(value: Type) -> str:
    """A type as short text for messages."""
    if isinstance(value, TensorType):
        if value.shape is None:
            return f"{value.dtype}[...]"
        return f"{value.dtype}[{', '.join(show_dimension(dim) for dim in value.shape)}]"
    if isinstance(value, TupleType):
        return f"({', '.join(show_type(item) for item in value.items)})"
    if isinstance(value, (SequenceType, OptionalType)):
        return f"{'sequence' if isinstance(value, SequenceType) else 'optional'}({show_type(value.item)})"
    if isinstance(value, FunctionType):
        return f"({', '.join(show_type(p) for p in value.parameters)}) -> {show_type(value.result)}"
    if isinstance(value, DataTypeCall):
        inner = ", ".join(show_type(argument) for argument in value.arguments)
        return f"{value.name.name}[{inner}]" if inner else value.name.name
    if isinstance(value, (DataTypeName, TypeVariable)):
        return value.name
    return repr(value)
