"""Products of 8-bit floats with scales of blocks on warp groups: one meaning, text that compiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import require_nvrtc
from tests.topi.test_schedule_tensor_core import HOPPER, WGMMA, text
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.graph.ir.op import get_operator
from tilewright.ir.build import cast
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.template import Scheduled

Shape = tuple[int, int]


def product(rows: int, columns: int, depth: int, scale_a: Shape, scale_b: Shape, out: str = "float32") -> PrimFunc:
    kinds = ("float8_e4m3fn", "float8_e5m2", "float32", "float32")
    shapes = ((rows, depth), (columns, depth), scale_a, scale_b)
    inputs = [te.placeholder(shape, kind, f"in{n}") for n, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))]
    (result,) = apply_operator("qnn.scaled_matmul", inputs)
    if out != "float32":
        total = result
        result = te.compute((rows, columns), lambda i, j: cast(total[i, j], out), "narrow")
    return create_prim_func([*inputs, result], "product")


def scheduled(func: PrimFunc, target: Target = WGMMA) -> Scheduled:
    return schedule_gpu(func, target)


def test_blocks_mean_the_same() -> None:
    scale_a, scale_b = (64, 2), (1, 2)
    func = product(64, 64, 256, scale_a, scale_b)
    result = scheduled(func)
    assert [item.name for item in result.templates] == ["scaled_group_product"]
    random = np.random.default_rng(0)
    a, b = (random.integers(-8, 9, (64, 256)).astype(np.float32) / 8 for _ in range(2))
    scales = [random.uniform(0.5, 2, shape).astype(np.float32) for shape in (scale_a, scale_b)]
    small = [a.astype(ml_dtypes.float8_e4m3fn), b.astype(ml_dtypes.float8_e5m2)]
    operator = get_operator("qnn.scaled_matmul")
    wanted = operator.reference([*(item.astype(np.float32) for item in small), *scales], operator.attributes_class())
    found = np.zeros((64, 64), np.float32)
    interpret(result.func, *(item.view(np.uint8) for item in small), *scales, found)
    np.testing.assert_array_equal(found, wanted)


def test_large_products_compile() -> None:
    """Tiles of 128 columns and two groups where there are enough; copies are all asynchronous, with one barrier."""
    source = text(scheduled(product(2048, 2048, 512, (2048, 4), (16, 4), "float16")).func, WGMMA)
    assert "tw_wgmma_e4m3e5m2_n128(" in source and source.count("__syncthreads();") == 1
    assert source.count("tw_copy_async_4(") >= 2
    require_nvrtc()
    assert b"ELF" in compile_cuda(source, "sm_90a")[:8]


@pytest.mark.parametrize(
    ("func", "target", "reason"),
    [
        (product(64, 64, 256, (64, 2), (1, 2)), HOPPER, "no warp groups"),
        (product(60, 64, 256, (60, 2), (1, 2)), WGMMA, "no whole tiles"),
        (product(64, 64, 200, (64, 2), (1, 2)), WGMMA, "the last block is a part"),
        (product(64, 64, 512, (64, 1), (1, 1)), WGMMA, "no step of warp groups"),
    ],
)
def test_what_other_templates_compute(func: PrimFunc, target: Target, reason: str) -> None:
    result = scheduled(func, target)
    reasons = {item.name: item.reason for choice in result.templates for item in choice.passed_over}
    assert reason in reasons["scaled_group_product"]
