"""Products with long sums: chosen where rows are too much for the cache, and right with and without an epilogue."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, For
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of

SMALL = {"l1_bytes": 16 << 10, "l2_bytes": 512 << 10}
"""Caches so small that the rows of these tests do not fit."""


def product(
    rows: int, depth: int, columns: int, *, epilogue: bool = True, constants: tuple[int, ...] = (1, 2)
) -> PrimFunc:
    shapes = {"x": (1, rows, depth), "w": (depth, columns), "b": (columns,), "r": (1, rows, columns)}
    x, w, b, r = (Var(name, tensor_type(shape, "float32")) for name, shape in shapes.items())
    body: GraphExpr = call("matmul", x, w)
    params = [x, w]
    if epilogue:
        body, params = call("add", call("add", body, b), r), [x, w, b, r]
    function = infer_types(Function("k", tuple(params), body))
    assert isinstance(function, Function)
    return lower_primitive(function, "k", tuple(n for n in constants if n < len(params)))


def is_in_parts(func: PrimFunc) -> bool:
    return any(block.name.endswith("_rf") for block in find_all(func.body, Block))


def check(func: PrimFunc, target: Target) -> None:
    """Compile a scheduled product and compare with numpy."""
    rng = np.random.default_rng(1)
    packing = packing_of(func)
    rows, columns = (func.buffers[-1].static_shape or ())[1:]
    depth = (func.buffers[0].static_shape or ())[-1]
    shapes = [(1, rows, depth), (depth, columns), (columns,), (1, rows, columns)][: len(func.buffers) - 1]
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays = [np.ascontiguousarray(packing[n].rearrange(a)) if n in packing else a for n, a in enumerate(inputs)]
    out = np.full((1, rows, columns), np.nan, np.float32)
    tw.build(func, target=target)(*arrays, out)
    expected = inputs[0] @ inputs[1] + (inputs[2] + inputs[3] if len(inputs) > 2 else 0)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-5 * depth**0.5)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("epilogue", [True, False])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(64, 1024, 48), (37, 1536, 80), (61, 1022, 33)])
def test_long_sums_are_right(rows: int, depth: int, columns: int, epilogue: bool, cores: int) -> None:
    target = Target("native").replace(cores=cores, **SMALL)
    scheduled = schedule_cpu(product(rows, depth, columns, epilogue=epilogue), target)
    check(scheduled, target)


def test_long_sums_are_taken_in_parts_whose_weights_are_fetched_ahead() -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1, **SMALL)
    scheduled = schedule_cpu(product(64, 1024, 48), target)
    assert is_in_parts(scheduled)
    (loop,) = [item for item in find_all(scheduled.body, For) if PREFETCH.is_on(item)]
    parts, panels, depth, width = packing_of(scheduled)[1].rearrange(np.zeros((1024, 48))).shape
    assert loop.annotations[PREFETCH.name] == {"p1": depth * width}
    assert (parts * depth, panels * width) == (1024, 48)


@pytest.mark.parametrize(
    "func",
    [
        product(64, 1024, 48, constants=()),
        product(8, 1024, 48),
        product(64, 128, 48),
        product(64, 1021, 48),
    ],
    ids=["no constant weights", "few rows", "short sums", "no divisor"],
)
def test_others_are_not(func: PrimFunc) -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1, **SMALL)
    assert not is_in_parts(schedule_cpu(func, target))


def test_a_tuner_may_leave_sums_whole() -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1, **SMALL)
    choices = Choices({"sum_part": 0})
    assert not is_in_parts(schedule_cpu(product(64, 1024, 48), target, choices))
    assert choices.asked["sum_part"].options[0] == 0
