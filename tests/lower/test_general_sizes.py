"""Computed sizes as symbols of kernels: when they become some, what shares a kernel then, and what calls pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.build import floordiv
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.lower.general_sizes import general_sizes

N, H = Symbol("n"), Symbol("h")
HALF = floordiv(H + 1, 2)


def var(name: str, *shape: PrimExpr | int) -> Var:
    return Var(name, tensor_type(shape, "float32"))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def shape_of(item: GraphExpr) -> tuple[PrimExpr | None, ...]:
    assert isinstance(item.type, TensorType) and item.type.shape is not None
    return item.type.shape


def test_a_computed_size_becomes_a_symbol() -> None:
    x, y = var("x", N, HALF, 8), var("y", HALF, 8)
    before = typed([x, y], op("nn.relu", op("add", x, y)))
    after, sizes = general_sizes(before)
    (size,) = sizes
    assert sizes[size] is HALF
    assert shape_of(after.params[0])[:2] == (N, size) and shape_of(after.params[1])[0] is size
    assert shape_of(after.body)[:2] == (N, size)
    assert before.params[0].type is x.type, "the model keeps its own"


def test_results_are_computed_of_the_symbol() -> None:
    """Half of (h + 1) // 2, rounded up, is (h + 3) // 4 to the model."""
    x = var("x", 1, HALF, HALF, 4)
    before = typed([x], op("nn.max_pool2d", x, kernel=(1, 1), strides=(2, 2), layout="NHWC"))
    after, sizes = general_sizes(before)
    (size,) = sizes
    (height,) = {*shape_of(after.body)[1:3]}
    assert height is floordiv(size + 1, 2) and shape_of(before.body)[1] is floordiv(H + 3, 4)


@pytest.mark.parametrize(
    "params",
    [
        [var("x", HALF, 8), var("y", H, 8)],
        [var("x", N, 8), var("y", H, 8)],
        [var("x", 4, 8)],
    ],
    ids=["its symbol is used elsewhere", "plain symbols", "numbers"],
)
def test_others_stay(params: list[Var]) -> None:
    before = typed(params, Tuple(tuple(op("nn.relu", param) for param in params)))
    assert general_sizes(before) == (before, {})


def test_sizes_that_only_agree_as_what_they_come_from_stay() -> None:
    x, y = var("x", 1, HALF, HALF, 4), var("y", 1, floordiv(H + 3, 4), floordiv(H + 3, 4), 4)
    pooled = op("nn.max_pool2d", x, kernel=(1, 1), strides=(2, 2), layout="NHWC")
    before = typed([x, y], op("add", pooled, y))
    after, sizes = general_sizes(before)
    assert after is before and sizes == {}


def pyramid() -> IRModule:
    """The same layer at three sizes of an image."""
    x = var("x", 1, H, H, 8)
    w = constant(random(0, 1, 1, 8, 8))
    results, value = [], x
    for _ in range(3):
        value = op("nn.max_pool2d", value, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 1, 1), layout="NHWC")
        results.append(op("nn.relu", op("nn.conv2d", value, w, data_layout="NHWC", kernel_layout="HWIO")))
    return IRModule([function([x], Tuple(tuple(results)))])


def test_layers_share_a_kernel(tmp_path: Path) -> None:
    compilation = tw.Compilation(pyramid(), threads=1)
    convolutions = [kernel for kernel in compilation.kernels if "conv2d" in kernel.symbol]
    assert len(convolutions) == 1
    executable = compilation.executable()
    executable.export_library(tmp_path / "pyramid.so")
    for exe in (executable, tw.load(tmp_path / "pyramid.so")):
        for size in (1, 2, 7, 32):
            x = random(size, 1, size, size, 8)
            expected = evaluate(infer_types(pyramid()), x)
            assert isinstance(expected, tuple)
            for result, reference in zip(exe(x), expected, strict=True):
                assert result.shape == np.shape(reference)
                np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)
    rows = executable.profile(random(0, 1, 64, 64, 8), repeat=1).rows
    work = [row.flops for row in rows if "conv2d" in row.kernel.symbol]
    assert work[0] == 4 * work[1] == 16 * work[2], "each call has work of its own"
