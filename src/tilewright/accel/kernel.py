"""Kernels: programs whose addresses are patched when they are launched, as text and as what DRAM holds.

    kernel conv_kernel0
    config default
    uop acc=0 inp=0 wgt=0
    load inp y_size=4 x_size=16 push_next @0
    ...

`@0` says that `dram` counts from the first argument of the kernel, `@uop` that it counts from its micro-ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from tilewright.accel.assembler import instruction_text, leading_field
from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import encode, encode_micro_ops
from tilewright.accel.instructions import INSTRUCTIONS, Instruction, Load, MicroOp, Opcode, Store, field_specs
from tilewright.support.errors import UserError

MICRO_OPS: Final = -1
"""The argument that addresses of micro-ops count from: they are a part of the kernel."""


@dataclass(frozen=True, slots=True)
class AccelKernel:
    """A program: `dram` of the instructions in `relocations` counts from an argument, or from the micro-ops."""

    name: str
    config: AccelConfig
    instructions: tuple[Instruction, ...]
    micro_ops: tuple[MicroOp, ...]
    relocations: tuple[tuple[int, int], ...]
    """Numbers of instructions, and of arguments."""

    def micro_op_bytes(self) -> bytes:
        """The micro-ops as DRAM holds them."""
        return encode_micro_ops(self.micro_ops, self.config).tobytes()

    def at(self, arguments: Sequence[int], micro_ops: int) -> tuple[Instruction, ...]:
        """The program for arguments and micro-ops at these addresses."""
        result = list(self.instructions)
        for number, argument in self.relocations:
            address = micro_ops if argument == MICRO_OPS else arguments[argument]
            word, rest = divmod(address, self.config.bus_bytes)
            if rest:
                raise UserError(
                    f"accelerator: an argument of {self.name} is at byte {address}",
                    hint=f"arguments begin at multiples of {self.config.bus_bytes} bytes",
                )
            instruction = result[number]
            assert isinstance(instruction, (Load, Store))
            result[number] = replace(instruction, dram=instruction.dram + word)
        return tuple(result)

    def encoded(self, arguments: Sequence[int], micro_ops: int) -> bytes:
        """The same as DRAM holds it."""
        return encode(self.at(arguments, micro_ops), self.config)


def to_text(kernels: Sequence[AccelKernel]) -> str:
    """Kernels as text."""
    return "\n".join(line for kernel in kernels for line in _lines(kernel)) + "\n"


def _lines(kernel: AccelKernel) -> Iterator[str]:
    yield f"kernel {kernel.name}"
    yield f"config {kernel.config.to_text()}"
    for micro_op in kernel.micro_ops:
        yield f"uop acc={micro_op.acc} inp={micro_op.inp} wgt={micro_op.wgt}"
    places = dict(kernel.relocations)
    for number, instruction in enumerate(kernel.instructions):
        argument = places.get(number)
        suffix = "" if argument is None else " @uop" if argument == MICRO_OPS else f" @{argument}"
        yield instruction_text(instruction) + suffix


def from_text(text: str) -> list[AccelKernel]:
    """The kernels that `to_text` wrote."""
    kernels: list[AccelKernel] = []
    pieces: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "kernel" and len(words) == 2:
            pieces.append((words[1], []))
        elif not pieces:
            raise UserError(f"accelerator: '{line}' is in no kernel")
        else:
            pieces[-1][1].append(line)
    for name, lines in pieces:
        kernels.append(_kernel(name, lines))
    return kernels


def _kernel(name: str, lines: Sequence[str]) -> AccelKernel:
    if not lines or not lines[0].startswith("config "):
        raise UserError(f"accelerator: the kernel {name} does not begin with its configuration")
    instructions: list[Instruction] = []
    micro_ops: list[MicroOp] = []
    relocations: list[tuple[int, int]] = []
    for line in lines[1:]:
        mnemonic, *words = line.split()
        if mnemonic == "uop":
            micro_ops.append(MicroOp(**_values(MicroOp, words, line)))
            continue
        if words and words[-1].startswith("@"):
            place = words.pop()[1:]
            if place != "uop" and not place.isdigit():
                raise UserError(f"accelerator: '@{place}' in '{line}' is no argument")
            relocations.append((len(instructions), MICRO_OPS if place == "uop" else int(place)))
        instructions.append(_instruction(mnemonic, words, line))
    config = AccelConfig.from_text(lines[0].removeprefix("config "))
    return AccelKernel(name, config, tuple(instructions), tuple(micro_ops), tuple(relocations))


def _instruction(mnemonic: str, words: list[str], line: str) -> Instruction:
    if mnemonic.upper() not in Opcode.__members__:
        raise UserError(f"accelerator: there is no instruction '{mnemonic}', in '{line}'")
    kind = INSTRUCTIONS[Opcode[mnemonic.upper()]]
    leading = leading_field(kind)
    if leading is not None:
        words = [f"{leading.name}={words[0] if words else ''}", *words[1:]]
    return kind(**_values(kind, words, line))


def _values(kind: type[Instruction] | type[MicroOp], words: Sequence[str], line: str) -> dict[str, Any]:
    known = {spec.name: spec.kind for spec in field_specs(kind)}
    result: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or name in result:
            raise UserError(f"accelerator: '{word}' in '{line}' is no field of {kind.__name__}, or is there twice")
        field = known[name]
        if not equals and field is bool:
            result[name] = True
        elif issubclass(field, IntEnum):
            choices = {item.name.lower(): item for item in field}
            if value not in choices:
                raise UserError(f"accelerator: there is no '{value}' for {name}, in '{line}'")
            result[name] = choices[value]
        else:
            result[name] = _number(value, line)
    return result


def _number(text: str, line: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UserError(f"accelerator: '{text}' in '{line}' is no number") from None
