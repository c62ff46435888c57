"""The fields of instructions and micro-ops as slices of their words: the hardware's decoders."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.instructions import (
    INSTRUCTIONS,
    OPCODE_BITS,
    Instruction,
    Load,
    MicroOp,
    Opcode,
    Unit,
    field_specs,
    layout,
)

ADDRESS_BITS = 32
"""Bits of an address in DRAM, which counts words of the bus."""


class Fields:
    """The fields of one kind of instruction (or of a micro-op) in a word, as attributes."""

    def __init__(self, word: Any, kind: type[Instruction] | type[MicroOp], config: AccelConfig) -> None:
        places = layout(kind, config)
        self._slices = {}
        for spec in field_specs(kind):
            low, bits = places[spec.name]
            value = word[low : low + bits]
            self._slices[spec.name] = value.as_signed() if spec.is_signed else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self._slices[name]
        except KeyError:
            raise AttributeError(name) from None


def opcode_of(word: Any) -> Any:
    """The opcode of an instruction."""
    return word[:OPCODE_BITS]


def is_one_of(value: Any, members: Iterable[int]) -> Any:
    """Whether a value is one of several numbers."""
    chosen = hdl.Const(0)
    for member in members:
        chosen = chosen | (value == member)
    return chosen


def unknown(value: Any, kind: type[IntEnum]) -> Any:
    """Whether a field holds a number that means nothing."""
    return ~is_one_of(value, kind)


def belongs_to(word: Any, unit: Unit, config: AccelConfig) -> Any:
    """Whether an instruction is executed by a unit: by its opcode, of LOAD by the memory."""
    memories = [memory for memory in Memory if Load(memory=memory).unit is unit]
    is_load = opcode_of(word) == Opcode.LOAD
    others = [kind.opcode for kind in INSTRUCTIONS.values() if kind is not Load and kind().unit is unit]
    return is_one_of(opcode_of(word), others) | (is_load & is_one_of(Fields(word, Load, config).memory, memories))


def words_log2(memory: Memory, config: AccelConfig) -> int:
    """The logarithm of the words of the bus that one step of a LOAD or STORE moves."""
    return (config.dma_bytes[memory] // config.bus_bytes).bit_length() - 1


def scaled(count: Any, memory: Any, memories: Iterable[Memory], config: AccelConfig) -> Any:
    """A count of elements as a count of words of the bus, for whichever of several memories is named."""
    result = hdl.Const(0)
    for item in memories:
        result = hdl.Mux(memory == item, count << words_log2(item, config), result)
    return result
