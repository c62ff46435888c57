"""Thread-bound and virtual-thread loops on a processor without thread blocks: they run one after another.

    for t in thread_binding("threadIdx.x", 32):      for t in range(32):
        B[t] = A[t]                            ->        B[t] = A[t]

That is right as long as the threads of a block do not work together: a program that shares memory between threads or
waits at a barrier is refused.
"""

from __future__ import annotations

from tilewright.ir.expr import Call
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter, all_statements
from tilewright.tir.stmt import Allocate, For, LoopKind, Stmt

COOPERATIVE_SCOPES = frozenset(["shared", "warp"])
"""Memory through which threads of a block exchange data."""


def lower_threads(func: PrimFunc) -> PrimFunc:
    """The function with its thread loops serial."""
    has_threads = any(isinstance(item, For) and item.kind is LoopKind.THREAD for item in all_statements(func.body))
    if has_threads:
        _check_independent(func)
    return func.replace(body=_LowerThreads().stmt(func.body))


def _check_independent(func: PrimFunc) -> None:
    hint = "schedule the function for a CPU, or compile it for a GPU target"
    for item in pre_order(func.body):
        if isinstance(item, Allocate) and item.buffer.scope in COOPERATIVE_SCOPES:
            raise UnsupportedError(
                f"threads share the buffer {item.buffer.name} (scope {item.buffer.scope}), which a CPU cannot do",
                where=f"function {func.name}",
                hint=hint,
            )
        if isinstance(item, Call) and item.name == "barrier":
            raise UnsupportedError(
                "threads wait at a barrier, which a CPU cannot do", where=f"function {func.name}", hint=hint
            )


class _LowerThreads(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if loop.kind in (LoopKind.THREAD, LoopKind.VTHREAD):
            return lowered.replace(kind=LoopKind.SERIAL, thread=None)
        return lowered
