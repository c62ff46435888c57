"""The instruction set as typed data: what each instruction has for fields, and how wide they are for a configuration.

This file is the only place where a field is written down. Encoder and decoder (`encoding.py`), the assembler's text,
the tables of the documentation, the C header and the slices of the hardware's decoders derive from it.
`docs/accelerator.md` says what the instructions do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar

from tilewright.accel.config import MICRO_OP_BITS, AccelConfig, Memory
from tilewright.support.errors import UserError

INSTRUCTION_BITS = 128
EXTENT_BITS = 12

Width = int | Callable[[AccelConfig], int]


class Unit(IntEnum):
    """The units that execute instructions, each in the order of its own queue."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


class Opcode(IntEnum):
    """The first field of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    ALU = 3
    EPI = 4
    FINISH = 5


class Overwrite(IntEnum):
    """When GEMM's product replaces the accumulator instead of being added to it."""

    NEVER = 0
    ALWAYS = 1
    OUTER = 2
    """Where the outer loop is at its first step."""
    INNER = 3
    """Where the inner loop is at its first step."""
    UOP = 4
    """At the first micro-op of the range."""


@dataclass(frozen=True, slots=True)
class Lanewise:
    """What an operation of ALU is written in, beside Python's operators: numpy, the hardware and Python spell it."""

    choose: Callable[[Any, Any, Any], Any]
    """The second where the first holds, else the third."""
    amount: Callable[[Any], Any]
    """How far a number shifts: its low bits, as many as address a bit of an accumulator."""


class AluOp(IntEnum):
    """What ALU does to an accumulator, lane by lane: its number, and what it makes of numbers `a` and `b`.

    A line here is all that an operation takes: encoders, assembler, simulators, compiler and hardware derive from it.
    Results are exact numbers of at most 64 bits, of which an accumulator keeps the low ones.
    """

    meaning: Callable[[Lanewise, Any, Any], Any]

    def __new__(cls, number: int, meaning: Callable[[Lanewise, Any, Any], Any]) -> AluOp:
        """A member: an integer that knows what it does."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    MIN = 0, lambda m, a, b: m.choose(a < b, a, b)
    MAX = 1, lambda m, a, b: m.choose(a < b, b, a)
    ADD = 2, lambda m, a, b: a + b
    MUL = 3, lambda m, a, b: a * b
    SHR = 4, lambda m, a, b: a >> m.amount(b)
    SHL = 5, lambda m, a, b: a << m.amount(b)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field: its name, its width, its type and its meaning."""

    name: str
    width: Width
    doc: str
    kind: type[int] = int
    is_signed: bool = False

    def bits(self, config: AccelConfig) -> int:
        """The width for a configuration."""
        return self.width if isinstance(self.width, int) else self.width(config)


def _bits(width: Width, doc: str, *, signed: bool = False, default: Any = 0) -> Any:
    return field(default=default, metadata={"width": width, "doc": doc, "signed": signed})


def _index(memory: Memory) -> Width:
    return lambda config: config.index_bits[memory]


def _any_index(config: AccelConfig) -> int:
    return max(config.index_bits.values())


def _end(config: AccelConfig) -> int:
    return config.index_bits[Memory.UOP] + 1


def _out_bits(config: AccelConfig) -> int:
    return config.out_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction(ABC):
    """What every instruction has: the tokens it waits for and those it gives."""

    opcode: ClassVar[Opcode]

    pop_prev: bool = _bits(1, "wait for a token of the unit before (load before compute before store)", default=False)
    pop_next: bool = _bits(1, "wait for a token of the unit after", default=False)
    push_prev: bool = _bits(1, "when done, give a token to the unit before", default=False)
    push_next: bool = _bits(1, "when done, give a token to the unit after", default=False)

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """The unit that executes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Instruction):
    """Copy a rectangle of DRAM to an on-chip memory, with a frame of padding around it."""

    opcode: ClassVar[Opcode] = Opcode.LOAD

    memory: Memory = _bits(3, "the on-chip memory", default=Memory.INP)  # noqa: RUF009
    sram: int = _bits(_any_index, "index of the first element that is written")
    dram: int = _bits(32, "address of the first element, in words of the bus")
    y_size: int = _bits(EXTENT_BITS, "rows")
    x_size: int = _bits(16, "elements of a row (of UOP: words of the bus)")
    y_stride: int = _bits(16, "elements from row to row in DRAM")
    y_before: int = _bits(4, "rows of padding before")
    y_after: int = _bits(4, "rows of padding after")
    x_before: int = _bits(4, "elements of padding before each row")
    x_after: int = _bits(4, "elements of padding after each row")
    pad: int = _bits(8, "the value of padding, in every lane", signed=True)

    @property
    def unit(self) -> Unit:
        """Micro-ops and accumulators are loaded by the unit that uses them, in its order; the rest by the load unit."""
        return Unit.COMPUTE if self.memory in (Memory.UOP, Memory.ACC) else Unit.LOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Instruction):
    """Copy elements of OUT or ACC to a rectangle of DRAM."""

    opcode: ClassVar[Opcode] = Opcode.STORE

    memory: Memory = _bits(3, "OUT or ACC", default=Memory.OUT)  # noqa: RUF009
    sram: int = _bits(_any_index, "index of the first element that is read")
    dram: int = _bits(32, "address of the first element, in words of the bus")
    y_size: int = _bits(EXTENT_BITS, "rows")
    x_size: int = _bits(16, "elements of a row")
    y_stride: int = _bits(16, "elements from row to row in DRAM")

    @property
    def unit(self) -> Unit:
        """Always the store unit."""
        return Unit.STORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Instruction):
    """Multiply inputs and weights in two loops around a range of micro-ops."""

    opcode: ClassVar[Opcode] = Opcode.GEMM

    reset: bool = _bits(1, "write zeros instead of products", default=False)
    overwrite: Overwrite = _bits(3, "when a product replaces the accumulator", default=Overwrite.NEVER)  # noqa: RUF009
    uop_begin: int = _bits(_index(Memory.UOP), "first micro-op")
    uop_end: int = _bits(_end, "the micro-op after the last")
    outer: int = _bits(EXTENT_BITS, "steps of the outer loop")
    inner: int = _bits(EXTENT_BITS, "steps of the inner loop")
    acc_outer: int = _bits(_index(Memory.ACC), "what an outer step adds to the accumulator's index")
    acc_inner: int = _bits(_index(Memory.ACC), "what an inner step adds to it")
    inp_outer: int = _bits(_index(Memory.INP), "what an outer step adds to the input's index")
    inp_inner: int = _bits(_index(Memory.INP), "what an inner step adds to it")
    wgt_outer: int = _bits(_index(Memory.WGT), "what an outer step adds to the weight's index")
    wgt_inner: int = _bits(_index(Memory.WGT), "what an inner step adds to it")

    @property
    def unit(self) -> Unit:
        """Always the compute unit."""
        return Unit.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Alu(Instruction):
    """Change accumulators, lane by lane, by an immediate or by other accumulators."""

    opcode: ClassVar[Opcode] = Opcode.ALU

    op: AluOp = _bits(4, "what is done", default=AluOp.ADD)  # noqa: RUF009
    use_imm: bool = _bits(1, "the second operand is the immediate", default=False)
    imm: int = _bits(16, "the immediate", signed=True)
    uop_begin: int = _bits(_index(Memory.UOP), "first micro-op")
    uop_end: int = _bits(_end, "the micro-op after the last")
    outer: int = _bits(EXTENT_BITS, "steps of the outer loop")
    inner: int = _bits(EXTENT_BITS, "steps of the inner loop")
    dst_outer: int = _bits(_index(Memory.ACC), "what an outer step adds to the destination's index")
    dst_inner: int = _bits(_index(Memory.ACC), "what an inner step adds to it")
    src_outer: int = _bits(_index(Memory.ACC), "what an outer step adds to the source's index")
    src_inner: int = _bits(_index(Memory.ACC), "what an inner step adds to it")

    @property
    def unit(self) -> Unit:
        """Always the compute unit."""
        return Unit.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Epi(Instruction):
    """Turn accumulators to results: bias, multiplier with rounding shift, residual, offset, clip."""

    opcode: ClassVar[Opcode] = Opcode.EPI

    scale: bool = _bits(1, "apply bias, multiplier and shift of PAR", default=False)
    residual: bool = _bits(1, "add what OUT holds where the result goes", default=False)
    offset: int = _bits(_out_bits, "added to the result before it is clipped", signed=True)
    low: int = _bits(_out_bits, "the least result", signed=True)
    high: int = _bits(_out_bits, "the greatest result", signed=True)
    outer: int = _bits(8, "steps of the outer loop: blocks of output channels")
    inner: int = _bits(EXTENT_BITS, "steps of the inner loop")
    acc: int = _bits(_index(Memory.ACC), "index of the first accumulator")
    out: int = _bits(_index(Memory.OUT), "index of the first result")
    par: int = _bits(_index(Memory.PAR), "index of the first parameter tensor; an outer step adds one")
    acc_outer: int = _bits(_index(Memory.ACC), "what an outer step adds to the accumulator's index")
    acc_inner: int = _bits(_index(Memory.ACC), "what an inner step adds to it")
    out_outer: int = _bits(_index(Memory.OUT), "what an outer step adds to the result's index")
    out_inner: int = _bits(_index(Memory.OUT), "what an inner step adds to it")

    @property
    def unit(self) -> Unit:
        """The store unit, so that it runs beside the products of the next tile."""
        return Unit.STORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Instruction):
    """Say that the program is done, when the store unit comes to it."""

    opcode: ClassVar[Opcode] = Opcode.FINISH

    @property
    def unit(self) -> Unit:
        """The store unit."""
        return Unit.STORE


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroOp:
    """One step of GEMM (accumulator, input, weight) or of ALU (destination, source)."""

    acc: int = _bits(_index(Memory.ACC), "index of the accumulator; of ALU the destination")
    inp: int = _bits(
        lambda config: max(config.index_bits[Memory.INP], config.index_bits[Memory.ACC]),
        "index of the input; of ALU the source accumulator",
    )
    wgt: int = _bits(_index(Memory.WGT), "index of the weight; of ALU nothing")


INSTRUCTIONS: dict[Opcode, type[Instruction]] = {kind.opcode: kind for kind in (Load, Store, Gemm, Alu, Epi, Finish)}


def field_specs(kind: type[Instruction] | type[MicroOp]) -> tuple[FieldSpec, ...]:
    """The fields of a kind of instruction (after the opcode), or of a micro-op, from the lowest bit on."""
    if kind not in _SPECS:
        _SPECS[kind] = tuple(_spec(item) for item in fields(kind))
    return _SPECS[kind]


def _spec(item: Field[Any]) -> FieldSpec:
    default: int = item.default  # type: ignore[assignment]
    return FieldSpec(item.name, item.metadata["width"], item.metadata["doc"], type(default), item.metadata["signed"])


OPCODE_BITS = 3
_SPECS: dict[type, tuple[FieldSpec, ...]] = {}
_LAYOUTS: dict[tuple[type, AccelConfig], Mapping[str, tuple[int, int]]] = {}


def layout(kind: type[Instruction] | type[MicroOp], config: AccelConfig) -> Mapping[str, tuple[int, int]]:
    """Where each field lies for a configuration: its lowest bit and its width. The opcode lies below them."""
    known = _LAYOUTS.get((kind, config))
    if known is not None:
        return known
    is_instruction = issubclass(kind, Instruction)
    offset, room = (OPCODE_BITS, INSTRUCTION_BITS) if is_instruction else (0, MICRO_OP_BITS)
    places = {}
    for spec in field_specs(kind):
        places[spec.name] = offset, spec.bits(config)
        offset += spec.bits(config)
    if offset > room:
        raise UserError(
            f"accelerator: {kind.__name__} needs {offset} bits of {room} in this configuration",
            hint="smaller memories or larger elements need narrower indices",
        )
    return _LAYOUTS.setdefault((kind, config), MappingProxyType(places))


def check_formats(config: AccelConfig) -> None:
    """Refuse a configuration whose indices do not fit in instructions and micro-ops."""
    for kind in (*INSTRUCTIONS.values(), MicroOp):
        layout(kind, config)
