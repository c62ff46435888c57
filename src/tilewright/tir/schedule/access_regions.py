"""What a block says that it reads and writes: annotate_buffer_access."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import sub
from tilewright.ir.expr import Call, Cast, PrimExpr, Range, Var
from tilewright.ir.visit import pre_order, variables
from tilewright.tir.analysis.accesses import detect_accesses
from tilewright.tir.analysis.regions import within
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.schedule.cache import pick_buffer
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, LetStmt

Bounds = Sequence[tuple[PrimExpr, PrimExpr]]
"""The start and the end (not included) of each dimension."""


def annotate_buffer_access(state: ScheduleState, block: Block, choice: int | str, mode: str, bounds: Bounds) -> None:
    """Say what a block reads (or writes) of a buffer, in terms of its iterators, where that cannot be found out.

    reads(X[0:64])                                              reads(X[v // 2 : v // 2 + 2])
    Y[v] = X[int64(float32(v) * 0.5)]                    ->     Y[v] = X[int64(float32(v) * 0.5)]

    Moves go by it. It must hold what the indices tell, of writes nothing else; where data or mathematics decide an
    index it is a promise, which nobody checks. A primitive that changes the inside of the block finds the regions out
    anew.
    """
    what = "annotate_buffer_access"
    if mode not in ("read", "write"):
        state.fail(f"{what}: the mode {mode!r} is not read or write", block)
    if block is state.index.root:
        state.fail(f"{what}: the root block has no regions", block)
    regions = block.reads if mode == "read" else block.writes
    buffer = pick_buffer(state, block, regions, choice, what)
    if len(bounds) != buffer.ndim:
        state.fail(f"{what}: {len(bounds)} ranges for the {buffer.ndim} dimensions of {buffer.name}", block)
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, item.domain)
    ranges = tuple(Range(low, analyzer.simplify(sub(high, low))) for low, high in bounds)
    _require_holds(state, block, buffer, mode, ranges, analyzer, what)
    region = BufferRegion(buffer, ranges)
    kept = tuple(item for item in regions if item.buffer is not buffer)
    place = next(n for n, item in enumerate(regions) if item.buffer is buffer)
    changed = (*kept[:place], region, *kept[place:])
    state.replace(block, block.replace(reads=changed) if mode == "read" else block.replace(writes=changed))


def _require_holds(
    state: ScheduleState,
    block: Block,
    buffer: Buffer,
    mode: str,
    ranges: Sequence[Range],
    analyzer: Analyzer,
    what: str,
) -> None:
    """What the indices tell must lie in the region."""
    bound = {item.var for item in pre_order(block.body) if isinstance(item, LetStmt)}
    kinds = BufferLoad if mode == "read" else BufferStore
    parts = [block.body] if block.init is None else [block.body, block.init]
    accesses = [item for part in parts for item in pre_order(part) if isinstance(item, kinds)]
    places = [item.indices for item in accesses if item.buffer is buffer]
    accessed = detect_accesses(block.body, block.init)[0 if mode == "read" else 1]
    detected = [region for region in accessed if region.buffer is buffer]
    for dimension, given in enumerate(ranges):
        if any(not _told(indices[dimension], bound) for indices in places):
            continue
        touched = [region.region[dimension] for region in detected]
        if not all(within(item, given, analyzer) for item in touched):
            state.fail(
                f"{what}: block {block.name} may {mode} {buffer.name} outside the range given for dimension "
                f"{dimension}",
                block,
                "a region may be larger than what is read, not smaller",
            )
        # What a block says that it writes, others rely on to be there.
        if mode == "write" and not all(within(given, item, analyzer) for item in touched):
            state.fail(
                f"{what}: block {block.name} does not certainly write all of {buffer.name} that is given for dimension "
                f"{dimension}",
                block,
                "say just what is written",
            )


def _told(index: PrimExpr, bound: set[Var]) -> bool:
    """Whether an index is arithmetic of iterators and loops."""
    if any(isinstance(item, (BufferLoad, Cast, Call)) for item in pre_order(index)):
        return False
    return bound.isdisjoint(variables(index))
