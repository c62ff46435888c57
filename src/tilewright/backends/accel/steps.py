"""Instructions before they have tokens: what each touches on chip and in memory, and which argument it addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import Memory
from tilewright.accel.instructions import Instruction, MicroOp, Unit

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the kernel, as a place in memory of its own."""

    number: int


Space = Memory | Argument
"""Where a step reads or writes."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Elements of an on-chip memory, or words of the bus of an argument."""

    space: Space
    places: Indices


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: `dram` of a LOAD or STORE counts from the beginning of `argument`."""

    instruction: Instruction
    reads: tuple[Touched, ...] = ()
    writes: tuple[Touched, ...] = ()
    argument: int | None = None
    micro_ops: tuple[MicroOp, ...] = ()
    """The micro-op kernel of a GEMM or ALU, of which it executes the range that its instruction says."""
    loops: tuple[tuple[str, int], ...] = ()
    """The schedule's loops around it, and the iteration of each that it is."""

    @property
    def unit(self) -> Unit:
        """The unit that executes it."""
        return self.instruction.unit


def conflict(a: Step, b: Step) -> bool:
    """Whether two steps touch the same place and one of them writes it."""
    pairs = ((a.writes, b.writes), (a.writes, b.reads), (a.reads, b.writes))
    return any(_meet(one, other) for left, right in pairs for one in left for other in right)


def _meet(a: Touched, b: Touched) -> bool:
    if a.space != b.space or not a.places.size or not b.places.size:
        return False
    if a.places[-1] < b.places[0] or b.places[-1] < a.places[0]:
        return False
    return bool(np.isin(a.places, b.places, assume_unique=True).any())


def loop_places(base: int, loops: Sequence[tuple[int, int]]) -> Indices:
    """The places that loops (extent, step) touch from a first one on, each once, in order."""
    places = np.array([base], np.int64)
    for extent, step in loops:
        if step:
            places = (places[:, None] + np.arange(extent, dtype=np.int64) * step).reshape(-1)
    return np.unique(places)
