"""What EPI is worth: the same programs with their results made by ALU instructions.

Without EPI's scaling, requantisation is four ALU instructions for each tile (a rounding addition, a shift, minimum and
maximum, as in the published design: one power of two for all channels, no bias), then a copy to OUT. They run on the
unit that multiplies, so no product hides them. EPI does more than that: a bias, a multiplier and a shift per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.accel_layers import SHIFT, Layer
from tilewright.accel.accesses import looped
from tilewright.accel.config import Memory
from tilewright.accel.instructions import Alu, AluOp, Epi, MicroOp
from tilewright.accel.kernel import AccelKernel
from tilewright.backends.accel.emit import emit_steps
from tilewright.backends.accel.kernel import kernel_of_steps
from tilewright.backends.accel.steps import Step, Touched
from tilewright.backends.device import device_kernels
from tilewright.lower.schedules import schedule_kernel
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.tune.accel_workload import target_of

_OPERATIONS = ((AluOp.ADD, 1 << (SHIFT // 2 - 1)), (AluOp.SHR, SHIFT // 2), (AluOp.MIN, 127), (AluOp.MAX, -128))


def without_epi(layer: Layer, answers: dict[str, Answer]) -> AccelKernel:
    """A layer's kernel whose results ALU makes."""
    target = target_of(layer.config)
    scheduled = schedule_kernel(layer.program(), target, Choices(answers))
    (kernel,) = device_kernels(scheduled.func, target).kernels
    steps = _with_alu(emit_steps(kernel.func, layer.config))
    return kernel_of_steps(kernel.func, steps, layer.config)


def _with_alu(steps: Sequence[Step]) -> list[Step]:
    result: list[Step] = []
    for step in steps:
        item = step.instruction
        if isinstance(item, Epi):
            result += [_operation(item, operation, number) for operation, number in _OPERATIONS]
            copies = replace(item, scale=False, offset=0, low=-128, high=127)
            step = replace(step, instruction=copies, reads=tuple(r for r in step.reads if r.space is not Memory.PAR))
        result.append(step)
    return result


def _operation(item: Epi, operation: AluOp, number: int) -> Step:
    """One ALU instruction on the accumulators of an EPI."""
    instruction = Alu(
        op=operation,
        use_imm=True,
        imm=number,
        uop_end=1,
        outer=item.outer,
        inner=item.inner,
        dst_outer=item.acc_outer,
        dst_inner=item.acc_inner,
    )
    places = looped(np.zeros(1, np.int64) + item.acc, item.outer, item.inner, item.acc_outer, item.acc_inner)
    touched = (Touched(Memory.ACC, np.unique(places)),)
    return Step(instruction, touched, touched, micro_ops=(MicroOp(acc=item.acc),))
