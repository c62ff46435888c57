"""Blocks that read a buffer which they write: what they read of it, the values from before or those just written."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from tilewright.ir.expr import PrimExpr, Var, const_value, is_const_int
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.bindings import is_injective
from tilewright.tir.analysis.index import child_statements
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.inverse import invert_access
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, For, IfThenElse, LetStmt, Stmt, While


class Update(Enum):
    """What a block that writes a buffer reads of it."""

    NOTHING = "nothing"
    BEFORE = "what was there: A[i] = A[i] + 1"
    """Each instance reads the element that it alone writes, before it writes it."""
    WRITTEN = "what it has just written: B[i] = A[i]; C[i] = B[i]"
    UNKNOWN = "anything else"


def update_kind(state: ScheduleState, block: Block, buffer: Buffer) -> Update:
    """What a block reads of a buffer that it writes."""
    if all(region.buffer is not buffer for region in block.reads):
        return Update.NOTHING
    if any(isinstance(item, Block) for item in pre_order(block.body)) or block.init is not None:
        return Update.UNKNOWN
    events = list(_accesses(block.body, buffer))
    places = {indices for _, indices, _ in events}
    if len(places) != 1 or not _one_instance_each(state, block, next(iter(places))):
        return Update.UNKNOWN
    stores = [n for n, (is_store, _, _) in enumerate(events) if is_store]
    loads = [n for n, (is_store, _, _) in enumerate(events) if not is_store]
    if not stores:
        return Update.UNKNOWN
    if max(loads) < min(stores):
        return Update.BEFORE
    if min(stores) < min(loads) and not events[min(stores)][2]:
        return Update.WRITTEN
    return Update.UNKNOWN


def _accesses(
    stmt: Stmt, buffer: Buffer, guarded: bool = False, open_loops: tuple[Var, ...] = ()
) -> Iterator[tuple[bool, tuple[PrimExpr, ...], bool]]:
    """The accesses of a buffer in order: whether it is a store, the indices, whether it may not happen.

    In a loop of unknown extent it may not, unless the loop runs through the elements; in a while loop neither.
    """
    if isinstance(stmt, While):
        stored = [(item.indices, item.buffer) for item in pre_order(stmt) if isinstance(item, BufferStore)]
        stores = [(True, indices, True) for indices, target in stored if target is buffer]
        loads = [item for item in pre_order(stmt) if isinstance(item, BufferLoad) and item.buffer is buffer]
        # What one of its iterations reads, an earlier one may have written, and what is written a later one may read.
        yield from (*stores, *((False, load.indices, True) for load in loads), *stores)
        return
    children = child_statements(stmt)
    heads: tuple[Node, ...] = ()
    if not children:
        heads = (*stmt.indices, stmt.value) if isinstance(stmt, BufferStore) else stmt.children()
    elif isinstance(stmt, LetStmt):
        heads = (stmt.value,)
    elif isinstance(stmt, IfThenElse):
        heads, guarded = (stmt.condition,), True
    elif isinstance(stmt, For):
        # What one of its iterations reads, an earlier one may have written: a store in it counts as seen before too.
        if (const_value(stmt.extent) or 0) < 1:
            open_loops = (*open_loops, stmt.var)
        for child in children:
            yield from (item for item in _accesses(child, buffer, True) if item[0])
    for head in heads:
        for item in pre_order(head):
            if isinstance(item, BufferLoad) and item.buffer is buffer:
                yield False, item.indices, guarded
    if isinstance(stmt, BufferStore) and stmt.buffer is buffer:
        runs = all(any(mentions(index, {var}) for index in stmt.indices) for var in open_loops)
        yield True, stmt.indices, guarded or not runs
    for child in children:
        yield from _accesses(child, buffer, guarded, open_loops)


def _one_instance_each(state: ScheduleState, block: Block, indices: tuple[PrimExpr, ...]) -> bool:
    """Whether no two instances of a block touch one element, and none runs twice."""
    moving = [item for item in block.iters if not is_const_int(item.domain.extent, 1)]
    inner = {item.var for item in pre_order(block.body) if isinstance(item, (For, LetStmt))}
    if any(isinstance(item, BufferLoad) or item in inner for index in indices for item in pre_order(index)):
        return False
    if moving and invert_access(block, indices, state.analyzer) is None:
        return False
    return is_injective(block, state.index.loops_above(block))


def always_writes(block: Block, buffer: Buffer) -> bool:
    """Whether every instance of a block writes to a buffer, whatever conditions inside it say."""
    if block.init is not None:
        return True
    guards = [guarded for is_store, _, guarded in _accesses_or_blocks(block, buffer) if is_store]
    return not guards or not all(guards)


def _accesses_or_blocks(block: Block, buffer: Buffer) -> Iterator[tuple[bool, tuple[PrimExpr, ...], bool]]:
    for item in pre_order(block.body):
        if isinstance(item, Block) and any(region.buffer is buffer for region in item.writes):
            yield True, (), False
    yield from _accesses(block.body, buffer)


def with_other_loads(block: Block, old: Buffer, new: Buffer) -> Block:
    """A block that reads another buffer at the same places, and writes the one it wrote."""

    def visit(item: Node) -> Node | None:
        return BufferLoad(new, item.indices) if isinstance(item, BufferLoad) and item.buffer is old else None

    return with_detected_accesses(block.replace(body=transform(block.body, visit)))


def with_other_stores(block: Block, old: Buffer, new: Buffer) -> Block:
    """A block that writes another buffer at the same places, and reads the one it read."""

    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferStore) and item.buffer is old:
            return BufferStore(new, item.indices, item.value)
        return None

    return with_detected_accesses(block.replace(body=transform(block.body, visit)))
