"""How intermediate buffers lie in memory: storage_align, storage_swizzle."""

from __future__ import annotations

from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.align_storage import ATTRIBUTE
from tilewright.tir.passes.swizzle_storage import ATTRIBUTE as SWIZZLED
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


def storage_swizzle(state: ScheduleState, block: Block, choice: int | str) -> None:
    """Store a buffer of shared memory that a block writes so that neighbouring rows begin in different banks.

    Rows are 128 bytes; the runs of 16 bytes in row r change places as `run ^ r % 8` says (`passes/swizzle_storage.py`).
    What is computed does not change.
    """
    what = "storage_swizzle"
    buffer = pick_buffer(state, block, block.writes, choice, what)
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: the caller decides how it lies", block)
    require_swizzle(state, buffer, block)
    known = state.func.attributes.get(SWIZZLED)
    names = list(known) if isinstance(known, (list, tuple)) else []
    attributes = {**state.func.attributes, SWIZZLED: [*names, buffer.name]}
    state.commit(state.func.replace(attributes=attributes))


def require_swizzle(state: ScheduleState, buffer: Buffer, block: Block | None) -> None:
    """Elements change places within 128 bytes of a row: rows must be made of such."""
    shape = buffer.static_shape
    if shape is None or buffer.dtype.itemsize not in (1, 2, 4, 8, 16) or shape[-1] * buffer.dtype.itemsize % 128:
        state.fail(f"storage_swizzle: the rows of {buffer.name} are not made of 128 bytes", block)
