"""Programs as text: `tilewright inspect --stage vm`."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.vm.program import (
    ANY,
    BIND,
    OPERANDS,
    BlobConstant,
    Instruction,
    Opcode,
    Operand,
    Program,
    VmFunction,
)

_NAME_WIDTH = 14


def disassemble(program: Program) -> str:
    """A program as text: its tables, then its functions."""
    parts = []
    if program.constants:
        lines = [f"  c{number}: {_constant(item)}" for number, item in enumerate(program.constants)]
        parts.append("\n".join(["constants", *lines]))
    parts += [_function(program, number, function) for number, function in enumerate(program.functions)]
    return "\n\n".join(parts)


def _constant(item: object) -> str:
    if isinstance(item, BlobConstant):
        return f"{item.dtype}{list(item.shape)} at {item.offset}"
    return f"string{list(getattr(item, 'shape', ()))}"


def _function(program: Program, number: int, function: VmFunction) -> str:
    given = [f"r{n}" for n in range(function.captured + function.params)]
    captured = ", ".join([*given[: function.captured], *(f"s{n}" for n in range(function.captured_symbols))])
    head = f"f{number} {function.name}({', '.join(given[function.captured :])})"
    if captured:
        head += f" captures {captured}"
    lines = [f"{head}: {function.registers} registers, {function.symbols} symbols"]
    lines += [f"  {place:4} {_instruction(program, item)}".rstrip() for place, item in enumerate(function.code)]
    return "\n".join(lines)


def _instruction(program: Program, instruction: Instruction) -> str:
    opcode = Opcode(instruction[0])
    results: list[str] = []
    operands: list[str] = []
    for kind, operand in zip(OPERANDS[opcode], instruction[1:], strict=True):
        if kind in (Operand.RESULT, Operand.RESULTS):
            results += [f"r{n}" for n in (operand if kind.is_list else (operand,))]
        else:
            operands.append(_operand(program, kind, operand))
    text = f"{opcode.name.lower():{_NAME_WIDTH}}{' '.join(part for part in operands if part)}"
    return f"{text} -> {', '.join(results)}" if results else text


def _operand(program: Program, kind: Operand, operand: Any) -> str:
    text: str
    match kind:
        case Operand.REGISTER:
            return f"r{operand}"
        case Operand.REGISTERS:
            return f"({', '.join(f'r{n}' for n in operand)})"
        case Operand.SYMBOLS:
            return f"[{', '.join(f's{n}' for n in operand)}]" if operand else ""
        case Operand.CONSTANT:
            return f"c{operand}"
        case Operand.SEGMENT:
            return f"segment{operand}"
        case Operand.HOST:
            text = program.hosts[operand].name
            return text
        case Operand.FUNCTION:
            return f"f{operand}"
        case Operand.CONSTRUCTOR:
            text = program.constructors[operand].name
            return text
        case Operand.TARGET:
            return f"to {operand}"
        case Operand.TEXT:
            return repr(program.texts[operand])
        case Operand.EXTENT:
            return f"+{program.extents[operand]}"
        case Operand.EXTENTS:
            return f"[{', '.join(str(program.extents[n]) for n in operand)}]"
        case Operand.DIMENSIONS:
            return f"[{', '.join(_dimension(program, *pair) for pair in operand)}]"
    return str(operand)


def _dimension(program: Program, mode: int, number: int) -> str:
    if mode == ANY:
        return "_"
    return f"s{number}:=" if mode == BIND else str(program.extents[number])
