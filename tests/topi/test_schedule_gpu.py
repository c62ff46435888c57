"""Default GPU schedules: every operator family on an OpenCL device, and the same programs compiled for CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.cuda_on_fibers import on_cuda
from tests.codegen.on_device import CUDA, OPENCL, cuda_text, on_opencl, require_nvrtc
from tests.grids import rare
from tests.topi.differential import Array, operator_program, random_array, results_of, run_reference
from tests.topi.samples import SAMPLES
from tests.topi.scheduling import schedule_gpu
from tests.topi.test_scheduled import CASES, CHANNELS_LAST, PADDED
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.expr import IntImm
from tilewright.ir.visit import pre_order
from tilewright.target import Target
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.split_host_device import SplitFunction, split_host_device
from tilewright.tir.stmt import Allocate, Evaluate
from tilewright.topi.registry import registered

HOPPER = Target("cuda -arch=sm_90a")
Case = tuple[str, Sequence[Array], dict[str, Any]]
RNG = np.random.default_rng(1)


def _(*shape: int, dtype: str = "float32", low: float = -4, high: float = 4) -> Array:
    return random_array(RNG, shape, dtype, low, high)


LARGER: list[Case] = [
    ("matmul", [_(64, 48), _(48, 80)], {}),
    ("matmul", [_(3, 70, 32), _(3, 32, 50)], {}),
    ("matmul", [_(33, 24), _(40, 24)], {"transpose_b": True}),
    ("sum", [_(4, 5000)], {"axes": (1,)}),
    ("sum", [_(40000)], {"axes": (0,)}),
    ("max", [_(3, 7, 300)], {"axes": (0, 2)}),
    ("argmax", [_(4, 500)], {"axis": 1}),
    ("argmin", [_(3, 200, 5)], {"axis": 1}),
    ("nn.softmax", [_(4, 500)], {"axis": 1}),
    ("nn.softmax", [_(40, 64)], {"axis": 1}),
    ("nn.softmax", [_(2, 9, 700)], {"axis": 1}),
    ("nn.log_softmax", [_(3, 5, 40)], {"axis": 2}),
    ("nn.layer_norm", [_(7, 96), _(96), _(96)], {"axis": 1}),
    ("nn.layer_norm", [_(5, 6, 50), _(6, 50), _(6, 50)], {"axis": 1}),
    ("mean", [_(2, 9, 9, 33)], {"axes": (1, 2)}),
    ("mean", [_(5, 1100)], {"axes": (1,), "keepdims": True}),
    ("sum", [_(3000, 40)], {"axes": (0,)}),
    ("sum", [_(70, 9, 80)], {"axes": (0, 2)}),
    ("prod", [_(130, 36, low=0.9, high=1.1)], {"axes": (0,)}),
    ("transpose", [_(3, 50, 70)], {"axes": (0, 2, 1)}),
    ("transpose", [_(64, 96)], {"axes": (1, 0)}),
    ("matmul", [_(1, 300), _(300, 70)], {}),
    ("matmul", [_(1, 300), _(70, 300)], {"transpose_b": True}),
    ("sum", [_(20000, 3)], {"axes": (0,)}),
    ("nn.attention", [_(1, 16, 2, 8), _(1, 64, 2, 8), _(1, 64, 2, 32)], {"scale": 0.3}),
    ("nn.attention", [_(2, 16, 2, 16), _(2, 256, 2, 16), _(2, 256, 2, 64), _(2, 1, 1, 256)], {"scale": 0.1}),
    ("nn.attention", [_(1, 8, 1, 64), _(1, 128, 1, 64), _(1, 128, 1, 64), np.tri(8, 128, 9, dtype=bool)], {}),
    ("nn.conv2d", [_(1, 12, 12, 8), _(3, 3, 1, 8)], {**PADDED, **CHANNELS_LAST, "groups": 8}),
    ("nn.max_pool2d", [_(1, 9, 9, 8)], {"kernel": (3, 3), "strides": (2, 2), **PADDED, "layout": "NHWC"}),
    ("nn.avg_pool2d", [_(1, 9, 9, 32)], {"kernel": (3, 3), "strides": (2, 2), "layout": "NHWC"}),
]


def _program(case: Case, name: str, target: Target, constants: tuple[int, ...] = ()) -> PrimFunc:
    func = operator_program(case[0], case[1], name, **case[2])
    return schedule_gpu(func.replace(attributes={CONSTANTS: constants}), target)


def _check(case: Case, got: list[Array], error: float = 2e-5) -> None:
    operator, arrays, attributes = case
    for one, other in zip(got, run_reference(operator, arrays, **attributes), strict=True):
        if one.dtype.kind == "f":
            tolerance = 1e-2 if one.dtype == np.float16 else error
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=operator)
        else:
            np.testing.assert_array_equal(one, other, err_msg=operator)


def test_every_operator_has_a_sample() -> None:
    assert {name for name, _, _ in SAMPLES} == {name for name in registered() if not name.startswith("loops.")}


def _check_on_a_device(cases: Sequence[Case]) -> None:
    """One program for all cases."""
    programs = [_program(case, f"case{n}", OPENCL) for n, case in enumerate(cases)]
    module = on_opencl(programs)
    for number, (case, func) in enumerate(zip(cases, programs, strict=True)):
        got = results_of(func, case[1])
        module[f"case{number}"](*case[1], *got)
        _check(case, got)


@pytest.mark.parametrize("part", [0, 2, 4, *rare(1, 3, 5)])
def test_operators_on_a_device(part: int) -> None:
    """Every operator: is its OpenCL right?

    Half of them with `make test`, where all run on another device (`tests/codegen/test_portable.py`).
    """
    _check_on_a_device(SAMPLES[part::6])


@pytest.mark.parametrize("part", [1, *rare(0, 2, 3)])
def test_operators_on_cuda(part: int) -> None:
    """Every operator as a GPU of sm_90 would run it, on fibers of this machine."""
    cases = [*SAMPLES, *LARGER][part::4]
    programs = [_program(case, f"case{n}", HOPPER) for n, case in enumerate(cases)]
    module = on_cuda(programs, HOPPER)
    for number, (case, func) in enumerate(zip(cases, programs, strict=True)):
        got = results_of(func, case[1])
        module[f"case{number}"](*case[1], *got)
        # Sums that threads share have another order.
        _check(case, got, 1e-4)


def test_shapes_that_fill_blocks_on_a_device() -> None:
    _check_on_a_device(LARGER)


@pytest.mark.parametrize("case", CASES[1::4], ids=lambda case: f"{case[0]}-{'-'.join(str(a.shape) for a in case[1])}")
def test_lowered_programs_interpreted(case: Case) -> None:
    """Where no device is: the lowered program, threads in step from barrier to barrier."""
    func = _program(case, "kernel", OPENCL)
    got = results_of(func, case[1])
    interpret(lower(func, OPENCL), *[array.reshape(-1) for array in case[1]], *[array.reshape(-1) for array in got])
    _check(case, got)


@pytest.mark.parametrize("part", [0, *rare(1, 2, 3)])
def test_all_operators_compile_for_cuda(part: int) -> None:
    require_nvrtc()
    cases = [*SAMPLES[part::4], *LARGER]
    text = cuda_text([_program(case, f"case{n}", CUDA) for n, case in enumerate(cases)])
    assert len(compile_cuda(text, "sm_80")) > 10000


def test_long_reductions_are_divided_over_threads() -> None:
    func = _program(LARGER[3], "rows", OPENCL)
    lowered = lower(func, OPENCL)
    assert sum(isinstance(item, Evaluate) for item in pre_order(lowered.body)) == 2
    shared = [
        item.buffer.static_shape
        for item in pre_order(lowered.body)
        if isinstance(item, Allocate) and item.buffer.scope == "shared"
    ]
    assert sorted(shared) == [(16,), (256,)]


def _kernels(case: Case, target: Target) -> SplitFunction:
    return split_host_device(lower(_program(case, "kernel", target), target), target)


def test_stages_of_rows_are_one_kernel() -> None:
    """What several stages read of a row is in registers; warps need no barrier."""
    case: Case = ("nn.softmax", [np.zeros((5000, 256), np.float32)], {"axis": 1})
    (kernel,) = _kernels(case, CUDA).kernels
    assert kernel.block == (32, 8, 1)
    assert not kernel.shared
    text = cuda_text([_program(case, "kernel", CUDA)])
    assert "float4" in text
    assert "__syncthreads" not in text


def test_attention_is_one_kernel() -> None:
    tokens = np.zeros((1, 128, 12, 64), np.float32)
    (kernel,) = _kernels(("nn.attention", [tokens] * 3, {"scale": 0.125}), CUDA).kernels
    assert kernel.grid[0] == IntImm(96)
    assert {buffer.name for buffer in kernel.shared} == {"in0_shared", "in1_shared", "attention_powers"}


def test_recurrent_layers_launch_a_kernel_a_step() -> None:
    case = next(sample for sample in SAMPLES if sample[0] == "nn.gru")
    split = _kernels(case, CUDA)
    assert split.order == ((0, ()), (1, (1,)), (2, (1,)), (1, (2,)), (2, (2,)), (1, (3,)), (2, (3,)))
    assert len(_kernels(_plain_layer(70, 128), CUDA).order) == 71


def _plain_layer(steps: int, size: int, batch: int = 1) -> Case:
    shapes = [(steps, batch, 1, size), (1, size, size), (batch, size)]
    return ("nn.rnn", [np.zeros(shape, np.float32) for shape in shapes], {"activations": (("tanh", 0.0, 0.0),)})


def test_long_sequences_of_small_layers_are_one_kernel() -> None:
    assert len(_kernels(_plain_layer(70, 8), CUDA).order) == 2


@pytest.mark.parametrize(("batch", "load"), [(1, "*(const float2*)(in1_"), (16, "= in1_[")])
def test_a_step_reads_its_weights_before_it_waits_for_the_step_before(batch: int, load: str) -> None:
    func = _program(_plain_layer(3, 650, batch), "layer", CUDA.replace(cores=132), constants=(1,))
    step = cuda_text([func]).split("__global__")[-1]
    wait = step.index("griddepcontrol.wait")
    assert 0 < step.index(load) < wait and "in1_" not in step[wait:].split("{", 1)[1].replace("in1_local", "")
    # Threads of a warp add up by shuffles; no core has more than five elements of the state.
    assert "__shfl_sync" in step and "__launch_bounds__(160)" in step
    # The states of several sequences come in vectors, all at once, and are shared by the threads of a block.
    copied = step[wait:].partition("__syncthreads")[0].count("*(const float4*)(rnn_states_")
    assert ("__shared__" in step, copied) == (batch > 1, int(batch > 1))


def test_states_that_do_not_fit_shared_memory_stay_where_they_are() -> None:
    target = CUDA.replace(cores=132, shared_bytes=16 << 10)
    text = cuda_text([_program(_plain_layer(3, 650, 16), "layer", target, constants=(1,))])
    assert "__shfl_sync" in text and "__shared__" not in text


def test_windows_are_read_as_vectors() -> None:
    shapes = [np.zeros((1, 56, 56, 128), np.float32), np.zeros((3, 3, 1, 128), np.float32)]
    case: Case = ("nn.conv2d", shapes, {**PADDED, **CHANNELS_LAST, "groups": 128})
    text = cuda_text([_program(case, "kernel", CUDA)])
    assert text.count("*(const float4*)") == 2
    assert text.count("*(float4*)") == 1
    # Nothing stands between the reads of a window: places outside are read at the start, and not used.
    assert " ? " in text[text.index("*(const float4*)(in0_") :].split(";")[0] and "if (" not in text
    # A thread has its weights before it waits for other kernels, and its window before it computes.
    text = cuda_text([_program(case, "kernel", CUDA, constants=(1,))])
    order = ["*(const float4*)(in1_", "griddepcontrol.wait", "*(const float4*)(in0_", "*(float4*)(depthwise_conv2d"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_windows_of_half_precision_are_read_as_vectors() -> None:
    case: Case = ("nn.max_pool2d", [_(1, 28, 28, 1024, dtype="float16")], {**LARGER[-2][2]})
    text = cuda_text([_program(case, "kernel", CUDA)])
    assert text.count("*(const uint4*)(in0_") == 1 and "in0_[" not in text


def test_small_devices_get_small_blocks() -> None:
    func = _program(LARGER[0], "small", Target("opencl -max-threads=64"))
    got = results_of(func, LARGER[0][1])
    lowered = lower(func, Target("opencl -max-threads=64"))
    interpret(lowered, *[array.reshape(-1) for array in LARGER[0][1]], got[0].reshape(-1))
    _check(LARGER[0], got)
