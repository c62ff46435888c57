"""Loop variables of narrow integer types become index variables.

    for i in range(int32(8)):            for i in range(8):
        A[i] = float32(i)          ->        A[int32(i)] = float32(int32(i))

Every later pass can then take loop variables, their bounds and arithmetic on them for indices (int64).
"""

from __future__ import annotations

from tilewright.ir.build import cast
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import Var
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, substitute_stmt
from tilewright.tir.stmt import For, Stmt


def widen_loops(func: PrimFunc) -> PrimFunc:
    """The function with all its loops over index variables."""
    return func.replace(body=_WidenLoops().stmt(func.body))


class _WidenLoops(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if loop.var.dtype is INDEX:
            return lowered
        wide = Var(loop.var.name, INDEX)
        body = substitute_stmt(lowered.body, {loop.var: cast(wide, loop.var.dtype)})
        return lowered.replace(var=wide, min=cast(lowered.min, INDEX), extent=cast(lowered.extent, INDEX), body=body)
