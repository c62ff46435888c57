"""The default GPU schedule of any kernel: each stage by what it is, bound to threads wherever that is legal."""

from __future__ import annotations

from functools import partial
from math import prod

from tilewright.ir.expr import IntImm, const_value
from tilewright.ir.visit import pre_order
from tilewright.target import Target
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import IterKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.attempt import attempt
from tilewright.topi.schedule.gpu.attention import is_attention, schedule_attention
from tilewright.topi.schedule.gpu.contraction import is_tileable, schedule_contraction
from tilewright.topi.schedule.gpu.injective import schedule_injective
from tilewright.topi.schedule.gpu.recurrent import is_recurrence, schedule_recurrence
from tilewright.topi.schedule.gpu.reduction import keep_windows, kept_windows, schedule_reduction
from tilewright.topi.schedule.gpu.rows import schedule_rows
from tilewright.topi.schedule.gpu.vector_product import schedule_vector_product
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import with_packing
from tilewright.topi.schedule.template import Scheduled


def schedule_gpu(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """A scheduled program for a GPU, equivalent to the given unscheduled one.

    Each stage becomes a kernel of its own, except for products, whose epilogue is computed on their tiles. What cannot
    be divided (an order that must be kept) is left to a single thread. Constant parameters may come out rearranged:
    the attribute `PACKING` says how. `choices` overrides what templates would decide by themselves.
    """
    context = ScheduleContext(sch or Schedule(func), target, choices=choices or Choices())
    _schedule(context)
    return Scheduled(with_packing(context.sch.func, context.packing), ())


def _inline_scalars(context: ScheduleContext) -> None:
    """Inline stages of a single element: a kernel for one number costs as much as any."""
    outputs = context.sch.get_output_blocks()
    for handle in context.sch.blocks():
        block = context.block(handle)
        if handle not in outputs and block.init is None and not block.iters and context.sch.get_consumers(handle):
            attempt(context, partial(_inline, handle=handle))


def _inline(context: ScheduleContext, handle: BlockHandle) -> bool:
    context.sch.compute_inline(handle)
    return True


def _schedule(context: ScheduleContext) -> None:
    _inline_scalars(context)
    if is_recurrence(context) and attempt(context, schedule_recurrence):
        return
    if is_attention(context) and attempt(context, schedule_attention):
        return
    has_product = any(is_tileable(context, handle) is not None for handle in context.sch.blocks())
    if not has_product and schedule_rows(context):
        return
    keep_windows(context)
    inline_stages(context)
    done: set[str] = set()
    # Products first: what they read (padding) is computed in them.
    for handle in context.sch.blocks() if has_product else []:
        if handle.name not in done and handle in context.sch.blocks():
            attempt(context, partial(_schedule_product, handle=handle, done=done))
    # Convolutions by channels before the padded images that they read, which threads have their windows of.
    for handle in sorted(context.sch.blocks(), key=lambda item: not kept_windows(context, item)):
        if handle.name not in done and handle in context.sch.blocks():
            done.update(item.name for item in _schedule_stage(context, handle))


def _schedule_product(context: ScheduleContext, handle: BlockHandle, done: set[str]) -> bool:
    """Schedule a product with its epilogue, if the stage is one."""
    output = is_tileable(context, handle)
    if output is None:
        return False
    done.update(item.name for item in schedule_contraction(context, handle, output))
    return True


def _schedule_stage(context: ScheduleContext, handle: BlockHandle) -> list[BlockHandle]:
    """Schedule a stage, and those that share its loops; gives what has been scheduled."""
    sch = context.sch
    loops = sch.get_loops(handle)
    together = [other for other in sch.blocks() if loops and loops[0] in sch.get_loops(other)]
    block = context.block(handle)
    if len(together) > 1 or any(item.kind is IterKind.OPAQUE for item in block.iters):
        _bind_outermost(context, loops)
        return together or [handle]
    if not _is_plain_nest(context, loops):
        return [handle]
    if block.is_reduction:
        epilogue = _epilogue(context, handle)
        if not attempt(context, partial(schedule_vector_product, product=handle, epilogue=epilogue)):
            schedule_reduction(context, handle, epilogue)
        return [handle] if epilogue is None else [handle, epilogue]
    schedule_injective(context, handle)
    return [handle]


def _epilogue(context: ScheduleContext, handle: BlockHandle) -> BlockHandle | None:
    """The stage that goes on with the results of a reduction, one by one, and is the only one to read them."""
    sch = context.sch
    consumers = sch.get_consumers(handle)
    block = context.block(handle)
    if len(consumers) != 1 or len(block.writes) != 1 or sch.get_consumers(consumers[0]):
        return None
    if any(param is block.writes[0].buffer for param in sch.func.params):
        return None
    stage = context.block(consumers[0])
    made = block.writes[0].buffer
    if stage.is_reduction or any(item.kind is not IterKind.SPATIAL for item in stage.iters):
        return None
    whole = [item.var for item in stage.iters if const_value(item.domain.extent) != 1]
    for item in pre_order(stage.body):
        if isinstance(item, BufferLoad) and item.buffer is made:
            # Axes of one element may come and go.
            used = [index for index in item.indices if not isinstance(index, IntImm)]
            if [index for index in used if index in whole] != whole or len(used) > len(stage.iters):
                return None
    sizes = [prod(context.sizes(sch.get_loops(handle))) for handle in (handle, consumers[0])]
    steps = prod(const_value(item.domain.extent) or 1 for item in block.iters if item.kind is IterKind.REDUCE)
    return consumers[0] if sizes[0] == sizes[1] * steps else None


def _is_plain_nest(context: ScheduleContext, loops: list[LoopHandle]) -> bool:
    return all(context.loop(loop).kind.value == "serial" for loop in loops)


def _bind_outermost(context: ScheduleContext, loops: list[LoopHandle]) -> None:
    """Divide the outermost loop over threads if its iterations are independent; several stages share it."""
    if not loops or not _is_plain_nest(context, loops):
        return
    trial = context.sch.copy()
    try:
        block, thread = trial.split(loops[0], [None, min(32, context.target.max_threads)])
        trial.bind(block, "blockIdx.x")
        trial.bind(thread, "threadIdx.x")
    except ScheduleError:
        return
    context.sch = trial
