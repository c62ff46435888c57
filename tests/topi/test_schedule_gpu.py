"""Default GPU schedules: every operator family on an OpenCL device, and the same programs compiled for CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import CUDA, OPENCL, cuda_text, on_opencl, require_nvrtc
from tests.topi.differential import Array, random_array, run_reference
from tests.topi.test_scheduled import CASES
from tilewright.graph.op import get_operator
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.ir.visit import pre_order
from tilewright.runtime.cuda import compile_cuda
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import lower
from tilewright.tir.stmt import Allocate, Evaluate, For
from tilewright.topi.registry import compute_operator
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

Case = tuple[str, Sequence[Array], dict[str, Any]]
RNG = np.random.default_rng(1)


def _(*shape: int, dtype: str = "float32") -> Array:
    return random_array(RNG, shape, dtype)


LARGER: list[Case] = [
    ("matmul", [_(64, 48), _(48, 80)], {}),
    ("matmul", [_(3, 70, 32), _(3, 32, 50)], {}),
    ("matmul", [_(33, 24), _(40, 24)], {"transpose_b": True}),
    ("sum", [_(4, 5000)], {"axes": (1,)}),
    ("sum", [_(40000)], {"axes": (0,)}),
    ("max", [_(3, 7, 300)], {"axes": (0, 2)}),
    ("argmax", [_(4, 500)], {"axis": 1}),
    ("nn.softmax", [_(4, 500)], {"axis": 1}),
]


def _program(case: Case, name: str, target: Target) -> tuple[PrimFunc, list[TensorType]]:
    operator, arrays, attributes = case
    declared = get_operator(operator)
    values = declared.attributes_class(**attributes)
    result = declared.infer([tensor_type(array.shape, array.dtype.name) for array in arrays], values)
    inputs = [placeholder(array.shape, array.dtype.name, f"in{n}") for n, array in enumerate(arrays)]
    outputs = compute_operator(operator, inputs, values, result)
    kinds = result.items if isinstance(result, TupleType) else (result,)
    func = schedule_gpu(create_prim_func([*inputs, *outputs], name), target)
    return func, [kind for kind in kinds if isinstance(kind, TensorType)]


def _check(case: Case, got: list[Array]) -> None:
    operator, arrays, attributes = case
    for one, other in zip(got, run_reference(operator, arrays, **attributes), strict=True):
        if one.dtype.kind == "f":
            tolerance = 1e-2 if one.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=operator)
        else:
            np.testing.assert_array_equal(one, other, err_msg=operator)


def _results(kinds: list[TensorType]) -> list[Array]:
    return [np.full(kind.static_shape or (), 77, kind.dtype.numpy()) for kind in kinds]


def test_operators_on_a_device() -> None:
    """A sample of the cases that CPU schedules are tested on, and shapes that fill blocks: one program for all."""
    cases = [*CASES[::4], *LARGER]
    programs = [_program(case, f"case{n}", OPENCL) for n, case in enumerate(cases)]
    module = on_opencl([func for func, _ in programs])
    for number, (case, (_, kinds)) in enumerate(zip(cases, programs, strict=True)):
        got = _results(kinds)
        module[f"case{number}"](*case[1], *got)
        _check(case, got)


@pytest.mark.parametrize("case", CASES[1::4], ids=lambda case: f"{case[0]}-{'-'.join(str(a.shape) for a in case[1])}")
def test_lowered_programs_interpreted(case: Case) -> None:
    """Where no device is: the lowered program, threads in step from barrier to barrier."""
    func, kinds = _program(case, "kernel", OPENCL)
    got = _results(kinds)
    interpret(lower(func, OPENCL), *[array.reshape(-1) for array in case[1]], *[array.reshape(-1) for array in got])
    _check(case, got)


def test_all_operators_compile_for_cuda() -> None:
    require_nvrtc()
    cases = [*CASES[2::4], *LARGER]
    text = cuda_text([_program(case, f"case{n}", CUDA)[0] for n, case in enumerate(cases)])
    assert len(compile_cuda(text, "sm_80")) > 10000


def test_products_have_tiles_in_shared_memory() -> None:
    func, _ = _program(LARGER[0], "product", OPENCL)
    lowered = lower(func, OPENCL)
    sizes = {
        item.buffer.name: (item.buffer.scope, item.buffer.static_shape)
        for item in pre_order(lowered.body)
        if isinstance(item, Allocate)
    }
    assert [scope for scope, _ in sizes.values()].count("shared") == 2
    assert [scope for scope, _ in sizes.values()].count("local") == 1
    assert sum(isinstance(item, Evaluate) for item in pre_order(lowered.body)) == 2
    axes = {item.thread for item in pre_order(lowered.body) if isinstance(item, For) and item.thread}
    assert axes == {"blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y"}


def test_long_reductions_are_divided_over_threads() -> None:
    func, _ = _program(LARGER[3], "rows", OPENCL)
    lowered = lower(func, OPENCL)
    assert sum(isinstance(item, Evaluate) for item in pre_order(lowered.body)) == 2
    shared = [
        item.buffer.static_shape
        for item in pre_order(lowered.body)
        if isinstance(item, Allocate) and item.buffer.scope == "shared"
    ]
    assert sorted(shared) == [(16,), (256,)]


def test_small_devices_get_small_blocks() -> None:
    func, kinds = _program(LARGER[0], "small", Target("opencl -max-threads=64"))
    got = _results(kinds)
    lowered = lower(func, Target("opencl -max-threads=64"))
    interpret(lowered, *[array.reshape(-1) for array in LARGER[0][1]], got[0].reshape(-1))
    _check(LARGER[0], got)
