"""Contractions whose weights are computed: copies in panels, and Winograd's algorithm, as machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.topi.differential import cpu_program, random_array, run_reference
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

RANDOM = np.random.default_rng(8)
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=2)
CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any], bool]] = [
    ("matmul", [(256, 128), (128, 256)], {}, True),
    ("matmul", [(2, 128), (128, 256)], {}, False),
    ("matmul", [(256, 128), (256, 128)], {"transpose_b": True}, True),
    ("matmul", [(200, 96), (200, 130)], {"transpose_a": True}, True),
    ("matmul", [(3, 96, 130), (3, 70, 96)], {"transpose_a": True, "transpose_b": True}, True),
    ("nn.conv2d", [(2, 12, 12, 64), (3, 3, 64, 128)], {**CHANNELS_LAST, "strides": (2, 2)}, True),
    ("nn.conv2d", [(2, 12, 12, 8), (1, 1, 8, 16)], CHANNELS_LAST, False),
]


@pytest.mark.parametrize(("name", "shapes", "attributes", "copied"), CASES)
def test_many_rows_read_copies_in_panels(name, shapes, attributes, copied):
    arrays = [random_array(RANDOM, shape, "float32", -1, 1) for shape in shapes]
    text = str(schedule_cpu(cpu_program(name, arrays, **attributes), NEON))
    assert any(copy in text for copy in ("in1_global", "in1_pad", "matmul_turned_")) == copied


@pytest.mark.parametrize(("name", "shapes", "attributes", "copied"), CASES)
def test_results(name, shapes, attributes, copied):
    arrays = [random_array(RANDOM, shape, "float32", -1, 1) for shape in shapes]
    params = tuple(Var(f"x{n}", tensor_type(array.shape, "float32")) for n, array in enumerate(arrays))
    executable = tw.compile(IRModule([Function("main", params, call(name, *params, **attributes))]), threads=2)
    (wanted,) = run_reference(name, arrays, **attributes)
    np.testing.assert_allclose(executable(*arrays), wanted, rtol=1e-4, atol=1e-4)


def test_winograd_with_computed_weights():
    arrays = [
        random_array(RANDOM, (2, 32, 32, 24), "float32", -1, 1),
        random_array(RANDOM, (3, 3, 24, 32), "float32", -1, 1),
    ]
    params = tuple(Var(f"x{n}", tensor_type(array.shape, "float32")) for n, array in enumerate(arrays))
    attributes = {**CHANNELS_LAST, "padding": (1, 1, 1, 1)}
    compilation = tw.Compilation(IRModule([Function("main", params, call("nn.conv2d", *params, **attributes))]))
    assert any("winograd" in kernel.symbol for kernel in compilation.kernels)
    (wanted,) = run_reference("nn.conv2d", arrays, **attributes)
    np.testing.assert_allclose(compilation.executable()(*arrays), wanted, rtol=1e-3, atol=1e-3)
