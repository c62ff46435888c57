"""Sums of few steps begin at their bias, where the processor has measured that it pays."""

from __future__ import annotations

import pytest

from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import TARGETS, check, compare, conv, kernel, var
from tests.topi.test_schedule_depthwise import Case
from tilewright.graph.ir.op import call
from tilewright.ir.expr import const_value
from tilewright.ir.visit import find_all
from tilewright.target.machine import cpu_parameters
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BufferStore, For
from tilewright.topi.schedule.packing import CONSTANTS

MOST = cpu_parameters(TARGETS["neon"]).register_tile.biased_steps


def expansion(channels: int, columns: int) -> PrimFunc:
    data, weight, bias = var("x", 1, 2, 8, channels), var("w", 1, 1, channels, columns), var("b", columns)
    return kernel([data, weight, bias], call("nn.relu", call("add", conv(data, weight), bias)))


def starts(func: PrimFunc) -> set[str]:
    """The sums of a scheduled program that begin at something loaded."""
    blocks = [item for item in find_all(func.body, Block) if item.name.endswith("_init")]
    return {
        item.name.removesuffix("_init")
        for item in blocks
        for store in find_all(item.body, BufferStore)
        if isinstance(store.value, BufferLoad)
    }


@pytest.mark.parametrize(
    ("target", "channels", "columns", "begins"),
    [
        ("neon", 24, 24, True),
        ("neon", MOST, 24, True),
        ("neon", MOST + 4, 24, False),  # the addition is next to nothing there
        ("neon", 24, 25, False),  # a tile would read past the bias
        ("avx512", 24, 24, False),  # not measured
    ],
)
def test_short_sums_begin_at_the_bias(target: str, channels: int, columns: int, begins: bool) -> None:
    func = expansion(channels, columns)
    scheduled = schedule_cpu(func.replace(attributes={CONSTANTS: (1, 2)}), TARGETS[target])
    assert starts(scheduled) == ({"conv2d"} if begins else set())
    compare(func, scheduled)


def test_sums_of_computed_columns_begin_at_the_bias() -> None:
    """Columns that fill whole panels are copied, not padded: sums that begin at a bias could not be."""
    rows, columns, bias = var("x", 4, 50, 96), var("w", 4, 96, 2), var("b", 2)
    func = kernel([rows, columns, bias], call("nn.relu", call("add", call("matmul", rows, columns), bias)))
    scheduled = schedule_cpu(func.replace(attributes={CONSTANTS: (2,)}), TARGETS["neon"].replace(cores=64))
    assert starts(scheduled) == {"matmul"}
    compare(func, scheduled)


def test_only_constants_come_first() -> None:
    # A residual may lie where results are written: it is read when they are.
    assert not starts(check(expansion(24, 24), TARGETS["neon"]))


@pytest.mark.parametrize(("stride", "expected"), [(1, {"conv2d", "depthwise_conv2d"}), (2, {"conv2d"})])
def test_both_sums_of_a_separable_convolution(stride: int, expected: set[str]) -> None:
    case = Case((1, 8, 8, 16), 24, stride=stride)
    assert starts(schedule_cpu(case.func, TARGETS["neon"])) == expected


@pytest.mark.parametrize(("channels", "left"), [(3, 1), (4, 1), (5, 5), (8, 2)])
def test_short_loops_of_a_reduction_are_unrolled_whole(channels: int, left: int) -> None:
    data, weight = var("x", 1, 4, 9, channels), var("w", 3, 3, channels, 16)
    func = kernel([data, weight], conv(data, weight))
    scheduled = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), TARGETS["neon"])
    compare(func, scheduled)
    extents = {loop.var.name: const_value(loop.extent) for loop in find_all(scheduled.body, For)}
    assert extents.get("ic_0", extents.get("ic")) == left
