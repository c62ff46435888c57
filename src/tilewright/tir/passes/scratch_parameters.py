"""Scratch memory of constant size becomes parameters, so that callers that plan memory find place for it.

    f(A, B):                                           f(A, B, T):                  # attribute "scratch": 1
        T = allocate(100000)                  ->           ...
        ...

The kernels of a model get theirs from the model's workspace. What threads of a parallel loop need for themselves, and
what symbols size, still comes from the heap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.frames import FRAME_BYTES, constant_bytes, frame_allocations, stack_buffers
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import Allocate, Stmt

SCRATCH: Final = "scratch"
"""The attribute of a function that says how many of its last parameters are scratch memory."""


@dataclass(frozen=True, slots=True)
class ScratchOptions:
    """How much memory is not scratch memory."""

    frame_bytes: int = FRAME_BYTES
    """What the buffers of a function may take of the stack together."""


_PLAIN = ScratchOptions()


def scratch_parameters(func: PrimFunc, options: ScratchOptions = _PLAIN) -> PrimFunc:
    """A lowered function that takes its scratch memory of constant size as last parameters."""
    allocations = frame_allocations(func.body, inside=False)
    on_stack = stack_buffers(allocations, options.frame_bytes)
    known = [stmt.buffer for stmt in allocations if constant_bytes(stmt.buffer) is not None]
    scratch = [buffer for buffer in known if buffer not in on_stack]
    if not scratch:
        return func
    body = _WithoutAllocations(set(scratch)).stmt(func.body)
    attributes = {**func.attributes, SCRATCH: len(scratch)}
    return func.replace(params=(*func.params, *scratch), body=body, attributes=attributes)


def scratch_bytes(func: PrimFunc) -> tuple[int, ...]:
    """The bytes of each scratch memory that a function takes as a parameter."""
    count = func.attributes.get(SCRATCH, 0)
    assert isinstance(count, int)
    buffers = func.params[len(func.params) - count :]
    sizes = [constant_bytes(buffer) if isinstance(buffer, Buffer) else None for buffer in buffers]
    if None in sizes:
        raise CompilerBug(f"scratch memory of {func.name} has no constant size")
    return tuple(size for size in sizes if size is not None)


class _WithoutAllocations(StmtRewriter):
    def __init__(self, buffers: set[Buffer]) -> None:
        self._buffers = buffers

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        if stmt.buffer in self._buffers:
            return self.stmt(stmt.body)
        return super().visit_allocate(stmt)
