"""Instructions and micro-ops as bits, and back. Every encoded bit pattern decodes to one instruction or is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import (
    INSTRUCTION_BITS,
    INSTRUCTIONS,
    OPCODE_BITS,
    FieldSpec,
    Instruction,
    MicroOp,
    Opcode,
    field_specs,
    layout,
)
from tilewright.support.errors import UserError

INSTRUCTION_BYTES = INSTRUCTION_BITS // 8
_OPCODES = frozenset(Opcode)


def encode(instructions: Iterable[Instruction], config: AccelConfig) -> bytes:
    """A program as the machine reads it."""
    return b"".join(_word(item, config).to_bytes(INSTRUCTION_BYTES, "little") for item in instructions)


def check_whole(data: bytes) -> None:
    """Refuse a program that ends inside an instruction."""
    if len(data) % INSTRUCTION_BYTES:
        raise UserError(
            f"accelerator: a program of {len(data)} bytes is cut off",
            hint=f"an instruction has {INSTRUCTION_BYTES} bytes",
        )


def decode(data: bytes, config: AccelConfig) -> list[Instruction]:
    """The instructions of a program."""
    check_whole(data)
    words = (data[at : at + INSTRUCTION_BYTES] for at in range(0, len(data), INSTRUCTION_BYTES))
    return [_instruction(int.from_bytes(word, "little"), index, config) for index, word in enumerate(words)]


def field_parts(names: Mapping[Opcode, Sequence[str]], config: AccelConfig) -> npt.NDArray[np.int64]:
    """How whole programs are read at once: for an opcode and a place in its names, five numbers.

    Of the lower and the upper 64 bits of an instruction, a field is
    `lower >> parts[0] & parts[1] | upper >> parts[2] << parts[3] & parts[4]`.
    """
    parts = np.zeros((1 << OPCODE_BITS, max(map(len, names.values())), 5), np.int64)
    for opcode, fields in names.items():
        places = layout(INSTRUCTIONS[opcode], config)
        for place, name in enumerate(fields):
            low, bits = places[name]
            below = max(0, min(bits, 64 - low))
            above = ((1 << bits) - 1) >> below << below
            parts[opcode, place] = min(low, 63), (1 << below) - 1, max(0, low - 64), min(below, 63), above
    return parts


def encode_micro_ops(micro_ops: Sequence[MicroOp], config: AccelConfig) -> npt.NDArray[np.uint32]:
    """Micro-ops as words of UOP memory."""
    return np.array([_packed(item, 0, config) for item in micro_ops], np.uint32)


def decode_micro_ops(words: npt.NDArray[np.uint32], config: AccelConfig) -> Mapping[str, npt.NDArray[np.int64]]:
    """The fields of many micro-ops, each as one array."""
    return {
        name: (words.astype(np.int64) >> low) & ((1 << bits) - 1)
        for name, (low, bits) in layout(MicroOp, config).items()
    }


def field_limits(kind: type[Instruction], name: str, config: AccelConfig) -> tuple[int, int]:
    """The least and the greatest number that a field of an instruction holds."""
    (spec,) = (spec for spec in field_specs(kind) if spec.name == name)
    return _limits(spec, layout(kind, config)[name][1])


def _limits(spec: FieldSpec, bits: int) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if spec.is_signed else (0, (1 << bits) - 1)


def _word(item: Instruction, config: AccelConfig) -> int:
    return _packed(item, int(item.opcode), config)


def _packed(item: Instruction | MicroOp, word: int, config: AccelConfig) -> int:
    places = layout(type(item), config)
    for spec in field_specs(type(item)):
        low, bits = places[spec.name]
        value = int(getattr(item, spec.name))
        least, most = _limits(spec, bits)
        if not least <= value <= most:
            raise UserError(
                f"accelerator: {spec.name} of {type(item).__name__} is {value}, which its {bits} bits cannot hold",
                hint=f"from {least} to {most}",
            )
        word |= (value & ((1 << bits) - 1)) << low
    return word


def _instruction(word: int, index: int, config: AccelConfig) -> Instruction:
    opcode = word & ((1 << OPCODE_BITS) - 1)
    if opcode not in _OPCODES:
        raise UserError(f"accelerator: instruction {index} has the unknown opcode {opcode}")
    kind = INSTRUCTIONS[Opcode(opcode)]
    readers, used = _field_readers(kind, config)
    if word >> used:
        raise UserError(f"accelerator: instruction {index} ({kind.__name__}) has bits set that mean nothing")
    values: dict[str, Any] = {}
    for item in readers:
        value = (word >> item.low) & item.mask
        if item.members is not None and value not in item.members:
            raise UserError(f"accelerator: instruction {index} has the unknown {item.name} {value}")
        values[item.name] = item.kind(value - 2 * item.sign if value & item.sign else value)
    return kind(**values)


class _FieldReader(NamedTuple):
    """How a field is taken from an instruction."""

    name: str
    low: int
    mask: int
    sign: int
    """The bit that makes a number negative; zero where there is none."""
    kind: type[int]
    members: frozenset[int] | None
    """The numbers that mean something, where not all of them do."""


@lru_cache(maxsize=256)
def _field_readers(kind: type[Instruction], config: AccelConfig) -> tuple[tuple[_FieldReader, ...], int]:
    """The fields of a kind of instruction, and how many bits they take with the opcode."""
    places = layout(kind, config)
    readers = tuple(_field_reader(spec, *places[spec.name]) for spec in field_specs(kind))
    return readers, max((low + bits for low, bits in places.values()), default=OPCODE_BITS)


def _field_reader(spec: FieldSpec, low: int, bits: int) -> _FieldReader:
    sign = 1 << (bits - 1) if spec.is_signed else 0
    members = frozenset(spec.kind) if issubclass(spec.kind, IntEnum) else None
    return _FieldReader(spec.name, low, (1 << bits) - 1, sign, spec.kind, members)
