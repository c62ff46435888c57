"""Products with vectors: the threads of a warp divide the sums, and have their weights in registers before they wait.

    for n, k: c[n] += x[k] * w[n, k];  for n: y[n] = epilogue(c[n])
    ->  for n in blocks, threadIdx.y and a few:
            for lane in threadIdx.x:  own = w[n, lane::32]      (all loads at once; constants do not wait for anything)
            for lane in threadIdx.x:  part += x[lane::32] * own;  c = sum of part over lanes;  y[n] = epilogue(c)

Where kernels start before those in front of them are done, weights are there when the vector comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import uses_any
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.packing import constant_parameters

VECTOR = 4
"""Elements that a thread of a recurrence reads at once, at most."""
WARP = 32


@dataclass(frozen=True, slots=True)
class Division:
    """How products are divided."""

    lanes: int
    """Threads along the sums of a result."""
    vector: int
    """Neighbouring steps of a sum that a thread takes at once."""
    warps: int
    """Rows of threads of a block."""
    vectors: int = 1
    """Vectors whose sums a thread makes at once."""
    keeps: bool = True
    """Whether a thread has its weights in registers."""

    @property
    def width(self) -> int:
        """Steps of a sum that all threads take together."""
        return self.lanes * self.vector


def vector_length(lengths: list[int], most: int = VECTOR) -> int:
    """Elements that a thread may read at once of rows of some lengths."""
    vector = most
    while any(length % vector for length in lengths):
        vector //= 2
    return vector


def sum_length(context: ScheduleContext, product: BlockHandle) -> int:
    """The steps of the sums of a product, its innermost loop."""
    return context.sizes(context.sch.get_loops(product)[-1:])[0]


def rfactor_sums(context: ScheduleContext, product: BlockHandle, division: Division) -> BlockHandle:
    """Make sums of their own for all threads: the stage that the product then adds up."""
    sch = context.sch
    _, lane, _ = sch.split(sch.get_loops(product)[-1], [None, division.lanes, division.vector])
    return sch.rfactor(lane, 0)


def prefetch_constants(context: ScheduleContext, stage: BlockHandle, warp: LoopHandle) -> int:
    """Copy the constants that a stage of the first threads of warps reads to registers, before products are placed.

    Gives the number of copies.
    """
    sch = context.sch
    constants = constant_parameters(sch.func)
    names = {region.buffer.name: None for region in context.block(stage).reads if region.buffer in constants}
    for name in names:
        copy = sch.cache_read(stage, name, "local")
        sch.compute_at(copy, warp)
        for loop in _below(context, copy, warp):
            sch.unroll(loop)
    return len(names)


def place_product(
    context: ScheduleContext,
    product: BlockHandle,
    partial: BlockHandle,
    weights: str,
    warp: LoopHandle,
    division: Division,
    whole: int,
    kept_at: LoopHandle | None = None,
    states: str | None = None,
) -> None:
    """Compute a product with its sums of threads in the warps of its results.

    `weights` is the name of what each result reads a row of. All threads have the first `whole` of their steps. The
    loops of the product are over vectors, if several, and results. Weights are kept in a loop over warps of their own
    in `kept_at`, if given: in front of what all warps do together. `states` is the name of the vectors, if a thread is
    to read neighbours of them at once, for all its results.
    """
    sch = context.sch
    sch.compute_at(product, warp)
    place = warp
    *sums, lane = _below(context, product, warp)
    if len(sums) > 1:
        place, sums[0] = sch.split(sums[0], [None, division.vectors])
    sch.compute_at(partial, place)
    sch.bind(lane, "threadIdx.x")
    lane, *inside = _below(context, partial, place)
    values = [item.value for item in context.block(partial).iters if item.kind is IterKind.REDUCE]
    reduce = [loop for loop in inside if any(uses_any(value, [loop.var]) for value in values)]
    results = [loop for loop in inside if loop not in reduce]
    # Loops of a single step are not there.
    steps = len(reduce) - (division.vector > 1)
    chunks, vector = reduce[:steps], reduce[steps:]
    sch.reorder(lane, *chunks, *results, *vector)
    sch.bind(lane, "threadIdx.x")
    if states is not None:
        _load_states(context, partial, states, (lane, *chunks)[-1])
    for loop in (*sums, *results, *vector):
        if (context.extent(loop) or 0) > 1:
            sch.unroll(loop)
    if division.keeps:
        _load_weights(context, partial, weights, warp if kept_at is None else kept_at, division, whole)
        for loop in chunks:
            _unroll_chunks(context, loop, whole)


def _below(context: ScheduleContext, handle: BlockHandle, loop: LoopHandle) -> list[LoopHandle]:
    own = context.sch.get_loops(handle)
    return own[own.index(loop) + 1 :]


def _load_weights(
    context: ScheduleContext, partial: BlockHandle, weights: str, place: LoopHandle, division: Division, whole: int
) -> None:
    """Copy a thread's weights to registers, all of them at once: they come before the states are there."""
    sch = context.sch
    copy = sch.cache_read(partial, weights, "local")
    beside = context.loop(place).thread != "threadIdx.y"
    sch.compute_at(copy, place, preserve_unit_loops=beside)
    *outer, last = _below(context, copy, place)
    chunk, lane, vector = sch.split(last, [None, division.lanes, division.vector])
    if beside:
        element = outer.pop()
        sch.reorder(element, lane, chunk, *outer, vector)
        sch.bind(element, "threadIdx.y")
    sch.reorder(lane, chunk, *outer, vector)
    sch.bind(lane, "threadIdx.x")
    for loop in outer:
        sch.unroll(loop)
    if division.vector > 1:
        sch.vectorize(vector)

    def in_chunks(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*index[:-1], index[-1] // division.width, index[-1] % division.width)

    sch.transform_layout(copy, context.block(copy).writes[0].buffer.name, in_chunks)
    _unroll_chunks(context, chunk, whole)


def _load_states(context: ScheduleContext, partial: BlockHandle, states: str, place: LoopHandle) -> None:
    """Copy what a thread reads of the vectors in one step to registers, neighbours at once."""
    sch = context.sch
    copy = sch.cache_read(partial, states, "local")
    sch.compute_at(copy, place)
    *outer, last = _below(context, copy, place)
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(last)


def _unroll_chunks(context: ScheduleContext, loop: LoopHandle, whole: int) -> None:
    """Write out a thread's steps. The last one, which not all threads have, is apart: the others need no guard."""
    sch = context.sch
    if 0 < whole < (context.extent(loop) or 0):
        loop, rest = sch.partition(loop, [whole])
        sch.unroll(rest)
    sch.unroll(loop)
