"""Kernels and their launches, and the limits of a device."""

from __future__ import annotations

import pytest

from tests.tir.passes.test_bind_threads import tiled_product
from tilewright import te
from tilewright.backends.backend import lower
from tilewright.ir.expr import IntImm, Var, const_value
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.schedule import Schedule
from tilewright.tir.script import to_script

TARGET = Target("opencl")


def _two_stages() -> Schedule:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((n,), lambda i: b[n - 1 - i] + 1.0, name="C")
    sch = Schedule(te.create_prim_func([a, c], "stages"))
    for name in ("B", "C"):
        block, thread = sch.split(sch.get_loops(sch.get_block(name))[0], [None, 32])
        sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
    return sch


def test_each_stage_is_a_kernel() -> None:
    split = split_host_device(lower(_two_stages().func, TARGET), TARGET)
    assert [kernel.func.name for kernel in split.kernels] == ["stages_kernel0", "stages_kernel1"]
    assert [buffer.name for buffer in split.workspaces] == ["B"]
    assert [param.name for param in split.kernels[0].func.params] == ["A", "n", "B"]
    assert split.kernels[0].block == (32, 1, 1)
    assert split.kernels[0].grid[1:] == (IntImm(1), IntImm(1))
    assert {buffer.name for buffer in split.kernels[1].written} == {"C"}


def test_shared_memory_is_limited() -> None:
    func = tiled_product(64, 64, 64, (8, 8), (4, 4), 16)
    small = TARGET.replace(shared_bytes=1024)
    with pytest.raises(UserError, match="bytes of shared memory, the target allows 1024"):
        split_host_device(lower(func, small), small)
    shared = split_host_device(lower(func, TARGET), TARGET).kernels[0].shared
    assert {buffer.name for buffer in shared} == {"A_shared", "B_shared"}


def test_private_memory_is_limited() -> None:
    a = te.placeholder((2, 100000), name="A")
    b = te.compute((2, 100000), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((2, 100000), lambda i, j: b[i, 99999 - j] + 1.0, name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    rows = sch.get_loops(sch.get_block("C"))[0]
    sch.compute_at(sch.get_block("B"), rows)
    sch.bind(rows, "threadIdx.x")
    with pytest.raises(UserError, match="a thread uses 400000 bytes of private memory"):
        split_host_device(lower(sch.func, TARGET), TARGET)


def _blocks(*grid: int | Var, threads: int = 4) -> Schedule:
    """Maps of elements whose outer axes are blocks."""
    a = te.placeholder((*grid, threads), name="A")
    b = te.compute((*grid, threads), lambda *i: a[i] * 2.0, name="B")
    sch = Schedule(te.create_prim_func([a, b], "blocks"))
    *outer, thread = sch.get_loops(sch.get_block("B"))
    for loop, axis in zip(reversed(outer), "xyz", strict=False):
        sch.bind(loop, f"blockIdx.{axis}")
    sch.bind(thread, "threadIdx.x")
    return sch


@pytest.mark.parametrize(
    ("grid", "launched"),
    [
        ((65535, 9), (9, 65535, 1)),
        ((65536, 9), (9 * 65536, 1, 1)),
        ((65536, 3, 5), (5 * 3 * 65536, 1, 1)),
        ((2, 65535, 7), (7, 65535, 2)),
        ((70000,), (70000, 1, 1)),
    ],
)
def test_blocks_that_do_not_fit_their_axes_stand_in_a_row(grid: tuple[int, ...], launched: tuple[int, ...]) -> None:
    (kernel,) = split_host_device(lower(_blocks(*grid).func, TARGET), TARGET).kernels
    assert [const_value(extent) for extent in kernel.launched] == list(launched)
    assert kernel.is_folded == (launched[1:] == (1, 1) and len(grid) > 1)


def test_blocks_of_open_number_stand_in_a_row_where_they_may_be_too_many() -> None:
    (one,) = split_host_device(lower(_blocks(te.var("n")).func, TARGET), TARGET).kernels
    (two,) = split_host_device(lower(_blocks(te.var("n"), 3).func, TARGET), TARGET).kernels
    assert not one.is_folded and two.is_folded
    assert [to_script(extent) for extent in two.launched] == ["3 * n", "1", "1"]


def test_no_device_takes_more_blocks_than_it_can_count() -> None:
    func = lower(_blocks(1 << 16, 1 << 16).func, TARGET)
    with pytest.raises(UserError, match="a kernel has 4294967296 blocks, devices take up to 2147483647"):
        split_host_device(func, TARGET)


@pytest.mark.parametrize("text", ["opencl", "cuda -arch=sm_86"])
def test_blocks_work_together_where_the_target_has_clusters(text: str) -> None:
    a = te.placeholder((8,), name="A")
    sch = Schedule(te.create_prim_func([a, te.compute((8,), lambda i: a[i] * 2.0, name="B")], "together"))
    outer, inner = sch.split(sch.get_loops(sch.get_block("B"))[0], [None, 2])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "clusterIdx.x")
    hopper = Target("cuda -arch=sm_90")
    assert split_host_device(lower(sch.func, hopper), hopper).kernels[0].cluster == 2
    target = Target(text)
    with pytest.raises(UnsupportedError, match=f"blocks of {target.kind} {target.arch} targets do not work together"):
        split_host_device(lower(sch.func, target), target)
