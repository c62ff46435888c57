"""How intermediate buffers lie in memory: storage_align."""

from __future__ import annotations

from tilewright.tir.passes.align_storage import ATTRIBUTE
from tilewright.tir.schedule.cache import pick_buffer
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block


def storage_align(
    state: ScheduleState, block: Block, choice: int | str, axis: int, factor: int, offset: int = 0
) -> None:
    """Space out an intermediate buffer that a block writes, so that rows start where they should.

    T: (16, 32), strides (32, 1)      ->      T: (16, 32), strides (33, 1)       axis 0, factor 32, offset 1

    When the program is lowered, the stride of the axis becomes the least number, not below what the elements need,
    that is `offset` more than a multiple of `factor`. What is computed does not change.
    """
    what = "storage_align"
    buffer = pick_buffer(state, block, block.writes, choice, what)
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: the caller decides how it lies", block)
    if not -buffer.ndim <= axis < buffer.ndim:
        state.fail(f"{what}: {buffer.name} has no axis {axis}", block)
    if factor < 1 or not 0 <= offset < factor:
        state.fail(f"{what}: a factor of {factor} with an offset of {offset}", block, "0 <= offset < factor")
    known = state.func.attributes.get(ATTRIBUTE)
    notes: dict[str, object] = dict(known) if isinstance(known, dict) else {}
    # Counted from the last dimension: lowering puts further ones in front (copies for stages, places for threads).
    notes[buffer.name] = [axis % buffer.ndim - buffer.ndim, factor, offset]
    state.commit(state.func.replace(attributes={**state.func.attributes, ATTRIBUTE: notes}))
