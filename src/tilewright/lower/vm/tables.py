"""The tables of a program while it is made: segments, constants, host calls, constructors, extents, functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.graph.ir.expr import Call, Constant, Function
from tilewright.graph.ir.op import Operator
from tilewright.graph.ops.host import host_attributes
from tilewright.ir.function import Constructor
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
from tilewright.lower.constants import ConstantStore
from tilewright.lower.segment import KernelSet, Segment, lower_segment, tensor_dims
from tilewright.lower.symbols import SymbolTable
from tilewright.runtime.core.artifact import Extent
from tilewright.runtime.vm.program import (
    BlobConstant,
    ConstructorInfo,
    HostCall,
    Program,
    TextConstant,
    VmFunction,
)
from tilewright.runtime.vm.types import DataDefinition, Kind, ValueType
from tilewright.support.errors import CompilerBug, UnsupportedError

T = TypeVar("T")


class _Table(dict[T, int]):
    """Distinct items, numbered."""

    def number(self, item: T) -> int:
        """The number of an item."""
        return self.setdefault(item, len(self))


@dataclass(eq=False)
class Tables:
    """What the functions of a program share."""

    name: str
    kernels: KernelSet
    symbols: SymbolTable
    segments: list[Segment] = field(default_factory=list)
    functions: list[VmFunction | None] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    hosts: _Table[HostCall] = field(default_factory=_Table)
    constructors: _Table[ConstructorInfo] = field(default_factory=_Table)
    extents: _Table[Extent] = field(default_factory=_Table)
    texts: _Table[str] = field(default_factory=_Table)
    _constants: dict[int, int] = field(default_factory=dict)
    _constructors: dict[int, int] = field(default_factory=dict)

    def segment(self, function: Function, outputs: int) -> tuple[int, Segment]:
        """Plan a straight run of kernels as a segment."""
        number = len(self.segments)
        names = [f"r{n}" for n in range(outputs)]
        segment = lower_segment(function, f"{self.name}_segment{number}", names, self.kernels, self.symbols)
        self.segments.append(segment)
        return number, segment

    def constant(self, item: Constant) -> int:
        """The number of a constant that the machine itself reads."""
        number = self._constants.get(id(item))
        if number is None:
            number = self._constants[id(item)] = len(self.constants)
            self.constants.append(item)
        return number

    def host(self, call: Call, where: str) -> int:
        """The number of a host call."""
        assert isinstance(call.callee, Operator)
        attributes = () if call.attributes is None else tuple(host_attributes(call.attributes).items())
        return self.hosts.number(HostCall(call.callee.name, attributes, where))

    def declare(self, constructor: Constructor, number: int) -> None:
        """Make a constructor known; `number` is its place in its type."""
        info = ConstructorInfo(constructor.type_name, constructor.name, number, len(constructor.fields_types))
        self._constructors[id(constructor)] = self.constructors.number(info)

    def constructor(self, constructor: Constructor) -> int:
        """The number of a constructor."""
        if id(constructor) not in self._constructors:
            raise CompilerBug(f"the module has no data type with the constructor {constructor.name}")
        return self._constructors[id(constructor)]

    def reserve(self) -> int:
        """The number of a function that will be there later."""
        self.functions.append(None)
        return len(self.functions) - 1

    def program(
        self, store: ConstantStore, inputs: Sequence[ValueType], definitions: Sequence[DataDefinition]
    ) -> Program:
        """The finished program; its constants go to the store."""
        functions = tuple(function for function in self.functions if function is not None)
        if len(functions) != len(self.functions):
            raise CompilerBug("a function of the program was never made")
        return Program(
            functions,
            tuple(_stored(item, store) for item in self.constants),
            tuple(self.hosts),
            tuple(self.constructors),
            tuple(self.extents),
            tuple(self.texts),
            tuple(inputs),
            tuple(definitions),
        )


def _stored(item: Constant, store: ConstantStore) -> BlobConstant | TextConstant:
    shape = tuple(int(dim) for dim in item.data.shape)
    if item.dtype.is_string:
        return TextConstant(shape, tuple(str(text) for text in item.data.reshape(-1)))
    return BlobConstant(store.add(item, None), shape, str(item.dtype))


def held_type(kind: Type, names: SymbolTable, variables: Sequence[TypeVariable] = ()) -> ValueType:
    """The type of an item of a sequence or of a field of data: what only a run knows of its sizes is not checked."""
    if isinstance(kind, TensorType) and (kind.shape is None or None in kind.shape):
        return ValueType(Kind.ANY_SHAPE, str(kind.dtype))
    return value_type(kind, names, variables)


def value_type(kind: Type | None, names: SymbolTable, variables: Sequence[TypeVariable] = ()) -> ValueType:
    """A type as the border of a program checks it."""
    if isinstance(kind, TensorType):
        if kind.shape is None:
            return ValueType(Kind.ANY_SHAPE, str(kind.dtype))
        if any(dim is None for dim in kind.shape):
            raise UnsupportedError("an input of a compiled model needs dimensions that are numbers or symbols")
        return ValueType(Kind.TENSOR, str(kind.dtype), tuple(names.extent(dim) for dim in tensor_dims(kind)))
    if isinstance(kind, TupleType):
        return ValueType(Kind.TUPLE, items=tuple(value_type(item, names, variables) for item in kind.items))
    if isinstance(kind, (SequenceType, OptionalType)):
        item = held_type(kind.item, names, variables)
        return ValueType(Kind.SEQUENCE if isinstance(kind, SequenceType) else Kind.OPTIONAL, items=(item,))
    if isinstance(kind, DataTypeName):
        return ValueType(Kind.DATA, kind.name)
    if isinstance(kind, DataTypeCall):
        items = tuple(value_type(item, names, variables) for item in kind.arguments)
        return ValueType(Kind.DATA, kind.name.name, items=items)
    if isinstance(kind, TypeVariable) and kind in variables:
        return ValueType(Kind.VARIABLE, number=list(variables).index(kind))
    if isinstance(kind, FunctionType):
        return ValueType(Kind.FUNCTION)
    raise UnsupportedError(f"a value of the type {kind!r} cannot be passed to a compiled model")
