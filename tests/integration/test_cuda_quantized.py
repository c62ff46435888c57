"""Quantised networks on an NVIDIA GPU: the integers of the interpreter, bit for bit; 8-bit floats near float16."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench.zoo.quantized import resnet_int8
from tests.requirements import need
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import INT8, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type


@pytest.mark.parametrize(("seed", "size", "blocks"), [(1, 32, (1, 1, 1)), (2, 64, (2, 1))])
def test_residual_networks(seed: int, size: int, blocks: tuple[int, ...]) -> None:
    need("cuda")
    model = resnet_int8(f"resnet{seed}", seed, size=size, blocks=blocks)
    x = np.random.default_rng(seed).normal(size=(1, 3, size, size)).astype(np.float32) * 2
    compilation = tw.Compilation(model.SerializeToString(), target="cuda")
    np.testing.assert_array_equal(np.asarray(compilation.executable()(x)), evaluate(compilation.optimized, x))


def through(value: GraphExpr, scale: float, zero: int) -> GraphExpr:
    parameters = constant(np.float32(scale)), constant(np.uint8(zero))
    return call("qnn.dequantize", call("qnn.quantize", value, *parameters, dtype=UINT8), *parameters)


@pytest.mark.parametrize(("groups", "taps", "zero"), [(1, 3, 131), (1, 1, 7), (32, 3, 0), (32, 5, 120)])
def test_convolutions(groups: int, taps: int, zero: int) -> None:
    """Borders of any zero point, and convolutions by channels."""
    need("cuda")
    random = np.random.default_rng(taps)
    x = Var("x", tensor_type((2, 32, 17, 15), "float32"))
    integers = constant(
        random.integers(-127, 128, (48 if groups == 1 else 32, 32 // groups, taps, taps)).astype(np.int8)
    )
    scales = constant((random.random((len(integers.data), 1, 1, 1)) * 0.01).astype(np.float32))
    weights = call("qnn.dequantize", integers, scales, constant(np.zeros((), INT8.numpy())))
    product = call("nn.conv2d", through(x, 0.05, zero), weights, padding=(taps // 2,) * 4, groups=groups)
    module = infer_types(IRModule({"main": Function("main", (x,), through(call("nn.relu", product), 0.03, 0))}))
    given = random.normal(size=(2, 32, 17, 15)).astype(np.float32) * 3
    compilation = tw.Compilation(module, target="cuda")
    np.testing.assert_array_equal(np.asarray(compilation.executable()(given)), evaluate(compilation.optimized, given))


def test_products_of_8_bit_floats() -> None:
    need("cuda")
    random = np.random.default_rng(0)
    x = Var("x", tensor_type((128, 256), "float32"))
    first, second = (constant(random.normal(size=shape).astype(np.float32) / 16) for shape in ((256, 512), (512, 128)))
    body = call("matmul", call("nn.relu", call("matmul", x, first)), second)
    module = infer_types(IRModule({"main": Function("main", (x,), body)}))
    given = random.normal(size=(128, 256)).astype(np.float32)
    half, small = (np.asarray(tw.compile(module, target="cuda", precision=p)(given)) for p in ("float16", "float8"))
    error = np.abs(small - half).max() / np.abs(half).max()
    # Rounded to 4 digits each, and not the same.
    assert 1e-4 < error < 0.08
