"""Instructions and micro-ops as text, and back: names and widths of fields are those of `instructions.py`.

    load inp sram=16 dram=0x40 y_size=4 x_size=16 y_stride=56 y_before=1 pop_next push_next
    gemm overwrite=outer uop_end=9 outer=14 inner=14 acc_outer=14 acc_inner=1 pop_prev
    uop acc=3 inp=1 wgt=2

A word is a field's value, the name of a bit that is set, or, as the first, the choice that an instruction begins with
(a LOAD's memory, what ALU does). What is left out has its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, TypeVar

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import INSTRUCTIONS, FieldSpec, Instruction, MicroOp, field_specs, layout
from tilewright.support.errors import UserError

TOKEN_FIELDS = tuple(spec.name for spec in field_specs(Instruction))
"""The fields that every instruction has; they come last in its text."""
MNEMONICS = {opcode.name.lower(): kind for opcode, kind in INSTRUCTIONS.items()}
ADDRESS_FIELD = "dram"
"""The field that is an address: hexadecimal, or a label."""

AnyKind = TypeVar("AnyKind", Instruction, MicroOp)


def instruction_text(instruction: Instruction, label: Callable[[int], str] = hex) -> str:
    """One instruction: `load inp dram=0x40 y_size=4 x_size=16 pop_next`. Fields with their default are left out."""
    words = [instruction.opcode.name.lower()]
    leading = leading_field(type(instruction))
    if leading is not None:
        words.append(getattr(instruction, leading.name).name.lower())
    return " ".join([*words, *_field_words(instruction, leading, label)])


def micro_op_text(micro_op: MicroOp) -> str:
    """One micro-op: `uop acc=3 inp=1`."""
    return " ".join(["uop", *_field_words(micro_op, None, hex)])


def _field_words(item: Instruction | MicroOp, leading: FieldSpec | None, label: Callable[[int], str]) -> list[str]:
    default = type(item)()
    specs = sorted(field_specs(type(item)), key=lambda spec: spec.name in TOKEN_FIELDS)
    return [
        _field_text(spec, getattr(item, spec.name), label)
        for spec in specs
        if spec != leading and getattr(item, spec.name) != getattr(default, spec.name)
    ]


def _field_text(spec: FieldSpec, value: int, label: Callable[[int], str]) -> str:
    if spec.kind is bool:
        return spec.name
    if isinstance(value, IntEnum):
        return f"{spec.name}={value.name.lower()}"
    return f"{spec.name}={label(value) if spec.name == ADDRESS_FIELD else value}"


def leading_field(kind: type[Instruction]) -> FieldSpec | None:
    """The field whose value follows the mnemonic without its name: an instruction's first, where that is a choice."""
    first = next((spec for spec in field_specs(kind) if spec.name not in TOKEN_FIELDS), None)
    return first if first is not None and issubclass(first.kind, IntEnum) else None


def place(index: int, instruction: Instruction) -> str:
    """An instruction in a message: its place in the program and its text."""
    return f"instruction {index}: {instruction_text(instruction)}"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a line, and where it stands."""

    text: str
    source: str
    line: int
    column: int

    def error(self, message: str, hint: str | None = None) -> UserError:
        """The error of this word."""
        return UserError(
            f"accelerator: {message}", where=f"{self.source}, line {self.line}, column {self.column}", hint=hint
        )

    def number(self, text: str, name: str) -> int:
        """A number in it: decimal or hexadecimal."""
        if not re.fullmatch(r"-?(0x[0-9a-fA-F]+|[0-9]+)", text):
            raise self.error(f"{name} is '{text}'", "a whole number, such as 12 or 0x40")
        return int(text, 0) if "x" in text else int(text)

    def assignment(self) -> tuple[str, str]:
        """What stands before and after its `=`."""
        name, separator, value = self.text.partition("=")
        if not separator or not value:
            raise self.error(f"'{self.text}' is no name=value")
        return name, value


def words_of(text: str, source: str, line: int) -> list[Word]:
    """The words of a line, without its comment."""
    code = text.split(";", 1)[0]
    return [Word(match.group(), source, line, match.start() + 1) for match in re.finditer(r"\S+", code)]


def parse_instruction(words: list[Word], config: AccelConfig, labels: Mapping[str, int]) -> Instruction:
    """The instruction that a line says; `labels` are addresses in words of the bus."""
    first, *rest = words
    kind = MNEMONICS.get(first.text)
    if kind is None:
        raise first.error(f"there is no instruction '{first.text}'", f"there are {', '.join(MNEMONICS)}")
    leading = leading_field(kind)
    values: dict[str, Any] = {}
    if leading is not None:
        if not rest:
            raise first.error(f"{first.text} needs its {leading.name}", f"one of {', '.join(_choices(leading))}")
        chosen, *rest = rest
        values[leading.name] = _choice(chosen, chosen.text, leading)
    return _parsed(kind, rest, values, config, labels)


def parse_micro_op(words: list[Word], config: AccelConfig) -> MicroOp:
    """The micro-op that a line says."""
    return _parsed(MicroOp, words[1:], {}, config, {})


def _parsed(
    kind: type[AnyKind], words: list[Word], values: dict[str, Any], config: AccelConfig, labels: Mapping[str, int]
) -> AnyKind:
    specs = {spec.name: spec for spec in field_specs(kind) if spec.name not in values}
    widths = layout(kind, config)
    for word in words:
        name, separator, text = word.text.partition("=")
        spec = specs.get(name)
        if spec is None:
            near = get_close_matches(name, specs, 1)
            raise word.error(
                f"{kind.__name__.lower()} has no field '{name}'" if name not in values else f"{name} is given already",
                f"did you mean {near[0]}?" if near else f"there are {', '.join(specs)}",
            )
        if name in values:
            raise word.error(f"{name} is given twice")
        if spec.kind is bool:
            if separator:
                raise word.error(f"{name} is a bit and takes no value", "its name alone sets it")
            values[name] = True
        elif not text:
            raise word.error(f"{name} needs a value")
        elif issubclass(spec.kind, IntEnum):
            values[name] = _choice(word, text, spec)
        else:
            value = _address(word, text, labels) if name == ADDRESS_FIELD else word.number(text, name)
            values[name] = _fitting(word, value, spec, widths[name][1])
    return kind(**values)


def _fitting(word: Word, value: int, spec: FieldSpec, bits: int) -> int:
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if spec.is_signed else (0, (1 << bits) - 1)
    if not least <= value <= most:
        raise word.error(f"{spec.name} is {value}, which its {bits} bits cannot hold", f"from {least} to {most}")
    return value


def _choices(spec: FieldSpec) -> dict[str, IntEnum]:
    return {item.name.lower(): item for item in spec.kind} if issubclass(spec.kind, IntEnum) else {}


def _choice(word: Word, text: str, spec: FieldSpec) -> IntEnum:
    choices = _choices(spec)
    if text not in choices:
        raise word.error(f"there is no {spec.name} '{text}'", f"there are {', '.join(choices)}")
    return choices[text]


def _address(word: Word, text: str, labels: Mapping[str, int]) -> int:
    """A number, or a label with or without a number of words of the bus added."""
    label, plus, added = text.partition("+")
    if re.fullmatch(r"[A-Za-z_]\w*", label):
        if label not in labels:
            raise word.error(f"there is no buffer '{label}'", f"there are {', '.join(labels)}" if labels else None)
        return labels[label] + (word.number(added, ADDRESS_FIELD) if plus else 0)
    return word.number(text, ADDRESS_FIELD)
