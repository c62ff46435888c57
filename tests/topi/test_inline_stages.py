"""Stages that several others read: which become part of one expression, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import op, var
from tests.topi.test_schedule_cpu import TARGETS, check, kernel
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.cpu.strategy import schedule_cpu
from tilewright.topi.schedule.inline import inline_stages

AVX512 = TARGETS["avx512"]


def swish(x: GraphExpr) -> GraphExpr:
    return op("multiply", x, op("sigmoid", x))


def stages(func: PrimFunc) -> int:
    """How many stages are left."""
    context = ScheduleContext(Schedule(func), AVX512)
    inline_stages(context)
    return len(context.sch.blocks())


@pytest.mark.parametrize("target", TARGETS)
def test_an_epilogue_that_reads_costly_values_twice(target: str) -> None:
    a, b = var("a", 10, 12), var("b", 12, 24)
    func = kernel([a, b], swish(swish(op("matmul", a, b))))
    (choice,) = schedule_cpu(func, TARGETS[target]).templates
    assert choice.name == "contraction"
    check(func, TARGETS[target])


def test_axes_of_one_element_are_their_own() -> None:
    """Broadcasting reads element 0 of such an axis, which is the element itself."""
    a, b, c = var("a", 1, 10, 12), var("b", 12, 24), var("c", 24)
    func = kernel([a, b, c], swish(swish(op("add", op("matmul", a, b), c))))
    (choice,) = schedule_cpu(func, AVX512).templates
    assert choice.name == "contraction"


def test_stages_that_take_other_elements_keep_a_costly_one() -> None:
    x = var("x", 16, 16)
    costly = op("exp", op("tanh", x))
    assert stages(kernel([x], op("add", costly, op("sigmoid", costly)))) == 1
    assert stages(kernel([x], op("add", costly, op("transpose", costly, axes=(1, 0))))) == 2


def test_a_reduction_keeps_what_another_stage_reads_too() -> None:
    x = var("x", 16, 32)
    costly = op("exp", op("tanh", x))
    func = kernel([x], op("divide", costly, op("sum", costly, axes=(1,), keepdims=True)))
    assert stages(func) == 3
    check(func, AVX512)


@pytest.mark.parametrize("target", ["native", "cuda -arch=sm_90a", "opencl"])
def test_chains_of_values_read_twice_take_linear_time(target: str) -> None:
    """There are 2^20 ways from the result to the product: each part is looked at once."""
    x, w = var("x", 16, 32), var("w", 32, 64)
    value = op("matmul", x, w)
    for _ in range(20):
        value = swish(value)
    function = infer_types(Function("main", (x, w), value))
    assert isinstance(function, Function)
    compilation = tw.Compilation(IRModule([function]), Target(target) if target != "native" else target, threads=1)
    assert sum(len(compilation.source(item)) for item in compilation.kernels) < 4 << 20


def test_such_a_chain_is_computed_right() -> None:
    x, w = var("x", 4, 8), var("w", 8, 32)
    value = op("matmul", x, w)
    for _ in range(4):
        value = swish(value)
    function = infer_types(Function("main", (x, w), value))
    assert isinstance(function, Function)
    random = np.random.default_rng(0)
    given = random.standard_normal((4, 8)).astype(np.float32), random.standard_normal((8, 32)).astype(np.float32)
    expected = given[0] @ given[1]
    for _ in range(4):
        expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(tw.compile(IRModule([function]), threads=1)(*given), expected, rtol=1e-4, atol=1e-5)
