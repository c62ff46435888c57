"""Numbers that describe a scheduled program to a cost model, the same in meaning for every kernel and processor.

Each block of the program has loops around it and accesses in it. For every loop level, the bytes that one run of the
loops inside touches are known from the indices (`Access.reach`). From these:

- arithmetic: operations by kind, instances, how many accumulators, lanes and unrolled copies the innermost loops make;
- loops: extents and kinds, from the innermost outwards;
- traffic: for each level of the memory hierarchy, the bytes that pass it if a loop body keeps what fits (per buffer
  and in all), and the arithmetic per byte there;
- accesses: the strides that the innermost loops make in each buffer, and how often a touched element is used again.

The two or three blocks that matter most are described one by one, the rest as a sum. Sizes are logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np
import numpy.typing as npt

from tilewright.ir.expr import (
    Add,
    BinaryExpr,
    Call,
    Cast,
    CompareExpr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
)
from tilewright.ir.visit import pre_order
from tilewright.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, LetStmt, LoopKind, SeqStmt, Stmt

Vector = npt.NDArray[np.float32]

BLOCKS = 2
"""How many blocks are described one by one."""
LOOPS = 8
"""How many loops of a block, from the innermost, are described one by one; those further out are one."""
BUFFERS = 4
_KINDS = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.SERIAL)
_TYPICAL_EXTENT = 128


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop around a block."""

    var: Var
    extent: int
    kind: LoopKind


@dataclass(frozen=True, slots=True)
class Access:
    """One buffer of a block: how far each loop moves each index."""

    buffer: Buffer
    is_write: bool
    steps: tuple[tuple[int, ...], ...]
    """For each loop, outermost first, how far its whole range moves each index."""

    def reach(self, depth: int) -> int:
        """The elements that one run of the loops below `depth` touches."""
        dims = len(self.steps[0]) if self.steps else 0
        return prod(1 + sum(loop[dim] for loop in self.steps[depth:]) for dim in range(dims))

    def stride(self, depth: int, extent: int) -> float:
        """How many elements apart two neighbouring iterations of a loop are in memory."""
        if extent < 2:
            return 0.0
        shape = [dim.value if isinstance(dim, IntImm) else _TYPICAL_EXTENT for dim in self.buffer.shape]
        total, scale = 0.0, 1
        for size, moved in zip(reversed(shape), reversed(self.steps[depth]), strict=True):
            total += moved / (extent - 1) * scale
            scale *= max(size, 1)
        return total


@dataclass(frozen=True, slots=True)
class Described:
    """A block with everything about it that is counted."""

    loops: tuple[Loop, ...]
    accesses: tuple[Access, ...]
    operations: tuple[int, ...]
    """Of one instance: sums and products, comparisons and selections, divisions and calls, conversions, integers."""
    guarded: bool

    @property
    def instances(self) -> int:
        """How often the block runs."""
        return prod(loop.extent for loop in self.loops)

    @property
    def weight(self) -> float:
        """How much of the program's work it is, roughly."""
        return self.instances * (1.0 + self.operations[0] + 2 * self.operations[1] + 8 * self.operations[2])


def describe(func: PrimFunc) -> list[Described]:
    """The blocks of a scheduled program that compute something, those with most work first."""
    found = list(_walk(func.body, (), {}, False))
    return sorted(found, key=lambda item: -item.weight)


def extract(func: PrimFunc, target: Target) -> Vector:
    """The features of a scheduled program: a vector of fixed length."""
    blocks = describe(func)
    capacities = (
        target.vector_registers * target.vector_bits // 8,
        target.l1_bytes,
        target.l2_bytes,
        max(target.l3_bytes, target.l2_bytes),
    )
    values: list[float] = [
        _log(target.cores),
        _log(target.vector_bits),
        _log(target.vector_registers),
        *(_log(size) for size in capacities[1:]),
        float(len(blocks)),
        _log(sum(item.weight for item in blocks)),
    ]
    for number in range(BLOCKS):
        if number < len(blocks):
            values += _block_features(blocks[number], capacities)
        else:
            values += [0.0] * _block_length(len(capacities))
    rest = blocks[BLOCKS:]
    values += [_log(sum(item.weight for item in rest)), _log(sum(item.instances for item in rest))]
    traffic = [sum(sum(_traffic(item, size)) for item in blocks) for size in capacities]
    values += [_log(amount) for amount in traffic]
    return np.asarray(values, np.float32)


def extract_batch(functions: Sequence[PrimFunc], target: Target) -> npt.NDArray[np.float32]:
    """The features of several programs, one row each."""
    return np.stack([extract(func, target) for func in functions])


def _log(value: float) -> float:
    return log2(1.0 + value)


def _block_length(capacities: int) -> int:
    return 10 + LOOPS * (1 + len(_KINDS)) + 3 + capacities * (BUFFERS + 2) + BUFFERS * 7


def _block_features(block: Described, capacities: Sequence[int]) -> list[float]:
    flops = block.instances * max(1, block.operations[0])
    tile = [loop.extent for loop in _innermost(block.loops)]
    lanes = prod(loop.extent for loop in block.loops if loop.kind is LoopKind.VECTORIZED)
    parallel = prod(loop.extent for loop in block.loops if loop.kind is LoopKind.PARALLEL)
    values = [
        _log(flops),
        _log(block.instances),
        *(_log(count) for count in block.operations),
        float(block.guarded),
        _log(prod(tile)),
        _log(lanes),
    ]
    values += _loop_features(block.loops)
    values += [_log(parallel), float(len(block.loops)), _log(block.instances / max(1, parallel))]
    ordered = _by_size(block)
    for size in capacities:
        amounts = _traffic(block, size)
        by_buffer = [amounts[number] for number in ordered]
        values += [_log(amount) for amount in by_buffer[:BUFFERS]] + [0.0] * (BUFFERS - len(by_buffer[:BUFFERS]))
        total = sum(amounts)
        values += [_log(total), _log(flops / max(1.0, total))]
    for place in range(BUFFERS):
        values += _access_features(block, ordered[place]) if place < len(ordered) else [0.0] * 7
    return values


def _loop_features(loops: Sequence[Loop]) -> list[float]:
    """Extents and kinds from the innermost loop outwards; the last place stands for all loops further out."""
    inside = [loop for loop in reversed(loops) if loop.extent > 1]
    near, far = inside[: LOOPS - 1], inside[LOOPS - 1 :]
    values: list[float] = []
    for loop in near:
        values += [_log(loop.extent), *(float(loop.kind is kind) for kind in _KINDS)]
    values += [0.0] * ((LOOPS - 1 - len(near)) * (1 + len(_KINDS)))
    values += [_log(prod(loop.extent for loop in far)) if far else 0.0]
    values += [float(any(loop.kind is kind for loop in far)) for kind in _KINDS]
    return values


def _innermost(loops: Sequence[Loop]) -> list[Loop]:
    """The unrolled and vectorised loops at the bottom: the register tile."""
    found: list[Loop] = []
    for loop in reversed(loops):
        if loop.kind not in (LoopKind.VECTORIZED, LoopKind.UNROLLED):
            break
        found.append(loop)
    return found


def _by_size(block: Described) -> list[int]:
    """The numbers of the accesses: the write first, then reads by how much they touch."""
    numbers = range(len(block.accesses))
    return sorted(numbers, key=lambda n: (not block.accesses[n].is_write, -block.accesses[n].reach(0)))


def _traffic(block: Described, capacity: int) -> list[float]:
    """Bytes of each access that come from beyond a memory of some capacity.

    The outermost loops whose bodies touch no more than the capacity run from inside it: what their body touches comes
    in once for each iteration of the loops around.
    """
    depth, around = len(block.loops), block.instances
    for level in range(len(block.loops), -1, -1):
        footprint = sum(item.reach(level) * item.buffer.dtype.itemsize for item in block.accesses)
        if footprint > capacity:
            break
        depth = level
        around = prod(loop.extent for loop in block.loops[:level])
    # A buffer that the loops around do not move along stays where it is.
    amounts = []
    for item in block.accesses:
        fresh = around
        for level in range(depth - 1, -1, -1):
            if any(item.steps[level]):
                break
            fresh //= max(1, block.loops[level].extent)
        amounts.append(float(item.reach(depth) * item.buffer.dtype.itemsize * fresh))
    return amounts


def _access_features(block: Described, number: int) -> list[float]:
    access = block.accesses[number]
    touched = access.reach(0)
    size = access.buffer.dtype.itemsize
    moving = [n for n in range(len(block.loops) - 1, -1, -1) if block.loops[n].extent > 1]
    strides = [_log(abs(access.stride(n, block.loops[n].extent)) * size) for n in moving[:3]]
    return [
        float(access.is_write),
        _log(touched * size),
        _log(block.instances / max(1, touched)),
        *strides,
        *([0.0] * (3 - len(strides))),
        float(access.buffer.scope == "global"),
    ]


def _walk(stmt: Stmt, loops: tuple[Loop, ...], values: Mapping[Var, PrimExpr], guarded: bool) -> Iterator[Described]:
    if isinstance(stmt, For):
        extent = stmt.extent.value if isinstance(stmt.extent, IntImm) else _TYPICAL_EXTENT
        yield from _walk(stmt.body, (*loops, Loop(stmt.var, extent, stmt.kind)), values, guarded)
    elif isinstance(stmt, SeqStmt):
        for item in stmt.stmts:
            yield from _walk(item, loops, values, guarded)
    elif isinstance(stmt, Block):
        bound = {**values, **{item.var: item.value for item in stmt.iters}}
        held = guarded or not (isinstance(stmt.predicate, IntImm) and stmt.predicate.value)
        yield from _walk(stmt.body, loops, bound, held)
    elif isinstance(stmt, (LetStmt, Allocate)):
        yield from _walk(stmt.body, loops, values, guarded)
    elif isinstance(stmt, IfThenElse):
        for side in (stmt.then_body, stmt.else_body):
            if side is not None:
                yield from _walk(side, loops, values, True)
    elif isinstance(stmt, BufferStore):
        yield _describe(stmt, loops, values, guarded)


def _describe(store: BufferStore, loops: tuple[Loop, ...], values: Mapping[Var, PrimExpr], guarded: bool) -> Described:
    corner = _Corner(loops, values)
    accesses = [Access(store.buffer, True, corner.steps(store.indices))]
    seen = {(id(store.buffer), store.indices)}
    counts = [0] * 5
    for item in pre_order(store.value):
        if isinstance(item, BufferLoad):
            if (id(item.buffer), item.indices) not in seen:
                seen.add((id(item.buffer), item.indices))
                accesses.append(Access(item.buffer, False, corner.steps(item.indices)))
        elif isinstance(item, Call):
            counts[2] += 1
        elif isinstance(item, (Select, CompareExpr, Min, Max)):
            counts[1] += 1
        elif isinstance(item, Cast):
            counts[3] += 1
        elif isinstance(item, BinaryExpr):
            if not item.dtype.is_float:
                counts[4] += 1
            elif isinstance(item, (Add, Sub, Mul)):
                counts[0] += 1
            else:
                counts[2] += 1
    return Described(loops, tuple(accesses), tuple(counts), guarded)


class _Corner:
    """How far loops move indices: an index is evaluated with one loop at its last iteration and all others at zero."""

    def __init__(self, loops: tuple[Loop, ...], values: Mapping[Var, PrimExpr]) -> None:
        self._loops = loops
        self._values = values
        self._points: list[dict[Var, int]] = [{loop.var: max(0, loop.extent - 1)} for loop in loops]

    def steps(self, indices: Sequence[PrimExpr]) -> tuple[tuple[int, ...], ...]:
        """For each loop, how far its range moves each index."""
        start = [_evaluate(index, {}, self._values) for index in indices]
        return tuple(
            tuple(
                abs(_evaluate(index, point, self._values) - first) for index, first in zip(indices, start, strict=True)
            )
            for point in self._points
        )


def _evaluate(expr: PrimExpr, point: Mapping[Var, int], values: Mapping[Var, PrimExpr]) -> int:
    """An index with the loops of `point` at their values and all others at zero; what data decides counts as zero."""
    if isinstance(expr, IntImm):
        return expr.value
    if type(expr) is Var:
        bound = values.get(expr)
        return point.get(expr, 0) if bound is None else _evaluate(bound, point, values)
    if isinstance(expr, BinaryExpr):
        a, b = _evaluate(expr.a, point, values), _evaluate(expr.b, point, values)
        if isinstance(expr, Add):
            return a + b
        if isinstance(expr, Sub):
            return a - b
        if isinstance(expr, Mul):
            return a * b
        if isinstance(expr, FloorDiv):
            return a // b if b else 0
        if isinstance(expr, FloorMod):
            return a % b if b else 0
        if isinstance(expr, Min):
            return min(a, b)
        if isinstance(expr, Max):
            return max(a, b)
    if isinstance(expr, Cast):
        return _evaluate(expr.value, point, values)
    return 0
