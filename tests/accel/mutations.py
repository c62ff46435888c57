"""Programs with one token dropped, added or moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.accel.instructions import Instruction

BITS = ("pop_prev", "pop_next", "push_prev", "push_next")
MOVED = " and "
"""What the name of a mutation has between the two instructions of a moved token."""


def mutations(program: Sequence[Instruction]) -> Iterator[tuple[str, list[Instruction]]]:
    """All programs with one token bit flipped, or one token moved to a neighbour of its unit."""
    for index, item in enumerate(program):
        for bit in BITS:
            flipped = list(program)
            flipped[index] = replace(item, **{bit: not getattr(item, bit)})
            yield f"{bit} of {index}", flipped
            for other in range(index + 1, len(program)):
                if program[other].unit is item.unit and getattr(item, bit) != getattr(program[other], bit):
                    moved = list(program)
                    moved[index] = replace(item, **{bit: getattr(program[other], bit)})
                    moved[other] = replace(program[other], **{bit: getattr(item, bit)})
                    yield f"{bit} of {index}{MOVED}{other}", moved
                    break
