"""Infinities and NaN in images: with `infinities=True` they reach what is computed from them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids").replace(cores=1)
GPU = Target("cuda -arch=sm_90a")
SIDE = 14
# (operator, channels, weights, attributes)
CASES = {
    "winograd": ("nn.conv2d", 64, (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    "groups": ("nn.conv2d", 32, (32, 4, 3, 3), {"padding": (1, 1, 1, 1), "groups": 8}),
    "phases": ("nn.conv2d_transpose", 16, (16, 3, 4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "phases_by_winograd": ("nn.conv2d_transpose", 96, (96, 48, 4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "uneven_phases": ("nn.conv2d_transpose", 16, (16, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "depthwise": ("nn.conv2d", 32, (32, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 32}),
    "strided": ("nn.conv2d", 3, (24, 3, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    "pointwise": ("nn.conv2d", 20, (24, 20, 1, 1), {}),
}
SPREADING = ("winograd", "groups", "phases")


def model(name: str) -> IRModule:
    operator, channels, shape, attributes = CASES[name]
    x = var("x", 1, channels, SIDE, SIDE)
    return infer_types(IRModule([function([x], op(operator, x, constant(random(0, *shape)), **attributes))]))


def image(name: str) -> np.ndarray:
    """An infinity in one channel, a NaN in another, elsewhere."""
    x = random(1, 1, CASES[name][1], SIDE, SIDE)
    x[0, 1, 2, 3], x[0, 2, 9, 8] = np.inf, np.nan
    return x


def results(module: IRModule, x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(evaluate(module, x))


@pytest.mark.parametrize("target", [AVX512, GPU], ids=["avx512", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_no_pass_spreads_them(name: str, target: Target) -> None:
    before, x = model(name), image(name)
    expected = results(before, x)
    assert np.isfinite(expected).any() and not np.isfinite(expected).all()
    after = optimize(before, GraphOptions("NHWC", target=target, infinities=True))
    np.testing.assert_allclose(results(after, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SPREADING)
def test_what_it_is_for(name: str) -> None:
    """Without the option they do spread, which is what the option is for."""
    before, x = model(name), image(name)
    after = results(optimize(before, GraphOptions("NHWC", target=AVX512)), x)
    assert np.isnan(after).sum() > np.isnan(results(before, x)).sum()


@pytest.mark.parametrize("name", CASES)
def test_no_kernel_spreads_them(name: str) -> None:
    compiled = tw.compile(model(name), threads=1, infinities=True)
    x = image(name)
    np.testing.assert_allclose(compiled(x), results(model(name), x), rtol=1e-4, atol=1e-4)
