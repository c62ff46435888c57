"""The loops of GEMM and ALU: two of them the instruction's own, the others unrolled to micro-ops.

    for k in 9: for y in 4: for x in 8                        outer y, inner x, 9 micro-ops

Micro-ops are in the order of the loops over reductions first: those that touch each accumulator for the first time
are at the front, so that the same kernel serves products that begin sums and products that go on with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tilewright.accel.instructions import EXTENT_BITS, MicroOp, Overwrite
from tilewright.backends.accel.steps import Indices, loop_places

_MOST = (1 << EXTENT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of an instruction: its extent, and what a step adds to each address."""

    extent: int
    steps: tuple[int, ...]


_ONCE = Loop(1, (0, 0, 0))


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """An outer and an inner loop around micro-ops, of which the first `fresh` meet accumulators for the first time."""

    base: tuple[int, int, int]
    loops: tuple[Loop, ...]
    outer: Loop
    inner: Loop
    micro_ops: tuple[MicroOp, ...]
    fresh: int

    def places(self, address: int) -> Indices:
        """The tensors that one of the addresses takes."""
        return loop_places(self.base[address], [(loop.extent, loop.steps[address]) for loop in self.loops])

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """The fields of the instruction for its loops; `names` are those of the addresses."""
        steps = {
            f"{name}_{which}": loop.steps[number]
            for number, name in enumerate(names)
            for which, loop in (("outer", self.outer), ("inner", self.inner))
        }
        return {"outer": self.outer.extent, "inner": self.inner.extent, **steps}

    def ranges(self, begins: bool) -> Iterator[tuple[int, int, Overwrite]]:
        """The instructions that it takes: ranges of micro-ops, and when these overwrite."""
        count = len(self.micro_ops)
        if not begins:
            yield 0, count, Overwrite.NEVER
        elif _is_reduction(self.outer):
            yield 0, count, Overwrite.OUTER
        elif self.fresh == count:
            yield 0, count, Overwrite.ALWAYS
        elif self.fresh == 1:
            yield 0, count, Overwrite.UOP
        else:
            yield 0, self.fresh, Overwrite.ALWAYS
            yield self.fresh, count, Overwrite.NEVER


def _is_reduction(loop: Loop) -> bool:
    return loop.extent > 1 and loop.steps[0] == 0


def micro_kernel(base: tuple[int, int, int], loops: Sequence[Loop]) -> MicroKernel:
    """How an instruction runs some loops: the largest by itself, as far as its overwriting allows."""
    reductions = [loop for loop in loops if _is_reduction(loop)]
    others = [loop for loop in loops if not _is_reduction(loop)]
    # Of several loops over sums none may be the instruction's: which product is the first could not be said.
    able = [loop for loop in (*others, *(reductions if len(reductions) == 1 else ())) if loop.extent <= _MOST]
    own = sorted(able, key=lambda loop: -loop.extent)[:2]
    own.sort(key=lambda loop: not _is_reduction(loop))
    outer, inner = [*own, _ONCE, _ONCE][:2]
    unrolled = [loop for loop in (*reductions, *others) if not any(loop is item for item in own)]
    steps = [[tuple(number * step for step in loop.steps) for number in range(loop.extent)] for loop in unrolled]
    micro_ops = []
    for place in product(*steps):
        acc, inp, wgt = (start + sum(step[n] for step in place) for n, start in enumerate(base))
        micro_ops.append(MicroOp(acc=acc, inp=inp, wgt=wgt))
    fresh = prod(loop.extent for loop in unrolled if not _is_reduction(loop))
    return MicroKernel(base, tuple(loops), outer, inner, tuple(micro_ops), fresh)
