"""The schedule of a vector times constant weights: a few results a warp, all weights on their way at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Var, const_value
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.register_weights import (
    WARP,
    Division,
    place_product,
    prefetch_constants,
    rfactor_sums,
    sum_length,
    vector_length,
)
from tilewright.topi.schedule.gpu.stage import StageContext
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.topi.schedule.template import Template

_READ_BYTES = 16
"""What a thread reads at once, at most."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A product of vectors with constant weights."""

    weights: str
    parameter: int
    """The number of the weights among the parameters."""
    packed: bool
    """Whether the steps of a sum already lie side by side."""
    dtype: DataType
    states: str
    """The vectors."""
    column: int
    """The iterator over the weights' results."""


def _why_not(context: StageContext) -> str | None:
    form = _find(context, context.stage)
    if isinstance(form, str):
        return form
    written = context.block(context.stage).writes[0].buffer
    axes = written.ndim if context.epilogue is None else len(context.sch.get_loops(context.epilogue))
    return None if axes > form.column else "the epilogue has no axis of the results"


def _schedule_vector_product(context: StageContext) -> None:
    product, form = context.stage, _find(context, context.stage)
    assert not isinstance(form, str)
    sch = context.sch
    if not form.packed:
        index_map = IndexMap.of(lambda step, column: (column, step), 2)
        sch.transform_layout(product, form.weights, index_map)
        context.packing[form.parameter] = index_map
    length = sum_length(context, product)
    output = context.epilogue or sch.cache_write(product, 0, "local")
    loops = sch.get_loops(output)
    column = loops[form.column]
    (count,) = context.sizes([column])
    division, columns = _divide(context, length, count * context.paired, form.dtype)
    results = columns // context.paired
    partial = rfactor_sums(context, product, division)
    block, warp, result = sch.split(column, [None, division.warps, results])
    vectors = [loop for loop in loops if loop != column]
    sch.reorder(block, warp, *vectors, result)
    sch.bind(block, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    for loop in vectors:
        if (context.extent(loop) or 0) > 1:
            sch.unroll(loop)
    if results > 1:
        sch.vectorize(result)
    prefetch_constants(context, output, warp)
    # Neighbours at once where all threads have all their steps, so that no guard is around the copy.
    states = form.states if division.vector > 1 and length % division.width == 0 else None
    whole = length // division.width
    place_product(context, product, partial, form.weights, warp, division, whole, states=states)


def _find(context: ScheduleContext, product: BlockHandle) -> _Form | str:
    """The weights of a product, if they are a constant matrix and all else is vectors; else why it is none."""
    block = context.block(product)
    constants = constant_parameters(context.sch.func)
    written = {region.buffer for region in block.writes}
    loads = [item for item in pre_order(block.body) if isinstance(item, BufferLoad) and item.buffer not in written]
    matrices = [item for item in loads if item.buffer in constants and item.buffer.ndim == 2]
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    if len(loads) != 2 or len(matrices) != 1 or len(steps) != 1 or len(block.writes) != 1:
        return "it is no product of a constant matrix and one other operand"
    (matrix,) = matrices
    (vector,) = [item for item in loads if item is not matrix]
    readers = [b for b in context.sch.blocks() if any(r.buffer is matrix.buffer for r in context.block(b).reads)]
    if steps[0] not in matrix.indices or readers != [product]:
        return "the weights have no axis of the sums, or another stage reads them"
    others = [index for index in matrix.indices if isinstance(index, Var) and index is not steps[0]]
    places = [n for n, item in enumerate(block.iters) if item.var in others]
    if len(places) != 1 or uses_any(vector, others):
        return "the other operand has an axis of the results"
    extents = [const_value(item.domain.extent) for item in block.iters]
    sizes = [extent for extent in extents if extent is not None]
    if len(sizes) < len(extents):
        return "the number of vectors is symbolic"  # Their results would be in no registers.
    spatial = prod(size for n, size in enumerate(sizes) if block.iters[n].kind is not IterKind.REDUCE)
    machine = context.gpu.vector_product
    is_short = sizes[-1] < machine.least_depth
    if spatial > machine.most_vectors * sizes[places[0]] or is_short or block.iters[-1].var is not steps[0]:
        return "vectors are many, or sums short"
    is_packed = matrix.indices[-1] is steps[0]
    return _Form(
        matrix.buffer.name, constants[matrix.buffer], is_packed, matrix.buffer.dtype, vector.buffer.name, places[0]
    )


def _divide(context: StageContext, length: int, count: int, dtype: DataType) -> tuple[Division, int]:
    """How sums are divided, and how many of them a warp has."""
    target = context.target
    machine = context.gpu.vector_product
    busy = target.cores * machine.busy_warps
    lanes = min(WARP, target.max_threads)
    while length > lanes * machine.thread_weights and lanes < WARP * machine.most_warps:
        if 2 * lanes > target.max_threads:
            break
        lanes *= 2
    # More lanes where results are few, so that all multiprocessors have enough on its way.
    while count * lanes < busy // 4 * WARP and lanes < length // 8 and 2 * lanes <= target.max_threads:
        lanes *= 2
    possible = [n for n in (32, 64, 128, 256, 512) if n <= min(target.max_threads, max(WARP, length))]
    lanes = context.choose_again("lanes", possible, lanes) if lanes in possible else lanes
    own = -(-length // lanes) * dtype.itemsize
    least = context.paired
    options = [n for n in (1, 2, 4, 8) if n >= least and count % n == 0]
    options = [n for n in options if n == least or n * own <= 2 * machine.thread_bytes]
    enough = [n for n in options if n * own <= machine.thread_bytes and count // n * lanes >= busy * WARP]
    results = context.choose_again("results", options, max(enough, default=least))
    rows = [n for n in (1, 2, 4, 8) if n * lanes <= target.max_threads and count // results % n == 0]
    small = [n for n in rows if n * lanes <= 4 * WARP]
    warps = context.choose_again("warps", rows, max(small, default=1))
    vector = vector_length([length], _READ_BYTES // dtype.itemsize)
    return Division(lanes, vector, warps, keeps=own <= machine.kept_bytes), results


TEMPLATE = Template(
    "vector_product",
    "threads of a warp share the sums of a few results, all their weights in registers before the vector is there",
    _why_not,
    _schedule_vector_product,
)
