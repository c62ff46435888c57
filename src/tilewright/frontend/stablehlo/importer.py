"""The import of StableHLO programs: text, portable bytecode, or a file of either."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.frontend.core.builder import check_size, dtype_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, each_part
from tilewright.frontend.stablehlo.bytecode import MAGIC, read_bytecode
from tilewright.frontend.stablehlo.program import (
    Block,
    FunctionDefinition,
    Operation,
    OtherSpec,
    Program,
    TensorSpec,
    TupleSpec,
    Value,
)
from tilewright.frontend.stablehlo.registry import Entry, find_converter, refusal
from tilewright.frontend.stablehlo.text import read_text
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Var
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.span import Span

_MOST_CALLS = 200
"""Functions that call each other: deeper ones are taken for an endless recursion."""
_OF_BROKEN_PROGRAMS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)
_TEXT_STARTS = ("module", "func.func", "#", "//", '"builtin.module"', "builtin.module", "!")


def from_stablehlo(
    program: str | bytes | os.PathLike[str], *, dimension_names: Mapping[tuple[int, int], str] | None = None
) -> IRModule:
    """Import a StableHLO program: its text, its portable bytecode (`bytes`), or the path of a file of either.

    The result has a function "main" whose parameters have the names that the program gives its inputs; its attributes
    hold `model_name` and `output_names`. Open dimensions are symbols, named by `dimension_names`
    ({(input, axis): name}), else after the input (`x_0`).
    """
    return import_program(read_program(program), dimension_names or {})


def read_program(source: str | bytes | os.PathLike[str]) -> Program:
    """The program in a text, in bytes, or in a file."""
    if isinstance(source, os.PathLike) or (isinstance(source, str) and not _is_text(source)):
        path = Path(source)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"the file '{path}' cannot be read: {error.strerror}") from None
        return read_program(content)
    if isinstance(source, str):
        return read_text(source)
    if bytes(source[:4]) == MAGIC:
        return read_bytecode(bytes(source))
    try:
        return read_text(bytes(source).decode())
    except UnicodeDecodeError:
        raise UserError(
            "the bytes are neither StableHLO text nor MLIR bytecode", hint="bytecode begins with the bytes ML\\xefR"
        ) from None


def _is_text(source: str) -> bool:
    return "\n" in source or source.lstrip().startswith(_TEXT_STARTS)


def import_program(
    program: Program,
    dimension_names: Mapping[tuple[int, int], str],
    unused: Mapping[int, tuple[tuple[int, ...], str]] | None = None,
) -> IRModule:
    """A program as a module of the graph IR.

    `unused` are inputs (by their places among all) that the program was given without, with their shapes and types.
    """
    return _ProgramImporter(program, dimension_names).module(unused or {})


class _ProgramImporter:
    """One import."""

    def __init__(self, program: Program, dimension_names: Mapping[tuple[int, int], str]) -> None:
        self.program, self.dimension_names = program, dimension_names
        self.builder = StableBuilder()
        self.builder.definitions = program.functions
        self.builder.run_block = self._run
        self.builder.call_function = self._call
        self.values: dict[Value, Any] = {}
        self.builder.lookup = self.values.get
        self.builder.redefine = self.values.__setitem__
        self.symbols: dict[str, Symbol] = {}
        self.depth = 0

    def module(self, unused: Mapping[int, tuple[tuple[int, ...], str]]) -> IRModule:
        """The whole program."""
        main = self.program.main
        names = _unique(_argument_names(self.program))
        params = [self._parameter(at, value, names[at]) for at, value in enumerate(main.body.arguments)]
        outputs = self._call(main.name, [self._value_of(param) for param in params])
        for place, (shape, dtype) in sorted(unused.items()):
            params.insert(place, Var(f"unused_{place}", tensor_type(shape, DataType.of(dtype))))
        results = _result_names(main, len(outputs))
        b = self.builder
        b.span = None
        kept = [self._output(value, name) for value, name in zip(outputs, results, strict=True)]
        if not kept:
            raise UserError("the program has no outputs")
        if b.required:
            kept = self._under_conditions(kept)
        function = Function("main", tuple(params), b.body(b.tuple(kept)))
        attributes = {"model_name": self.program.name, "output_names": tuple(_unique(results))}
        return IRModule([function, *b.functions], attributes=attributes)

    def _under_conditions(self, outputs: list[GraphExpr]) -> list[GraphExpr]:
        place = next((at for at, value in enumerate(outputs) if not isinstance(value, Constant)), None)
        if place is None:
            raise UnsupportedError("conditions on the sizes of a program that computes nothing")
        return [self.builder.under(v, self.builder.required) if at == place else v for at, v in enumerate(outputs)]

    def _parameter(self, place: int, value: Value, name: str) -> Var:
        spec = value.spec
        if not isinstance(spec, TensorSpec) or spec.is_complex:
            what = "complex numbers" if isinstance(spec, TensorSpec) else "no tensor"
            raise UnsupportedError(
                f"the input '{name}' is {what}",
                hint="take the real and the imaginary part as inputs, and join them by jax.lax.complex"
                if isinstance(spec, TensorSpec)
                else "take tensors one by one",
            )
        shape: list[Size] = []
        for axis, size in enumerate(spec.shape):
            shape.append(self._symbol(place, axis, name) if size is None else size)
        kind = tensor_type(tuple(shape), spec.dtype)
        check_size(kind)
        self.builder.declare(kind)
        var = Var(name, kind)
        var.span = Span(name)
        return var

    def _symbol(self, place: int, axis: int, name: str) -> Symbol:
        """The symbol of an open dimension: one for each name."""
        label = self.dimension_names.get((place, axis), f"{name}_{axis}")
        if label not in self.symbols:
            self.symbols[label] = Symbol(label)
        return self.symbols[label]

    def _value_of(self, var: Var) -> GraphExpr:
        """What a parameter is in the graph: itself, or a constant if it has no elements."""
        shape = sizes_of(var)
        return self.builder.empty(shape, dtype_of(var)) if 0 in shape else var

    def _output(self, value: Any, name: str) -> GraphExpr:
        if isinstance(value, Complex):
            raise UnsupportedError(
                f"the output '{name}' is complex", hint="return its parts: jnp.real(value), jnp.imag(value)"
            )
        if not isinstance(value, GraphExpr) or isinstance(value.type, TupleType):
            raise UnsupportedError(f"the output '{name}' is no tensor", hint="return the items of tuples one by one")
        return value

    # Functions and blocks

    def _call(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        function = self.program.functions.get(name)
        if function is None:
            raise UserError(f"there is no function @{name}")
        if self.depth >= _MOST_CALLS:
            raise UnsupportedError(
                f"functions that call each other {_MOST_CALLS} deep", hint="loops are stablehlo.while"
            )
        self.depth += 1
        operation, span = self.builder.operation, self.builder.span
        try:
            return self._run(function.body, arguments)
        finally:
            self.depth -= 1
            self.builder.operation, self.builder.span = operation, span

    def _run(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        """What a block gives for its arguments."""
        if len(arguments) != len(block.arguments):
            raise UserError(f"a block of {len(block.arguments)} arguments is given {len(arguments)}")
        self.values.update(zip(block.arguments, arguments, strict=True))
        if not block.operations:
            raise UserError("a block without operations")
        for operation in block.operations[:-1]:
            if operation.short == "return":
                raise UserError("a block goes on after its return")
            for value, made in zip(operation.results, self._convert(operation), strict=True):
                self.values[value] = made
        last = block.operations[-1]
        if last.short != "return":
            raise UserError(f"a block ends with {last.name}, not with a return")
        if any(value not in self.values for value in last.operands):
            raise UserError("a block returns a value that is not there")
        return [self.values[value] for value in last.operands]

    def _convert(self, operation: Operation) -> list[Any]:
        b = self.builder
        with self._located(operation):
            b.operation = operation
            if any(value not in self.values for value in operation.operands):
                raise UserError(f"{operation.name} uses a value that is not there yet")
            operands = [self.values[value] for value in operation.operands]
            entry = find_converter(operation.name)
            reason = refusal(operation.name)
            if reason is not None:
                raise UnsupportedError(f"the operation {operation.name} is not supported: {reason}")
            if entry is None:
                raise UnsupportedError(f"the operation {operation.name} is not supported")
            try:
                made = _apply(b, entry, operation, operands)
            except _OF_BROKEN_PROGRAMS as error:
                # Programs are not verified first: what a converter takes for granted is missing, or of another kind.
                raise UserError(
                    f"{operation.name} is not as StableHLO has it ({type(error).__name__}: {error})",
                    hint="verify the program with stablehlo-opt; if it is valid, please report this",
                ) from error
            results = made if isinstance(made, list) else [made]
            if len(results) != len(operation.results):
                raise UserError(f"{operation.name} gives {len(results)} results, not {len(operation.results)}")
            if b.is_wide:
                return results
            return [self._checked(value, item) for value, item in zip(operation.results, results, strict=True)]

    def _checked(self, value: Value, made: Any) -> Any:
        """A result, which must have the type that the program says it has."""
        spec = value.spec
        if isinstance(spec, TupleSpec):
            if not isinstance(made, tuple) or len(made) != len(spec.items):
                raise UserError(f"a tuple of {len(spec.items)} items is needed")
            return made
        if isinstance(spec, OtherSpec):
            return made
        if spec.is_complex != isinstance(made, Complex):
            raise UserError(f"{self.builder.operation.name} does not give {spec}")
        if isinstance(made, Complex):
            return Complex(*(self._fitted(spec, part) for part in made.parts))
        if not isinstance(made, GraphExpr):
            raise CompilerBug(f"{self.builder.operation.name} gives {made!r}")
        return self._fitted(spec, made)

    def _fitted(self, spec: TensorSpec, made: GraphExpr) -> GraphExpr:
        found = sizes_of(made)
        wanted = spec.shape
        wrong = len(found) != len(wanted) or any(
            size is not None and dimensions.different(size, other) for size, other in zip(wanted, found, strict=False)
        )
        if wrong or dtype_of(made) is not spec.dtype:
            raise UserError(f"{self.builder.operation.name} gives {_show(made)}, and the program says {spec}")
        return self.builder.match(
            made, [other if size is None else size for size, other in zip(wanted, found, strict=True)]
        )

    @contextmanager
    def _located(self, operation: Operation) -> Iterator[None]:
        """Put the operation's place on what is built, and on errors that do not say where they are."""
        location = operation.location
        name = location.name if location is not None and location.name else _first_name(operation)
        outer = self.builder.span
        self.builder.span = Span(name, operation=operation.name)
        try:
            yield
        except UserError as error:
            if error.where is None:
                line = f", {location.file}:{location.line}" if location is not None and location.line else ""
                error.where = f"node '{name}' ({operation.name}){line}"
            raise
        finally:
            self.builder.span = outer


def _apply(b: StableBuilder, entry: Entry, operation: Operation, operands: list[Any]) -> Any:
    """What a converter gives, for each part of complex operands by itself where it is so meant."""
    is_complex = any(isinstance(value, Complex) for value in operands)
    if not is_complex or entry.of_complex == "taken":
        return entry.convert(b, operation, *operands)
    if entry.of_complex == "refused":
        raise UnsupportedError(
            f"the operation {operation.name} of complex numbers is not supported",
            hint="compute with real and imaginary parts",
        )
    pairs = [each_part(value) if isinstance(value, Complex) else (value, value) for value in operands]
    real, imaginary = (entry.convert(b, operation, *values) for values in zip(*pairs, strict=True))
    if isinstance(real, list):
        return [Complex(*pair) for pair in zip(real, imaginary, strict=True)]
    return Complex(real, imaginary)


def _show(value: GraphExpr) -> str:
    kind = value.type
    if not isinstance(kind, TensorType):
        return repr(kind)
    return f"{kind.dtype}[{', '.join(str(size) for size in sizes_of(value))}]"


def _first_name(operation: Operation) -> str:
    if operation.results and operation.results[0].name:
        return f"%{operation.results[0].name}"
    return operation.name


_WRAPPED = "_wrapped_jax_export_main"
"""The function that JAX calls from `main` where sizes vary; it has the names of the inputs, behind the sizes."""


def _argument_names(program: Program) -> list[str]:
    arguments = program.main.body.arguments
    named = arguments
    if _WRAPPED in program.functions:
        named = program.functions[_WRAPPED].body.arguments
        named = named[len(named) - len(arguments) :]
    return [_argument_name(value, at) for at, value in enumerate(named)]


def _argument_name(value: Value, place: int) -> str:
    location = value.location
    return location.name if location is not None and location.name and not location.line else f"arg{place}"


def _result_names(function: FunctionDefinition, count: int) -> list[str]:
    notes = [note.get("jax.result_info") for note in function.result_notes]
    notes += [None] * (count - len(notes))
    return [str(note) if note else f"result{at}" for at, note in enumerate(notes[:count])]


def _unique(names: Sequence[str]) -> list[str]:
    """Names of which no two are the same."""
    taken: set[str] = set()
    found: list[str] = []
    for name in names:
        fresh, count = name, 1
        while fresh in taken:
            fresh, count = f"{name}_{count}", count + 1
        taken.add(fresh)
        found.append(fresh)
    return found
