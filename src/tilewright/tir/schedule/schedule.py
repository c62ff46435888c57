"""`Schedule`: the primitives of one loop program and the moves that consist of them; and how a trace is replayed."""

from __future__ import annotations

from typing import cast

from tilewright.support.errors import UserError
from tilewright.tir.analysis.intrinsic_mapping import find_mapping
from tilewright.tir.analysis.match_intrin import Mismatch
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.automatic_tensorize import auto_tensorize
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.primitives import Primitives, chosen_intrinsic
from tilewright.tir.schedule.trace import Trace, Value
from tilewright.tir.tensor_intrin import TensorIntrin


class Schedule(Primitives):
    """A program on its way from what to compute to how.

    `schedule.func` is always a valid, equivalent program. A primitive that does not apply raises `ScheduleError` and
    leaves the program as it was. `seed` makes the sampling methods repeatable.
    """

    def tile(
        self, x_loop: LoopHandle, y_loop: LoopHandle, x_factor: int, y_factor: int
    ) -> tuple[LoopHandle, LoopHandle, LoopHandle, LoopHandle]:
        """Split two nested loops and bring the inner parts inside: gives (x_outer, y_outer, x_inner, y_inner)."""
        x_outer, x_inner = self.split(x_loop, [None, x_factor])
        y_outer, y_inner = self.split(y_loop, [None, y_factor])
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def auto_tensorize(self, block: BlockHandle, intrinsic: TensorIntrin | str) -> BlockHandle:
        """Bring a block to tiles that an intrinsic computes, by reindex, layouts, padding, splits and reorder.

        C[n, y, x, f] += A[n, y + r, x + s, c] * W[r, s, c, f]
          ->  A_reindex, W_reindex;  for m_0, f_0, k_0: gemm8x8 of tiles;  C[n, y, x, f] = C_reindex[...]

        The trace records the primitives that it consists of.
        """
        chosen = chosen_intrinsic(intrinsic, "auto_tensorize")
        node = self._block(block, "auto_tensorize")
        mapping = find_mapping(node, chosen)
        if isinstance(mapping, Mismatch):
            self._state.fail(f"auto_tensorize: {chosen.name} does not compute this: {mapping.reason}", node)
        # Tried first on a copy: one of the primitives may refuse when others are done.
        auto_tensorize(self.copy(), block, chosen, mapping)
        return auto_tensorize(self, block, chosen, mapping)


KINDS = frozenset(
    name
    for kind in Schedule.__mro__[:-1]
    for name in vars(kind)
    if not name.startswith("_") and name not in ("func", "origin", "trace", "copy", "show", "tile", "auto_tensorize")
)
"""The names of the methods that a trace can have as instructions."""


def replay(trace: Trace, func: PrimFunc) -> Schedule:
    """A schedule of a function with a trace's instructions and decisions applied."""
    schedule = Schedule(func)

    def call(kind: str, inputs: list[object], attributes: dict[str, object], decision: Value) -> object:
        if kind not in KINDS:
            raise UserError(f"the trace has an unknown instruction {kind!r}")
        if decision is not None:
            attributes = {**attributes, "decision": decision}
        return cast(object, getattr(schedule, kind)(*inputs, **attributes))

    trace.apply(call)
    return schedule
