"""The default GPU schedule of any kernel: the first template that fits it whole, else one for each of its stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.handles import BlockHandle, LoopHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import IterKind, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu import (
    depthwise,
    packed_fragments,
    packed_product,
    recurrent,
    recurrent_fragments,
    rows,
    scaled_groups,
    vector_product,
)
from tilewright.topi.schedule.gpu.attention import templates as attention
from tilewright.topi.schedule.gpu.grouped import separate_groups
from tilewright.topi.schedule.gpu.injective import INJECTIVE
from tilewright.topi.schedule.gpu.products import schedule_product, tileable_output
from tilewright.topi.schedule.gpu.reduction import REDUCTIONS, inline_large_windows, keep_windows, kept_windows
from tilewright.topi.schedule.gpu.rows import KernelContext
from tilewright.topi.schedule.gpu.stage import StageContext, find_epilogue, find_pairs
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import with_packing
from tilewright.topi.schedule.template import (
    PassedOver,
    Scheduled,
    Template,
    TemplateChoice,
    apply_first,
    apply_first_legal,
)

_SHARED_LOOP_THREADS = 32
"""Threads of a block that loops of several stages are divided over."""


def schedule_gpu(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """A scheduled program for a GPU, equivalent to the given unscheduled one.

    Each stage becomes a kernel of its own, except where a template takes several: products with their epilogue, rows,
    attention. What cannot be divided (an order that must be kept) is left to a single thread. Constant parameters may
    come out rearranged: the attribute `PACKING` says how. `choices` overrides what templates would decide themselves.
    """
    context = KernelContext(sch or Schedule(func), target, choices=choices or Choices())
    templates = _schedule(context)
    return Scheduled(with_packing(context.sch.func, context.packing), tuple(templates))


def _schedule(context: KernelContext) -> list[TemplateChoice]:
    _inline_scalars(context)
    whole = apply_first(KERNELS, context)
    if whole.name:
        return [whole]
    keep_windows(context)
    inline_stages(context)
    if separate_groups(context):
        context.has_product = None  # There may be one now.
    done: set[str] = set()
    choices: list[TemplateChoice] = []
    without_product: dict[str, tuple[PassedOver, ...]] = {}
    # Products first: what they read (padding) is computed in them.
    for handle in context.sch.blocks() if context.contains_product() else []:
        if handle.name in done or handle not in context.sch.blocks():
            continue
        output = tileable_output(context, handle)
        if isinstance(output, str):
            continue
        names, extents = {other.name for other in context.sch.blocks()}, _extents(context)
        choice, end = schedule_product(context, handle, output)
        if choice.name:
            others = names - {handle.name, end.name}
            choices.append(replace(choice, passed_over=(*whole.passed_over, *choice.passed_over)))
            done.update(other.name for other in context.sch.blocks() if other.name not in others)
            # Another product may have been taken along.
            done.update(name for name, sizes in extents.items() if sizes != _extents(context).get(name))
        else:
            without_product[handle.name] = choice.passed_over
    # Convolutions by channels before the padded images that they read, which threads have their windows of.
    for handle in sorted(context.sch.blocks(), key=lambda item: not kept_windows(context, item)):
        if handle.name not in done and handle in context.sch.blocks():
            products = without_product.get(handle.name) or _passed_products(context, handle)
            before = (*whole.passed_over, *products)
            choice, scheduled = _schedule_stage(context, handle, before)
            choices.append(choice)
            done.update(item.name for item in scheduled)
    return choices


def _extents(context: ScheduleContext) -> dict[str, list[int | None]]:
    """The extents of the loops of each reduction."""
    reductions = [handle for handle in context.sch.blocks() if context.block(handle).is_reduction]
    return {handle.name: [context.extent(loop) for loop in context.sch.get_loops(handle)] for handle in reductions}


def _passed_products(context: ScheduleContext, handle: BlockHandle) -> tuple[PassedOver, ...]:
    """Why the table of products was not asked for a reduction."""
    reason = tileable_output(context, handle) if context.block(handle).is_reduction else None
    return (PassedOver("products", reason),) if isinstance(reason, str) else ()


def _inline_scalars(context: ScheduleContext) -> None:
    """Inline stages of a single element: a kernel for one number costs as much as any."""
    outputs = context.sch.get_output_blocks()
    for handle in context.sch.blocks():
        block = context.block(handle)
        if handle not in outputs and block.init is None and not block.iters and context.sch.get_consumers(handle):
            try:
                context.sch.compute_inline(handle)
            except ScheduleError:
                continue  # What cannot be inlined has a kernel of its own.


def _schedule_stage(
    context: ScheduleContext, handle: BlockHandle, before: tuple[PassedOver, ...]
) -> tuple[TemplateChoice, list[BlockHandle]]:
    """Schedule a stage, and those that share its loops; gives the template, and what has been scheduled."""
    stage = StageContext.of(context, handle)
    together = stage.stages_in_loops()
    if context.block(handle).is_reduction and _why_not_shared_loops(stage) and _why_not_bound(stage):
        if not depthwise.keeps_image(context, handle):
            inline_large_windows(context, handle)
        pairs = find_pairs(context, handle)
        if pairs is not None:
            stage = StageContext.of(context, handle, pairs, 2)
            choice = apply_first(PAIRS, stage, before)
            if choice.name:
                context.take(stage)
                return replace(choice, stage=handle.name), [handle, pairs]
            before = choice.passed_over
        stage = StageContext.of(context, handle, find_epilogue(context, handle))
    choice = apply_first(STAGES, stage, before)
    context.take(stage)
    return replace(choice, stage=handle.name), [handle, *together, *([stage.epilogue] if stage.epilogue else [])]


# ---------------------------------------------------------------- stages whose loops are not their own


def _is_serial(context: ScheduleContext, loops: list[LoopHandle]) -> bool:
    return all(context.loop(loop).kind is LoopKind.SERIAL for loop in loops)


def _why_not_shared_loops(context: StageContext) -> str | None:
    is_ordered = any(item.kind is IterKind.OPAQUE for item in context.block(context.stage).iters)
    return None if is_ordered or len(context.stages_in_loops()) > 1 else "the stage has loops of its own, in any order"


def _bind_outermost(context: StageContext) -> None:
    """Divide the outermost loop over threads if its iterations are independent; several stages share it."""
    apply_first_legal([_split_outermost, lambda trial: None], context)


def _split_outermost(context: StageContext) -> None:
    loops = context.sch.get_loops(context.stage)
    if not loops or not _is_serial(context, loops):
        return
    block, thread = context.sch.split(loops[0], [None, min(_SHARED_LOOP_THREADS, context.target.max_threads)])
    context.sch.bind(block, "blockIdx.x")
    context.sch.bind(thread, "threadIdx.x")


def _why_not_bound(context: StageContext) -> str | None:
    return "its loops are plain" if _is_serial(context, context.sch.get_loops(context.stage)) else None


KERNELS: Final = (
    recurrent_fragments.TEMPLATE,
    recurrent.TEMPLATE,
    *attention.TEMPLATES,
    packed_fragments.TEMPLATE,
    packed_product.TEMPLATE,
    scaled_groups.TEMPLATE,
    rows.TEMPLATE,
)
"""Templates of whole kernels. What they pass over is scheduled stage by stage: products first (`products.py`)."""

PAIRS: Final = (vector_product.TEMPLATE,)
"""Templates of single stages with an epilogue that makes one result of two neighbours."""

STAGES: Final = (
    Template(
        "shared_loops",
        "the outermost of loops that several stages share over threads, where that is legal",
        _why_not_shared_loops,
        _bind_outermost,
    ),
    Template("bound", "loops are as whoever wrote them wants them", _why_not_bound, lambda context: None),
    vector_product.TEMPLATE,
    depthwise.TEMPLATE,
    *REDUCTIONS,
    *INJECTIVE,
)
"""Templates of single stages; the last one fits everything."""
