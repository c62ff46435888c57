"""Instructions with labels -> the code of a function: jumps resolved, values released after their last use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.runtime.vm.program import ENDS, OPERANDS, Instruction, Opcode, Operand
from tilewright.support.errors import CompilerBug

_READS = (Operand.REGISTER, Operand.REGISTERS)
_WRITES = (Operand.RESULT, Operand.RESULTS)
_BRANCHES = (Opcode.BRANCH, Opcode.TAG)


class Label:
    """A place in the code, given when it is known."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place = -1


class Assembler:
    """Collects the instructions of one function. Registers are numbered as they are taken."""

    def __init__(self, given: int) -> None:
        self.given = given
        self.registers = given
        self._code: list[tuple[Any, ...]] = []

    def register(self) -> int:
        """A register that nothing uses yet."""
        self.registers += 1
        return self.registers - 1

    def emit(self, opcode: Opcode, *operands: Any) -> None:
        """Add an instruction; a target is a label."""
        self._code.append((opcode, *operands))

    def bind(self, label: Label) -> None:
        """Put a label here."""
        label.place = len(self._code)

    def finish(self) -> tuple[Instruction, ...]:
        """The code: what is never reached left out, values released as soon as nothing needs them."""
        code, following = self._code, self._following()
        reached = _reached(following)
        before, after = _liveness(code, following, reached)
        sources: dict[int, list[int]] = {}
        for place in sorted(reached):
            for target in following[place]:
                sources.setdefault(target, []).append(place)
        result: list[tuple[Any, ...]] = []
        moved: dict[int, int] = {}
        for place, instruction in enumerate(code):
            if place not in reached:
                continue
            moved[place] = len(result)
            dead = set(range(self.given)) - before[0] if place == 0 else set()
            for source in sources.get(place, ()):
                if code[source][0] in _BRANCHES:
                    dead |= before[source] - before[place]
            _release(result, dead)
            result.append(instruction)
            if instruction[0] not in (*ENDS, *_BRANCHES):
                _release(result, (before[place] | set(_registers(instruction, _WRITES))) - after[place])
        return tuple(self._resolved(instruction, moved) for instruction in result)

    def _following(self) -> list[list[int]]:
        """For each instruction, those that may come after it."""
        following: list[list[int]] = []
        for place, instruction in enumerate(self._code):
            targets = [operand.place for operand in instruction[1:] if isinstance(operand, Label)]
            if any(target <= place for target in targets):
                raise CompilerBug("a jump in bytecode does not go forward")
            following.append(targets if instruction[0] in ENDS else [place + 1, *targets])
        return following

    @staticmethod
    def _resolved(instruction: tuple[Any, ...], moved: dict[int, int]) -> Instruction:
        return tuple(moved[item.place] if isinstance(item, Label) else item for item in instruction)


def _registers(instruction: tuple[Any, ...], kinds: tuple[Operand, ...]) -> Iterable[int]:
    for kind, operand in zip(OPERANDS[instruction[0]], instruction[1:], strict=True):
        if kind in kinds:
            yield from operand if kind.is_list else (operand,)


def _reached(following: list[list[int]]) -> set[int]:
    reached = {0}
    for place, targets in enumerate(following):
        if place in reached:
            reached.update(targets)
    return reached


def _liveness(
    code: list[tuple[Any, ...]], following: list[list[int]], reached: set[int]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """The registers that are still needed before and after each instruction. Jumps go forward: one pass is enough."""
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for place in sorted(reached, reverse=True):
        if place >= len(code):
            raise CompilerBug("the code of a function does not end")
        needed: set[int] = set()
        for target in following[place]:
            needed |= before[target]
        after[place] = needed
        before[place] = (needed - set(_registers(code[place], _WRITES))) | set(_registers(code[place], _READS))
    return before, after


def _release(result: list[tuple[Any, ...]], dead: set[int]) -> None:
    if dead:
        result.append((Opcode.RELEASE, tuple(sorted(dead))))
