"""The first products in parts: they begin when the first part of their operands is there, not the last.

    GEMM a (8 steps of its sum); GEMM b (8 steps)         ->      GEMM a (2); GEMM b (2); GEMM a (2); ...

Nothing hides the loads before the first product. Those of both threads are cut along their sums, and take turns: what
stays on chip is loaded piece by piece as the parts come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tilewright.accel.accesses import looped
from tilewright.accel.config import Memory
from tilewright.accel.instructions import Gemm, MicroOp, Overwrite, Unit
from tilewright.backends.accel.steps import Indices, Step, Touched, conflict

_PARTS: Final = 8
"""Parts of one instruction, at most: each has micro-ops of its own."""
_LEAST_STEPS: Final = 64
"""Products of a part, at least: the pipeline fills and drains, and a token goes around."""


def split_first_products(steps: Sequence[Step]) -> list[Step]:
    """The steps with the first products of each thread in parts, where they have sums to be cut along."""
    products = [number for number, step in enumerate(steps) if isinstance(step.instruction, Gemm)][:2]
    if not products:
        return list(steps)
    first, last = products[0], products[-1]
    before, behind = _around(steps[first : last + 1])
    if first != last and any(conflict(step, steps[last]) for step in (steps[first], *behind)):
        products, last, before, behind = [first], first, [], []
    parts = [_split(steps[number]) for number in products]
    if len({len(part) for part in parts}) != 1 or len(parts[0]) == 1:
        return list(steps)
    in_turn = [part for turn in zip(*parts, strict=True) for part in turn]
    return [*steps[:first], *before, *in_turn, *behind, *steps[last + 1 :]]


def _around(steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """What lies between two products: loads that may come before the first one, and what then comes behind both."""
    before: list[Step] = []
    behind: list[Step] = []
    for step in steps[1:-1]:
        is_free = step.unit is Unit.LOAD and not any(conflict(step, other) for other in (steps[0], *behind))
        (before if is_free else behind).append(step)
    return before, behind


def _split(step: Step) -> list[Step]:
    """A GEMM in parts of its sums: of its outer loop, or of its micro-ops."""
    item = step.instruction
    assert isinstance(item, Gemm)
    count = item.uop_end - item.uop_begin
    if item.outer > 1 and item.acc_outer == 0 and item.overwrite in (Overwrite.OUTER, Overwrite.NEVER):
        return [_part(step, item, begin, size) for begin, size in _ranges(item.outer, item.inner * count)]
    same = len({micro_op.acc for micro_op in step.micro_ops[item.uop_begin : item.uop_end]}) == 1
    if same and item.overwrite in (Overwrite.UOP, Overwrite.NEVER):
        return [_range(step, item, begin, size) for begin, size in _ranges(count, item.outer * item.inner)]
    return [step]


def _ranges(extent: int, each: int) -> list[tuple[int, int]]:
    """Equal parts of a loop over sums: where they begin, and their size."""
    most = min(_PARTS, max(1, extent * each // _LEAST_STEPS))
    size = extent // max(count for count in range(1, most + 1) if extent % count == 0)
    return [(begin, size) for begin in range(0, extent, size)]


def _range(step: Step, item: Gemm, begin: int, size: int) -> Step:
    """Some of the micro-ops: the kernel stays as it is."""
    first = item.uop_begin + begin
    overwrite = Overwrite.NEVER if begin else item.overwrite
    part = replace(item, uop_begin=first, uop_end=first + size, overwrite=overwrite)
    return _with_places(step, part, step.micro_ops)


def _part(step: Step, item: Gemm, begin: int, size: int) -> Step:
    """Steps `begin` to `begin + size` of the outer loop."""
    own = tuple(
        replace(micro_op, inp=micro_op.inp + begin * item.inp_outer, wgt=micro_op.wgt + begin * item.wgt_outer)
        for micro_op in step.micro_ops[item.uop_begin : item.uop_end]
    )
    overwrite = Overwrite.NEVER if begin else item.overwrite
    part = replace(item, outer=size, overwrite=overwrite, uop_begin=0, uop_end=len(own))
    return _with_places(step, part, own)


def _with_places(step: Step, part: Gemm, kernel: tuple[MicroOp, ...]) -> Step:
    """A step for a part, with what it reads of inputs and weights; accumulators are those of the whole."""
    own = kernel[part.uop_begin : part.uop_end]

    def places(starts: list[int], outer_step: int, inner_step: int) -> Indices:
        return np.unique(looped(np.array(starts, np.int64), part.outer, part.inner, outer_step, inner_step))

    inputs = Touched(Memory.INP, places([micro_op.inp for micro_op in own], part.inp_outer, part.inp_inner))
    weights = Touched(Memory.WGT, places([micro_op.wgt for micro_op in own], part.wgt_outer, part.wgt_inner))
    return Step(part, (inputs, weights, *step.writes), step.writes, micro_ops=kernel, loops=step.loops)
