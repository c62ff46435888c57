"""Where a kernel waits for the kernels before it, and where it lets those behind it start.

It waits in front of the first statement that touches memory which others write: constants are read before. It lets
others start when it has read what it needs and is about to write results. They wait in turn, so any place is right: too
early, they take room on the device that they only wait in; too late, nothing is gained. The place is behind the main
loop: the last statement that reads global memory before the first one that writes to it. A kernel that has all its
weights when it waits is quick from there on, and those behind it are likely to begin with theirs: they start at once.
So they do where weights are read as quickly as memory allows (`MEMORY_BOUND`): it has no pause then.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import pre_order
from tilewright.tir.annotations import MEMORY_BOUND
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import Allocate, BufferStore, For, IfThenElse, LetStmt, SeqStmt, Stmt


def release_point(body: Stmt, written: Collection[Buffer], constants: Collection[Buffer] = ()) -> Stmt | None:
    """The statement in front of which a kernel lets others start; None if it writes nothing. Loops are not entered.

    `written` are the buffers that it writes, of whatever scope; `constants` parameters that no kernel writes.
    """
    wait, *behind = _from_wait(body, constants)
    weights = max(_loaded(body) & {*constants}, key=_size, default=None)
    if weights is not None and not any(weights in _loaded(item) for item in (wait, *behind)):
        return wait
    if any(
        isinstance(item, For) and MEMORY_BOUND.is_on(item) for part in (wait, *behind) for item in all_statements(part)
    ):
        return wait
    # What is allocated in the kernel is private to threads, whatever its scope says.
    private = {item.buffer for item in all_statements(body) if isinstance(item, Allocate)}
    results = {buffer for buffer in written if buffer.scope == "global"} - private
    before: list[Stmt] = []
    stmt = body
    while True:
        if isinstance(stmt, SeqStmt):
            first = next((number for number, item in enumerate(stmt.stmts) if _writes(item, results)), None)
            if first is None:
                return None
            before += stmt.stmts[:first]
            stmt = stmt.stmts[first]
        elif isinstance(stmt, (Allocate, LetStmt)):
            stmt = stmt.body
        elif isinstance(stmt, IfThenElse) and stmt.else_body is None:
            stmt = stmt.then_body
        elif isinstance(stmt, IfThenElse) and stmt.else_body is not None and not _writes(stmt.then_body, results):
            # Threads that only copy for the others come first.
            stmt = stmt.else_body
        elif _writes(stmt, results):
            break
        else:
            return None
    order = [*before, stmt]
    last = max((number for number, item in enumerate(before) if _reads(item, private)), default=len(before) - 1)
    return order[last + 1]


def wait_point(body: Stmt, constants: Collection[Buffer]) -> Stmt:
    """The statement in front of which all threads of a kernel wait: the first one that touches what others write.

    Loops and conditions are not entered. `constants` are parameters that no kernel writes.
    """
    return _from_wait(body, constants)[0]


def _from_wait(body: Stmt, constants: Collection[Buffer]) -> list[Stmt]:
    """The statement that a kernel waits in front of, and all that come behind it."""
    own = {*constants, *(item.buffer for item in all_statements(body) if isinstance(item, Allocate))}
    behind: list[Stmt] = []
    stmt = body
    while True:
        if isinstance(stmt, SeqStmt):
            number = next((number for number, item in enumerate(stmt.stmts) if _touches(item, own)), None)
            if number is None:
                return [stmt, *behind]
            behind += stmt.stmts[number + 1 :]
            stmt = stmt.stmts[number]
        elif isinstance(stmt, Allocate) or (isinstance(stmt, LetStmt) and not _reads(stmt.value, own)):
            stmt = stmt.body
        else:
            return [stmt, *behind]


def _loaded(stmt: Stmt) -> set[Buffer]:
    return {item.buffer for item in pre_order(stmt) if isinstance(item, BufferLoad)}


def _size(buffer: Buffer) -> int:
    return prod(buffer.static_shape or (0,)) * buffer.dtype.itemsize


def _touches(stmt: Stmt, own: Collection[Buffer]) -> bool:
    results = {item.buffer for item in all_statements(stmt) if isinstance(item, BufferStore)} - {*own}
    return _reads(stmt, own) or any(buffer.scope == "global" for buffer in results)


def _writes(stmt: Stmt, results: Collection[Buffer]) -> bool:
    return any(isinstance(item, BufferStore) and item.buffer in results for item in all_statements(stmt))


def _reads(item: Stmt | PrimExpr, private: Collection[Buffer]) -> bool:
    loads = (item for item in pre_order(item) if isinstance(item, BufferLoad))
    return any(load.buffer.scope == "global" and load.buffer not in private for load in loads)
