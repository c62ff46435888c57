"""Long kernels of one thread become several: some drivers end a thread's loops after so many steps, without a word.

    for i in range(100000):            for part in range(2):                         (a loop of the host)
        B[i] = A[i] * 2         ->         for bx in thread_binding("blockIdx.x", 1):
                                               for i in range(50000):
                                                   B[part * 50000 + i] = A[part * 50000 + i] * 2

What is bound to threads stays as it is: `split_host_device` refuses it where its threads would take too many steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.build import lt
from tilewright.ir.expr import ONE, ZERO, IntImm, Var
from tilewright.ir.intrinsics import likely
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import all_statements, substitute_stmt
from tilewright.tir.stmt import Allocate, For, IfThenElse, LetStmt, LoopKind, SeqStmt, Stmt, While, seq


@dataclass(frozen=True, slots=True)
class LimitStepsOptions:
    """What a device takes."""

    most: int | None
    """Steps of all loops of one thread together; None: as many as there are."""


def limit_steps(func: PrimFunc, options: LimitStepsOptions) -> PrimFunc:
    """The function with kernels of one thread that take few steps each."""
    return func if options.most is None else func.replace(body=_limited(func.body, options.most))


def steps_of(stmt: Stmt) -> int:
    """The steps that a thread takes in loops of known extents, as far as they are known."""
    match stmt:
        case SeqStmt():
            return sum(steps_of(item) for item in stmt.stmts)
        case For(kind=LoopKind.THREAD | LoopKind.VTHREAD | LoopKind.VECTORIZED):
            return steps_of(stmt.body)
        case For():
            count = stmt.extent.value if isinstance(stmt.extent, IntImm) else 1
            return count * (1 + steps_of(stmt.body))
        case IfThenElse():
            others = 0 if stmt.else_body is None else steps_of(stmt.else_body)
            return max(steps_of(stmt.then_body), others)
        case Allocate() | LetStmt():
            return steps_of(stmt.body)
        case While():
            return 1 + steps_of(stmt.body)
        case _:
            return 0


def _limited(stmt: Stmt, most: int) -> Stmt:
    """A statement at the top, or in a loop of the host, as kernels of few steps."""
    if steps_of(stmt) <= most or any(isinstance(item, For) and item.thread for item in all_statements(stmt)):
        return stmt
    match stmt:
        case SeqStmt():
            return seq(*(_limited(item, most) for item in stmt.stmts))
        case Allocate():
            return stmt.replace(body=_limited(stmt.body, most))
        case For(kind=LoopKind.SERIAL | LoopKind.UNROLLED, min=IntImm(), extent=IntImm(value=count)):
            inner = 1 + steps_of(stmt.body)
            if inner <= most:
                return _in_parts(stmt, count, most // inner)
            return stmt.replace(kind=LoopKind.SERIAL, body=_one_thread(_limited(stmt.body, most)))
        case _:
            return stmt


def _in_parts(loop: For, count: int, most: int) -> Stmt:
    """A loop as kernels of at most so many of its iterations, of equal numbers if that may be."""
    parts = -(-count // most)
    size = -(-count // parts)
    part, step = Var(f"{loop.var.name}_part"), Var(loop.var.name)
    place = part * size + step
    body = substitute_stmt(loop.body, {loop.var: loop.min + place})
    if parts * size != count:
        body = IfThenElse(likely(lt(place, count)), body, None)
    inside = For(step, ZERO, IntImm(size), LoopKind.SERIAL, body, None, loop.annotations)
    return For(part, ZERO, IntImm(parts), LoopKind.SERIAL, _one_thread(inside))


def _one_thread(stmt: Stmt) -> Stmt:
    """A kernel of one block with one thread; what holds kernels already is a step of the host."""
    if any(isinstance(item, For) and item.thread for item in all_statements(stmt)):
        return stmt
    return For(Var("bx"), ZERO, ONE, LoopKind.THREAD, stmt, "blockIdx.x")
