"""Constants of one element are read before anything else that a kernel does.

    for t in threads:                        for t in threads:
        for i in range(8):             ->        zero = Z[0]
            B[i, t] = A[i, t] - Z[0]             for i in range(8):
                                                     B[i, t] = A[i, t] - zero

A kernel that starts before those in front of it are done has them when it goes on: otherwise each thread would wait for
memory twice, first for those kernels' results and then for a number that has been there all the time.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.build import const
from tilewright.ir.expr import Var
from tilewright.ir.visit import pre_order, rewrite_nodes
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements
from tilewright.tir.stmt import For, LetStmt, LoopKind, Stmt


def read_scalars_first(func: PrimFunc) -> PrimFunc:
    """The function whose kernels begin with reading the constants of one element that they use."""
    scalars = {item for item in constant_buffers(func) if item.static_shape and set(item.static_shape) == {1}}
    return func.replace(body=_ReadFirst(scalars).stmt(func.body)) if scalars else func


class _ReadFirst(StmtRewriter):
    def __init__(self, scalars: Collection[Buffer]) -> None:
        self._scalars = scalars

    def visit_for(self, loop: For) -> Stmt:
        inner = loop.body
        below = (item for item in all_statements(inner) if isinstance(item, For))
        if loop.kind is not LoopKind.THREAD or any(item.kind is LoopKind.THREAD for item in below):
            return super().visit_for(loop)
        loads: dict[Buffer, list[BufferLoad]] = {}
        for item in pre_order(inner):
            if isinstance(item, BufferLoad) and item.buffer in self._scalars and item.dtype.is_scalar:
                loads.setdefault(item.buffer, []).append(item)
        for buffer, found in loads.items():
            value = Var(buffer.name, found[0].dtype)
            # There is one place, whatever the index is called: no loop may be left in it.
            first = BufferLoad(buffer, tuple(const(0, index.dtype) for index in found[0].indices))
            inner = LetStmt(value, first, rewrite_nodes(inner, dict.fromkeys(found, value)))
        return loop.replace(body=inner)
