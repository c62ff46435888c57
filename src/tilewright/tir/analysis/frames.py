"""Where the buffers that a function for a CPU allocates live: on the stack, or in scratch memory from the heap."""

from __future__ import annotations

from typing import Final

from tilewright.tir.buffer import Buffer
from tilewright.tir.rewrite.statements import inner_statements
from tilewright.tir.stmt import Allocate, For, LoopKind, Stmt

STACK_BYTES: Final = 16 * 1024
"""A buffer up to this size lives on the stack; larger ones are scratch memory."""
LOCAL_BYTES: Final = 64 * 1024
"""The same for buffers of scope `local`."""
FRAME_BYTES: Final = 256 * 1024
"""What the buffers of one function may take of the stack together: worker threads have small ones."""


def frame_allocations(stmt: Stmt, inside: bool) -> list[Allocate]:
    """The allocations that belong to this function: not those of parallel bodies that become functions.

    `inside` says that the statement is such a body itself: parallel loops in it stay where they are.
    """
    allocations: list[Allocate] = []
    stack: list[Stmt] = [stmt]
    while stack:
        item = stack.pop()
        if isinstance(item, Allocate):
            allocations.append(item)
        if isinstance(item, For) and item.kind is LoopKind.PARALLEL and not inside:
            continue
        stack.extend(inner_statements(item))
    return allocations


def constant_bytes(buffer: Buffer) -> int | None:
    """The size of a buffer, or None if it is symbolic."""
    shape = buffer.static_shape
    if shape is None:
        return None
    size = buffer.dtype.itemsize * buffer.dtype.lanes
    for dim in shape:
        size *= dim
    return size


def stack_buffers(allocations: list[Allocate], frame_bytes: int = FRAME_BYTES) -> set[Buffer]:
    """The buffers of one function that live on its stack: small ones of constant size, as far as there is room."""
    buffers: set[Buffer] = set()
    used = 0
    for stmt in allocations:
        size = constant_bytes(stmt.buffer)
        limit = LOCAL_BYTES if stmt.buffer.scope == "local" else STACK_BYTES
        if size is not None and size <= min(limit, frame_bytes - used):
            used += size
            buffers.add(stmt.buffer)
    return buffers
