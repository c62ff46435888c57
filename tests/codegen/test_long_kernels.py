"""Kernels whose threads have much to do: drivers end loops after 65,535 steps in all, or count blocks so far."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import require_device
from tests.grids import rare
from tilewright import te
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule

DEVICES = pytest.mark.parametrize("target", ["opencl", "vulkan", "webgpu"])


def doubled(*shape: int) -> PrimFunc:
    a = te.placeholder(shape, "float32", name="A")
    b = te.compute(shape, lambda *i: a[i] * 2.0 + 1.0, name="B")
    return te.create_prim_func([a, b], "doubled")


def check(program: PrimFunc | Schedule, target: str, *shape: int) -> None:
    require_device(Target(target))
    x = np.random.default_rng(0).integers(0, 1000, shape).astype(np.float32)
    y = np.zeros(shape, np.float32)
    tw.build(program, target=target)(x, y)
    np.testing.assert_array_equal(y, x * 2 + 1)


@DEVICES
@pytest.mark.parametrize("shape", [(65536,), (3, 70001), *rare((300, 1000), (1000, 300), (60000, 5), (40, 50, 90))])
def test_what_is_not_scheduled_runs_in_one_thread(target: str, shape: tuple[int, ...]) -> None:
    check(doubled(*shape), target, *shape)


@DEVICES
def test_more_blocks_than_an_axis_takes(target: str) -> None:
    sch = Schedule(doubled(70000, 2))
    (block,) = sch.blocks()
    row, column = sch.get_loops(block)
    sch.bind(row, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    check(sch, target, 70000, 2)
    sch = Schedule(doubled(2, 70000))
    (block,) = sch.blocks()
    row, column = sch.get_loops(block)
    sch.bind(row, "blockIdx.x")
    sch.bind(column, "blockIdx.y")
    check(sch, target, 2, 70000)


def total(count: int) -> PrimFunc:
    a = te.placeholder((2, count), "int32", name="A")
    k = te.reduce_axis((0, count), name="k")
    return te.create_prim_func([a, te.compute((2,), lambda i: reduction.sum(a[i, k], [k]), name="B")], "total")


@pytest.mark.parametrize("target", ["vulkan", "webgpu"])
def test_long_sums(target: str) -> None:
    """A sum of one thread is divided between launches; in a loop that was bound it is refused, not cut off."""
    require_device(Target(target))
    x, y = np.ones((2, 70000), np.int32), np.zeros(2, np.int32)
    tw.build(total(70000), target=target)(x, y)
    np.testing.assert_array_equal(y, [70000, 70000])
    sch = Schedule(total(70000))
    (block,) = sch.blocks()
    sch.bind(sch.get_loops(block)[0], "threadIdx.x")
    with pytest.raises(UnsupportedError, match=r"a thread takes 70000 steps in loops, .* ends them after 65535"):
        tw.build(sch, target=f"{target} -mattr=+few-steps")
