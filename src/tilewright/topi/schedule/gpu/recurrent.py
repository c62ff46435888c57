"""The schedule of recurrent layers: each step a kernel, a warp for each element of the state with all its gates."""

from __future__ import annotations

from math import prod

from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.tir.buffer import Buffer
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.topi.schedule.context import ScheduleContext, loops_below
from tilewright.topi.schedule.gpu.injective import schedule_injective, spread
from tilewright.topi.schedule.gpu.register_weights import (
    VECTOR,
    WARP,
    Division,
    place_product,
    prefetch_constants,
    rfactor_sums,
    sum_length,
    vector_length,
)
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_MOST_STEPS = 1024
"""Steps that become kernels of their own."""


def recurrent_products(context: ScheduleContext) -> list[BlockHandle]:
    """The products of states and weights."""
    blocks = context.sch.blocks()
    return [
        handle for handle in blocks if ANCHOR.of(context.block(handle)) in (Anchor.RECURRENCE, Anchor.RECURRENT_STEP)
    ]


def recurrent_steps(context: ScheduleContext) -> list[BlockHandle]:
    """The stages that compute a step of the state from its products."""
    consumers = [consumer for handle in recurrent_products(context) for consumer in context.sch.get_consumers(handle)]
    return list({handle.name: handle for handle in consumers}.values())


def _has_open_sizes(context: ScheduleContext) -> bool:
    return any(context.extents(context.sch.get_loops(handle)) is None for handle in recurrent_products(context))


def _why_not(context: ScheduleContext) -> str | None:
    if not recurrent_products(context):
        return "the kernel is no recurrent layer"
    if _has_open_sizes(context) and not all(_has_few_steps(context, handle) for handle in recurrent_steps(context)):
        return "steps of symbolic size are too many to be kernels of their own"
    return None


def _schedule_recurrence(context: ScheduleContext) -> None:
    """Compute the products of an element of the state where it is updated, the threads of a warp along the sums.

    for t:  for b, g, n, k: product[t, b, g, n] += h[t-1, b, k] * w[g, n, k];  for b, n: h[t, b, n] = step(...)
    ->  for t:  for n in blocks and threadIdx.y:
            for lane in threadIdx.x:  own = w[:, n, lane::32]          (read before the step in front of it is done)
            near[b, k] = h[t-1, b, k]                                  (all threads of a block, if there are several b)
            for some b:  for lane in threadIdx.x:  part[b, g] += h[t-1, b, lane::32] * own[g]
                         product[b, g] = sum of part over lanes
            for b in threadIdx.x:  h[t, b, n] = step(product[b, :], ...)
    """
    sch = context.sch
    products, steps, is_open = recurrent_products(context), recurrent_steps(context), _has_open_sizes(context)
    schedule_others(context, products, steps)
    for step in steps:
        own = [handle for handle in products if step in sch.get_consumers(handle)]
        if is_open:
            _schedule_open_step(context, step, own)
        else:
            _schedule_step(context, step, own)


def schedule_others(context: ScheduleContext, products: list[BlockHandle], steps: list[BlockHandle]) -> None:
    """Schedule what is neither a product nor a step: the first rows of states."""
    for handle in context.sch.blocks():
        if handle in steps or handle in products:
            continue
        if handle.name.endswith("_first"):
            context.sch.compute_inline(handle)
        else:
            schedule_injective(context, handle)


def _has_few_steps(context: ScheduleContext, step: BlockHandle) -> bool:
    """Whether the steps can be kernels of their own: their number is known, and not too great."""
    counts = context.extents(context.sch.get_loops(step)[:-2])
    return counts is not None and prod(counts) <= _MOST_STEPS


def _schedule_open_step(context: ScheduleContext, step: BlockHandle, products: list[BlockHandle]) -> None:
    """One step of sequences whose number varies: a thread for each element of the state, with all its gates.

    for b, n:  product[b, :, n] = ...; h[t, b, n] = step(product[b, :, n], ...)   ->   b and n over threads
    """
    sch = context.sch
    *_, batch, column = sch.get_loops(step)
    thread = spread(context, [batch, column])
    assert thread is not None
    for product in products:
        sch.set_scope(product, 0, "local")
        sch.compute_at(product, thread)


def _schedule_step(context: ScheduleContext, step: BlockHandle, products: list[BlockHandle]) -> None:
    """One step, with the products that it reads, as a kernel."""
    sch = context.sch
    *before, batch, column = sch.get_loops(step)
    lengths = [sum_length(context, product) for product in products]
    alone = is_alone(context, prod(context.sizes(before)), prod(context.sizes([column])) * sum(lengths))
    division = _divide(context, products, batch, column, alone)
    weights = [_weights(context, product) for product in products]
    partials = [rfactor_sums(context, product, division) for product in products]
    single = context.extent(batch) == 1
    early: list[BlockHandle] = []
    if single and not alone and len(products) == 1 and context.target.shuffle_width > 1:
        early = [sch.cache_read(step, name, "local") for name in read_early(context, step, products)]
    block, warp = sch.split(column, [None, division.warps])
    shared_in: LoopHandle | None = None
    if single:
        sch.reorder(block, warp, batch)
    else:
        # As many threads as the sums have, so that warps stay whole: each updates the state of one sequence. Without
        # shuffles each sum takes barriers, of which compilers want to see few: blocks of a few sequences.
        shuffles = context.target.shuffle_width > 1
        most = min(division.lanes, context.extent(batch) or 1) if shuffles else division.vectors
        options = [n for n in (4, 8, 16, 32) if n < most]
        together = context.choose_again("together", [*options, most], most) if shuffles else most
        group, sequence = sch.split(batch, [None, together])
        rest = [sequence]
        if shuffles:
            rest = sch.split(sequence, [None, division.lanes])
            sch.bind(rest[-1], "threadIdx.x")
            if not alone and _shares_states(context, partials, weights, together):
                shared_in = group
        sch.reorder(block, group, warp, *rest)
        if not alone:
            sch.bind(group, "blockIdx.y")
    if not alone:
        sch.bind(block, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    before_sums = prefetch_constants(context, step, warp) + division.keeps if single else 0
    copies: list[BlockHandle] = []
    if shared_in is not None:
        for partial, name in zip(partials, weights, strict=True):
            copies += [sch.cache_read(partial, state.name, "shared") for state in _states(context, partial, name)]
    for product, partial, name, length in zip(products, partials, weights, lengths, strict=True):
        place_product(context, product, partial, name, warp, division, length // division.width, shared_in)
    for copy in copies:
        assert shared_in is not None
        _fetch(context, copy, shared_in, division)
    for copy in early:
        sch.compute_at(copy, warp, index=before_sums)
        for loop in loops_below(context, copy, warp):
            sch.unroll(loop)


def read_early(context: ScheduleContext, step: BlockHandle, products: list[BlockHandle]) -> list[str]:
    """What a step reads for each of its elements, beside its products: it need not wait for these."""
    sums = {context.block(product).writes[0].buffer for product in products}
    constants = constant_parameters(context.sch.func)
    read = dict.fromkeys(region.buffer for region in context.block(step).reads)
    return [buffer.name for buffer in read if buffer.ndim > 2 and buffer not in sums and buffer not in constants]


def _states(context: ScheduleContext, partial: BlockHandle, weights: str) -> list[Buffer]:
    """What sums read besides their weights."""
    read = (region.buffer for region in context.block(partial).reads)
    return [buffer for buffer in dict.fromkeys(read) if buffer.name != weights]


def _shares_states(context: ScheduleContext, partials: list[BlockHandle], weights: list[str], sequences: int) -> bool:
    """Whether a block copies the states of its sequences to shared memory first.

    They all come at once then, where threads with their registers full of weights could ask for a few at a time.
    """
    states = [state for part, name in zip(partials, weights, strict=True) for state in _states(context, part, name)]
    sizes = [(state.static_shape or (0,))[-1] * state.dtype.itemsize for state in states]
    fits = 0 not in sizes and sequences * sum(sizes) <= context.target.shared_bytes
    return fits and context.choose_again("share_states", (False, True), True)


def _fetch(context: ScheduleContext, copy: BlockHandle, place: LoopHandle, division: Division) -> None:
    """Copy states by all threads of a block, in vectors: rows lie side by side in both memories."""
    sch = context.sch
    buffer = context.block(copy).writes[0].buffer
    length = (buffer.static_shape or (0,))[-1]
    sch.transform_layout(copy, buffer.name, lambda *index: (*index[:-2], index[-2] * length + index[-1]))
    sch.compute_at(copy, place)
    own = sch.get_loops(copy)
    element = sch.fuse(*own[own.index(place) + 1 :])
    step, warp, lane, vector = sch.split(element, [None, division.warps, division.lanes, VECTOR])
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)
    sch.unroll(step)


def is_alone(context: ScheduleContext, steps: int, weights: int) -> bool:
    """Whether all steps run in one block of threads, which can wait for itself, by the weights of a gate."""
    machine = context.gpu.recurrence
    return steps > _MOST_STEPS or (steps > machine.few_steps and weights <= machine.few_weights)


def _weights(context: ScheduleContext, product: BlockHandle) -> str:
    """The weights of a product, its second operand: (gates, elements, steps of the sum)."""
    return context.block(product).reads[-1].buffer.name


def _divide(
    context: ScheduleContext, products: list[BlockHandle], batch: LoopHandle, column: LoopHandle, alone: bool
) -> Division:
    target = context.target
    lengths = [sum_length(context, product) for product in products]
    gates = [(context.block(product).writes[0].buffer.static_shape or (0, 0))[-2] for product in products]
    weights = sum(length * count for length, count in zip(lengths, gates, strict=True))
    machine = context.gpu.recurrence
    lanes = min(WARP, target.max_threads)
    while (
        weights > lanes * machine.thread_weights
        and lanes < WARP * machine.most_warps
        and 2 * lanes <= target.max_threads
    ):
        lanes *= 2
    sequences = context.extent(batch) or 1
    # What several sequences read of a state is read in single elements, by neighbouring threads side by side.
    vector = vector_length(lengths) if sequences == 1 else 1
    (size,) = context.sizes([column])
    most = max(1, target.max_threads // lanes)
    elements = most if alone else _elements(context, size, min(machine.most_elements, most))
    keeps = weights <= lanes * machine.thread_weights
    options = (1, 2, 4, 8)
    most = max(n for n in options if n <= min(sequences, machine.most_sequences))
    together = context.choose_again("sequences", options, most)
    return Division(lanes, vector, elements, together, keeps)


def _elements(context: ScheduleContext, size: int, most: int) -> int:
    """Elements of the state of a block: no core has many more than others, and no warp needs a guard."""
    options = [n for n in range(1, most + 1) if size % n == 0]
    cores = context.target.cores

    def on_one_core(count: int) -> int:
        return -(-(size // count) // cores) * count

    return context.choose_again("warps", options, min(options, key=lambda n: (on_one_core(n), -n)))


TEMPLATE = Template(
    "recurrence",
    "a step a kernel; a warp for each element of the state, its weights in registers before the step in front is done",
    _why_not,
    _schedule_recurrence,
)
