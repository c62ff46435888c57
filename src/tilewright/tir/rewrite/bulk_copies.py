"""Copies of the threads of a group that one thread may make at once: what lies in a row here and there.

    for turn in unrolled(8): for lane in vectorized(8):
        S[turn // 2, turn % 2 * 2 + t // 64, t % 64, lane] = async_copy(W[k, turn // 2, turn % 2 * 2 + t // 64, ...])

Threads (t), turns and lanes count the elements of a row of both buffers: 8 * 128 * 8 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import add, const, floormod, mul, sub
from tilewright.ir.dtype import HANDLE
from tilewright.ir.expr import ZERO, Call, PrimExpr, Range, StringImm, Var, const_value
from tilewright.ir.visit import substitute
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.passes.flatten_buffers import row_major_strides
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LoopKind, Stmt

_ALIGNMENT = 16
"""Bytes that such copies begin at a multiple of, and have a multiple of."""


@dataclass(frozen=True, slots=True)
class BulkCopy:
    """Elements in a row that are copied to elements in a row."""

    target: BufferLoad
    source: BufferLoad
    """The element that a thread copies, by the variables that count."""
    turn: Var | None
    turns: int
    thread: Var
    threads: int
    lane: Var | None
    lanes: int

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return self.turns * self.threads * self.lanes * self.target.buffer.dtype.itemsize

    def pointers(self) -> tuple[PrimExpr, PrimExpr]:
        """Where it is copied to, and from."""
        return self._pointer("w", self.target), self._pointer("r", self.source)

    def _pointer(self, mode: str, place: BufferLoad) -> PrimExpr:
        ends: list[PrimExpr] = []
        for turn, thread, lane in ((0, 0, 0), (self.turns - 1, self.threads - 1, self.lanes - 1)):
            at = {self.thread: const(thread)}
            if self.turn is not None:
                at[self.turn] = const(turn)
            if self.lane is not None:
                at[self.lane] = const(lane)
            ends.append(BufferLoad(place.buffer, tuple(substitute(index, at) for index in place.indices)))
        return Call("access_ptr", (StringImm(mode), *ends), HANDLE)


def bulk_copy(stmt: Stmt, thread: Var, threads: int) -> BulkCopy | None:
    """What the threads of a group copy, if it lies in a row; None where it does not, or is not known to."""
    loops: list[For] = []
    while not isinstance(stmt, BufferStore):
        if isinstance(stmt, For) and const_value(stmt.extent) and const_value(stmt.min) == 0:
            loops.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, IfThenElse) and stmt.else_body is None and _always(stmt.condition):
            stmt = stmt.then_body
        else:
            return None
    source = stmt.value.args[0] if isinstance(stmt.value, Call) and stmt.value.name == "async_copy" else None
    if not isinstance(source, BufferLoad) or source.buffer.dtype is not stmt.buffer.dtype:
        return None
    lane = loops.pop() if loops and loops[-1].kind is LoopKind.VECTORIZED else None
    if len(loops) > 1:
        return None
    turn = loops[0] if loops else None
    found = BulkCopy(
        BufferLoad(stmt.buffer, stmt.indices),
        source,
        None if turn is None else turn.var,
        _count(turn),
        thread,
        threads,
        None if lane is None else lane.var,
        _count(lane),
    )
    size = stmt.buffer.dtype.itemsize
    is_whole = found.nbytes % _ALIGNMENT == 0 and found.lanes * size % _ALIGNMENT == 0
    return found if is_whole and all(_is_row(found, place) for place in (found.target, found.source)) else None


def _always(condition: PrimExpr) -> bool:
    return const_value(Analyzer().simplify(condition)) == 1


def _count(loop: For | None) -> int:
    return 1 if loop is None else const_value(loop.extent) or 1


def _is_row(copy: BulkCopy, place: BufferLoad) -> bool:
    """Whether turns, threads and lanes count neighbours of a buffer, from a multiple of the alignment on."""
    counted = [(copy.turn, copy.turns), (copy.thread, copy.threads), (copy.lane, copy.lanes)]
    analyzer = Analyzer()
    number: PrimExpr = ZERO
    for var, extent in counted:
        if var is not None:
            analyzer.bind(var, Range(ZERO, const(extent)))
            number = add(mul(number, const(extent)), var)
    position = _position(place.indices, row_major_strides(place.buffer.shape))
    start = substitute(position, {var: ZERO for var, _ in counted if var is not None})
    return analyzer.prove_equal(sub(position, start), number) and analyzer.prove_equal(
        floormod(start, const(_ALIGNMENT // place.buffer.dtype.itemsize)), ZERO
    )


def _position(indices: Sequence[PrimExpr], strides: Sequence[PrimExpr]) -> PrimExpr:
    position: PrimExpr = ZERO
    for index, stride in zip(indices, strides, strict=True):
        position = add(position, mul(index, stride))
    return position
