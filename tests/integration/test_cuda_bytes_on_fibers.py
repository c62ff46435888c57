"""Kernels of bytes for CUDA, on fibers of this machine: the integers of the interpreter, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.cuda_on_fibers import use_fibers
from tests.integration.test_cuda_quantized import through
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import INT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

SMALL = "cuda -arch=sm_90a -num-cores=4 -shared-bytes=131072"
"""Few multiprocessors, so that small products have tiles for all of them."""


@pytest.fixture(autouse=True)
def fibers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fibers(monkeypatch)


def pointwise(random: np.random.Generator, data: GraphExpr, inputs: int, outputs: int, stride: int = 1) -> GraphExpr:
    """A 1 x 1 convolution of bytes, weights with a scale for each channel, and a bias."""
    integers = constant(random.integers(-127, 128, (outputs, inputs, 1, 1)).astype(np.int8))
    scales = constant((random.random((outputs, 1, 1, 1)) * 0.01).astype(np.float32))
    weights = call("qnn.dequantize", integers, scales, constant(np.zeros((), INT8.numpy())))
    bias = constant(random.normal(size=(outputs, 1, 1)).astype(np.float32))
    return call("add", call("nn.conv2d", data, weights, strides=(stride, stride)), bias)


def checked(body: GraphExpr, x: Var) -> tw.Compilation:
    """The compilation of a graph of one input, whose results are those of the interpreter."""
    module = infer_types(IRModule({"main": Function("main", (x,), body)}))
    compilation = tw.Compilation(module, target=SMALL)
    shape = x.tensor_type.static_shape
    assert shape is not None
    given = np.random.default_rng(3).normal(size=shape).astype(np.float32) * 2
    np.testing.assert_array_equal(np.asarray(compilation.executable()(given)), evaluate(compilation.optimized, given))
    return compilation


def templates(compilation: tw.Compilation, operator: str) -> list[list[str]]:
    """The templates of kernels with an operator."""
    kernels = [kernel for kernel in compilation.kernels if operator in kernel.symbol]
    return [[choice.name for choice in compilation.templates_of(kernel)] for kernel in kernels]


@pytest.mark.parametrize("inputs", [64, 192])
def test_a_residual_is_added_in_vectors_of_bytes(inputs: int) -> None:
    """One step of a product and more."""
    random = np.random.default_rng(inputs)
    x = Var("x", tensor_type((1, inputs, 32, 32), "float32"))
    data = through(x, 0.03, 126)
    wide = through(call("nn.relu", pointwise(random, data, inputs, 256)), 0.05, 0)
    narrow = through(call("nn.relu", pointwise(random, wide, 256, inputs)), 0.1, 0)
    total = call("nn.relu", call("add", pointwise(random, narrow, inputs, 256), wide))
    compilation = checked(through(total, 0.2, 0), x)
    assert templates(compilation, "conv2d") == [["warp_group_product"]] * 3


def test_two_products_of_a_residual_are_one_kernel() -> None:
    random = np.random.default_rng(5)
    x = Var("x", tensor_type((1, 64, 64, 64), "float32"))
    data = through(x, 0.03, 0)
    inner = through(call("nn.relu", pointwise(random, data, 64, 128, 2)), 0.05, 0)
    branch, main = pointwise(random, data, 64, 256, 2), pointwise(random, inner, 128, 256)
    compilation = checked(through(call("nn.relu", call("add", main, branch)), 0.2, 0), x)
    # The convolution before, and both that are added.
    assert len(templates(compilation, "conv2d")) == 2
    assert templates(compilation, "conv2d")[-1] == ["warp_group_product"]
