"""The schedule of a few rows times packed codes: sixteen bytes of words a thread, read once, unpacked in registers.

for four columns in blocks and threadIdx.y:
    for lane in threadIdx.x:                        (neighbours read neighbouring words of constants)
        for words of the lane:
            own = words[word, four columns]         (some of them on their way together)
            for codes of a word:  sums[row, column] += x[row, code] * code
            part[row, column] += sums[row, column] * scale[group, column]
    result = epilogue(the sum of part over lanes)
"""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.rows import KernelContext
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_VECTOR = 4
"""Columns of a thread: their words are sixteen bytes."""
_FEW_LANES = 8
"""Threads that share sums where these are added up one by one."""
_MOST_STEPS = 8
"""Words of a column that a thread has on their way together."""


def _of_kind(context: ScheduleContext, kind: Anchor) -> list[BlockHandle]:
    return [handle for handle in context.sch.blocks() if ANCHOR.of(context.block(handle)) is kind]


def packed_stages(context: ScheduleContext) -> tuple[BlockHandle, BlockHandle] | str:
    """The sums of products with packed codes and what adds them up, or why there are no such sums of floats."""
    sums, totals = _of_kind(context, Anchor.PACKED), _of_kind(context, Anchor.PACKED_TOTAL)
    if len(sums) != 1 or len(totals) != 1:
        return "no sums of products with packed codes"
    if context.block(sums[0]).writes[0].buffer.dtype is not FLOAT32:
        return "sums of integers"
    if sum(context.block(handle).is_reduction for handle in context.sch.blocks()) != 2:
        return "other reductions"
    return sums[0], totals[0]


def _why_not(context: KernelContext) -> str | None:
    stages = packed_stages(context)
    if isinstance(stages, str):
        return stages
    _, total = stages
    outputs = context.sch.get_output_blocks()
    if len(outputs) != 1:
        return "several results"
    sizes = context.extents(context.sch.get_loops(total)[:2])
    axes = context.extents(context.sch.get_loops(outputs[0])[: 2 if outputs[0].name == total.name else None])
    if sizes is None or axes != sizes:
        return "the result has other axes than the product, or open ones"
    if sizes[1] % _VECTOR:
        return "columns are not whole vectors"
    return None


def _schedule(context: KernelContext) -> None:
    inline_stages(context)
    sch = context.sch
    stages = packed_stages(context)
    assert not isinstance(stages, str)
    sums, total = stages
    for reader in (sums, total):
        _arrange(context, reader)
    _, columns, words = context.sizes(sch.get_loops(total))
    lanes, warps = _division(context, columns, words)
    _, lane = sch.split(sch.get_loops(total)[-1], [None, lanes])
    partial = sch.rfactor(lane, 0)
    (output,) = sch.get_output_blocks()
    if output.name == total.name:
        output = sch.cache_write(total, 0, "local")
    row, column = sch.get_loops(output)
    block, warp, vector = sch.split(column, [None, warps, _VECTOR])
    sch.reorder(block, warp, row, vector)
    sch.bind(block, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.unroll(row)
    sch.vectorize(vector)
    sch.compute_at(total, warp, preserve_unit_loops=True)
    *results, own_lane = loops_below(context, total, warp)
    sch.bind(own_lane, "threadIdx.x")
    for loop in results:
        sch.unroll(loop)
    sch.compute_at(partial, warp, preserve_unit_loops=True)
    own_lane, *results = loops_below(context, partial, warp)
    sch.bind(own_lane, "threadIdx.x")
    # All words at once leave no loop over them.
    step = results.pop() if lanes < words else sch.add_unit_loop(results[0])
    sch.reorder(step, *results)
    chunk, step = sch.split(step, [None, _chunk(words // lanes)])
    sch.compute_at(sums, step, preserve_unit_loops=True)
    _place_sums(context, sums, step)
    start = sch.decompose_reduction(partial, chunk)
    for loop in (step, *results, *loops_below(context, start, own_lane)):
        sch.unroll(loop)


def _arrange(context: ScheduleContext, reader: BlockHandle) -> None:
    """Store constant words and scales by vectors of columns: neighbouring threads then read neighbours."""
    constants = constant_parameters(context.sch.func)
    for buffer in dict.fromkeys(region.buffer for region in context.block(reader).reads):
        sizes = buffer.static_shape
        if buffer in constants and sizes is not None and len(sizes) == 2 and min(sizes) > 1:
            index_map = IndexMap.of(lambda k, j: (j // _VECTOR, k, j % _VECTOR), 2)
            context.sch.transform_layout(reader, buffer.name, index_map)
            context.packing[constants[buffer]] = index_map


def _chunk(steps: int) -> int:
    """Steps that are on their way together."""
    return max(n for n in range(1, _MOST_STEPS + 1) if steps % n == 0)


def _place_sums(context: ScheduleContext, sums: BlockHandle, step: LoopHandle) -> None:
    """The sums of a word: its codes one after the other, each for all rows and columns of the thread."""
    sch = context.sch
    *outer, number = loops_below(context, sums, step)
    sch.reorder(number, *outer)
    start = sch.decompose_reduction(sums, number)
    for name in _operands(context, sums):
        near = sch.cache_read(sums, name, "local")
        sch.compute_at(near, step)
        *several, last = loops_below(context, near, step)
        if (context.extent(last) or 0) > _VECTOR:
            quad, last = sch.split(last, [None, _VECTOR])
            several.append(quad)
        for loop in several:
            sch.unroll(loop)
        sch.vectorize(last)
    for loop in (number, *outer, *loops_below(context, start, step)):
        sch.unroll(loop)
    sch.set_scope(sums, 0, "local")


def _operands(context: ScheduleContext, sums: BlockHandle) -> list[str]:
    """The words of codes, and the rows."""
    block = context.block(sums)
    others = [region.buffer for region in block.reads if region.buffer is not block.writes[0].buffer]
    return [buffer.name for buffer in others if buffer.dtype.name == "uint32" or buffer.dtype.is_float]


def _division(context: KernelContext, columns: int, words: int) -> tuple[int, int]:
    """Threads that share the words of some columns, and such columns of a block.

    Threads of a warp where they add up by shuffles; a few, whose sums one thread adds up, elsewhere.
    """
    target = context.target
    most = target.shuffle_width if target.shuffle_width > 1 else _FEW_LANES
    options = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= min(most, target.max_threads) and words % n == 0]
    lanes = context.choose_again("lanes", options, options[-1])
    possible = [n for n in (1, 2, 4, 8) if n * lanes <= target.max_threads and columns // _VECTOR % n == 0]
    filling = [n for n in possible if columns // (_VECTOR * n) >= target.cores]
    return lanes, context.choose_again("warps", possible, max(filling, default=1))


TEMPLATE = Template(
    "packed_product",
    "few rows times packed codes: four columns of words a thread, the threads of a warp share the words",
    _why_not,
    _schedule,
)
