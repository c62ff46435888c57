"""Pixels of open images as one row: which layers they are joined in, what calls pass, and that results are right."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import ONE, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.lower.joined_pixels import join_pixels

N, H, W = Symbol("n"), Symbol("h"), Symbol("w")


def var(name: str, *shape: PrimExpr | int) -> Var:
    return Var(name, tensor_type(shape, "float32"))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def shapes(func: Function) -> list[tuple[PrimExpr | None, ...] | None]:
    return [item.type.shape for item in (*func.params, func.body) if isinstance(item.type, TensorType)]


def conv(data: GraphExpr, weight: GraphExpr, **attributes: object) -> GraphExpr:
    return op("nn.conv2d", data, weight, data_layout="NHWC", kernel_layout="HWIO", **attributes)


def test_pixels_become_one_row() -> None:
    x, k, b, r = var("x", N, H, W, 8), var("k", 1, 1, 8, 4), var("b", 4), var("r", N, H, W, 4)
    before = typed([x, k, b, r], op("nn.relu", op("add", op("add", conv(x, k), b), r)))
    after, sizes = join_pixels(before)
    (pixels,) = sizes
    assert sizes[pixels] is N * (H * W)
    assert [shape[:-1] for shape in shapes(after) if shape and pixels in shape] == [(ONE, ONE, pixels)] * 3
    assert shapes(after)[1:3] == shapes(before)[1:3], "weights and bias stay"


def test_images_stay_apart_where_something_is_of_images() -> None:
    x, k, s = var("x", N, H, W, 8), var("k", 1, 1, 8, 4), var("s", N, 1, 1, 4)
    after, sizes = join_pixels(typed([x, k, s], op("multiply", conv(x, k), s)))
    (pixels,) = sizes
    assert sizes[pixels] is H * W and shapes(after)[0] == (N, ONE, pixels, shapes(after)[0][-1])  # type: ignore[index]
    assert shapes(after)[2] == (N, ONE, ONE, shapes(after)[2][-1])  # type: ignore[index]


X, K = var("x", N, H, W, 8), var("k", 1, 1, 8, 8)


@pytest.mark.parametrize(
    ("params", "body"),
    [
        ([X, K], conv(X, K, strides=(2, 2))),
        ([X, K], conv(X, K, padding=(0, 1, 0, 1))),
        ([X, wide := var("k", 3, 3, 8, 8)], conv(X, wide)),
        ([X, own := var("k", 1, 1, 1, 8)], conv(X, own, groups=8)),
        ([X, K], op("transpose", conv(X, K), axes=(0, 3, 1, 2))),
        ([X, K, line := var("r", 1, 1, W, 8)], op("add", conv(X, K), line)),
        ([fixed := var("x", N, 7, 7, 8), K], conv(fixed, K)),
        ([X], op("nn.relu", X)),
    ],
    ids=["strides", "padding", "taps", "groups", "pixels moved", "a line for all", "known sizes", "no convolution"],
)
def test_others_stay(params: list[Var], body: GraphExpr) -> None:
    before = typed(params, body)
    assert join_pixels(before) == (before, {})


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5), (1, 7, 7), (3, 16, 1), (1, 0, 4)])
def test_layers_are_right(shape: tuple[int, int, int]) -> None:
    x, r, s = var("x", N, H, W, 16), var("r", N, H, W, 24), var("s", N, 1, 1, 24)
    value = op("nn.relu", op("add", op("add", conv(x, constant(random(1, 1, 1, 16, 24))), constant(random(2, 24))), r))
    scaled = op("multiply", conv(value, constant(random(3, 1, 1, 24, 24))), s)
    module = IRModule([function([x, r, s], scaled)])
    compilation = tw.Compilation(module, threads=1)
    assert any("pixels" in str(kernel.func) for kernel in compilation.kernels)
    feeds = [random(4, *shape, 16), random(5, *shape, 24), random(6, shape[0], 1, 1, 24)]
    expected = evaluate(infer_types(module), *feeds)
    (result,) = [compilation.executable()(*feeds)]
    assert result.shape == np.shape(expected)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
