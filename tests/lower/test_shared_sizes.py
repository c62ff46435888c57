"""Layers that a model has in many sizes: when they are one kernel, and what its calls pass."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import IntImm
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.lower.shared_sizes import form_of, in_any_size

SIZES = (64, 32, 16, 9)


def var(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, tensor_type(shape, dtype))


def typed(params: list[Var], body: GraphExpr) -> Function:
    result = infer_types(function(params, body))
    assert isinstance(result, Function)
    return result


def pool(height: int, width: int, channels: int = 8) -> Function:
    x = var("x", 1, height, width, channels)
    return typed([x], pooled(x))


def pooled(image: GraphExpr) -> GraphExpr:
    return op("nn.max_pool2d", image, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), layout="NHWC")


def doubled(size: int) -> Function:
    """Rows of an image, each twice."""
    x, rows = var("x", 1, size, size, 8), var("rows", 2 * size, dtype="int64")
    return typed([x, rows], op("take", x, rows, axis=1))


def shape_of(item: GraphExpr) -> tuple[object, ...]:
    assert isinstance(item.type, TensorType) and item.type.shape is not None
    return item.type.shape


def test_sizes_that_differ_are_symbols() -> None:
    functions = [pool(size, 2 * size) for size in SIZES]
    assert len({form_of(item) for item in functions}) == 1
    found = in_any_size(functions)
    assert found is not None
    height, width = shape_of(found[0][0].params[0])[1:3]
    assert isinstance(height, Symbol) and isinstance(width, Symbol) and height is not width
    assert shape_of(found[0][0].params[0]) == (IntImm(1), height, width, IntImm(8))
    for (general, sizes), size in zip(found, SIZES, strict=True):
        assert general is found[0][0] and sizes == {height: IntImm(size), width: IntImm(2 * size)}


def test_sizes_that_are_the_same_each_time_are_one_symbol() -> None:
    found = in_any_size([doubled(size) for size in SIZES])
    assert found is not None
    general, sizes = found[0]
    height, width = shape_of(general.params[0])[1:3]
    (rows,) = shape_of(general.params[1])
    assert height is width and shape_of(general.body) == (IntImm(1), rows, width, IntImm(8))
    assert sizes == {height: IntImm(64), rows: IntImm(128)}


def test_what_is_of_another_form() -> None:
    assert form_of(pool(8, 8)) != form_of(pool(8, 8, channels=16)), "vectors of another length"
    assert form_of(pool(8, 8)) != form_of(pool(8, 1)), "a size of one is repeated"
    x, w = var("x", 1, 8, 8, 8), var("w", 3, 3, 8, 8)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    convolution = op("nn.conv2d", x, w, strides=(1, 1), padding=(1, 1, 1, 1), **layouts)
    assert form_of(typed([x, w], convolution)) is None, "weights: what they are tiled for is the size"


def test_sizes_that_must_agree_by_what_they_are() -> None:
    def cut(size: int) -> Function:
        x, y = var("x", 2 * size, 4), var("y", size, 4)
        return typed([x, y], op("add", op("max", op("reshape", x, shape=(-1, 2, 4)), axes=(1,)), y))

    def columns(size: int) -> Function:
        x, y = var("x", size, 4), var("y", size, 4)
        return typed(
            [x, y], op("concatenate", op("transpose", x, axes=(1, 0)), op("transpose", y, axes=(1, 0)), axis=0)
        )

    assert in_any_size([cut(size) for size in SIZES]) is None
    assert in_any_size([columns(size) for size in SIZES]) is not None
    n = Var("x", tensor_type((Symbol("n"), 4), "float32"))
    assert in_any_size([typed([n], op("nn.relu", n))]) is None, "general_sizes has open ones"


def pyramid() -> IRModule:
    """Poolings, channel sums and doubled rows of images of several sizes."""
    images = [var(f"x{size}", 1, size, size, 8) for size in SIZES]
    results: list[GraphExpr] = []
    for image, size in zip(images, SIZES, strict=True):
        rows = constant(np.repeat(np.arange(size), 2).astype(np.int64))
        results += [pooled(image), op("sum", image, axes=(3,)), op("take", image, rows, axis=1)]
    result = infer_types(function(images, Tuple(tuple(results))))
    assert isinstance(result, Function)
    return IRModule({"main": result})


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_of_many_sizes_are_few_kernels(threads: int) -> None:
    module = pyramid()
    compilation = tw.Compilation(module, threads=threads)
    assert len(compilation.kernels) == 3
    main = module["main"]
    assert isinstance(main, Function)
    inputs = [random(number, 1, size, size, 8) for number, size in enumerate(SIZES)]
    expected = evaluate(main, *inputs)
    assert isinstance(expected, tuple)
    for ours, theirs in zip(compilation.executable()(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
