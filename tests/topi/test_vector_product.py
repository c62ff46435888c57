"""Vectors times constant weights on GPUs: interpreted thread by thread, and what their kernels look like."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import CUDA, cuda_text
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.backend import lower
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of

SMALL = [Target("cuda -arch=sm_90 -num-cores=2 -max-threads=128"), Target("opencl -num-cores=2 -max-threads=64")]


def _program(vectors: int, steps: int, results: int, transposed: bool, dtype: str = "float32") -> PrimFunc:
    shapes = [(vectors, steps), (results, steps) if transposed else (steps, results)]
    inputs = [placeholder(shape, dtype, name) for shape, name in zip(shapes, ("x", "w"), strict=True)]
    outputs = apply_operator("matmul", inputs, transpose_b=transposed)
    return create_prim_func([*inputs, *outputs], "product").replace(attributes={CONSTANTS: (1,)})


@pytest.mark.parametrize("target", SMALL, ids=lambda target: target.kind)
@pytest.mark.parametrize(
    ("vectors", "steps", "results", "dtype"),
    [(1, 650, 12, "float32"), (2, 130, 6, "float32"), (3, 64, 5, "float16"), (1, 77, 3, "float32")],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_results(target: Target, vectors: int, steps: int, results: int, dtype: str, transposed: bool) -> None:
    func = schedule_gpu(_program(vectors, steps, results, transposed, dtype), target)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(dtype) for shape in ((vectors, steps), (steps, results)))
    got = np.zeros((vectors, results), dtype)
    # Rows of weights are what a warp walks, however the model has them.
    assert bool(packing_of(func)) != transposed
    interpret(lower(func, target), x.reshape(-1), np.ascontiguousarray(w.T).reshape(-1), got.reshape(-1))
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=(2e-3 if dtype == "float16" else 1e-6) * abs(wanted).max())


@pytest.mark.parametrize("target", SMALL, ids=lambda target: target.kind)
@pytest.mark.parametrize(("lanes", "results", "warps"), [(32, 4, 2), (64, 1, 1), (64, 2, 1), (32, 2, 1)])
def test_answers(target: Target, lanes: int, results: int, warps: int) -> None:
    choices = Choices({"lanes": lanes, "results": results, "warps": warps})
    func = schedule_gpu(_program(2, 90, 8, True), target, choices)
    assert set(choices.asked) == {"lanes", "results", "warps"}
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype("float32") for shape in ((2, 90), (8, 90)))
    got = np.zeros((2, 8), "float32")
    interpret(lower(func, target), x.reshape(-1), w.reshape(-1), got.reshape(-1))
    np.testing.assert_allclose(got, x @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("results", [1, 2, 4])
def test_all_weights_are_read_before_a_kernel_waits(results: int) -> None:
    answers = Choices({"lanes": 32, "results": results, "warps": 2})
    text = cuda_text([schedule_gpu(_program(1, 650, 1000, False), CUDA.replace(cores=132), answers)])
    before, behind = text.split("griddepcontrol.wait", 1)
    assert "(const float2*)(w_" in before and "w_[" not in behind and "(w_" not in behind
    # The sum of a warp needs no barrier, nor does its first thread, which writes the results.
    assert "__syncthreads" not in text and "__shared__" not in text and "__launch_bounds__(64)" in text
