"""Reductions whose last step does more than the others (an epilogue in place): the last step must run last.

The steps of a reduction may otherwise run in any order. Primitives keep the start of a reduction first by themselves;
that its end stays last is asked here of each program that comes of them.
"""

from __future__ import annotations

from typing import Final

from tilewright.ir.expr import Var, const_value
from tilewright.tir.analysis.empty_reductions import may_have_no_steps
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.annotations import ZIGZAG
from tilewright.tir.stmt import Block, IterKind, LoopKind

_IN_ORDER: Final = (LoopKind.SERIAL, LoopKind.UNROLLED)


def last_step_conflict(index: ProgramIndex, block: Block) -> str | None:
    """Why the last step of a reduction may not run last; None if it does."""
    if may_have_no_steps(block, index.path(block)):
        return f"the reduction of block {block.name} may be over nothing, and then has no last step"
    loops = index.loops_above(block)
    names = {loop.var for loop in loops}
    for item in block.iters:
        if item.kind is not IterKind.REDUCE or const_value(item.domain.extent) == 1:
            continue
        form = linear(item.value)
        if any(type(term) is not Var or term not in names or step < 0 for term, step in form.terms.items()):
            return f"iterator {item.var.name} is not a sum of the loops around block {block.name}"
        driving = [loop for loop in loops if loop.var in form.terms]
        for loop in driving:
            if loop.kind not in _IN_ORDER or ZIGZAG.of(loop):
                return f"the iterations of loop {loop.var.name} do not run one after another"
            if any(mentions(other.value, {loop.var}) for other in block.iters if other.kind is not IterKind.REDUCE):
                return f"loop {loop.var.name} runs through elements and steps at once"
        steps = [form.terms[loop.var] for loop in driving if const_value(loop.extent) != 1]
        cut = mentions(block.predicate, {loop.var for loop in driving})
        if cut and steps != sorted(steps, reverse=True):
            return f"the guarded loops of iterator {item.var.name} are not in the order of its steps"
    return None
