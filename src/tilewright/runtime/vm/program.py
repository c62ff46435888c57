"""Programs of the virtual machine: instructions, functions and tables.

A function has registers (values: tensors, tuples, sequences, algebraic data, closures), symbols (64-bit integers, the
sizes of this activation) and code. Arguments come in the first registers, after what a closure captured. Jumps only go
forward: repetition is a call, and a call in the last place replaces its caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from tilewright.runtime.core.artifact import Extent
from tilewright.runtime.host.registry import HostAttribute
from tilewright.runtime.vm.types import DataDefinition, ValueType


class Opcode(IntEnum):
    """What an instruction does; `OPERANDS` has what it takes."""

    CONSTANT = 0
    """A constant of the program."""
    MOVE = 1
    """The value of another register."""
    SEGMENT = 2
    """Run a segment (native code): its inputs, its outputs, and the symbols it takes."""
    HOST = 3
    """Run a host function."""
    MATCH = 4
    """Check the dimensions of a tensor, and give symbols their values from them."""
    VIEW = 5
    """Some elements of a tensor under another shape: the first element, then the dimensions."""
    TUPLE = 6
    """A tuple of values."""
    DATA = 7
    """A value of an algebraic data type."""
    FIELD = 8
    """An item of a tuple, or a field of algebraic data."""
    CLOSURE = 9
    """A function with captured values and symbols."""
    JUMP = 10
    """Go on elsewhere."""
    BRANCH = 11
    """Go on elsewhere unless a scalar holds."""
    TAG = 12
    """Go on elsewhere unless algebraic data was built by a constructor."""
    CALL = 13
    """Call a function of the program."""
    TAIL_CALL = 14
    """Call a function in the place of this one."""
    CALL_CLOSURE = 15
    """Call a closure."""
    TAIL_CLOSURE = 16
    """Call a closure in the place of this function."""
    RETURN = 17
    """Give a value back."""
    RELEASE = 18
    """Forget values that nothing needs any more."""
    FAIL = 19
    """Stop with a message."""


class Operand(StrEnum):
    """The kinds of operands: a number or a list of numbers."""

    RESULT = "result"
    RESULTS = "results"
    REGISTER = "register"
    REGISTERS = "registers"
    SYMBOLS = "symbols"
    CONSTANT = "constant"
    SEGMENT = "segment"
    HOST = "host"
    FUNCTION = "function"
    CONSTRUCTOR = "constructor"
    TARGET = "target"
    NUMBER = "number"
    TEXT = "text"
    EXTENT = "extent"
    EXTENTS = "extents"
    DIMENSIONS = "dimensions"

    @property
    def is_list(self) -> bool:
        """Whether the operand is a list."""
        return self in _LISTS


_LISTS = (Operand.RESULTS, Operand.REGISTERS, Operand.SYMBOLS, Operand.EXTENTS, Operand.DIMENSIONS)

OPERANDS: dict[Opcode, tuple[Operand, ...]] = {
    Opcode.CONSTANT: (Operand.RESULT, Operand.CONSTANT),
    Opcode.MOVE: (Operand.RESULT, Operand.REGISTER),
    Opcode.SEGMENT: (Operand.SEGMENT, Operand.REGISTERS, Operand.RESULTS, Operand.SYMBOLS),
    Opcode.HOST: (Operand.HOST, Operand.REGISTERS, Operand.RESULTS),
    Opcode.MATCH: (Operand.REGISTER, Operand.DIMENSIONS, Operand.TEXT),
    Opcode.VIEW: (Operand.RESULT, Operand.REGISTER, Operand.EXTENT, Operand.EXTENTS),
    Opcode.TUPLE: (Operand.RESULT, Operand.REGISTERS),
    Opcode.DATA: (Operand.RESULT, Operand.CONSTRUCTOR, Operand.REGISTERS),
    Opcode.FIELD: (Operand.RESULT, Operand.REGISTER, Operand.NUMBER),
    Opcode.CLOSURE: (Operand.RESULT, Operand.FUNCTION, Operand.REGISTERS, Operand.SYMBOLS),
    Opcode.JUMP: (Operand.TARGET,),
    Opcode.BRANCH: (Operand.REGISTER, Operand.TARGET),
    Opcode.TAG: (Operand.REGISTER, Operand.CONSTRUCTOR, Operand.TARGET),
    Opcode.CALL: (Operand.RESULT, Operand.FUNCTION, Operand.REGISTERS),
    Opcode.TAIL_CALL: (Operand.FUNCTION, Operand.REGISTERS),
    Opcode.CALL_CLOSURE: (Operand.RESULT, Operand.REGISTER, Operand.REGISTERS),
    Opcode.TAIL_CLOSURE: (Operand.REGISTER, Operand.REGISTERS),
    Opcode.RETURN: (Operand.REGISTER,),
    Opcode.RELEASE: (Operand.REGISTERS,),
    Opcode.FAIL: (Operand.TEXT,),
}

ENDS = (Opcode.JUMP, Opcode.TAIL_CALL, Opcode.TAIL_CLOSURE, Opcode.RETURN, Opcode.FAIL)
"""Instructions after which the next one is reached by a jump only."""

Instruction = tuple[Any, ...]
"""The opcode and its operands: a number each, or a tuple of numbers."""

# A dimension in MATCH is (kind, number).
ANY, BIND, EQUAL = 0, 1, 2
"""A dimension of any size; one that gives a symbol its value; one that must be equal to an extent."""


@dataclass(frozen=True, slots=True)
class BlobConstant:
    """A tensor among the constants of the model."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class TextConstant:
    """A tensor of texts."""

    shape: tuple[int, ...]
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostCall:
    """A host function with its attributes; `where` is the user's own node."""

    name: str
    attributes: tuple[tuple[str, HostAttribute], ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class ConstructorInfo:
    """A constructor of an algebraic data type: the number tells the constructors of one type apart."""

    type_name: str
    name: str
    number: int
    fields: int


@dataclass(frozen=True, slots=True)
class VmFunction:
    """A function: `captured` registers and `captured_symbols` come before `params`."""

    name: str
    captured: int
    params: int
    captured_symbols: int
    registers: int
    symbols: int
    code: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; function 0 is the entry.

    Extents are texts over the symbols `s0`, `s1`, ... of the function that uses them.
    """

    functions: tuple[VmFunction, ...]
    constants: tuple[BlobConstant | TextConstant, ...] = ()
    hosts: tuple[HostCall, ...] = ()
    constructors: tuple[ConstructorInfo, ...] = ()
    extents: tuple[Extent, ...] = ()
    texts: tuple[str, ...] = ()
    inputs: tuple[ValueType, ...] = ()
    definitions: tuple[DataDefinition, ...] = field(default=())
