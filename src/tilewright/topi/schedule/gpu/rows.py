"""The schedule of kernels that reduce rows and go on with them: softmax, normalisation, sums with what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import ZERO, PrimExpr, Var
from tilewright.ir.visit import find_all, pre_order, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import ANCHOR
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.index_map import IndexMap
from tilewright.tir.passes.flatten_buffers import row_major_strides
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, BufferStore, IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.products import tileable_output
from tilewright.topi.schedule.template import Template, apply_first_legal

_FEWEST_THREADS = 32
"""Threads that share a row, at least."""


@dataclass(slots=True)
class _RowPlan:
    """A kernel over rows: which loops of its result are rows, and how a row is divided over threads."""

    output: BlockHandle
    stages: list[BlockHandle]
    """What is computed for each row of the output before it, in order."""
    rows: list[LoopHandle]
    rest: list[LoopHandle]
    length: int
    threads: int = 1
    lanes: int = 1
    in_registers: bool = True
    """Whether what is read twice stays in registers."""
    copied: list[Buffer] = field(default_factory=list)
    """Parameters of whole rows that are read once, and kept."""


@dataclass(slots=True)
class KernelContext(ScheduleContext):
    """A whole kernel being scheduled."""

    by_rows: ScheduleContext | str | None = None
    """The kernel scheduled by rows, on a copy; or why it is not. None: not tried yet."""
    has_product: bool | None = None
    """Whether a product can be tiled; None: not looked at yet."""

    def contains_product(self) -> bool:
        """Whether the kernel has a product that can be tiled."""
        if self.has_product is None:
            outputs = (tileable_output(self, handle) for handle in self.sch.blocks())
            self.has_product = any(not isinstance(output, str) for output in outputs)
        return self.has_product


def _by_rows(context: KernelContext) -> ScheduleContext | str:
    """One kernel for all stages of a program that reduces rows of its operands; or why that does not fit.

    for i: m[i] = max(x[i, :]);  for i, j: e[i, j] = exp(x[i, j] - m[i]);  for i: s[i] = sum(e[i, :]);  ...
    ->  for row in blocks:  for t in threads:  x_local = x[row, t::threads]  (vectors);  part = max(x_local)
                            m = max of part over threads;  e_local = exp(x_local - m);  ...  out[row, ...] = e_local / s
    """
    trial = ScheduleContext(context.sch.copy(), context.target, dict(context.packing), context.choices.copy())
    apply_first_legal([_merge_rows, lambda other: None], trial)
    try:
        rows = _find_rows(trial)
        if isinstance(rows, str):
            return rows
        _divide(trial, rows)
        _schedule(trial, rows)
    except ScheduleError as error:
        # Rows of several axes, or of a length that threads do not divide, may not prove to be apart.
        return f"rows do not prove to be apart: {error.message.splitlines()[0]}"
    return trial


def _merge_rows(context: ScheduleContext) -> None:
    """Make one axis of the leading ones that all stages have: rows are then neighbours, whatever their numbers.

    for i, j, k: e[i, j, k] = x[i, j, k] - m[i, j]  ->  for r, k: own[r, k] = x[r // n, r % n, k]
                                                        for r, k: e[r, k] = own[r, k] - m[r]

    Parameters stay as they are: several stages read a copy.
    """
    sch = context.sch
    lead, readers = _leading_axes(context)
    shapes = [buffer.static_shape for buffer in readers]
    if lead < 2 or None in shapes or len({shape[:lead] for shape in shapes if shape is not None}) != 1:
        return
    extents = shapes[0] or ()
    written = {region.buffer for handle in sch.blocks() for region in context.block(handle).writes}
    for buffer in [item for item in sch.func.params if item in readers and item not in written]:
        assert isinstance(buffer, Buffer)
        first, *others = readers.pop(buffer)
        sch.cache_read(first, buffer.name, "local", others)
    _, readers = _leading_axes(context)

    def in_a_row(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        row = index[0]
        for number in range(1, lead):
            row = row * extents[number] + index[number]
        return (row, *index[lead:])

    for buffer, (handle, *_) in readers.items():
        if buffer not in sch.func.params:
            sch.transform_layout(handle, buffer.name, IndexMap.of(in_a_row, buffer.ndim))
    for handle in sch.blocks():
        rest = range(lead, len(context.block(handle).iters))
        sch.fuse_iterators(handle, [list(range(lead)), *([number] for number in rest)])


def _leading_axes(context: ScheduleContext) -> tuple[int, dict[Buffer, list[BlockHandle]]]:
    """How many axes all stages begin with, and the stages that touch buffers by them; no axes if others do so too."""
    blocks = {handle: context.block(handle) for handle in context.sch.blocks()}
    lead = min(
        (sum(item.kind is IterKind.SPATIAL for item in block.iters) for block in blocks.values()),
        default=0,
    )
    users: dict[Buffer, list[BlockHandle]] = {}
    for handle, block in blocks.items():
        own = tuple(item.var for item in block.iters[:lead])
        accesses = [(item.buffer, item.indices) for item in find_all(block.body, BufferLoad)]
        accesses += [(item.buffer, item.indices) for item in find_all(block.body, BufferStore)]
        for buffer, indices in accesses:
            is_led = tuple(indices[:lead]) == own
            if any(uses_any(index, own) for index in indices[lead if is_led else 0 :]):
                return 0, {}
            if is_led and handle not in users.setdefault(buffer, []):
                users[buffer].append(handle)
    return lead, users


def _why_not(context: KernelContext) -> str | None:
    if context.contains_product():
        return "the kernel has a product"
    if context.by_rows is None:
        context.by_rows = _by_rows(context)
    return context.by_rows if isinstance(context.by_rows, str) else None


def _schedule_rows(context: KernelContext) -> None:
    assert isinstance(context.by_rows, ScheduleContext)
    context.take(context.by_rows)
    context.choices.take(context.by_rows.choices)


def _find_rows(context: ScheduleContext) -> _RowPlan | str:
    """The rows of a program, or why it is not computed row by row; stages are inlined where nothing is lost by that."""
    sch = context.sch
    outputs = sch.get_output_blocks()
    blocks = [context.block(handle) for handle in sch.blocks()]
    if not any(block.is_reduction for block in blocks):
        return "nothing is reduced"
    if len(outputs) != 1:
        return "there are several results"
    for block in blocks:
        shapes = [region.buffer.static_shape for region in (*block.reads, *block.writes)]
        if None in shapes or any(0 in shape for shape in shapes if shape):
            return "sizes are symbolic or zero"
        if ANCHOR.is_on(block) or any(item.kind is IterKind.OPAQUE for item in block.iters):
            return f"stage {block.name} is of another kind"
    output = outputs[0]
    if context.block(output).is_reduction:
        if len(context.block(output).writes) > 1:
            return "the reduction has several results"
        output = sch.cache_write(output, 0, "local")
    reductions = [handle for handle in sch.blocks() if context.block(handle).is_reduction]
    lengths = {prod(context.sizes(_reducing(context, handle))) for handle in reductions}
    if len(lengths) != 1:
        return "reductions are of different lengths"
    length = lengths.pop()
    _inline(context, output, length)
    shared = _shared_axes(context, output)
    loops = sch.get_loops(output)
    rows = [loop for n, loop in enumerate(loops) if n in shared]
    rest = [loop for n, loop in enumerate(loops) if n not in shared]
    if prod(context.sizes(rest)) == 1:
        rows, rest = loops, []
    elif prod(context.sizes(rest)) != length:
        return "results are not rows as long as what is reduced"
    stages = [handle for handle in sch.blocks() if handle != output]
    return _worth(context, _RowPlan(output, stages, rows, rest, length))


def schedule_long_rows(context: ScheduleContext, handle: BlockHandle, output: BlockHandle) -> None:
    """One reduction of rows with its epilogue: a block of threads a row, whatever its length.

    for i, k: c[i] += x[i, k]  ->  for i in blocks: for t in threads: for ko: { v = x[i, ...] (vectors); part += v }
                                                    c[i] = sum of part over threads
    """
    rows = context.sch.get_loops(output)
    plan = _RowPlan(output, [handle], rows, [], prod(context.sizes(_reducing(context, handle))))
    plan.lanes = _vector_width(context, plan)
    plan.threads = _threads(context, plan, prod(context.sizes(rows)))
    if plan.length % (plan.threads * plan.lanes):
        plan.lanes = 1
    plan.in_registers = False
    _schedule(context, plan)


def _inline(context: ScheduleContext, output: BlockHandle, length: int) -> None:
    """Inline stages, except those of whole rows that several others read: they are computed once, into registers."""
    sch = context.sch
    for handle in sch.blocks():
        block = context.block(handle)
        if handle == output or block.is_reduction or block.init is not None or not block.iters:
            continue
        size = prod(context.sizes(sch.get_loops(handle)))
        whole = size % length == 0 and size >= length
        if not (whole and len(sch.get_consumers(handle)) > 1):
            sch.compute_inline(handle)


def _shared_axes(context: ScheduleContext, output: BlockHandle) -> set[int]:
    """The axes of the output that index every intermediate buffer it reads."""
    block = context.block(output)
    place = {item.var: n for n, item in enumerate(block.iters)}
    shared = set(place.values())
    intermediate = {
        region.buffer for handle in context.sch.blocks() if handle != output for region in context.block(handle).writes
    }
    for item in pre_order(block.body):
        if isinstance(item, BufferLoad) and item.buffer in intermediate:
            shared &= {place[index] for index in item.indices if isinstance(index, Var) and index in place}
    return shared


def _reducing(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    values = [item.value for item in context.block(handle).iters if item.kind is IterKind.REDUCE]
    return [loop for loop in context.sch.get_loops(handle) if any(loop.var is value for value in values)]


def _fits_one_thread(context: ScheduleContext, plan: _RowPlan) -> bool:
    """Whether a thread does whole rows: they are short, or many and not read along."""
    machine = context.gpu.rows
    many = prod(context.sizes(plan.rows)) >= context.target.cores * machine.block_threads
    return plan.length <= machine.short or (many and not _reads_along(context, plan))


def _reads_along(context: ScheduleContext, plan: _RowPlan) -> bool:
    """Whether the steps of all reductions lie next to each other."""
    reductions = [handle for handle in plan.stages if context.block(handle).is_reduction]
    return all(reduces_contiguous(context.block(handle)) for handle in reductions)


def _worth(context: ScheduleContext, plan: _RowPlan) -> _RowPlan | str:
    """The rows, or why another kind of kernel is better."""
    if _fits_one_thread(context, plan):
        return plan
    if not _reads_along(context, plan):
        return "steps of the reduction are not neighbours in memory"
    cores = context.target.cores
    enough = cores // 4 if plan.rest else 2 * cores
    if plan.length > context.gpu.rows.long and prod(context.sizes(plan.rows)) < enough:
        return "rows are few and long: several blocks share each"
    return plan


def _divide(context: ScheduleContext, plan: _RowPlan) -> None:
    """How many threads share a row."""
    register_elements = context.gpu.rows.register_elements
    if _fits_one_thread(context, plan):
        plan.in_registers = plan.length <= register_elements
        return
    plan.lanes = _vector_width(context, plan)
    most = _most_threads(context, plan)
    options = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most]
    default = _threads(context, plan, prod(context.sizes(plan.rows)))
    plan.threads = context.choose("row_threads", options or [most], default)
    plan.in_registers = plan.length <= register_elements * plan.threads
    _fit_shared_memory(context, plan)


def _fit_shared_memory(context: ScheduleContext, plan: _RowPlan) -> None:
    """Decide what is kept of each row: what is not divided as its threads are needs shared memory, which is little."""
    sch = context.sch
    rows = _rows_of_block(context, plan)
    room = context.target.shared_bytes - plan.threads * rows * _scratch(context, plan)
    for handle in list(plan.stages):
        block = context.block(handle)
        if block.is_reduction or (plan.in_registers and _row_axis(block.writes[0].buffer, plan.length) is not None):
            continue
        needed = rows * _row_bytes(context, block.writes[0].buffer, plan)
        if needed <= room:
            room -= needed
        else:
            # Computed again by each stage that reads it.
            sch.compute_inline(handle)
            plan.stages.remove(handle)
    for param in sch.func.params:
        if not isinstance(param, Buffer) or _row_bytes(context, param, plan) == 0:
            continue
        readers = [handle for handle in sch.blocks() if _reads(context, handle, param)]
        if not any(context.block(handle).is_reduction for handle in readers):
            continue
        needed = 0 if _row_axis(param, plan.length) is not None else rows * _row_bytes(context, param, plan)
        if plan.in_registers and needed <= (room if len(readers) > 1 else 0):
            plan.copied.append(param)
            room -= needed
        elif plan.length % (plan.threads * plan.lanes):
            # Vectors of what is read again and again are whole.
            plan.lanes = 1


def _row_bytes(context: ScheduleContext, buffer: Buffer, plan: _RowPlan) -> int:
    """The bytes of a row of a buffer in shared memory; 0 where it does not have whole rows."""
    size = prod(buffer.static_shape or (0,))
    if size < plan.length or size % plan.length:
        return 0
    return plan.length * context.target.shared_item(buffer.dtype.itemsize)


def _row_axis(buffer: Buffer, length: int) -> int | None:
    """The axis that rows of a buffer begin at; None where they are not its last axes."""
    shape = buffer.static_shape or ()
    axis = len(shape)
    while axis > 0 and prod(shape[axis:]) < length:
        axis -= 1
    return axis if prod(shape[axis:]) == length else None


def _scratch(context: ScheduleContext, plan: _RowPlan) -> int:
    """Bytes of shared memory that each thread needs to combine parts, where threads do not read others' registers."""
    if context.target.shuffle_width > 1:
        return 0
    stages = [context.block(handle) for handle in plan.stages]
    items = [block.writes[0].buffer.dtype.itemsize for block in stages if block.is_reduction]
    return sum(2 * context.target.shared_item(item) for item in items)


def _rows_of_block(context: ScheduleContext, plan: _RowPlan) -> int:
    """Rows of a block of threads."""
    threads = context.gpu.rows.block_threads
    most = max(1, min(threads, context.target.max_threads) // plan.threads)
    sizes = [size for size in context.sizes(plan.rows) if size != 1]
    return min(most, *sizes) if len(sizes) == 1 else _box_of_rows(most, sizes)


def _box_of_rows(most: int, sizes: Sequence[int]) -> int:
    """At most so many rows in a row that are a box of several axes, wherever they begin."""
    together = 1
    for size in reversed(sizes):
        if together * size > most:
            return together * max(n for n in range(1, most // together + 1) if size % n == 0)
        together *= size
    return together


def reduces_contiguous(block: Block) -> bool:
    """Whether the steps of a reduction lie next to each other in what it reads most of."""
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    written = {region.buffer for region in block.writes}
    loads = [item for item in pre_order(block.body) if isinstance(item, BufferLoad) and item.buffer not in written]
    loads = [item for item in loads if item.indices]
    if not loads or not steps:
        return False
    largest = max(loads, key=lambda item: prod(item.buffer.static_shape or (0,)))
    if linear(largest.indices[-1]).terms.get(steps[-1]) == 1:
        return True
    # Data that is read as one row has indices of several axes, which are digits of one number.
    analyzer = Analyzer()
    for item in block.iters:
        analyzer.bind(item.var, item.domain)
    strides = row_major_strides(largest.buffer.shape)
    place = sum((index * stride for index, stride in zip(largest.indices, strides, strict=True)), ZERO)
    terms = linear(analyzer.simplify(place)).terms
    return terms.get(steps[-1]) == 1 and not any(uses_any(term, steps[-1:]) for term in terms if term is not steps[-1])


def _vector_width(context: ScheduleContext, plan: _RowPlan) -> int:
    """Elements that a thread takes at once: 16 bytes of what is read, if rows are whole vectors."""
    widths = [16]
    for handle in (*plan.stages, plan.output):
        block = context.block(handle)
        if block.is_reduction:
            last = [item for item in block.iters if item.kind is IterKind.REDUCE][-1]
            widths.append(_power_of_two(context.sizes([_loop_of(context, handle, last.value)])[0]))
        rows = [region.buffer for region in block.reads if _row_bytes(context, region.buffer, plan)]
        widths += [16 // max(1, buffer.dtype.bits // 8) for buffer in rows]
    if plan.rest:
        widths.append(_power_of_two(context.sizes(plan.rest[-1:])[0]))
    width = max(1, min(widths))
    # Threads that all have whole vectors, where shorter ones make it so.
    shorter = [n for n in (width, width // 2) if n and plan.length % (_FEWEST_THREADS * n) == 0]
    return shorter[0] if shorter else width


def _power_of_two(number: int) -> int:
    return number & -number


def _loop_of(context: ScheduleContext, handle: BlockHandle, value: PrimExpr) -> LoopHandle:
    return next(loop for loop in context.sch.get_loops(handle) if loop.var is value)


def _most_threads(context: ScheduleContext, plan: _RowPlan) -> int:
    """Threads that a row may have: what they need to combine their parts is half of shared memory, at the most."""
    target = context.target
    most = min(1024, target.max_threads)
    while most > 32 and most * _scratch(context, plan) > target.shared_bytes // 2:
        most //= 2
    return most


def _threads(context: ScheduleContext, plan: _RowPlan, rows: int) -> int:
    """Threads of a row: each has a few vectors, but all cores have rows."""
    most = _most_threads(context, plan)
    least = min(_FEWEST_THREADS, most)
    # A few vectors a thread hide latencies; where rows are few, more threads share each of them.
    elements = 32 if rows >= 8 * context.target.cores else 8
    threads = least
    while threads < most and plan.length > threads * elements:
        threads *= 2
    return threads


def _schedule(context: ScheduleContext, plan: _RowPlan) -> None:
    sch = context.sch
    together = _rows_of_block(context, plan)
    partial = _make_partial(context, plan)
    copies = _keep_inputs(context, plan)
    if plan.rows and plan.rest:
        sch.reorder(*plan.rows, *plan.rest)
    if plan.rows:
        row = sch.fuse(*plan.rows) if len(plan.rows) > 1 else plan.rows[0]
    else:
        row = sch.add_unit_loop(plan.rest[0] if plan.rest else plan.output)
    block, inner = sch.split(row, [None, together])
    inside = {handle.name for handle in (*plan.stages, *partial, *copies)}
    stages = [handle for handle in sch.blocks() if handle.name in inside]
    for handle in reversed(stages):
        sch.compute_at(handle, inner)
    sch.bind(block, "blockIdx.x")
    sch.bind(inner, "threadIdx.x" if plan.threads == 1 else "threadIdx.y")
    if plan.threads == 1:
        return
    for handle in (*stages, plan.output):
        own = sch.get_loops(handle)
        below = own[own.index(inner) + 1 :]
        if handle in partial:
            thread, *steps = below
            sch.bind(thread, "threadIdx.x")
            _schedule_partial(context, handle, steps, plan)
        elif context.block(handle).is_reduction:
            sch.bind(below[-1], "threadIdx.x")
        elif below:
            _spread(context, below, plan)
    if plan.in_registers:
        for handle in stages:
            if handle not in partial:
                _give_threads_an_axis(context, handle, plan)


def _make_partial(context: ScheduleContext, plan: _RowPlan) -> list[BlockHandle]:
    """Every reduction in two: a part for each thread, and their combination."""
    sch = context.sch
    partial: list[BlockHandle] = []
    if plan.threads == 1:
        return partial
    for handle in plan.stages:
        if not context.block(handle).is_reduction:
            continue
        loops = _reducing(context, handle)
        step = sch.fuse(*loops) if len(loops) > 1 else loops[0]
        _, thread, _ = sch.split(step, [None, plan.threads, plan.lanes])
        partial.append(sch.rfactor(thread, 0))
    return partial


def _keep_inputs(context: ScheduleContext, plan: _RowPlan) -> list[BlockHandle]:
    """Copies of what the stages read of each row, in registers."""
    sch = context.sch
    copies: list[BlockHandle] = []
    for param in plan.copied:
        readers = [handle for handle in sch.blocks() if _reads(context, handle, param)]
        copies.append(sch.cache_read(readers[0], param.name, "local", readers[1:]))
    return copies


def _reads(context: ScheduleContext, handle: BlockHandle, buffer: Buffer) -> bool:
    return any(region.buffer is buffer for region in context.block(handle).reads)


def _schedule_partial(context: ScheduleContext, handle: BlockHandle, steps: list[LoopHandle], plan: _RowPlan) -> None:
    """The part of a thread: written out if it is in registers, else a few vectors are loaded before they are used."""
    sch = context.sch
    block = context.block(handle)
    others = {*(region.buffer for region in block.writes), *_scattered(block)}
    reads = list(dict.fromkeys(region.buffer for region in block.reads if region.buffer not in others))
    reads = [buffer for buffer in reads if _row_bytes(context, buffer, plan)]
    if (plan.in_registers and not any(buffer in sch.func.params for buffer in reads)) or not steps:
        for loop in steps:
            _unroll(context, loop)
        return
    chunk, *lane = steps
    count = context.extent(chunk) or 1
    _, inner = sch.split(chunk, [None, max(n for n in (8, 4, 2, 1) if count % n == 0)])
    for buffer in reads if lane else ():
        copy = sch.cache_read(handle, buffer.name, "local")
        sch.compute_at(copy, inner)
        last = sch.get_loops(copy)[-1]
        if last != inner and context.extent(last) == plan.lanes:
            sch.vectorize(last)
    for loop in (inner, *lane):
        _unroll(context, loop)


def _scattered(block: Block) -> set[Buffer]:
    """The buffers of which a block reads several places, or such as it finds in memory: no neighbours of a step."""
    places: dict[Buffer, set[tuple[PrimExpr, ...]]] = {}
    found: set[Buffer] = set()
    for load in find_all(block.body, BufferLoad):
        places.setdefault(load.buffer, set()).add(tuple(load.indices))
        if any(isinstance(item, BufferLoad) for index in load.indices for item in pre_order(index)):
            found.add(load.buffer)
    return found | {buffer for buffer, several in places.items() if len(several) > 1}


def _spread(context: ScheduleContext, loops: list[LoopHandle], plan: _RowPlan) -> None:
    """The elements of a row over threads, in vectors: neighbouring threads have neighbouring vectors."""
    sch = context.sch
    element = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    chunk, thread, lane = sch.split(element, [None, plan.threads, plan.lanes])
    sch.reorder(thread, chunk, lane)
    sch.bind(thread, "threadIdx.x")
    _unroll(context, chunk)
    if plan.lanes > 1:
        sch.vectorize(lane)


def _unroll(context: ScheduleContext, loop: LoopHandle) -> None:
    extent = context.extent(loop)
    if extent is not None and 1 < extent <= context.gpu.rows.unrolled:
        context.sch.unroll(loop)


def _give_threads_an_axis(context: ScheduleContext, handle: BlockHandle, plan: _RowPlan) -> None:
    """Give what a stage makes of a row an axis for threads: each thread's part is then its own, in registers."""
    sch = context.sch
    block = context.block(handle)
    results = block.writes[0].buffer
    shape, row_axis = results.static_shape, _row_axis(results, plan.length)
    if handle == plan.output or block.is_reduction or shape is None or row_axis is None:
        return
    lanes, step = plan.lanes, plan.threads * plan.lanes

    def in_steps(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        element = index[row_axis]
        for number in range(row_axis + 1, len(index)):
            element = element * shape[number] + index[number]
        return (*index[:row_axis], element // step, element % step)

    def in_vectors(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*index[:-1], index[-1] // lanes, index[-1] % lanes)

    sch.transform_layout(handle, results.name, in_steps)
    if lanes > 1:
        sch.transform_layout(handle, results.name, in_vectors)


TEMPLATE = Template(
    "rows",
    "all stages of a row in one kernel: threads share it, keep their part in registers and combine what they reduce",
    _why_not,
    _schedule_rows,
)
