"""Instructions as text."""

from __future__ import annotations

from enum import IntEnum

from tilewright.accel.instructions import FieldSpec, Instruction, MicroOp, field_specs

TOKEN_FIELDS = tuple(spec.name for spec in field_specs(Instruction))
"""The fields that every instruction has; they come last in its text."""


def instruction_text(instruction: Instruction) -> str:
    """One instruction: `load inp dram=0x40 y_size=4 x_size=16 pop_next`. Fields with their default are left out."""
    specs = own_fields(type(instruction))
    words = [instruction.opcode.name.lower()]
    leading = leading_field(type(instruction))
    if leading is not None:
        words.append(getattr(instruction, leading.name).name.lower())
    default = type(instruction)()
    for spec in (*specs, *field_specs(Instruction)):
        value = getattr(instruction, spec.name)
        if spec != leading and value != getattr(default, spec.name):
            words.append(_field_text(spec, value))
    return " ".join(words)


def _field_text(spec: FieldSpec, value: int) -> str:
    if spec.kind is bool:
        return spec.name
    if isinstance(value, IntEnum):
        return f"{spec.name}={value.name.lower()}"
    return f"{spec.name}={value:#x}" if spec.name == "dram" else f"{spec.name}={value}"


def own_fields(kind: type[Instruction] | type[MicroOp]) -> tuple[FieldSpec, ...]:
    """The fields of an instruction beside its tokens."""
    return tuple(spec for spec in field_specs(kind) if spec.name not in TOKEN_FIELDS)


def leading_field(kind: type[Instruction]) -> FieldSpec | None:
    """The field whose value follows the mnemonic without its name: an instruction's first, where that is a choice."""
    specs = own_fields(kind)
    return specs[0] if specs and issubclass(specs[0].kind, IntEnum) else None


def place(index: int, instruction: Instruction) -> str:
    """An instruction in a message: its place in the program and its text."""
    return f"instruction {index}: {instruction_text(instruction)}"
