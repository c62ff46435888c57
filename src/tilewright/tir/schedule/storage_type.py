"""The type in which an intermediate buffer is stored: set_dtype."""

from __future__ import annotations

from typing import Final

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Call
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.schedule.cache import pick_buffer
from tilewright.tir.schedule.state import ScheduleState, transform_users
from tilewright.tir.stmt import Block, BufferStore

_EXACT_BITS: Final = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""How many binary digits of an integer each float type holds exactly."""
_ADDRESSES: Final = ("access_ptr", "element_distance")


def set_dtype(state: ScheduleState, block: Block, choice: int | str, dtype: DataType) -> None:
    """Store an intermediate buffer that a block writes in another type; values are converted on the way in and out.

    B[i] = A[i] * 2.0;  C[i] = B[i] + 1.0   ->   B[i] = float16(A[i] * 2.0);  C[i] = float32(B[i]) + 1.0

    The one primitive that may change results. Floats go to any float type: each store rounds to the nearest value of
    it, beyond its range to infinity (`float8_e4m3fn`: NaN). Integers go only to types that hold all their values.
    """
    what = "set_dtype"
    buffer = pick_buffer(state, block, block.writes, choice, what)
    if state.is_parameter(buffer):
        state.fail(f"{what}: {buffer.name} is a parameter of the function: the caller decides its type", block)
    if not dtype.is_scalar or not _holds(dtype, buffer.dtype):
        state.fail(
            f"{what}: {buffer.name} holds {buffer.dtype}, and {dtype} does not hold all of its values",
            block,
            "floats can be stored in any float type (they are rounded), integers in types that hold all of theirs",
        )
    if dtype is buffer.dtype:
        return
    for call in pre_order(state.index.root):
        if isinstance(call, Call) and call.name in _ADDRESSES and any(_is_element(arg, buffer) for arg in call.args):
            state.fail(f"{what}: {buffer.name} is used by its address, where nothing converts its elements", block)
    root = _converted(state.index.root, buffer, buffer.replace(dtype=dtype))
    state.commit(state.func.replace(body=root))


def _holds(new: DataType, old: DataType) -> bool:
    """Whether values of one type may be kept in another: exactly, or (floats in floats) rounded."""
    if old.is_float:
        return new.is_float
    if old.is_bool:
        return new.is_bool or new.is_integer
    if not old.is_integer or new.is_bool:
        return False
    if new.is_integer:
        return new.min_value() <= old.min_value() and old.max_value() <= new.max_value()
    return new.is_float and max(old.max_value(), -old.min_value()).bit_length() <= _EXACT_BITS.get(str(new), 0)


def _is_element(item: Node, buffer: Buffer) -> bool:
    return isinstance(item, BufferLoad) and item.buffer is buffer


def _converted(root: Block, old: Buffer, new: Buffer) -> Block:
    """A program in which a buffer has another type, and every access converts."""

    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad) and item.buffer is old:
            return BufferLoad(new, item.indices).astype(item.dtype)
        if isinstance(item, BufferStore) and item.buffer is old:
            return BufferStore(new, item.indices, item.value.astype(new.dtype.with_lanes(item.value.dtype.lanes)))
        if isinstance(item, BufferRegion) and item.buffer is old:
            return BufferRegion(new, item.region)
        if isinstance(item, Block) and old in item.allocations:
            return item.replace(allocations=tuple(new if buffer is old else buffer for buffer in item.allocations))
        return None

    return transform_users(root, (old,), visit)
