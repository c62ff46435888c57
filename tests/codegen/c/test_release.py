"""Kernels that start early: where they wait, and where they let the next ones start."""

from __future__ import annotations

from tests.codegen.on_device import cuda_text
from tilewright import te
from tilewright.target import Target
from tilewright.tir.annotations import MEMORY_BOUND
from tilewright.tir.function import CONSTANTS
from tilewright.tir.schedule.schedule import Schedule

WAIT, RELEASE = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"


def test_kernels_wait_first_and_release_others_between_their_main_loop_and_their_results() -> None:
    a = te.placeholder((64, 32), name="A")
    k = te.reduce_axis((0, 32), name="k")
    total = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), name="total")
    root = te.compute((64,), lambda i: te.sqrt(total[i]), name="root")
    s = te.create_schedule(root.op)
    block, thread = s[root].split(root.op.axis[0], factor=32)
    s[root].bind(block, te.thread_axis("blockIdx.x"))
    s[root].bind(thread, te.thread_axis("threadIdx.x"))
    s[total].compute_at(s[root], thread)
    text = cuda_text([s.func([a, root])])
    loop, result = text.index("for ("), text.index("root_[")
    assert text.count(WAIT) == text.count(RELEASE) == 1
    assert text.index(WAIT) < loop < text.index(RELEASE) < result


def test_elementwise_kernels_release_others_at_once() -> None:
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b.op)
    s[b].bind(b.op.axis[0], te.thread_axis("threadIdx.x"))
    text = cuda_text([s.func([a, b])])
    assert text.index(WAIT) < text.index(RELEASE) < text.index("B_[")


def test_only_hopper_and_later_start_early() -> None:
    known = {"sm_80": False, "sm_89": False, "sm_90": True, "sm_90a": True, "sm_100a": True}
    assert {arch: Target(f"cuda -arch={arch}").has_dependent_launch for arch in known} == known


def test_constants_are_read_before_a_kernel_waits() -> None:
    a, w = te.placeholder((32, 64), name="A"), te.placeholder((64,), name="W")
    b = te.compute((32, 64), lambda i, j: a[i, j] * w[j], name="B")
    s = Schedule(te.create_prim_func([a, w, b]).replace(attributes={CONSTANTS: (1,)}))
    handle = s.get_block("B")
    row, column = s.get_loops(handle)
    copy = s.cache_read(handle, "W", "local")
    s.reorder(column, row)
    s.compute_at(copy, column)
    s.bind(column, "threadIdx.x")
    text = cuda_text([s.func])
    assert text.index("= W_[") < text.index(WAIT) < text.index("A_[")
    assert text.count(WAIT) == text.count(RELEASE) == 1
    # It has all its weights: others may read theirs.
    assert text.index(WAIT) < text.index(RELEASE) < text.index("for (")
    # What is not known to be constant may be another kernel's result.
    text = cuda_text([s.func.replace(attributes={})])
    assert text.index(WAIT) < text.index("= W_[")


def test_numbers_that_are_constant_are_read_before_a_kernel_waits() -> None:
    a, zero = te.placeholder((64,), name="A"), te.placeholder((1, 1), name="Z")
    b = te.compute((64,), lambda i: a[i] - zero[0, 0], name="B")
    func = te.create_prim_func([a, zero, b])
    for constants in ((1,), ()):
        s = Schedule(func.replace(attributes={CONSTANTS: constants}))
        s.bind(s.get_loops(s.get_block("B"))[0], "threadIdx.x")
        text = cuda_text([s.func], Target("cuda -arch=sm_90"))
        assert text.count("Z_[") == 1
        assert (text.index("Z_[") < text.index(WAIT)) == bool(constants)


def test_kernels_that_only_read_let_others_begin_to_read() -> None:
    a, w = te.placeholder((64,), name="A"), te.placeholder((4096, 64), name="W")
    k = te.reduce_axis((0, 4096), name="k")
    total = te.compute((64,), lambda j: te.sum(a[j] * w[k, j], axis=k), name="total")
    for streams in (True, False):
        s = Schedule(te.create_prim_func([a, w, total]).replace(attributes={CONSTANTS: (1,)}))
        handle = s.get_block("total")
        written = s.cache_write(handle, 0, "local")
        (column,) = s.get_loops(written)
        s.bind(column, "threadIdx.x")
        s.compute_at(handle, column)
        *_, step = s.get_loops(handle)
        s.decompose_reduction(handle, step)
        if streams:
            s.annotate(step, MEMORY_BOUND, True)
        text = cuda_text([s.func])
        assert (text.index(RELEASE) < text.index("W_[")) == streams
