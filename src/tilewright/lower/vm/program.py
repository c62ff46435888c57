"""A fused module with control flow, closures, data or host operators -> a program of the machine and its segments."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.graph.ir.expr import Constant, Function, GlobalVar, Tuple, TupleGet, Var
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.graph.ir.unify import show_type
from tilewright.graph.views import is_view
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.lower.constants import ConstantStore
from tilewright.lower.segment import KernelSet, Segment, tensor_dims
from tilewright.lower.symbols import SymbolTable
from tilewright.lower.vm.analysis import Analysis, is_kernel
from tilewright.lower.vm.function import Closures, FunctionLowering
from tilewright.lower.vm.tables import Tables, held_type, value_type
from tilewright.runtime.core.artifact import ModelInfo, TensorInfo
from tilewright.runtime.vm.codec import encode
from tilewright.runtime.vm.program import Program
from tilewright.runtime.vm.types import DataDefinition, ValueType
from tilewright.support.errors import UnsupportedError


def needs_machine(main: Function) -> bool:
    """Whether a function is more than one straight run of kernels whose sizes the shapes of its inputs decide."""
    if not all(isinstance(param.type, TensorType) for param in main.params):
        return True
    for item in post_order(main, closures=False):
        known = isinstance(item, (Tuple, TupleGet, Constant)) or is_kernel(item) or is_view(item)
        if not known and not (isinstance(item, Var) and isinstance(item.type, TensorType)):
            if item is main or (isinstance(item, Function) and item.notes.get("primitive")):
                continue
            return True
    bound = {dim for param in main.params for dim in tensor_dims(param.type) if isinstance(dim, Symbol)}
    if not bound:
        # Other symbols would come from host operators, which were not there.
        return any(_holds_text(param.type) for param in main.params)
    used = {s for item in post_order(main, closures=False) if is_kernel(item) for s in Analysis.symbols(item)}
    return not used <= bound or any(_holds_text(param.type) for param in main.params)


def _holds_text(kind: Type | None) -> bool:
    return isinstance(kind, TensorType) and kind.dtype.is_string


@dataclass(eq=False)
class LoweredProgram:
    """A program before its constants have places."""

    tables: Tables
    inputs: tuple[ValueType, ...]
    definitions: tuple[DataDefinition, ...]
    info: ModelInfo

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The straight runs of kernels."""
        return tuple(self.tables.segments)

    def program(self, store: ConstantStore) -> Program:
        """The program; the constants that it reads itself go to the store."""
        return self.tables.program(store, self.inputs, self.definitions)

    def model(self, store: ConstantStore, segments: Sequence[ModelInfo]) -> ModelInfo:
        """The model's description with its bytecode, around segments whose constants are stored."""
        text = b64encode(encode(self.program(store))).decode()
        return replace(self.info, program=text, segments=tuple(segments))


def lower_program(
    module: IRModule, entry: str, name: str, outputs: Sequence[str], kernels: KernelSet
) -> LoweredProgram:
    """Lower the entry and all functions that it reaches."""
    symbols = SymbolTable()
    tables = Tables(name, kernels, symbols)
    for definition in module.types.values():
        for number, constructor in enumerate(definition.constructors):
            tables.declare(constructor, number)
    functions = graph_functions(module)
    closures = Closures(tables)
    reached = _reached(functions, entry)
    for function_name in reached:
        closures.globals[function_name] = tables.reserve()
    for function_name in reached:
        function = functions[function_name]
        analysis = Analysis(function)
        lowering = FunctionLowering(analysis, function, analysis.body, closures)
        number = closures.globals[function_name]
        tables.functions[number] = lowering.lower(function_name, is_entry=function_name == entry)
    main = functions[entry]
    info = ModelInfo(
        name=name,
        inputs=tuple(_info(param.name, param.type, symbols) for param in main.params),
        outputs=tuple(_info(label, kind, symbols) for label, kind in zip(outputs, _results(main), strict=True)),
        workspace_bytes=0,
    )
    inputs = tuple(value_type(param.type, symbols) for param in main.params)
    return LoweredProgram(tables, inputs, _definitions(module, symbols), info)


def _reached(functions: dict[str, Function], entry: str) -> list[str]:
    """The functions that an entry calls, directly or through others, the entry first."""
    reached = [entry]
    for name in reached:
        if name not in functions:
            raise UnsupportedError(f"the module's {name!r} is not a graph function")
        for item in post_order(functions[name]):
            if isinstance(item, GlobalVar) and item.name not in reached:
                reached.append(item.name)
    return reached


def _results(main: Function) -> tuple[Type | None, ...]:
    result = main.body.type
    return result.items if isinstance(result, TupleType) else (result,)


def _info(name: str, kind: Type | None, symbols: SymbolTable) -> TensorInfo:
    if isinstance(kind, TensorType) and kind.shape is not None and None not in kind.shape:
        return TensorInfo(name, tuple(symbols.extent(dim) for dim in tensor_dims(kind)), str(kind.dtype))
    return TensorInfo(name, (), "", "value" if kind is None else show_type(kind))


def _definitions(module: IRModule, symbols: SymbolTable) -> tuple[DataDefinition, ...]:
    definitions: list[DataDefinition] = []
    for definition in module.types.values():
        constructors = tuple(
            (c.name, tuple(held_type(kind, symbols, definition.type_parameters) for kind in c.fields_types))
            for c in definition.constructors
        )
        definitions.append(DataDefinition(definition.name, constructors))
    return tuple(definitions)
