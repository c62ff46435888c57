"""Shared memory of buffers that are no longer used is given to later ones, behind a barrier."""

from __future__ import annotations

import numpy as np

from tilewright import te
from tilewright.backends.backend import lower
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Evaluate

CUDA = Target("cuda -arch=sm_90")


def _chain(target: Target) -> PrimFunc:
    """Three stages in one kernel, each read by other threads than those that wrote it."""
    a = te.placeholder((4, 64), "float32", "A")
    b = te.compute((4, 64), lambda i, j: a[i, j] * 2.0, "B")
    c = te.compute((4, 64), lambda i, j: b[i, 63 - j] + 1.0, "C")
    d = te.compute((4, 64), lambda i, j: c[i, 63 - j] * 3.0, "D")
    e = te.compute((4, 64), lambda i, j: d[i, 63 - j] - 1.0, "E")
    sch = Schedule(create_prim_func([a, e], "chain"))
    block, thread = sch.get_loops(sch.get_block("E"))
    for name in "DCB":
        stage = sch.get_block(name)
        sch.set_scope(stage, 0, "shared")
        sch.compute_at(stage, block)
        sch.bind(sch.get_loops(stage)[-1], "threadIdx.x")
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return lower(sch.func, target)


def test_buffers_take_turns() -> None:
    lowered = _chain(CUDA)
    (kernel,) = split_host_device(lowered, CUDA).kernels
    assert len(kernel.shared) == 3
    places = dict(zip((buffer.name for buffer in kernel.shared), kernel.shared_offsets, strict=True))
    assert places["B"] == places["D"] and abs(places["B"] - places["C"]) == 256
    assert kernel.shared_bytes == 512
    source, got = np.random.default_rng(0).random((4, 64), "float32"), np.zeros((4, 64), "float32")
    interpret(lowered, source.reshape(-1), got.reshape(-1))
    np.testing.assert_array_equal(got, (source * 2 + 1)[:, ::-1] * 3 - 1)


def _barriers(func: PrimFunc) -> int:
    return sum(isinstance(item, Evaluate) for item in all_statements(func.body))


def test_a_barrier_is_added_only_where_none_stands() -> None:
    assert _barriers(_chain(CUDA)) == _barriers(_chain(Target("opencl"))) == 3


def test_each_buffer_has_its_own_place_where_declared_alone() -> None:
    target = Target("opencl")
    (kernel,) = split_host_device(_chain(target), target).kernels
    assert kernel.shared_bytes == 768 and not kernel.is_dynamic
