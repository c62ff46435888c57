"""Convolutions that stay in the model's order: which ones, and that they compute the same."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, inputs_for, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

CPU = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
GPU = Target("cuda -arch=sm_90")


def names(params: list[Var], body: GraphExpr, target: Target = CPU) -> list[str]:
    """Operators of the optimized program, in order; the meaning is checked on the way."""
    module = infer_types(IRModule([function(params, body)]))
    arguments = inputs_for(module["main"])
    result = optimize(module, GraphOptions(layout="NHWC", fuse=False, target=target))
    np.testing.assert_allclose(evaluate(result, *arguments), evaluate(module, *arguments), rtol=1e-4, atol=1e-5)
    order = post_order(result["main"])
    return [item.callee.name for item in order if isinstance(item, Call) and isinstance(item.callee, Operator)]


def pointwise(x: GraphExpr, outputs: int, inputs: int, **attributes: object) -> GraphExpr:
    return op("nn.conv2d", x, constant(random(0, outputs, inputs, 1, 1)), **attributes)


def depthwise(x: GraphExpr, channels: int, *kernel: int, step: int = 1, **attributes: object) -> GraphExpr:
    weight = constant(random(1, channels, 1, *kernel))
    pads = tuple(size // 2 * step for size in kernel) * 2
    return op("nn.conv2d", x, weight, padding=pads, groups=channels, dilation=(step, step), **attributes)


X = var("x", 2, 6, 8, 16)


def test_a_pointwise_convolution_alone_is_a_product_of_pixels_as_they_lie() -> None:
    body = op("nn.relu", op("add", pointwise(X, 5, 6), constant(random(2, 5, 1, 1))))
    found = names([X], body)
    assert "matmul" in found and not {"transpose", "nn.conv2d"} & set(found)


@pytest.mark.parametrize("kernel", [(3, 3), (1, 3), (1, 9)])
def test_a_depthwise_convolution_alone_keeps_its_planes(kernel: tuple[int, int]) -> None:
    found = names([X], op("nn.relu", depthwise(X, 6, *kernel)))
    assert "nn.conv2d" in found and "transpose" not in found


def test_convolutions_that_are_joined_are_turned_once_for_all() -> None:
    for body in (
        pointwise(op("nn.relu", depthwise(X, 6, 3, 3)), 5, 6),
        op("add", pointwise(X, 6, 6), op("nn.relu", depthwise(X, 6, 3, 3))),
        op(
            "reshape", op("nn.relu", op("reshape", pointwise(pointwise(X, 6, 6), 6, 6), shape=(2, 6, 128))), shape=(-1,)
        ),
    ):
        assert "matmul" not in names([X], body)


def test_a_model_that_turns_values_itself_pays_nothing() -> None:
    y = var("y", 2, 8, 16, 6)
    body = op("transpose", depthwise(op("transpose", y, axes=(0, 3, 1, 2)), 6, 3, 3), axes=(0, 2, 3, 1))
    assert "transpose" not in names([y], body)


@pytest.mark.parametrize(
    "body",
    [
        pointwise(X, 5, 6, strides=(2, 2)),
        pointwise(X, 5, 6, padding=(1, 1, 1, 1)),
        pointwise(X, 6, 3, groups=2),
        depthwise(X, 6, 5, 5),
        depthwise(X, 6, 3, 3, strides=(1, 2)),
    ],
    ids=["strided", "padded", "grouped", "many taps", "strided planes"],
)
def test_others_are_turned(body: GraphExpr) -> None:
    assert "transpose" in names([X], body)


def test_few_pixels_and_other_targets_are_turned() -> None:
    small = var("x", 1, 6, 3, 3)
    assert "matmul" not in names([small], pointwise(small, 5, 6))
    assert "transpose" in names([small], depthwise(small, 6, 3, 3))
    assert "transpose" in names([X], depthwise(X, 6, 3, 3), GPU)


@pytest.mark.grid
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 17, 32, 50, 64])
def test_compiled(width: int, threads: int) -> None:
    rng = np.random.default_rng(width)
    x, r = var("x", 2, 6, 7, width), var("r", 2, 6, 7, width)
    kernels = (((3, 3), 1), ((3, 3), 2), ((1, 3), 1), ((1, 9), 1), ((3, 1), 1))
    bodies = [op("add", op("nn.relu", depthwise(x, 6, *kernel, step=step)), r) for kernel, step in kernels]
    bodies.append(op("add", op("nn.relu", pointwise(x, 6, 6)), r))
    for body in bodies:
        module = IRModule([function([x, r], body)])
        arrays = [rng.standard_normal((2, 6, 7, width)).astype(np.float32) for _ in range(2)]
        found = tw.compile(module, threads=threads)(*arrays)
        np.testing.assert_allclose(found, evaluate(infer_types(module), *arrays), rtol=1e-4, atol=1e-5)
