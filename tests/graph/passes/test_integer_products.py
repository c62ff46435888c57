"""Quantised products: what becomes a product of bytes keeps its meaning, whatever the zero points and signs."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import Operator, call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

VNNI = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
AMX = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
PLAIN = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
BARE = Target("llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64")


def wide(value: GraphExpr, zero: GraphExpr | None = None) -> GraphExpr:
    result: GraphExpr = call("cast", value, dtype=INT32)
    return result if zero is None else call("subtract", result, zero)


def weights(shape: tuple[int, ...], low: int = -128, high: int = 128) -> GraphExpr:
    return constant(np.random.default_rng(1).integers(low, high, shape).astype(np.int32))


def check(params: list[Var], body: GraphExpr, target: Target, wanted: str | None) -> None:
    module = IRModule([Function("main", tuple(params), body)])
    random = np.random.default_rng(0)
    arrays = []
    for param in params:
        shape, dtype = param.tensor_type.static_shape, param.tensor_type.dtype.numpy()
        assert shape is not None
        high = 200 if dtype == np.uint8 else 100
        arrays.append(np.asarray(random.integers(0 if dtype == np.uint8 else -100, high, shape)).astype(dtype))
    made = optimize(module, GraphOptions(layout="NHWC", target=target, fuse=False))
    np.testing.assert_array_equal(evaluate(made, *arrays), evaluate(module, *arrays))
    function = made["main"]
    assert isinstance(function, Function)
    names = {
        item.callee.name
        for item in post_order(function)
        if isinstance(item, Call) and isinstance(item.callee, Operator)
    }
    assert {name for name in names if name.startswith("qnn.")} == (set() if wanted is None else {wanted})


@pytest.mark.parametrize("target", [VNNI, NEON], ids=["x86", "arm"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [0, 17])
def test_products_with_known_zero_points(target: Target, dtype: str, zero: int) -> None:
    x = Var("x", tensor_type((3, 10), dtype))
    check([x], call("matmul", wide(x, constant(np.int32(zero))), weights((10, 20))), target, "qnn.matmul")


def test_a_zero_point_that_is_computed() -> None:
    x, zero = Var("x", tensor_type((3, 8), "uint8")), Var("zero", tensor_type((), "uint8"))
    check([x, zero], call("matmul", wide(x, wide(zero)), weights((8, 16))), VNNI, "qnn.matmul")


def test_weights_of_unsigned_bytes_meet_the_sums_of_rows() -> None:
    x = Var("x", tensor_type((3, 8), "uint8"))
    check([x], call("matmul", wide(x, constant(np.int32(9))), weights((8, 16), -100, 156)), VNNI, "qnn.matmul")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_fill_the_border_with_the_zero_point(dtype: str) -> None:
    x = Var("x", tensor_type((1, 5, 5, 5), dtype))
    body = call("nn.conv2d", wide(x, constant(np.int32(7))), weights((6, 5, 3, 3)), padding=(1, 1, 1, 1))
    check([x], body, VNNI, "qnn.conv2d")


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 1, 2)])
def test_weights_of_unsigned_bytes_meet_the_sums_of_windows(
    taps: int, stride: int, padding: tuple[int, int, int, int]
) -> None:
    x = Var("x", tensor_type((2, 3, 7, 8), "uint8"))
    values = weights((6, 3, taps, taps), -100, 156)
    body = call("nn.conv2d", wide(x, constant(np.int32(7))), values, padding=padding, strides=(stride, stride))
    check([x], body, VNNI, "qnn.conv2d")
    check([x], body, NEON, "qnn.conv2d")


@pytest.mark.parametrize(("low", "high"), [(-128, 128), (-100, 156)])
def test_convolutions_of_images_of_open_sizes(low: int, high: int) -> None:
    """Windows that may not fit leave sizes below zero in types, which slices do not have."""
    height, width = Symbol("height"), Symbol("width")
    x = Var("x", tensor_type((1, 3, height, width), "uint8"))
    values = weights((5, 3, 3, 3), low, high)
    body = call("nn.conv2d", wide(x), values, padding=(1, 1, 1, 1), strides=(2, 2), dilation=(2, 2))
    module = IRModule([Function("main", (x,), body)])
    made = optimize(module, GraphOptions(layout="NHWC", target=VNNI, fuse=False))
    for size in ((9, 8), (5, 7)):
        array = np.random.default_rng(0).integers(0, 200, (1, 3, *size)).astype(np.uint8)
        np.testing.assert_array_equal(evaluate(made, array), evaluate(module, array))


def test_many_columns_are_padded_to_tiles_of_several_vectors() -> None:
    """17 vectors of columns have no divisor that a tile could take."""
    x = Var("x", tensor_type((3, 8), "int8"))
    check([x], call("matmul", wide(x), weights((8, 4 * 17 - 2))), NEON, "qnn.matmul")
    module = IRModule([Function("main", (x,), call("matmul", wide(x), weights((8, 4 * 17 - 2))))])
    function = optimize(module, GraphOptions(target=NEON, fuse=False))["main"]
    (product,) = [item for item in post_order(function) if is_call_to(item, "qnn.matmul")]
    assert product.tensor_type.static_shape == (3, 4 * 20)


def test_what_does_not_fit_stays_as_it_is() -> None:
    x = Var("x", tensor_type((3, 8), "uint8"))
    check([x], call("matmul", wide(x), weights((8, 16), -300, 300)), VNNI, None)
    check([x], call("matmul", wide(x), weights((8, 16), -40000, 40000)), PLAIN, None)
    # No zero point of a byte: 16 bits might not hold the difference, and no byte of a border stands for it.
    for zero in (constant(np.int32(300)), Var("zero", tensor_type((), "int32"))):
        params = [x, *([zero] if isinstance(zero, Var) else [])]
        for target in (VNNI, PLAIN):
            check(params, call("matmul", wide(x, zero), weights((8, 16))), target, None)


@pytest.mark.parametrize("target", [PLAIN, BARE], ids=["pairs", "plain"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_integers_of_16_bits_where_bytes_are_not_multiplied(target: Target, dtype: str) -> None:
    """Zero points are taken off before, so that nothing is left to correct; weights may have any sign."""
    x, zero = Var("x", tensor_type((3, 9), dtype)), Var("zero", tensor_type((), dtype))
    body = call("matmul", wide(x, wide(zero)), weights((9, 20), -255, 256))
    check([x, zero], body, target, "qnn.matmul")
    image = Var("x", tensor_type((1, 3, 5, 5), dtype))
    known = wide(image, constant(np.int32(7)))
    check([image], call("nn.conv2d", known, weights((6, 3, 3, 3), 0, 256), padding=(1, 1, 1, 1)), target, "qnn.conv2d")
    depthwise = call("nn.conv2d", known, weights((3, 1, 3, 3)), padding=(1, 1, 1, 1), groups=3)
    check([image], depthwise, target, "qnn.depthwise_conv2d")
    (product,) = _products(x, zero, body, target)
    # Pairs of the reduction are whole where an instruction multiplies them.
    assert [item.tensor_type.dtype.name for item in product.args] == ["int16", "int16"]
    assert product.args[0].tensor_type.static_shape == (3, 10 if target is PLAIN else 9)


def _products(x: Var, zero: Var, body: GraphExpr, target: Target) -> list[Call]:
    module = optimize(IRModule([Function("main", (x, zero), body)]), GraphOptions(target=target, fuse=False))
    return [item for item in post_order(module["main"]) if isinstance(item, Call) and is_call_to(item, "qnn.matmul")]


def test_dequantised_values_are_multiplied_as_integers_and_scales_are_merged() -> None:
    x = Var("x", tensor_type((4, 8), "uint8"))
    values = call("multiply", call("cast", wide(x, constant(np.int32(3))), dtype=FLOAT32), constant(np.float32(0.25)))
    scale = constant(np.float32([0.5, 2.0] * 8))
    columns = call("multiply", call("cast", weights((8, 16), -7, 8), dtype=FLOAT32), scale)
    rounded = call("round", call("divide", call("matmul", values, columns), constant(np.float32(2.0))))
    check([x], rounded, VNNI, "qnn.matmul")


@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_two_activations_are_exact_in_floats(transpose_b: bool) -> None:
    """All sums of at most 257 products of bytes are floats; those of more stay integers."""
    for depth, dtype in ((257, "float32"), (259, "int32")):
        x, zero = Var("x", tensor_type((2, 3, depth), "uint8")), constant(np.int32(255))
        shape = (2, 4, depth) if transpose_b else (2, depth, 4)
        y = Var("y", tensor_type(shape, "int8"))
        body = call("matmul", wide(x, zero), wide(y, constant(np.int32(-128))), transpose_b=transpose_b)
        check([x, y], body, NEON, None)
        function = optimize(IRModule([Function("main", (x, y), body)]), GraphOptions(target=NEON, fuse=False))["main"]
        (product,) = [item for item in post_order(function) if is_call_to(item, "matmul")]
        assert product.tensor_type.dtype.name == dtype


@pytest.mark.parametrize("side", ["data", "weights"])
def test_constants_repeated_an_open_number_of_times(side: str) -> None:
    """A class token of each image of a batch is a constant of no known size."""
    batch = Symbol("batch")
    token = call("broadcast_to", constant(np.arange(8, dtype=np.uint8).reshape(1, 1, 8)), shape=(batch, 1, 8))
    x = Var("x", tensor_type((batch, 3, 8), "uint8"))
    if side == "data":
        rows = call("concatenate", token, x, axis=1)
        body = call("matmul", wide(rows, constant(np.int32(5))), weights((8, 16)))
    else:
        body = call("matmul", wide(x), wide(token), transpose_b=True)
    module = IRModule([Function("main", (x,), body)])
    made = optimize(module, GraphOptions(layout="NHWC", target=VNNI, fuse=False))
    for size in (1, 2):
        array = np.random.default_rng(0).integers(0, 200, (size, 3, 8)).astype(np.uint8)
        np.testing.assert_array_equal(evaluate(made, array), evaluate(module, array))


@pytest.mark.parametrize("target", [VNNI, NEON], ids=["x86", "arm"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 130), ("int8", -3)])
@pytest.mark.parametrize("each", [1, 2])
def test_depthwise_convolutions(target: Target, dtype: str, zero: int, each: int) -> None:
    x = Var("x", tensor_type((1, 6, 7, 5), dtype))
    body = call(
        "nn.conv2d",
        wide(x, constant(np.int32(zero))),
        weights((6 * each, 1, 3, 3)),
        groups=6,
        padding=(1, 0, 1, 2),
        strides=(2, 1),
    )
    check([x], body, target, "qnn.depthwise_conv2d")


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 130), ("int8", -128)])
@pytest.mark.parametrize(("window", "stride"), [((3, 3), 1), ((3, 3), 2), ((5, 5), 1), ((2, 7), 2)])
def test_depthwise_convolutions_by_dots_of_pixels(dtype: str, zero: int, window: tuple[int, int], stride: int) -> None:
    """Half vectors of channels, where a processor has dot products."""
    x = Var("x", tensor_type((2, 24, 9, 8), dtype))
    body = call(
        "nn.conv2d",
        wide(x, constant(np.int32(zero))),
        weights((24, 1, *window)),
        groups=24,
        padding=(1, 0, 2, 1),
        strides=(stride, stride),
    )
    check([x], body, NEON, "qnn.window_dots")
    check([x], body, VNNI, "qnn.depthwise_conv2d")


def test_a_depthwise_convolution_with_a_zero_point_that_is_computed() -> None:
    x, zero = Var("x", tensor_type((1, 6, 7, 5), "uint8")), Var("zero", tensor_type((), "uint8"))
    check([x, zero], call("nn.conv2d", wide(x, wide(zero)), weights((6, 1, 3, 3)), groups=6), VNNI, None)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("window", "stride", "padding"), [(7, 2, 3), (3, 2, 1), (2, 1, 0), (9, 3, 4)])
def test_images_of_few_channels_by_whole_lines(channels: int, window: int, stride: int, padding: int) -> None:
    x = Var("x", tensor_type((2, channels, 15, 18), "uint8"))
    body = call(
        "nn.conv2d",
        wide(x, constant(np.int32(7))),
        weights((16, channels, window, window)),
        padding=(padding,) * 4,
        strides=(stride, stride),
    )
    check([x], body, AMX, "qnn.line_conv2d")
    check([x], body, NEON, "qnn.line_conv2d")
    check([x], body, VNNI, "qnn.line_conv2d")
    check([x], body, PLAIN, "qnn.conv2d")
