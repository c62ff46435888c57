"""The default CPU schedule of any kernel: the first template in order that fits."""

from __future__ import annotations

from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu import (
    amx_product,
    attention,
    bitserial,
    computed_columns,
    contraction,
    depthwise,
    depthwise_planar,
    dot_product,
    expanded,
    half_product,
    injective,
    integer_recurrent,
    open_windows,
    packed_product,
    panel_product,
    recurrent,
    reduction,
    run_dots,
    separable,
    split_k_product,
    streaming_taps,
    weight_gradient,
    window_dots,
    winograd,
    winograd_open,
    winograd_plain,
)
from tilewright.topi.schedule.inline import inline_stages
from tilewright.topi.schedule.packing import with_packing
from tilewright.topi.schedule.template import Scheduled, TemplateChoice, apply_first

WHOLE_KERNELS = (
    winograd.TEMPLATE,
    winograd_open.TEMPLATE,
    winograd_plain.TEMPLATE,
    recurrent.TEMPLATE,
    integer_recurrent.TEMPLATE,
    attention.TEMPLATE,
    weight_gradient.TEMPLATE,
)
"""Templates that take every stage as it was written."""

INLINED_KERNELS = (
    half_product.TEMPLATE,
    packed_product.FEW_ROWS,
    packed_product.DIGITS_OF_ROWS,
    packed_product.MANY_ROWS,
    bitserial.TEMPLATE,
    open_windows.TEMPLATE,
    separable.TEMPLATE,
    expanded.TEMPLATE,
    window_dots.TEMPLATE,
    amx_product.TEMPLATE,
    run_dots.TEMPLATE,
    dot_product.TEMPLATE,
    computed_columns.TEMPLATE,
    reduction.MATRIX_VECTOR,
    panel_product.TEMPLATE,
    split_k_product.TEMPLATE,
    depthwise_planar.TEMPLATE,
    depthwise.TEMPLATE,
    streaming_taps.TEMPLATE,
    contraction.TEMPLATE,
    reduction.REDUCTION,
    injective.TEMPLATE,
)
"""Templates of kernels whose elementwise stages are computed in place of their use; the last one fits everything."""


def schedule_cpu(
    func: PrimFunc, target: Target, choices: Choices | None = None, sch: Schedule | None = None
) -> Scheduled:
    """A scheduled program for a CPU, equivalent to the given unscheduled one.

    Constant parameters may come out rearranged: the attribute `PACKING` says how. `choices` overrides what
    templates would decide by themselves, and collects what they ask.
    """
    context = ScheduleContext(sch or Schedule(func), target, choices=choices or Choices())
    choice = _schedule(context)
    return Scheduled(with_packing(context.sch.func, context.packing), (choice,))


def _schedule(context: ScheduleContext) -> TemplateChoice:
    choice = apply_first(WHOLE_KERNELS, context)
    if choice.name:
        return choice
    inline_stages(context)
    return apply_first(INLINED_KERNELS, context, choice.passed_over)
