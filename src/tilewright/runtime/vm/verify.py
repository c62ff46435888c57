"""The verifier: a program that passes reads no register before it is written and names nothing that is not there.

What a register holds is known only when the program runs: the machine checks that where it matters, before native code
reads memory, and every other misuse of a value is an error that names the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.runtime.core.artifact import Extent, ModelInfo
from tilewright.runtime.core.dtypes import C_TYPES, storage_dtype
from tilewright.runtime.core.packing import packed_size
from tilewright.runtime.core.shapes import check_extent, symbols_in
from tilewright.runtime.host import host_function
from tilewright.runtime.vm.program import (
    BIND,
    ENDS,
    EQUAL,
    OPERANDS,
    BlobConstant,
    Instruction,
    Opcode,
    Operand,
    Program,
    TextConstant,
    VmFunction,
)
from tilewright.runtime.vm.types import Kind, ValueType
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError

_MOST_REGISTERS = 1 << 20
_SPARE = 64
"""Registers and symbols that a function may have without using them."""
_MOST_DIMENSIONS = 32
_MOST_ELEMENTS = 1 << 48
"""Numpy's limits are a little above these."""


class _Bad(Exception):
    """What is wrong with a program."""


def verify(program: Program, segments: Sequence[ModelInfo], constant_bytes: int, where: str | None = None) -> None:
    """Refuse a malformed program with a UserError."""
    try:
        _Verifier(program, segments, constant_bytes).run()
    except _Bad as error:
        raise UserError(f"the bytecode is damaged: {error}", where=where) from None


def _results(instruction: Instruction) -> int:
    """How many registers an instruction writes."""
    kinds = OPERANDS[instruction[0]]
    return kinds.count(Operand.RESULT) + sum(
        len(operand) for kind, operand in zip(kinds, instruction[1:], strict=True) if kind is Operand.RESULTS
    )


def _check_extent(extent: Extent) -> None:
    try:
        check_extent(extent)
    except CompilerBug as error:
        raise _Bad(str(error.args[0])) from None


def _check_type(kind: ValueType, data_types: set[str]) -> None:
    """A type that values of users can be checked against."""
    if kind.kind in (Kind.TENSOR, Kind.ANY_SHAPE):
        if kind.name != "string" and kind.name not in C_TYPES:
            raise _Bad(f"there is no data type {kind.name!r}")
        for extent in kind.shape:
            _check_extent(extent)
    elif kind.kind in (Kind.SEQUENCE, Kind.OPTIONAL) and len(kind.items) != 1:
        raise _Bad(f"a type {kind.kind.name.lower()} of {len(kind.items)} types")
    elif kind.kind is Kind.DATA and kind.name not in data_types:
        raise _Bad(f"there is no algebraic data type {kind.name!r}")
    for item in kind.items:
        _check_type(item, data_types)


class _Verifier:
    def __init__(self, program: Program, segments: Sequence[ModelInfo], constant_bytes: int) -> None:
        self.program = program
        self.segments = segments
        self.constant_bytes = constant_bytes
        self.sizes = {
            Operand.CONSTANT: len(program.constants),
            Operand.SEGMENT: len(segments),
            Operand.HOST: len(program.hosts),
            Operand.FUNCTION: len(program.functions),
            Operand.CONSTRUCTOR: len(program.constructors),
            Operand.TEXT: len(program.texts),
            Operand.EXTENT: len(program.extents),
            Operand.EXTENTS: len(program.extents),
        }

    def run(self) -> None:
        if not self.program.functions:
            raise _Bad("it has no function")
        entry = self.program.functions[0]
        if entry.captured or entry.captured_symbols or entry.params != len(self.program.inputs):
            raise _Bad("its entry does not take the model's inputs")
        for number, constant in enumerate(self.program.constants):
            self._constant(number, constant)
        for extent in self.program.extents:
            _check_extent(extent)
        for host in self.program.hosts:
            host_function(host.name)
        names = {item.name for item in self.program.definitions}
        for kind in self.program.inputs:
            _check_type(kind, names)
        for item in self.program.definitions:
            for _, fields in item.constructors:
                for kind in fields:
                    _check_type(kind, names)
        for function in self.program.functions:
            self._function(function)

    def _constant(self, number: int, constant: BlobConstant | TextConstant) -> None:
        if len(constant.shape) > _MOST_DIMENSIONS or prod(filter(None, constant.shape)) > _MOST_ELEMENTS:
            raise _Bad(f"constant {number} has the shape {list(constant.shape)[:8]}")
        if isinstance(constant, TextConstant):
            if prod(constant.shape) != len(constant.items):
                raise _Bad(f"constant {number} has {len(constant.items)} texts")
            return
        try:
            item_bytes = storage_dtype(constant.dtype).itemsize
        except UnsupportedError as error:
            raise _Bad(error.message) from None
        if constant.offset + packed_size(constant.shape, constant.dtype) > self.constant_bytes:
            raise _Bad(f"constant {number} lies outside the constants")
        if constant.offset % item_bytes:
            raise _Bad(f"constant {number} is not aligned to its elements")

    def _function(self, function: VmFunction) -> None:
        given = function.captured + function.params
        # Every call makes so many registers: no more than code can write, or a deep recursion would take all memory.
        written = sum(_results(instruction) for instruction in function.code)
        if not given <= function.registers <= min(_MOST_REGISTERS, given + written + _SPARE):
            raise _Bad(f"function {function.name} has {function.registers} registers")
        bound = sum(len(item[2]) for item in function.code if item[0] is Opcode.MATCH)
        if not function.captured_symbols <= function.symbols <= function.captured_symbols + bound + _SPARE:
            raise _Bad(f"function {function.name} has {function.symbols} symbols")
        if not function.code or function.code[-1][0] not in ENDS:
            raise _Bad(f"function {function.name} does not end")
        # What is written for certain where an instruction is reached; jumps only go forward, so one pass is enough.
        before: dict[int, tuple[frozenset[int], frozenset[int]]] = {
            0: (frozenset(range(given)), frozenset(range(function.captured_symbols)))
        }
        for place, instruction in enumerate(function.code):
            if place not in before:
                raise _Bad(f"instruction {place} of {function.name} is never reached")
            after = self._instruction(function, place, instruction, *before[place])
            opcode = instruction[0]
            following = [] if opcode in ENDS else [place + 1]
            following += [
                operand
                for kind, operand in zip(OPERANDS[opcode], instruction[1:], strict=True)
                if kind is Operand.TARGET
            ]
            for target in following:
                old = before.get(target)
                before[target] = after if old is None else (old[0] & after[0], old[1] & after[1])

    def _instruction(
        self,
        function: VmFunction,
        place: int,
        instruction: Instruction,
        registers: frozenset[int],
        symbols: frozenset[int],
    ) -> tuple[frozenset[int], frozenset[int]]:
        opcode = instruction[0]
        written: set[int] = set()
        bound: set[int] = set()
        name = f"instruction {place} ({opcode.name}) of {function.name}"

        def check(kind: Operand, number: int) -> None:
            if kind in (Operand.RESULT, Operand.RESULTS):
                if number >= function.registers:
                    raise _Bad(f"{name} writes register {number} of {function.registers}")
                written.add(number)
            elif kind in (Operand.REGISTER, Operand.REGISTERS):
                # Forgetting a value that is not there does no harm.
                if number not in registers and (opcode is not Opcode.RELEASE or number >= function.registers):
                    raise _Bad(f"{name} reads register {number} before it is written")
            elif kind is Operand.SYMBOLS:
                if number not in symbols:
                    raise _Bad(f"{name} reads symbol {number} before it has a value")
            elif kind is Operand.TARGET:
                if not place < number < len(function.code):
                    raise _Bad(f"{name} jumps to {number}")
            elif kind in self.sizes and number >= self.sizes[kind]:
                raise _Bad(f"{name} names {kind} {number} of {self.sizes[kind]}")
            if kind in (Operand.EXTENT, Operand.EXTENTS):
                self._extent(name, number, symbols)

        for kind, operand in zip(OPERANDS[opcode], instruction[1:], strict=True):
            if kind is Operand.DIMENSIONS:
                for mode, number in operand:
                    if mode == BIND:
                        if number >= function.symbols:
                            raise _Bad(f"{name} binds symbol {number} of {function.symbols}")
                        bound.add(number)
                    elif mode == EQUAL:
                        check(Operand.EXTENT, number)
                    elif mode > EQUAL:
                        raise _Bad(f"{name} has a dimension of kind {mode}")
                    symbols = symbols | bound
            elif kind.is_list:
                for number in operand:
                    check(kind, number)
            else:
                check(kind, operand)
        self._counts(name, instruction)
        if opcode is Opcode.RELEASE:
            registers = registers - frozenset(instruction[1])
        return registers | written, symbols | bound

    def _extent(self, name: str, number: int, symbols: frozenset[int]) -> None:
        for symbol in symbols_in(self.program.extents[number]):
            if not (symbol[:1] == "s" and symbol[1:].isdecimal() and int(symbol[1:]) in symbols):
                raise _Bad(f"{name} computes with symbol {symbol} before it has a value")

    def _counts(self, name: str, instruction: Instruction) -> None:
        """Calls pass what their callees take."""
        match instruction:
            case (Opcode.SEGMENT, number, inputs, outputs, symbols):
                info = self.segments[number]
                counts = (len(inputs), len(outputs), len(symbols))
                if counts != (len(info.inputs), len(info.outputs), len(info.symbols)):
                    raise _Bad(f"{name} calls segment {number} with {counts} inputs, outputs and symbols")
            case (Opcode.CALL, _, number, given) | (Opcode.TAIL_CALL, number, given):
                callee = self.program.functions[number]
                if callee.captured_symbols or len(given) != callee.captured + callee.params:
                    raise _Bad(f"{name} calls {callee.name} with {len(given)} arguments")
            case (Opcode.CLOSURE, _, number, captured, symbols):
                callee = self.program.functions[number]
                if (len(captured), len(symbols)) != (callee.captured, callee.captured_symbols):
                    raise _Bad(f"{name} captures {len(captured)} values and {len(symbols)} symbols for {callee.name}")
            case (Opcode.DATA, _, number, fields):
                if len(fields) != self.program.constructors[number].fields:
                    raise _Bad(f"{name} builds {self.program.constructors[number].name} of {len(fields)} fields")
