"""Instructions and micro-ops as bits, and back. Every encoded bit pattern decodes to one instruction or is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

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


def decode(data: bytes, config: AccelConfig) -> list[Instruction]:
    """The instructions of a program."""
    if len(data) % INSTRUCTION_BYTES:
        raise UserError(
            f"accelerator: a program of {len(data)} bytes is cut off",
            hint=f"an instruction has {INSTRUCTION_BYTES} bytes",
        )
    words = (data[at : at + INSTRUCTION_BYTES] for at in range(0, len(data), INSTRUCTION_BYTES))
    return [_instruction(int.from_bytes(word, "little"), index, config) for index, word in enumerate(words)]


class FieldTable:
    """Unsigned fields of whole programs at once: by opcode, the names of those that are wanted."""

    def __init__(self, names: Mapping[Opcode, Sequence[str]], config: AccelConfig) -> None:
        width = max(map(len, names.values()))
        # A field is in the lower or the upper half of an instruction, or in both: shifts and masks of either part.
        shape = (1 << OPCODE_BITS, width)
        self._low_shift, self._low_mask, self._high_shift, self._high_left, self._high_mask = (
            np.zeros(shape, np.uint64) for _ in range(5)
        )
        for opcode, fields in names.items():
            places = layout(INSTRUCTIONS[opcode], config)
            for place, name in enumerate(fields):
                low, bits = places[name]
                mask, at = (1 << bits) - 1, (int(opcode), place)
                below = max(0, min(bits, 64 - low))
                self._low_shift[at], self._low_mask[at] = min(low, 63), (1 << below) - 1
                self._high_shift[at], self._high_left[at] = max(0, low - 64), min(below, 63)
                self._high_mask[at] = mask >> below << below

    def __call__(self, code: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The opcodes of a program, and a row of fields for each instruction; what has fewer of them has zeros."""
        low, high = np.frombuffer(code, "<u8").reshape(-1, 2, 1).transpose(1, 0, 2)
        opcode = (low[:, 0] & np.uint64((1 << OPCODE_BITS) - 1)).astype(np.int64)
        lower = (low >> self._low_shift[opcode]) & self._low_mask[opcode]
        upper = ((high >> self._high_shift[opcode]) << self._high_left[opcode]) & self._high_mask[opcode]
        return opcode, (lower | upper).view(np.int64)


def encode_micro_ops(micro_ops: Sequence[MicroOp], config: AccelConfig) -> npt.NDArray[np.uint32]:
    """Micro-ops as words of UOP memory."""
    return np.array([_packed(item, 0, config) for item in micro_ops], np.uint32)


def decode_micro_ops(words: npt.NDArray[np.uint32], config: AccelConfig) -> Mapping[str, npt.NDArray[np.int64]]:
    """The fields of many micro-ops, each as one array."""
    return {
        name: (words.astype(np.int64) >> low) & ((1 << bits) - 1)
        for name, (low, bits) in layout(MicroOp, config).items()
    }


def _word(item: Instruction, config: AccelConfig) -> int:
    return _packed(item, int(item.opcode), config)


def _packed(item: Instruction | MicroOp, word: int, config: AccelConfig) -> int:
    places = layout(type(item), config)
    for spec in field_specs(type(item)):
        low, bits = places[spec.name]
        value = int(getattr(item, spec.name))
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if spec.is_signed else (0, (1 << bits) - 1)
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
    places = layout(kind, config)
    used = max((low + bits for low, bits in places.values()), default=OPCODE_BITS)
    if word >> used:
        raise UserError(f"accelerator: instruction {index} ({kind.__name__}) has bits set that mean nothing")
    values: dict[str, Any] = {spec.name: _value(word, index, spec, *places[spec.name]) for spec in field_specs(kind)}
    return kind(**values)


def _value(word: int, index: int, spec: FieldSpec, low: int, bits: int) -> int:
    value = (word >> low) & ((1 << bits) - 1)
    if spec.is_signed and value >> (bits - 1):
        value -= 1 << bits
    if issubclass(spec.kind, IntEnum) and value not in set(spec.kind):
        raise UserError(f"accelerator: instruction {index} has the unknown {spec.name} {value}")
    return spec.kind(value)
