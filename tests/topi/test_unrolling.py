"""Weights that few rows meet, read as several streams: chosen where it pays, and right with and without remainders."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import TARGETS, kernel, var
from tilewright.graph.ir.op import call
from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import CONSTANTS, packing_of


def product(rows: int, depth: int, columns: int, constants: tuple[int, ...] = (1,)) -> PrimFunc:
    x, w = var("x", rows, depth), var("w", depth, columns)
    return kernel([x, w], call("matmul", x, w)).replace(attributes={CONSTANTS: constants})


def streams(func: PrimFunc, target: Target) -> int | None:
    """How many streams a template takes; None where it does not ask."""
    choices = Choices()
    schedule_cpu(func, target, choices)
    answer = choices.answers.get("streams")
    assert answer is None or isinstance(answer, int)
    return answer


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "count"),
    [
        (1, 650, 2600, 5),  # the most parts of equal size, up to eight
        (1, 512, 2048, 8),
        (3, 512, 2080, 4),  # more rows: iterations would be too long
        (1, 64, 2048, 2),  # shorter streams would end before anyone notices them
        (1, 32, 2048, None),
        (1, 509, 2048, None),  # no equal parts
        (4, 512, 2048, None),  # rows hide where weights come from
    ],
)
def test_weights_of_few_rows_are_read_in_streams(rows: int, depth: int, columns: int, count: int | None) -> None:
    target = TARGETS["avx512"].replace(cores=1)
    assert streams(product(rows, depth, columns), target) == count
    assert streams(product(rows, depth, columns, constants=()), target) is None


def test_streams_are_a_matter_of_the_processor() -> None:
    func = product(1, 512, 2048)
    assert streams(func, TARGETS["neon"].replace(cores=1)) == 2
    one_stream = schedule_cpu(func, TARGETS["neon"], Choices({"streams": 1}))
    assert [loop for loop in find_all(one_stream.body, For) if PREFETCH.is_on(loop)]
    scheduled = schedule_cpu(func, TARGETS["avx512"].replace(cores=1))
    unrolled = [loop for loop in find_all(scheduled.body, For) if loop.kind is LoopKind.UNROLLED]
    assert 8 in [const_value(loop.extent) for loop in unrolled]


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 650, 523), (2, 768, 1000), (1, 770, 80)])
def test_streams_are_right(rows: int, depth: int, columns: int) -> None:
    func, target = product(rows, depth, columns), Target("native").replace(cores=1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (depth, columns)))
    asked = Choices()
    schedule_cpu(func, target, asked)
    assert len(asked.asked["streams"].options) > 1
    for count in asked.asked["streams"].options:
        scheduled = schedule_cpu(func, target, Choices({"streams": count}))
        out = np.full((rows, columns), np.nan, np.float32)
        tw.build(scheduled, target=target)(a, np.ascontiguousarray(packing_of(scheduled)[1].rearrange(b)), out)
        np.testing.assert_allclose(out, a @ b, rtol=0, atol=1e-3)
