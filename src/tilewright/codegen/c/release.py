"""Where a kernel lets the kernels behind it start: before it writes its first result.

Kernels that may start early wait for those before them in their first line, so any place is right. Too early, they take
room on the device that they only wait in; too late, nothing is gained: the main loop is over when results are written.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.rewriting import all_statements
from tilewright.tir.stmt import Allocate, BufferStore, IfThenElse, LetStmt, SeqStmt, Stmt


def release_point(body: Stmt, written: Collection[Buffer]) -> Stmt | None:
    """The outermost statement that writes one of the buffers first, not looking into loops; None if none does."""
    stmt = body
    while True:
        if isinstance(stmt, SeqStmt):
            found = next((item for item in stmt.stmts if _writes(item, written)), None)
        elif isinstance(stmt, (Allocate, LetStmt)):
            found = stmt.body
        elif isinstance(stmt, IfThenElse) and stmt.else_body is None:
            found = stmt.then_body
        else:
            return stmt if _writes(stmt, written) else None
        if found is None:
            return None
        stmt = found


def _writes(stmt: Stmt, written: Collection[Buffer]) -> bool:
    return any(isinstance(item, BufferStore) and item.buffer in written for item in all_statements(stmt))
