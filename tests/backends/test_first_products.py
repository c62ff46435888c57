"""The first products in parts: the same products, in turns of the threads; nothing moves past what it needs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.accel_layers import SMALL, Layer, target_of
from tilewright.accel.instructions import Gemm, Overwrite
from tilewright.backends.accel.emit import emit_steps
from tilewright.backends.accel.first_products import split_first_products
from tilewright.backends.accel.order import advance_loads
from tilewright.backends.accel.steps import Step, conflict
from tilewright.backends.device import device_kernels
from tilewright.lower.schedules import schedule_kernel
from tilewright.topi.schedule.choices import Choices


def steps_of(layer: Layer, threads: int = 2) -> list[Step]:
    target = target_of(SMALL)
    scheduled = schedule_kernel(layer.program(SMALL), target, Choices({"threads": threads}))
    (kernel,) = device_kernels(scheduled.func, target).kernels
    return advance_loads(emit_steps(kernel.func, SMALL))


def products(step: Step) -> list[tuple[int, int, int]]:
    """Accumulator, input and weight of each product."""
    item = step.instruction
    assert isinstance(item, Gemm)
    return [
        (
            micro_op.acc + o * item.acc_outer + i * item.acc_inner,
            micro_op.inp + o * item.inp_outer + i * item.inp_inner,
            micro_op.wgt + o * item.wgt_outer + i * item.wgt_inner,
        )
        for o in range(item.outer)
        for i in range(item.inner)
        for micro_op in step.micro_ops[item.uop_begin : item.uop_end]
    ]


def gemms(steps: list[Step]) -> list[Step]:
    return [step for step in steps if isinstance(step.instruction, Gemm)]


@pytest.mark.parametrize("layer", [Layer((8, 8), ci=8, co=2), Layer((4, 8), ci=4, co=4)])
def test_parts_are_the_same_products_in_turns(layer: Layer) -> None:
    before = steps_of(layer)
    after = split_first_products(before)
    first, second = gemms(before)[:2]
    count = (len(gemms(after)) - len(gemms(before))) // 2 + 1
    assert count > 1
    parts = gemms(after)[: 2 * count]
    for whole, own in ((first, parts[::2]), (second, parts[1::2])):
        assert sorted(products(whole)) == sorted(product for part in own for product in products(part))
        assert [part.instruction.overwrite for part in own[1:]] == [Overwrite.NEVER] * (count - 1)
        assert own[0].instruction.overwrite is whole.instruction.overwrite
        for part in own:
            read = {touched.space.name: touched.places for touched in part.reads}
            assert set(read["INP"]) == {inp for _, inp, _ in products(part)}
            assert set(read["WGT"]) == {wgt for _, _, wgt in products(part)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layer", [Layer((8, 8), ci=8, co=2), Layer((6, 6), 2, 2, (3, 3), padding=(1, 1, 1, 1))])
def test_what_depends_on_each_other_stays_in_order(layer: Layer, threads: int) -> None:
    before = steps_of(layer, threads)
    after = split_first_products(before)
    earlier = {id(step): number for number, step in enumerate(before)}
    wholes = [step for step in before if not any(step is item for item in after)]

    def origin(step: Step) -> int:
        """Where a step, or the product that it is a part of, was."""
        if id(step) in earlier:
            return earlier[id(step)]
        (whole,) = (item for item in wholes if np.array_equal(item.writes[0].places, step.writes[0].places))
        return earlier[id(whole)]

    for number, step in enumerate(after):
        for later in after[number + 1 :]:
            if conflict(step, later):
                assert origin(step) <= origin(later)


def test_products_without_sums_stay_whole() -> None:
    steps = steps_of(Layer((4, 4), ci=1, co=4))
    after = split_first_products(steps)
    assert len(after) == len(steps) and all(a is b for a, b in zip(after, steps, strict=True))
    assert split_first_products([]) == []
