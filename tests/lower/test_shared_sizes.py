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


def convolved(image: GraphExpr, channels: int, outputs: int) -> GraphExpr:
    weights = constant(random(channels, 3, 3, channels, outputs))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return op("nn.relu", op("nn.conv2d", image, weights, strides=(2, 2), padding=(1, 1, 1, 1), **layouts))


def with_weights(size: int, channels: int = 16, outputs: int = 16) -> Function:
    """A layer as the steps of a model have it: its weights are a parameter."""
    x, w = var("x", 1, size, size, channels), var("w", 3, 3, channels, outputs)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return typed([x, w], op("nn.conv2d", x, w, strides=(2, 2), padding=(1, 1, 1, 1), **layouts))


def test_weights_of_layers_that_share_are_of_one_shape() -> None:
    forms = [form_of(with_weights(size), weights=(1,)) for size in SIZES]
    assert None not in forms and len(set(forms)) == 1
    assert form_of(with_weights(8, outputs=32), weights=(1,)) != forms[0]
    assert form_of(with_weights(8, channels=32), weights=(1,)) == forms[0], (
        "channels that are summed are a number of 16"
    )
    assert form_of(with_weights(8, channels=24), weights=(1,)) != forms[0]
    assert form_of(with_weights(8)) is None
    assert form_of(with_weights(8), weights=(0,)) is None, "computed weights may have any number of channels"


def test_layers_whose_templates_are_made_for_known_sizes_have_their_own() -> None:
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    x, w, v = var("x", 1, 8, 8, 16), var("w", 3, 3, 1, 16), var("v", 1, 1, 16, 16)
    depthwise = op("nn.conv2d", x, w, strides=(1, 1), padding=(1, 1, 1, 1), groups=16, **layouts)
    assert form_of(typed([x, w], depthwise), weights=(1,)) is None
    pair = op("nn.conv2d", op("nn.conv2d", x, v, **layouts), v, **layouts)
    assert form_of(typed([x, v], pair), weights=(1,)) is None, "layers that are computed together"
    rows, columns = var("r", 8, 16), var("c", 16, 16)
    assert form_of(typed([rows, columns], op("matmul", rows, columns)), weights=(1,)) is None


def network() -> IRModule:
    """A layer of most products, and another one in sizes that hardly count."""
    large = var("x", 1, 64, 64, 64)
    images = [large, *(var(f"x{size}", 1, size, size, 16) for size in SIZES[1:])]
    results = [convolved(large, 64, 64), *(convolved(image, 16, 16) for image in images[1:])]
    result = infer_types(function(images, Tuple(tuple(results))))
    assert isinstance(result, Function)
    return IRModule({"main": result})


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_with_weights_that_hardly_count_share_a_kernel(threads: int) -> None:
    module = network()
    compilation = tw.Compilation(module, threads=threads)
    assert sorted(bool(kernel.func.symbolic_dims()) for kernel in compilation.kernels) == [False, True]
    assert not compilation.failed_templates
    main = module["main"]
    assert isinstance(main, Function)
    shapes = [(1, 64, 64, 64), *((1, size, size, 16) for size in SIZES[1:])]
    inputs = [random(number, *shape) for number, shape in enumerate(shapes)]
    expected = evaluate(main, *inputs)
    assert isinstance(expected, tuple)
    for ours, theirs in zip(compilation.executable()(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_little_layers_of_any_channels_share_a_kernel(threads: int) -> None:
    """Those that are summed; of equal numbers of them and pixels each is a size of its own."""
    sizes = [(size, channels) for size, channels in zip(SIZES[1:], (32, 16, 48), strict=True)]
    large = var("x", 1, 64, 64, 64)
    images = [var(f"x{size}", 1, size, size, channels) for size, channels in sizes]
    results = [convolved(large, 64, 64), *(convolved(x, n, 16) for x, (_, n) in zip(images, sizes, strict=True))]
    main = infer_types(function([large, *images], Tuple(tuple(results))))
    assert isinstance(main, Function)
    compilation = tw.Compilation(IRModule({"main": main}), threads=threads)
    assert sorted(len(kernel.func.symbolic_dims()) for kernel in compilation.kernels) == [0, 2]
    assert not compilation.failed_templates
    inputs = [random(0, 1, 64, 64, 64), *(random(n, 1, size, size, n) for size, n in sizes)]
    expected = evaluate(main, *inputs)
    assert isinstance(expected, tuple)
    for ours, theirs in zip(compilation.executable()(*inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_an_image_that_is_read_twice_keeps_its_channels() -> None:
    def residual(size: int, channels: int) -> Function:
        x, w = var("x", 1, size, size, channels), var("w", 3, 3, channels, channels)
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return typed([x, w], op("add", op("nn.conv2d", x, w, padding=(1, 1, 1, 1), **layouts), x))

    assert form_of(residual(8, 16), weights=(1,)) == form_of(residual(16, 16), weights=(1,))
    assert form_of(residual(8, 16), weights=(1,)) != form_of(residual(8, 32), weights=(1,))


def test_taps_that_lie_apart_are_for_one_size() -> None:
    x, w = var("x", 1, 16, 16, 16), var("w", 3, 3, 16, 16)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    apart = op("nn.conv2d", x, w, padding=(2, 2, 2, 2), dilation=(2, 2), **layouts)
    assert form_of(typed([x, w], apart), weights=(1,)) is None


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
