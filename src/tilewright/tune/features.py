"""Numbers that describe a scheduled program to a cost model, the same in meaning for every kernel and processor.

Each block of the program has loops around it and accesses in it. For every loop level, the bytes that one run of the
loops inside touches are known from the indices (`Access.reach`). From these:

- arithmetic: operations by kind, instances, how many accumulators, lanes and unrolled copies the innermost loops make;
- loops: extents, kinds and touched bytes, from the innermost outwards;
- traffic: for each level of the memory hierarchy, the bytes that pass it if a loop body keeps what fits (per buffer
  and in all), and the arithmetic per byte there;
- accesses: the strides that the innermost loops make in each buffer, how often a touched element is used again, what
  of it the register tile holds, whether it is fetched ahead.

The two or three blocks that matter most are described one by one, the rest as a sum. Sizes are logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from math import log2, prod
from operator import add, mul, sub

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
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, LetStmt, LoopKind, SeqStmt, Stmt, While

Vector = npt.NDArray[np.float32]

VERSION = 1
"""Raised whenever a feature changes its meaning: models that learned the old ones are not asked any more."""
BLOCKS = 2
"""How many blocks are described one by one."""
LOOPS = 8
"""How many loops of a block, from the innermost, are described one by one; those further out are one."""
BUFFERS = 4
_ACCESS = 9
"""Numbers for each buffer of a block."""
_BEFORE, _LEVELS = 8, 4
"""Numbers of the whole program before those of its blocks; levels of memory."""
_KINDS = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.SERIAL)
_TYPICAL_EXTENT = 128


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop around a block."""

    var: Var
    extent: int
    kind: LoopKind
    fetched: frozenset[str] = frozenset()
    """The names of buffers that its iterations fetch ahead."""


@dataclass(frozen=True, slots=True)
class Access:
    """One buffer of a block: how far each loop moves each index."""

    buffer: Buffer
    is_write: bool
    steps: tuple[tuple[int, ...], ...]
    """For each loop, outermost first, how far its whole range moves each index."""
    reaches: tuple[int, ...] = field(init=False)
    """The elements that one run of the loops below each depth touches."""

    def __post_init__(self) -> None:
        sizes = [1] * (len(self.steps[0]) if self.steps else 0)
        found = [1]
        for moved in reversed(self.steps):
            if any(moved):
                sizes = [size + step for size, step in zip(sizes, moved, strict=True)]
                found.append(prod(sizes))
            else:
                found.append(found[-1])
        object.__setattr__(self, "reaches", tuple(reversed(found)))

    def reach(self, depth: int) -> int:
        """The elements that one run of the loops below `depth` touches."""
        return self.reaches[depth]

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


@dataclass(frozen=True)
class Described:
    """A block with everything about it that is counted."""

    loops: tuple[Loop, ...]
    accesses: tuple[Access, ...]
    operations: tuple[int, ...]
    """Of one instance: sums and products, comparisons and selections, divisions and calls, conversions, integers."""
    guarded: bool

    @cached_property
    def around(self) -> list[int]:
        """For each depth, how often the loops around it run what is inside."""
        return list(accumulate((loop.extent for loop in self.loops), mul, initial=1))

    @cached_property
    def footprints(self) -> list[int]:
        """For each depth, the bytes that one run of the loops below touches."""
        sizes = [(item.reaches, item.buffer.dtype.itemsize) for item in self.accesses]
        return [sum(reaches[depth] * size for reaches, size in sizes) for depth in range(len(self.loops) + 1)]

    @property
    def instances(self) -> int:
        """How often the block runs."""
        return self.around[-1]

    @property
    def weight(self) -> float:
        """How much of the program's work it is, roughly."""
        return self.instances * (1.0 + self.operations[0] + 2 * self.operations[1] + 8 * self.operations[2])


def describe(func: PrimFunc) -> list[Described]:
    """The blocks of a scheduled program that compute something, those with most work first."""
    found = list(_walk(func.body, (), _Corner(), False))
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
    traffic = [[_traffic(item, size) for size in capacities] for item in blocks]
    for number in range(BLOCKS):
        if number < len(blocks):
            values += _block_features(blocks[number], traffic[number])
        else:
            values += [0.0] * _block_length(len(capacities))
    rest = blocks[BLOCKS:]
    values += [_log(sum(item.weight for item in rest)), _log(sum(item.instances for item in rest))]
    values += [_log(sum(sum(amounts[level]) for amounts in traffic)) for level in range(len(capacities))]
    return np.asarray(values, np.float32)


def _log(value: float) -> float:
    return log2(1.0 + value)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what lies in a vector of features: the numbers of each block, and in those the ones of its loops."""

    width: int
    blocks: tuple[slice, ...]
    loops: slice
    """Within a block: `LOOPS` times the same numbers, the innermost loop first; all zero where there is no loop."""


def layout() -> Layout:
    """The places of features; the rest, before and after the blocks, is of the whole program."""
    length = _block_length(_LEVELS)
    blocks = tuple(slice(_BEFORE + n * length, _BEFORE + (n + 1) * length) for n in range(BLOCKS))
    return Layout(blocks[-1].stop + 2 + _LEVELS, blocks, slice(10, 10 + LOOPS * (2 + len(_KINDS))))


def _block_length(capacities: int) -> int:
    return 10 + LOOPS * (2 + len(_KINDS)) + 5 + capacities * (BUFFERS + 2) + BUFFERS * _ACCESS


def _block_features(block: Described, traffic: Sequence[Sequence[float]]) -> list[float]:
    """The numbers of one block; `traffic` has its bytes beyond each level of memory."""
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
    values += _loop_features(block)
    values += [_log(parallel), float(len(block.loops)), _log(block.instances / max(1, parallel))]
    fetched = frozenset[str]().union(*(loop.fetched for loop in block.loops))
    own = {access.buffer.name for access in block.accesses}
    values += [float(len(fetched - own)), _log(block.footprints[len(block.loops) - len(tile)])]
    ordered = _by_size(block)
    for amounts in traffic:
        by_buffer = [amounts[number] for number in ordered]
        values += [_log(amount) for amount in by_buffer[:BUFFERS]] + [0.0] * (BUFFERS - len(by_buffer[:BUFFERS]))
        total = sum(amounts)
        values += [_log(total), _log(flops / max(1.0, total))]
    for place in range(BUFFERS):
        if place < len(ordered):
            values += _access_features(block, block.accesses[ordered[place]], len(tile), fetched)
        else:
            values += [0.0] * _ACCESS
    return values


def _loop_features(block: Described) -> list[float]:
    """Extents, touched bytes and kinds from the innermost loop outwards; the last place stands for all further out."""
    loops, footprints = block.loops, block.footprints
    inside = [depth for depth in range(len(loops) - 1, -1, -1) if loops[depth].extent > 1]
    near, far = inside[: LOOPS - 1], inside[LOOPS - 1 :]
    values: list[float] = []
    for depth in near:
        loop = loops[depth]
        values += [_log(loop.extent), _log(footprints[depth]), *(float(loop.kind is kind) for kind in _KINDS)]
    values += [0.0] * ((LOOPS - 1 - len(near)) * (2 + len(_KINDS)))
    values += [_log(prod(loops[depth].extent for depth in far)), _log(footprints[0])] if far else [0.0, 0.0]
    values += [float(any(loops[depth].kind is kind for depth in far)) for kind in _KINDS]
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
    depth = len(block.loops)
    if block.footprints[depth] <= capacity:
        while depth and block.footprints[depth - 1] <= capacity:
            depth -= 1
    # A buffer that the loops around do not move along stays where it is.
    amounts = []
    for item in block.accesses:
        fresh = block.around[depth]
        for level in range(depth - 1, -1, -1):
            if any(item.steps[level]):
                break
            fresh //= max(1, block.loops[level].extent)
        amounts.append(float(item.reaches[depth] * item.buffer.dtype.itemsize * fresh))
    return amounts


def _access_features(block: Described, access: Access, tile: int, fetched: frozenset[str]) -> list[float]:
    """The numbers of one buffer of a block; `tile` loops at the bottom are the register tile."""
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
        _log(access.reach(len(block.loops) - tile) * size),
        float(access.buffer.name in fetched),
    ]


def _walk(stmt: Stmt, loops: tuple[Loop, ...], corner: _Corner, guarded: bool) -> Iterator[Described]:
    if isinstance(stmt, For):
        extent = stmt.extent.value if isinstance(stmt.extent, IntImm) else _TYPICAL_EXTENT
        corner.enter(stmt.var, extent)
        loop = Loop(stmt.var, extent, stmt.kind, frozenset(PREFETCH.of(stmt) or ()))
        yield from _walk(stmt.body, (*loops, loop), corner, guarded)
    elif isinstance(stmt, SeqStmt):
        for item in stmt.stmts:
            yield from _walk(item, loops, corner, guarded)
    elif isinstance(stmt, Block):
        for iterator in stmt.iters:
            corner.bind(iterator.var, iterator.value)
        held = guarded or not (isinstance(stmt.predicate, IntImm) and stmt.predicate.value)
        yield from _walk(stmt.body, loops, corner, held)
    elif isinstance(stmt, (LetStmt, Allocate)):
        yield from _walk(stmt.body, loops, corner, guarded)
    elif isinstance(stmt, IfThenElse):
        for side in (stmt.then_body, stmt.else_body):
            if side is not None:
                yield from _walk(side, loops, corner, True)
    elif isinstance(stmt, While):
        # How often it runs is not known: the body counts once.
        yield from _walk(stmt.body, loops, corner, True)
    elif isinstance(stmt, BufferStore):
        yield _describe(stmt, loops, corner, guarded)


def _describe(store: BufferStore, loops: tuple[Loop, ...], corner: _Corner, guarded: bool) -> Described:
    loads, counts = _contents(store.value)
    accesses = [Access(store.buffer, True, corner.steps(store.indices, loops))]
    for load in loads:
        if load.buffer is not store.buffer or load.indices != store.indices:
            accesses.append(Access(load.buffer, False, corner.steps(load.indices, loops)))
    return Described(loops, tuple(accesses), counts, guarded)


@lru_cache(maxsize=1024)
def _contents(value: PrimExpr) -> tuple[tuple[BufferLoad, ...], tuple[int, ...]]:
    """The loads of an expression and its operations by kind: schedules of one kernel share expressions."""
    loads: list[BufferLoad] = []
    counts = [0] * 5
    for item in pre_order(value):
        if isinstance(item, BufferLoad):
            loads.append(item)
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
    return tuple(loads), tuple(counts)


_Moved = tuple[int, dict[Var, int]]
"""The value of an index where all loops are at zero, and for each loop that it depends on, its value where that loop
alone is at its last iteration."""


class _Corner:
    """How far loops move indices: an index is evaluated with one loop at its last iteration and all others at zero.

    What data decides counts as zero. A loop and an iterator stand in one place of a program, so what is known about
    an expression holds in all of it.
    """

    def __init__(self) -> None:
        self._known: dict[PrimExpr, _Moved] = {}

    def enter(self, var: Var, extent: int) -> None:
        """A loop and its extent."""
        self._known[var] = (0, {var: max(0, extent - 1)})

    def bind(self, var: Var, value: PrimExpr) -> None:
        """An iterator and its value."""
        self._known[var] = self._evaluate(value)

    def steps(self, indices: Sequence[PrimExpr], loops: Sequence[Loop]) -> tuple[tuple[int, ...], ...]:
        """For each loop, how far its range moves each index."""
        found = [self._evaluate(index) for index in indices]
        return tuple(tuple([abs(moved.get(loop.var, start) - start) for start, moved in found]) for loop in loops)

    def _evaluate(self, expr: PrimExpr) -> _Moved:
        known = self._known.get(expr)
        if known is None:
            known = self._known[expr] = self._evaluate_new(expr)
        return known

    def _evaluate_new(self, expr: PrimExpr) -> _Moved:
        if isinstance(expr, IntImm):
            return expr.value, {}
        if isinstance(expr, Cast):
            return self._evaluate(expr.value)
        function = _OPERATIONS.get(type(expr))
        if function is None or not isinstance(expr, BinaryExpr):
            return 0, {}
        (a, moved_a), (b, moved_b) = self._evaluate(expr.a), self._evaluate(expr.b)
        moved = {var: function(value, moved_b.get(var, b)) for var, value in moved_a.items()}
        for var, value in moved_b.items():
            if var not in moved_a:
                moved[var] = function(a, value)
        return function(a, b), moved


_OPERATIONS: Mapping[type[PrimExpr], Callable[[int, int], int]] = {
    Add: add,
    Sub: sub,
    Mul: mul,
    FloorDiv: lambda a, b: a // b if b else 0,
    FloorMod: lambda a, b: a % b if b else 0,
    Min: min,
    Max: max,
}
