"""Parallel loops become serial ones, for processors that have no threads.

for i in parallel(4): ...          ->          for i in range(4): ...
"""

from __future__ import annotations

from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import For, LoopKind, Stmt


def serialize_loops(func: PrimFunc) -> PrimFunc:
    """The function without parallel loops."""
    body = _Serial().stmt(func.body)
    return func if body is func.body else func.replace(body=body)


class _Serial(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        inner = super().visit_for(loop)
        if isinstance(inner, For) and inner.kind is LoopKind.PARALLEL:
            return inner.replace(kind=LoopKind.SERIAL)
        return inner
