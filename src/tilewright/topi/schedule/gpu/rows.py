"""The schedule of kernels that reduce rows and go on with them: softmax, normalisation, sums with what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import ANCHOR
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.stmt import Block, IterKind
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attempt import attempt

_SHORT = 16
"""Elements of a row up to which one thread does the whole row."""
_MOST_KEPT = 64
"""Elements of a row that a thread keeps in registers."""
_UNROLLED = 16
"""Steps of a thread along a row that are written out: as many loads are on their way at once."""
_LONG = 1 << 14
"""Elements of a row from which on several blocks share it, where rows are few: not one kernel then."""
_BLOCK = 256
"""Threads of a block of several rows."""


@dataclass(slots=True)
class _Rows:
    """A kernel over rows: which loops of its result are rows, and how a row is divided over threads."""

    output: BlockHandle
    stages: list[BlockHandle]
    """What is computed for each row of the output before it, in order."""
    rows: list[LoopHandle]
    rest: list[LoopHandle]
    length: int
    threads: int = 1
    lanes: int = 1
    keeps: bool = True
    """Whether what is read twice stays in registers."""
    copied: list[Buffer] = field(default_factory=list)
    """Parameters of whole rows that are read once, and kept."""


def schedule_rows(context: ScheduleContext) -> bool:
    """One kernel for all stages of a program that reduces rows of its operands; False where that does not fit.

    for i: m[i] = max(x[i, :]);  for i, j: e[i, j] = exp(x[i, j] - m[i]);  for i: s[i] = sum(e[i, :]);  ...
    ->  for row in blocks:  for t in threads:  x_local = x[row, t::threads]  (vectors);  part = max(x_local)
                            m = max of part over threads;  e_local = exp(x_local - m);  ...  out[row, ...] = e_local / s
    """
    return attempt(context, _schedule_rows)


def _schedule_rows(context: ScheduleContext) -> bool:
    found = _find_rows(context)
    if found is None:
        return False
    _schedule(context, found)
    return True


def _find_rows(context: ScheduleContext) -> _Rows | None:
    """The rows of a program; its stages are inlined where nothing is lost by that."""
    sch = context.sch
    outputs = sch.get_output_blocks()
    blocks = [context.block(handle) for handle in sch.blocks()]
    if len(outputs) != 1 or not any(block.is_reduction for block in blocks):
        return None
    for block in blocks:
        shapes = [region.buffer.static_shape for region in (*block.reads, *block.writes)]
        if ANCHOR.is_on(block) or None in shapes or any(0 in shape for shape in shapes if shape):
            return None
        if any(item.kind is IterKind.OPAQUE for item in block.iters):
            return None
    output = outputs[0]
    if context.block(output).is_reduction:
        if len(context.block(output).writes) > 1:
            return None
        output = sch.cache_write(output, 0, "local")
    lengths = {
        prod(context.sizes(_reducing(context, handle))) for handle in sch.blocks() if context.block(handle).is_reduction
    }
    if len(lengths) != 1:
        return None
    length = lengths.pop()
    _inline(context, output, length)
    shared = _shared_axes(context, output)
    loops = sch.get_loops(output)
    rows = [loop for n, loop in enumerate(loops) if n in shared]
    rest = [loop for n, loop in enumerate(loops) if n not in shared]
    if prod(context.sizes(rest)) == 1:
        rows, rest = loops, []
    elif prod(context.sizes(rest)) != length:
        return None
    stages = [handle for handle in sch.blocks() if handle != output]
    return _divide(context, _Rows(output, stages, rows, rest, length))


def schedule_long_rows(context: ScheduleContext, handle: BlockHandle, output: BlockHandle) -> None:
    """One reduction of rows with its epilogue: a block of threads a row, whatever its length.

    for i, k: c[i] += x[i, k]  ->  for i in blocks: for t in threads: for ko: { v = x[i, ...] (vectors); part += v }
                                                    c[i] = sum of part over threads
    """
    rows = context.sch.get_loops(output)
    found = _Rows(output, [handle], rows, [], prod(context.sizes(_reducing(context, handle))))
    found.lanes = _lanes(context, found)
    found.threads = _threads(context, found, prod(context.sizes(rows)))
    if found.length % (found.threads * found.lanes):
        found.lanes = 1
    found.keeps = False
    _schedule(context, found)


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
    made = {
        region.buffer for handle in context.sch.blocks() if handle != output for region in context.block(handle).writes
    }
    for item in pre_order(block.body):
        if isinstance(item, BufferLoad) and item.buffer in made:
            shared &= {place[index] for index in item.indices if isinstance(index, Var) and index in place}
    return shared


def _reducing(context: ScheduleContext, handle: BlockHandle) -> list[LoopHandle]:
    values = [item.value for item in context.block(handle).iters if item.kind is IterKind.REDUCE]
    return [loop for loop in context.sch.get_loops(handle) if any(loop.var is value for value in values)]


def _divide(context: ScheduleContext, found: _Rows) -> _Rows | None:
    """How many threads share a row; None where another kind of kernel is better."""
    target = context.target
    count = prod(context.sizes(found.rows))
    reductions = [handle for handle in found.stages if context.block(handle).is_reduction]
    along = all(walks_row(context.block(handle)) for handle in reductions)
    if found.length <= _SHORT or (not along and count >= target.cores * _BLOCK):
        found.keeps = found.length <= _MOST_KEPT
        return found
    enough = target.cores // 4 if found.rest else 2 * target.cores
    if not along or (found.length > _LONG and count < enough):
        return None
    found.lanes = _lanes(context, found)
    most = _most_threads(context, found)
    options = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most]
    found.threads = context.choose("row_threads", options or [most], _threads(context, found, count))
    found.keeps = found.length <= _MOST_KEPT * found.threads
    _fit(context, found)
    return found


def _fit(context: ScheduleContext, found: _Rows) -> None:
    """Decide what is kept of each row: what is not divided as its threads are needs shared memory, which is little."""
    sch = context.sch
    rows = _together(context, found)
    room = context.target.shared_bytes - found.threads * rows * _scratch(context, found)
    for handle in list(found.stages):
        block = context.block(handle)
        if block.is_reduction or (found.keeps and _row_axis(block.writes[0].buffer, found.length) is not None):
            continue
        needed = rows * _row_bytes(context, block.writes[0].buffer, found)
        if needed <= room:
            room -= needed
        else:
            # Computed again by each stage that reads it.
            sch.compute_inline(handle)
            found.stages.remove(handle)
    for param in sch.func.params:
        if not isinstance(param, Buffer) or _row_bytes(context, param, found) == 0:
            continue
        readers = [handle for handle in sch.blocks() if _reads(context, handle, param)]
        if not any(context.block(handle).is_reduction for handle in readers):
            continue
        needed = 0 if _row_axis(param, found.length) is not None else rows * _row_bytes(context, param, found)
        if found.keeps and needed <= (room if len(readers) > 1 else 0):
            found.copied.append(param)
            room -= needed
        elif found.length % (found.threads * found.lanes):
            # Vectors of what is read again and again are whole.
            found.lanes = 1


def _row_bytes(context: ScheduleContext, buffer: Buffer, found: _Rows) -> int:
    """The bytes of a row of a buffer in shared memory; 0 where it does not have whole rows."""
    size = prod(buffer.static_shape or (0,))
    if size < found.length or size % found.length:
        return 0
    return found.length * context.target.shared_item(buffer.dtype.itemsize)


def _row_axis(buffer: Buffer, length: int) -> int | None:
    """The axis that rows of a buffer begin at; None where they are not its last axes."""
    shape = buffer.static_shape or ()
    axis = len(shape)
    while axis > 0 and prod(shape[axis:]) < length:
        axis -= 1
    return axis if prod(shape[axis:]) == length else None


def _scratch(context: ScheduleContext, found: _Rows) -> int:
    """Bytes of shared memory that each thread needs to combine parts, where threads do not read others' registers."""
    if context.target.shuffle_width > 1:
        return 0
    made = [context.block(handle) for handle in found.stages]
    items = [block.writes[0].buffer.dtype.itemsize for block in made if block.is_reduction]
    return sum(2 * context.target.shared_item(item) for item in items)


def _together(context: ScheduleContext, found: _Rows) -> int:
    """Rows of a block of threads."""
    most = max(1, min(_BLOCK, context.target.max_threads) // found.threads)
    return min(most, prod(context.sizes(found.rows)))


def walks_row(block: Block) -> bool:
    """Whether the steps of a reduction lie next to each other in what it reads most of."""
    steps = [item.var for item in block.iters if item.kind is IterKind.REDUCE]
    written = {region.buffer for region in block.writes}
    loads = [item for item in pre_order(block.body) if isinstance(item, BufferLoad) and item.buffer not in written]
    loads = [item for item in loads if item.indices]
    if not loads or not steps:
        return False
    largest = max(loads, key=lambda item: prod(item.buffer.static_shape or (0,)))
    return linear(largest.indices[-1]).terms.get(steps[-1]) == 1


def _lanes(context: ScheduleContext, found: _Rows) -> int:
    """Elements that a thread takes at once: 16 bytes of what is read, if rows are whole vectors."""
    widths = [16]
    for handle in (*found.stages, found.output):
        block = context.block(handle)
        if block.is_reduction:
            last = [item for item in block.iters if item.kind is IterKind.REDUCE][-1]
            widths.append(_power_of_two(context.sizes([_loop_of(context, handle, last.value)])[0]))
        widths += [16 // max(1, region.buffer.dtype.bits // 8) for region in block.reads]
    if found.rest:
        widths.append(_power_of_two(context.sizes(found.rest[-1:])[0]))
    return max(1, min(widths))


def _power_of_two(number: int) -> int:
    return number & -number


def _loop_of(context: ScheduleContext, handle: BlockHandle, value: PrimExpr) -> LoopHandle:
    return next(loop for loop in context.sch.get_loops(handle) if loop.var is value)


def _most_threads(context: ScheduleContext, found: _Rows) -> int:
    """Threads that a row may have: what they need to combine their parts is half of shared memory, at the most."""
    target = context.target
    most = min(1024, target.max_threads)
    while most > 32 and most * _scratch(context, found) > target.shared_bytes // 2:
        most //= 2
    return most


def _threads(context: ScheduleContext, found: _Rows, rows: int) -> int:
    """Threads of a row: each has a few vectors, but all cores have rows."""
    most = _most_threads(context, found)
    least = min(32, most)
    # A few vectors a thread hide latencies; where rows are few, more threads share each of them.
    wanted = 32 if rows >= 8 * context.target.cores else 8
    threads = least
    while threads < most and found.length > threads * wanted:
        threads *= 2
    return threads


def _schedule(context: ScheduleContext, found: _Rows) -> None:
    sch = context.sch
    together = _together(context, found)
    partial = _make_partial(context, found)
    copies = _keep_inputs(context, found)
    if found.rows and found.rest:
        sch.reorder(*found.rows, *found.rest)
    if found.rows:
        row = sch.fuse(*found.rows) if len(found.rows) > 1 else found.rows[0]
    else:
        row = sch.add_unit_loop(found.rest[0] if found.rest else found.output)
    block, inner = sch.split(row, [None, together])
    inside = {handle.name for handle in (*found.stages, *partial, *copies)}
    stages = [handle for handle in sch.blocks() if handle.name in inside]
    for handle in reversed(stages):
        sch.compute_at(handle, inner)
    sch.bind(block, "blockIdx.x")
    sch.bind(inner, "threadIdx.x" if found.threads == 1 else "threadIdx.y")
    if found.threads == 1:
        return
    for handle in (*stages, found.output):
        own = sch.get_loops(handle)
        below = own[own.index(inner) + 1 :]
        if handle in partial:
            thread, *steps = below
            sch.bind(thread, "threadIdx.x")
            _schedule_partial(context, handle, steps, found)
        elif context.block(handle).is_reduction:
            sch.bind(below[-1], "threadIdx.x")
        elif below:
            _spread(context, below, found)
    if found.keeps:
        for handle in stages:
            if handle not in partial:
                _arrange(context, handle, found)


def _make_partial(context: ScheduleContext, found: _Rows) -> list[BlockHandle]:
    """Every reduction in two: a part for each thread, and their combination."""
    sch = context.sch
    made: list[BlockHandle] = []
    if found.threads == 1:
        return made
    for handle in found.stages:
        if not context.block(handle).is_reduction:
            continue
        loops = _reducing(context, handle)
        step = sch.fuse(*loops) if len(loops) > 1 else loops[0]
        _, thread, _ = sch.split(step, [None, found.threads, found.lanes])
        made.append(sch.rfactor(thread, 0))
    return made


def _keep_inputs(context: ScheduleContext, found: _Rows) -> list[BlockHandle]:
    """Copies of what the stages read of each row, in registers."""
    sch = context.sch
    copies: list[BlockHandle] = []
    for param in found.copied:
        readers = [handle for handle in sch.blocks() if _reads(context, handle, param)]
        copies.append(sch.cache_read(readers[0], param.name, "local", readers[1:]))
    return copies


def _reads(context: ScheduleContext, handle: BlockHandle, buffer: Buffer) -> bool:
    return any(region.buffer is buffer for region in context.block(handle).reads)


def _schedule_partial(context: ScheduleContext, handle: BlockHandle, steps: list[LoopHandle], found: _Rows) -> None:
    """The part of a thread: written out if it is in registers, else a few vectors are loaded before they are used."""
    sch = context.sch
    written = {region.buffer for region in context.block(handle).writes}
    reads = [region.buffer for region in context.block(handle).reads if region.buffer not in written]
    reads = [buffer for buffer in reads if _row_bytes(context, buffer, found)]
    if (found.keeps and not any(buffer in sch.func.params for buffer in reads)) or not steps:
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
        if last != inner and context.extent(last) == found.lanes:
            sch.vectorize(last)
    for loop in (inner, *lane):
        _unroll(context, loop)


def _spread(context: ScheduleContext, loops: list[LoopHandle], found: _Rows) -> None:
    """The elements of a row over threads, in vectors: neighbouring threads have neighbouring vectors."""
    sch = context.sch
    element = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    chunk, thread, lane = sch.split(element, [None, found.threads, found.lanes])
    sch.reorder(thread, chunk, lane)
    sch.bind(thread, "threadIdx.x")
    _unroll(context, chunk)
    if found.lanes > 1:
        sch.vectorize(lane)


def _unroll(context: ScheduleContext, loop: LoopHandle) -> None:
    extent = context.extent(loop)
    if extent is not None and 1 < extent <= _UNROLLED:
        context.sch.unroll(loop)


def _arrange(context: ScheduleContext, handle: BlockHandle, found: _Rows) -> None:
    """Give what a stage makes of a row an axis for threads: each thread's part is then its own, in registers."""
    sch = context.sch
    block = context.block(handle)
    made = block.writes[0].buffer
    shape, walking = made.static_shape, _row_axis(made, found.length)
    if handle == found.output or block.is_reduction or shape is None or walking is None:
        return
    lanes, step = found.lanes, found.threads * found.lanes

    def in_steps(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        element = index[walking]
        for number in range(walking + 1, len(index)):
            element = element * shape[number] + index[number]
        return (*index[:walking], element // step, element % step)

    def in_vectors(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*index[:-1], index[-1] // lanes, index[-1] % lanes)

    sch.transform_layout(handle, made.name, in_steps)
    if lanes > 1:
        sch.transform_layout(handle, made.name, in_vectors)
