"""The schedule of reductions over rows: a result a column, or several, where neighbouring columns lie side by side.

Statistics of channels and what gradients of normalisations need are such. All that counts is how quickly the data are
read: a thread reads 16 bytes of neighbouring columns of a row at a time, a block of threads has some rows, and adds up
what its threads have through shared memory. Where there are too few columns for all multiprocessors, blocks share rows,
and a second, small kernel adds up what they have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import Block, IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.accumulation import accumulate
from tilewright.topi.schedule.gpu.stage import StageContext, reduce_loops
from tilewright.topi.schedule.template import Template

_LANE_BYTES = 16
_SEGMENT_BYTES = 64
"""Neighbours in memory that threads of a block read together, at least: two sectors of a line."""
_MOST_ACROSS = 32
_MOST_SHARED = 48 * 1024
"""Bytes of shared memory that any kernel may have."""
_ROWS = 64
"""Rows a thread up to which a second kernel takes longer than it saves."""
_LEAST_ROWS = 4
"""Rows a thread that are worth a block."""
_SERIAL = 32
"""Partial results that one thread adds up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a reduction is divided."""

    lanes: int
    """Columns of a thread,"""
    across: int
    """threads side by side,"""
    sharing: int
    """threads that share the rows of a block,"""
    parts: int
    """and blocks that share all rows."""


def _why_not(context: StageContext) -> str | None:
    found = _plan(context)
    return found if isinstance(found, str) else None


def _plan(context: StageContext) -> Plan | str:
    block, sch = context.block(context.stage), context.sch
    loops, reduce = sch.get_loops(context.stage), context.reduce_loops()
    if not block.is_reduction or not reduce or context.extents(loops) is None:
        return "the stage is no reduction of known sizes"
    results = [loop for loop in loops if loop not in reduce]
    rows, (*others, columns) = prod(context.sizes(reduce)), context.sizes(results) or [1]
    machine = context.gpu
    many = prod(others) * columns >= context.target.cores * machine.elementwise.block_threads * 4
    if rows < machine.reduction.few_steps or many or not columns:
        return "steps are few, or results many"
    if not _reads_columns(block):
        return "neighbouring results do not lie side by side in what is read"
    size = min(region.buffer.dtype.itemsize for region in block.reads)
    lanes = max(n for n in (1, 2, 4, 8, 16) if n == 1 or (columns % n == 0 and n * size <= _LANE_BYTES))
    groups, cores = columns // lanes, context.target.cores
    held = lanes * sum(region.buffer.dtype.itemsize for region in block.writes)
    threads = min(context.target.max_threads, 512, min(_MOST_SHARED, context.target.shared_bytes) // held)
    if groups == 1 or threads < 2 * _MOST_ACROSS:
        return "there are too few columns, or too little shared memory"
    # All columns are enough for all multiprocessors, or rows are so few that a second kernel is not worth it.
    least = min(groups, -(-_SEGMENT_BYTES // (lanes * size)))
    widths = [n for n in range(least, min(groups, _MOST_ACROSS) + 1) if groups % n == 0] or [_divisor(groups, least)]
    across = max((n for n in widths if prod(others) * groups // n >= cores), default=widths[0])
    blocks = prod(others) * groups // across
    sharing = _sharing(threads if blocks < 2 * cores else threads // 2, across, rows)
    if blocks >= cores or (rows <= _ROWS * sharing and blocks >= cores // 8):
        return _even(Plan(lanes, across, sharing, 1), rows)
    across = widths[-1]
    blocks = prod(others) * groups // across
    sharing = _sharing(threads // 2, across, rows)
    return _even(Plan(lanes, across, sharing, _parts(rows, sharing, 2 * cores // blocks)), rows)


def _even(plan: Plan, rows: int) -> Plan:
    """A plan by which all threads have as many rows: vectors take no tests. Where that cannot be, no vectors."""
    even = _divisor(rows // plan.parts, plan.sharing)
    if plan.lanes == 1 or 4 * even < plan.sharing:
        return replace(plan, lanes=1)
    return replace(plan, sharing=even)


def _parts(rows: int, sharing: int, most: int) -> int:
    """Blocks that share rows, all as many; where it leaves half as many blocks, all threads have as many, too."""
    options = [n for n in range(1, most + 1) if rows % n == 0 and (n == 1 or rows // n >= _LEAST_ROWS * sharing)]
    even = [n for n in options if rows // n % sharing == 0]
    return even[-1] if even and 2 * even[-1] >= options[-1] else options[-1]


def _sharing(threads: int, across: int, rows: int) -> int:
    """Threads that share rows: a power of two, each with a few rows."""
    most = min(threads // across, max(1, rows // _LEAST_ROWS))
    return 1 << most.bit_length() - 1


def _divisor(number: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if number % n == 0)


def _reads_columns(block: Block) -> bool:
    """Whether the last axis of the results is the last of all that is read of it, and all steps are elsewhere."""
    results = [item.var for item in block.iters if item.kind is IterKind.SPATIAL]
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    written = {region.buffer for region in block.writes}
    if not results:
        return False
    loads = [item for item in pre_order(block.body) if isinstance(item, BufferLoad) and item.buffer not in written]
    for item in loads:
        if not item.indices or item.indices[-1] is not results[-1]:
            return False
        if any(uses_any(index, results[-1:]) for index in item.indices[:-1]):
            return False
    return any(uses_any(index, steps) for item in loads for index in item.indices)


def _apply(context: StageContext) -> None:
    plan = _plan(context)
    assert isinstance(plan, Plan)
    if plan.parts == 1:
        _sum_blocks(context, context.stage, context.epilogue, plan)
        return
    sch = context.sch
    rows = context.reduce_loops()
    parts, _ = sch.split(sch.fuse(*rows) if len(rows) > 1 else rows[0], [plan.parts, None])
    partial = sch.rfactor(parts, 0)
    _sum_blocks(context, partial, None, plan)
    _sum_parts(context, plan)


def _sum_parts(context: StageContext, plan: Plan) -> None:
    """The second kernel: what blocks have of each column."""
    (*_, columns) = [loop for loop in context.sch.get_loops(context.stage) if loop not in context.reduce_loops()]
    across = _divisor(context.sizes([columns])[0], 8)
    sharing = _sharing(min(context.target.max_threads, 256), across, plan.parts)
    _sum_blocks(context, context.stage, context.epilogue, Plan(1, across, sharing, 1))


def _sum_blocks(context: ScheduleContext, handle: BlockHandle, epilogue: BlockHandle | None, plan: Plan) -> None:
    """A block of threads has some columns, whose rows its threads share.

    for i, k: c[i] += x[k, i]  ->  for bx: for tx: for k: local[v] += x[k * 32 + tx // 8, (bx, tx % 8, v)]  (vectors)
                                           for tx: shared[tx // 8, (tx % 8, v)] = local[v]
                                           for tx: for s: c[bx, tx] += shared[s, tx]
    """
    sch = context.sch
    rows = reduce_loops(context, handle)
    steps = prod(context.sizes(rows))
    stages: list[BlockHandle] = []
    if plan.sharing > 1:
        _, share = sch.split(sch.fuse(*rows) if len(rows) > 1 else rows[0], [None, plan.sharing])
        stages.append(sch.rfactor(share, 0))
    width = plan.across * plan.lanes
    together = min(_divisor(plan.sharing, max(1, plan.across * plan.sharing // width)), plan.sharing // 4)
    if plan.sharing > _SERIAL and together > 1:
        (own,) = reduce_loops(context, handle)
        _, share = sch.split(own, [None, together])
        stages.append(sch.rfactor(share, 0))
    copies: list[BlockHandle] = []
    for stage in stages:
        places = list(range(len(context.block(stage).writes)))
        copies.append(sch.cache_write(stage, places, "local"))
        for place in places:
            sch.set_scope(copies[-1], place, "shared")
    output = epilogue or sch.cache_write(handle, list(range(len(context.block(handle).writes))), "local")
    *outer, columns = sch.get_loops(output)
    outside, inside = sch.split(columns, [None, width])
    block = sch.fuse(*outer, outside) if outer else outside
    sch.bind(block, "blockIdx.x")
    sch.bind(inside, "threadIdx.x")
    sch.compute_at(handle, inside)
    accumulate(context, handle, inside)
    for number in reversed(range(len(stages))):
        lanes = plan.lanes if number == 0 else 1
        # A block may have a single column: the loop over its columns is there all the same.
        sch.compute_at(copies[number], block, preserve_unit_loops=width == 1)
        loops = sch.get_loops(copies[number])
        first, *others, last = loops[loops.index(block) + 1 :]
        threads, lane = sch.split(last, [None, lanes])
        thread = sch.fuse(first, *others, threads)
        sch.bind(thread, "threadIdx.x")
        if lanes > 1:
            sch.vectorize(lane)
        sch.compute_at(stages[number], thread)
        accumulate(context, stages[number], thread, steps // plan.sharing if number == 0 else None)


TEMPLATE = Template(
    "column_sums",
    "threads read vectors of columns; those of a block share its rows, and blocks all rows where columns are few",
    _why_not,
    _apply,
)
