"""Loops around calls of instructions move into the calls: an instruction runs them itself.

    for y, x in grid(4, 8):                                     accel.reset(&acc[0], 16, 32, 1)
        accel.reset(&acc[y * 128 + x * 16], 16)          ->

    for k, y, x in grid(3, 4, 8):                               accel.gemm(&acc[0], &inp[0], &wgt[0], 1, 16, 16,
        accel.gemm(&acc[y * 128 + x * 16],                          3, 0, 10, 1,
            &inp[k * 160 + y * 160 + x * 16],            ->         4, 8, 10, 0,
            &wgt[k * 256], 1, 16, 16)                               8, 1, 1, 0)

Each loop becomes its extent and its steps in tensors of the memories; loops that go on where the one inside them
ends are one. What is left of them (two loops of the instruction, the rest micro-ops) is decided when instructions are
made (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.backends.accel.nests import Nest, extent_of, nest_of, steps_of
from tilewright.ir.build import add, const
from tilewright.ir.expr import Call, PrimExpr, StringImm
from tilewright.support.errors import UnsupportedError
from tilewright.tir.accel_instructions import FIXED
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import Evaluate, For, SeqStmt, Stmt, seq

Folded = list[list[int]]
"""Loops: extent, then a step for each address."""


def fold_loops(func: PrimFunc) -> PrimFunc:
    """The function with the loops around its instructions inside them."""
    return func.replace(body=_FoldLoops().stmt(func.body))


class _FoldLoops(StmtRewriter):
    def visit_for(self, loop: For) -> Stmt:
        nest = nest_of(loop)
        leaves = nest.leaf.stmts if isinstance(nest.leaf, SeqStmt) else (nest.leaf,)
        calls = [item.value for item in leaves if isinstance(item, Evaluate) and isinstance(item.value, Call)]
        if len(calls) != len(leaves) or any(call.name not in FIXED for call in calls):
            return super().visit_for(loop)
        folded = [_folded(nest, call) for call in calls]
        if len(calls) > 1 and not _are_apart(calls, nest):
            raise UnsupportedError("instructions in one loop touch the same accumulators in several of its iterations")
        return seq(*[Evaluate(call) for call in folded])


def _are_apart(calls: Sequence[Call], nest: Nest) -> bool:
    """Whether each iteration of a nest keeps to accumulators of its own: calls may then run for all of them in turn."""
    written = [pointers[0] for pointers in map(_first_elements, calls)]
    for call in calls:
        for number, first in enumerate(_first_elements(call)):
            if number and all(first.buffer is not item.buffer for item in written):
                continue
            steps = steps_of(first.indices[0], nest.loops)
            if steps is None or not all(steps.by_loop) or first.indices[0] is not written[0].indices[0]:
                return False
    return True


def _first_elements(call: Call) -> list[BufferLoad]:
    """The first elements of what a call addresses: what it writes, then what it reads."""
    pointers = [arg for arg in call.args if isinstance(arg, Call) and arg.name == "access_ptr"]
    return [item for pointer in pointers for item in pointer.args[1:2] if isinstance(item, BufferLoad)]


def _folded(nest: Nest, call: Call) -> Call:
    fixed = FIXED[call.name]
    pointers = [n for n, arg in enumerate(call.args[:fixed]) if isinstance(arg, Call) and arg.name == "access_ptr"]
    loops: Folded = [[extent_of(loop)] for loop in nest.loops]
    arguments = list(call.args)
    for number in pointers:
        pointer = call.args[number]
        assert isinstance(pointer, Call)
        mode, first, last = pointer.args
        assert isinstance(mode, StringImm) and isinstance(first, BufferLoad) and isinstance(last, BufferLoad)
        lanes = _lanes(first, last, call)
        steps = steps_of(first.indices[0], nest.loops)
        if steps is None or any(step % lanes for step in steps.by_loop):
            raise UnsupportedError(f"{call.name}: tensors of {first.buffer.name} do not lie at regular distances")
        for loop, step in zip(loops, steps.by_loop, strict=True):
            loop.append(step // lanes)
        reach = sum(step * (loop[0] - 1) for loop, step in zip(loops, steps.by_loop, strict=True))
        end = BufferLoad(last.buffer, (add(steps.start, const(reach + lanes - 1)),))
        arguments[number] = Call("access_ptr", (mode, BufferLoad(first.buffer, (steps.start,)), end), pointer.dtype)
    merged = _merged(loops)
    return call.replace(args=(*arguments[:fixed], *_flat(merged), *arguments[fixed:]))


def _lanes(first: BufferLoad, last: BufferLoad, call: Call) -> int:
    """Elements of one tensor: from its first to its last, if they are neighbours."""
    distance = Analyzer().simplify(last.indices[0] - first.indices[0])
    number = getattr(distance, "value", None)
    if not isinstance(number, int) or number < 0:
        raise UnsupportedError(f"{call.name}: a tensor of {first.buffer.name} is not packed")
    return number + 1


def _merged(loops: Folded) -> Folded:
    """Loops without those of one iteration, and neighbours as one where the outer goes on at the inner's end."""
    result: Folded = []
    for loop in loops:
        if loop[0] == 1:
            continue
        extent, *steps = loop
        if result and all(outer == inner * extent for outer, inner in zip(result[-1][1:], steps, strict=True)):
            result[-1] = [result[-1][0] * extent, *steps]
        else:
            result.append(loop)
    return result


def _flat(loops: Folded) -> Sequence[PrimExpr]:
    return [const(number) for loop in loops for number in loop]
