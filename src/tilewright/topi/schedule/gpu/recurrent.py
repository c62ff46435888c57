"""The schedule of recurrent layers: each step a kernel, a warp for each element of the state with all its gates."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import uses_any
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.recurrent import ANCHOR
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.injective import schedule_injective

_MOST_STEPS = 1024
"""Steps that become kernels of their own."""
_FEW_STEPS, _FEW_WEIGHTS = 64, 1 << 11
"""Steps from which on layers with few weights are one kernel: starting many would take longer than their work."""
_OPERANDS = 96
"""Weights that a thread has in registers."""
_MOST_WARPS = 16
"""Warps that share an element of the state."""
_VECTOR = 4
"""Elements that a thread reads at once, at most."""
_MOST_ELEMENTS = 8
"""Elements of the state of a block, at most."""


def is_recurrence(context: ScheduleContext) -> bool:
    """Whether a program has the products of a recurrent layer."""
    return any(context.block(handle).annotations.get("anchor") == ANCHOR for handle in context.sch.blocks())


def schedule_recurrence(context: ScheduleContext) -> bool:
    """Compute the products of an element of the state where it is updated, the threads of a warp along the sums.

    for t:  for b, g, n, k: product[t, b, g, n] += h[t-1, b, k] * w[g, n, k];  for b, n: h[t, b, n] = step(...)
    ->  for t:  for n in blocks and threadIdx.y:
            for lane in threadIdx.x:  own = w[:, n, lane::32]          (read before the step in front of it is done)
            for some b:  for lane in threadIdx.x:  part[b, g] += h[t-1, b, lane::32] * own[g]
                         product[b, g] = sum of part over lanes
            for b in threadIdx.x:  h[t, b, n] = step(product[b, :], ...)
    """
    sch = context.sch
    products = [handle for handle in sch.blocks() if context.block(handle).annotations.get("anchor") == ANCHOR]
    steps = {consumer.name: consumer for handle in products for consumer in sch.get_consumers(handle)}
    if any(context.extents(sch.get_loops(handle)) is None for handle in products):
        return False
    for handle in sch.blocks():
        if handle.name in steps or handle in products:
            continue
        if handle.name.endswith("_first"):
            sch.compute_inline(handle)
        else:
            schedule_injective(context, handle)
    for step in steps.values():
        _schedule_step(context, step, [handle for handle in products if step in sch.get_consumers(handle)])
    return True


@dataclass(frozen=True, slots=True)
class _Division:
    """How the work of a step is divided."""

    lanes: int
    """Threads along the sums of an element of the state."""
    vector: int
    """Neighbouring steps of a sum that a thread takes at once."""
    elements: int
    """Elements of the state of a block."""
    sequences: int
    """Sequences whose sums a thread makes at once."""
    keeps: bool
    """Whether a thread has its weights in registers."""

    @property
    def width(self) -> int:
        """Steps of a sum that all threads take together."""
        return self.lanes * self.vector


def _schedule_step(context: ScheduleContext, step: BlockHandle, products: list[BlockHandle]) -> None:
    """One step, with the products that it reads, as a kernel."""
    sch = context.sch
    *before, batch, column = sch.get_loops(step)
    lengths = [_length(context, product) for product in products]
    alone = _is_alone(prod(context.sizes(before)), prod(context.sizes([column])) * sum(lengths))
    division = _divide(context, products, batch, column, alone)
    partials = []
    for product in products:
        _, lane, _ = sch.split(sch.get_loops(product)[-1], [None, division.lanes, division.vector])
        partials.append(sch.rfactor(lane, 0))
    block, warp = sch.split(column, [None, division.elements])
    if context.extent(batch) == 1:
        sch.reorder(block, warp, batch)
    else:
        # As many threads as the sums have, so that warps stay whole: each updates the state of one sequence.
        group, sequence = sch.split(batch, [None, division.lanes])
        sch.reorder(block, group, warp, sequence)
        sch.bind(sequence, "threadIdx.x")
        if not alone:
            sch.bind(group, "blockIdx.y")
    if not alone:
        sch.bind(block, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    for product, partial, length in zip(products, partials, lengths, strict=True):
        _schedule_product(context, product, partial, warp, division, length // division.width)


def _is_alone(steps: int, weights: int) -> bool:
    """Whether all steps run in one block of threads, which can wait for itself, by the weights of a gate."""
    return steps > _MOST_STEPS or (steps > _FEW_STEPS and weights <= _FEW_WEIGHTS)


def _schedule_product(
    context: ScheduleContext,
    product: BlockHandle,
    partial: BlockHandle,
    warp: LoopHandle,
    division: _Division,
    whole: int,
) -> None:
    """A product in the warps of its elements; all threads have the first `whole` of their steps."""
    sch = context.sch
    sch.compute_at(product, warp)
    place = warp
    *sums, lane = _below(context, product, warp)
    if len(sums) > 1:
        place, sums[0] = sch.split(sums[0], [None, division.sequences])
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
    for loop in (*sums, *results, *vector):
        if (context.extent(loop) or 0) > 1:
            sch.unroll(loop)
    if division.keeps:
        _keep_weights(context, partial, warp, division, whole)
        for loop in chunks:
            _unroll_chunks(context, loop, whole)


def _below(context: ScheduleContext, handle: BlockHandle, loop: LoopHandle) -> list[LoopHandle]:
    own = context.sch.get_loops(handle)
    return own[own.index(loop) + 1 :]


def _keep_weights(
    context: ScheduleContext, partial: BlockHandle, warp: LoopHandle, division: _Division, whole: int
) -> None:
    """Copy a thread's weights to registers, all of them at once: they come before the states are there."""
    sch = context.sch
    copy = sch.cache_read(partial, _weights(context, partial).name, "local")
    sch.compute_at(copy, warp)
    *outer, last = _below(context, copy, warp)
    chunk, lane, vector = sch.split(last, [None, division.lanes, division.vector])
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


def _unroll_chunks(context: ScheduleContext, loop: LoopHandle, whole: int) -> None:
    """Write out a thread's steps. The last one, which not all threads have, is apart: the others need no guard."""
    sch = context.sch
    if 0 < whole < (context.extent(loop) or 0):
        loop, rest = sch.partition(loop, [whole])
        sch.unroll(rest)
    sch.unroll(loop)


def _weights(context: ScheduleContext, product: BlockHandle) -> Buffer:
    """The weights of a product, its second operand: (gates, elements, steps of the sum)."""
    block = context.block(product)
    made = {region.buffer for region in block.writes}
    found = [region.buffer for region in block.reads if region.buffer not in made]
    return found[-1]


def _length(context: ScheduleContext, product: BlockHandle) -> int:
    """The steps of the sums of a product."""
    return context.sizes(context.sch.get_loops(product)[-1:])[0]


def _divide(
    context: ScheduleContext, products: list[BlockHandle], batch: LoopHandle, column: LoopHandle, alone: bool
) -> _Division:
    target = context.target
    lengths = [_length(context, product) for product in products]
    gates = [(context.block(product).writes[0].buffer.static_shape or (0, 0))[-2] for product in products]
    weights = sum(length * count for length, count in zip(lengths, gates, strict=True))
    lanes = min(32, target.max_threads)
    while weights > lanes * _OPERANDS and lanes < 32 * _MOST_WARPS and 2 * lanes <= target.max_threads:
        lanes *= 2
    sequences = context.extent(batch) or 1
    # What several sequences read of a state is read in single elements, by neighbouring threads side by side.
    vector = _VECTOR if sequences == 1 else 1
    while any(length % vector for length in lengths):
        vector //= 2
    (size,) = context.sizes([column])
    most = max(1, target.max_threads // lanes)
    elements = most if alone else _elements(context, size, min(_MOST_ELEMENTS, most))
    together = context.choose_again("sequences", (1, 2, 4, 8), max(n for n in (1, 2, 4) if n <= sequences))
    return _Division(lanes, vector, elements, together, weights <= 2 * lanes * _OPERANDS)


def _elements(context: ScheduleContext, size: int, most: int) -> int:
    """Elements of the state of a block: no core has many more than others, and no warp needs a guard."""
    options = [n for n in range(1, most + 1) if size % n == 0]
    cores = context.target.cores

    def on_one_core(count: int) -> int:
        return -(-(size // count) // cores) * count

    return context.choose_again("warps", options, min(options, key=lambda n: (on_one_core(n), -n)))
