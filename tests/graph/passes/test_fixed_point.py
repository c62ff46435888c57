"""Quantised layers in integer arithmetic: what becomes of them, how near it is, and what stays in floats."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.fixed_point import fixed_point
from tilewright.ir.dtype import INT8, UINT8, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type


def _dequantized(x: GraphExpr, scale: float, zero: int, dtype: DataType) -> GraphExpr:
    return call("qnn.dequantize", x, constant(np.float32(scale)), constant(np.array(zero, dtype.numpy()), dtype.name))


def _quantized(x: GraphExpr, scale: float, zero: int, dtype: DataType) -> GraphExpr:
    zeros = constant(np.array(zero, dtype.numpy()), dtype.name)
    return call("qnn.quantize", x, constant(np.float32(scale)), zeros, dtype=dtype)


def _rounded(x: GraphExpr, scale: float, zero: int, dtype: DataType) -> GraphExpr:
    """Numbers that were quantised once."""
    return _dequantized(_quantized(x, scale, zero, dtype), scale, zero, dtype)


class _Net:
    """A layer of a random quantised model: convolution or product, bias, perhaps a residual, an activation."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = (UINT8, INT8)[seed % 2]
        self.is_conv = seed % 3 != 0
        shape = (1, 6, 5, 5) if self.is_conv else (4, 24)
        self.x = Var("x", tensor_type(shape, "float32"))
        self.r = Var("r", tensor_type((1, 8, 5, 5) if self.is_conv else (4, 8), "float32"))

    def zero(self) -> int:
        low, high = (0, 255) if self.dtype is UINT8 else (-128, 127)
        return int(self.rng.integers(low, high + 1))

    def weights(self) -> GraphExpr:
        shape = (8, 6, 3, 3) if self.is_conv else (8, 24)
        integers = constant(self.rng.integers(-127, 128, shape).astype(np.int8))
        scale = self.rng.uniform(1e-4, 1e-2, (8, *[1] * (len(shape) - 1))).astype(np.float32)
        return call("qnn.dequantize", integers, constant(scale), constant(np.zeros(scale.shape, np.int8)))

    def module(self, *, residual: bool, activation: str) -> IRModule:
        data = _rounded(self.x, 0.03, self.zero(), self.dtype)
        if self.is_conv:
            value = call("nn.conv2d", data, self.weights(), padding=(1, 1, 1, 1))
            bias = self.rng.normal(size=(8, 1, 1))
        else:
            value = call("matmul", data, self.weights(), transpose_b=True)
            bias = self.rng.normal(size=8)
        value = call("add", value, constant(bias.astype(np.float32)))
        if residual:
            value = call("add", _rounded(self.r, 0.02, self.zero(), self.dtype), value)
        if activation == "relu":
            value = call("nn.relu", value)
        elif activation == "clip":
            value = call("clip", value, minimum=0.0, maximum=1.5)
        result = _rounded(value, 0.025, self.zero(), self.dtype)
        params = (self.x, self.r) if residual else (self.x,)
        return infer_types(IRModule([Function("main", params, result)]))


@pytest.mark.grid
@pytest.mark.parametrize("activation", ["none", "relu", "clip"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_results_are_at_most_a_step_away(seed: int, residual: bool, activation: str) -> None:
    before = _Net(seed).module(residual=residual, activation=activation)
    after = fixed_point(before)
    main = after["main"]
    assert sum(is_call_to(item, "qnn.fixed_point") for item in post_order(main)) == 1
    # What is quantised is inputs, what is dequantised the result.
    assert sum(is_call_to(item, "qnn.dequantize") for item in post_order(main)) == 1
    rng = np.random.default_rng(seed)
    assert isinstance(main, Function)
    args = [rng.normal(size=param.tensor_type.static_shape).astype(np.float32) for param in main.params]
    expected, found = evaluate(before, *args), evaluate(after, *args)
    assert np.abs(expected - found).max() < 0.0251
    assert (expected != found).mean() < 0.05
    # The processor computes what the interpreter does, in all bits.
    np.testing.assert_array_equal(tw.compile(after)(*args), found)


def test_what_a_layer_becomes() -> None:
    weights = np.arange(-4, 4, dtype=np.int8).reshape(4, 2)
    numbers = [np.array([[number]], np.int32) for number in (2, 1 << 14, 14)]
    assert_becomes(
        fixed_point,
        """
        a = qnn.dequantize(x, constant(0.5, "float32"), constant(130, "uint8"))
        b = qnn.dequantize(const[0], constant(0.25, "float32"), constant(0, "int8"))
        c = add(matmul(a, b, transpose_b=True), const[1])
        return qnn.quantize(nn.relu(c), constant(0.125, "float32"), constant(3, "int8"), dtype=int8)
        """,
        # Unsigned parameters of a model stay as they are: nothing here quantises them.
        """
        a = qnn.dequantize(x, constant(0.5, "float32"), constant(130, "uint8"))
        b = qnn.dequantize(const[0], constant(0.25, "float32"), constant(0, "int8"))
        c = add(matmul(a, b, transpose_b=True), const[1])
        return qnn.quantize(nn.relu(c), constant(0.125, "float32"), constant(3, "int8"), dtype=int8)
        """,
        constants=[weights, np.float32(0.25)],
        x="uint8[3, 2]",
    )
    assert_becomes(
        fixed_point,
        """
        a = qnn.dequantize(x, constant(0.5, "float32"), constant(2, "int8"))
        b = qnn.dequantize(const[0], constant(0.25, "float32"), constant(0, "int8"))
        c = add(matmul(a, b, transpose_b=True), const[1])
        return qnn.quantize(nn.relu(c), constant(0.125, "float32"), constant(3, "int8"), dtype=int8)
        """,
        """
        a = subtract(cast(x, dtype=int32), constant(2, "int32"))
        return qnn.fixed_point(matmul(a, const[2], transpose_b=True), const[3], const[4], const[5], offset=3, low=3)
        """,
        constants=[weights, np.float32(0.25), weights.astype(np.int32), *numbers],
        x="int8[3, 2]",
    )


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_scales_that_no_shift_says_stay_in_floats(scale: float) -> None:
    x = Var("x", tensor_type((2, 4), "int8"))
    weights = constant(np.ones((3, 4), np.int8))
    product = call("matmul", _dequantized(x, 1.0, 0, INT8), _dequantized(weights, scale, 0, INT8), transpose_b=True)
    module = infer_types(IRModule([Function("main", (x,), _quantized(product, 1e-5, 0, INT8))]))
    assert not any(is_call_to(item, "qnn.fixed_point") for item in post_order(fixed_point(module)["main"])) or scale < 1
    args = np.ones((2, 4), np.int8)
    assert np.abs(evaluate(module, args).astype(int) - evaluate(fixed_point(module), args)).max() <= 1


def test_numbers_that_something_else_reads_are_computed_once() -> None:
    x = Var("x", tensor_type((2, 4), "int8"))
    weights = constant(np.ones((3, 4), np.int8))
    product = call("matmul", _dequantized(x, 1.0, 0, INT8), _dequantized(weights, 1.0, 0, INT8), transpose_b=True)
    both = call("add", _dequantized(_quantized(product, 1.0, 0, INT8), 1.0, 0, INT8), product)
    module = infer_types(IRModule([Function("main", (x,), both)]))
    assert not any(is_call_to(item, "qnn.fixed_point") for item in post_order(fixed_point(module)["main"]))


def test_integers_that_are_moved_stay_integers() -> None:
    x = Var("x", tensor_type((1, 2, 4, 4), "float32"))
    pooled = call("nn.max_pool2d", _rounded(x, 0.1, 7, UINT8), kernel=(2, 2), strides=(2, 2))
    module = infer_types(IRModule([Function("main", (x,), _rounded(pooled, 0.1, 7, UINT8))]))
    after = fixed_point(module)
    assert sum(is_call_to(item, "qnn.quantize") for item in post_order(after["main"])) == 1
    args = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(after, args), evaluate(module, args))


def _numbers(name: str, *shape: int, zero: int | None = None) -> tuple[Var, GraphExpr]:
    """A parameter of a module, and its numbers once they were quantised."""
    var = Var(name, tensor_type(shape, "float32"))
    return var, _rounded(var, 0.03, 99 if zero is None else zero, UINT8 if zero is None else INT8)


def _without_weights(kind: str) -> tuple[list[Var], GraphExpr]:
    """A layer that has no constant weights, or those of a transposed convolution."""
    x, data = _numbers("x", 1, 6, 4, 6)
    if kind == "sum":
        y, other = _numbers("y", 1, 6, 4, 6)
        return [x, y], call("nn.relu", call("add", data, other))
    if kind == "scale":
        return [x], call("clip", data, minimum=-1.0, maximum=1.0)
    if kind == "mean":
        return [x], call("mean", data, axes=(2, 3))
    if kind == "average":
        return [x], call("nn.avg_pool2d", data, kernel=(2, 3), strides=(2, 1))
    if kind == "padded average":
        return [x], call(
            "nn.avg_pool2d", data, kernel=(3, 3), padding=(1, 1, 1, 1), strides=(1, 2), count_include_pad=True
        )
    if kind == "transposed":
        rng = np.random.default_rng(3)
        weights = constant(rng.integers(-127, 128, (6, 5, 4, 4)).astype(np.int8))
        scale = constant(rng.uniform(1e-4, 1e-2, (1, 5, 1, 1)).astype(np.float32))
        dequantized = call("qnn.dequantize", weights, scale, constant(np.zeros((1, 5, 1, 1), np.int8)))
        product = call("nn.conv2d_transpose", data, dequantized, strides=(2, 2), padding=(1, 1, 1, 1))
        return [x], call("add", product, constant(rng.normal(size=(5, 1, 1)).astype(np.float32)))
    a, left = _numbers("a", 2, 3, 4, 6, zero=0)
    b, right = _numbers("b", 2, 3, 5, 6, zero=0)
    return [a, b], call("matmul", left, right, transpose_b=True)


LAYERS = ["sum", "scale", "mean", "average", "padded average", "transposed", "product"]


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_without_constant_weights(kind: str) -> None:
    params, body = _without_weights(kind)
    before = infer_types(IRModule([Function("main", tuple(params), _rounded(body, 0.05, 110, UINT8))]))
    after = fixed_point(before)
    assert sum(is_call_to(item, "qnn.fixed_point") for item in post_order(after["main"])) == 1
    assert sum(is_call_to(item, "qnn.dequantize") for item in post_order(after["main"])) == 1
    rng = np.random.default_rng(0)
    args = [rng.normal(size=param.tensor_type.static_shape).astype(np.float32) for param in params]
    expected, found = evaluate(before, *args), evaluate(after, *args)
    assert np.abs(expected - found).max() < 0.0501
    assert (expected != found).mean() < 0.05
    np.testing.assert_array_equal(tw.compile(after)(*args), found)


@pytest.mark.parametrize("kind", ["mean", "average"])
def test_averages_of_numbers_that_are_not_always_as_many_stay(kind: str) -> None:
    """An average that divides by the elements within the data, and one of more bytes than 32 bits add up."""
    x, data = _numbers("x", 1, 1, 2049, 2048) if kind == "mean" else _numbers("x", 1, 6, 4, 6)
    body = call("mean", data, axes=(2, 3))
    if kind == "average":
        body = call("nn.avg_pool2d", data, kernel=(3, 3), padding=(1, 1, 1, 1))
    module = infer_types(IRModule([Function("main", (x,), _rounded(body, 0.05, 3, INT8))]))
    assert not any(is_call_to(item, "qnn.fixed_point") for item in post_order(fixed_point(module)["main"]))


def test_products_of_activations_with_zero_points_stay() -> None:
    (a, left), (b, right) = _numbers("a", 4, 6, zero=3), _numbers("b", 6, 4, zero=0)
    module = infer_types(IRModule([Function("main", (a, b), _rounded(call("matmul", left, right), 0.05, 0, INT8))]))
    assert not any(is_call_to(item, "qnn.fixed_point") for item in post_order(fixed_point(module)["main"]))


def test_what_a_product_for_floats_becomes() -> None:
    weights = np.arange(-4, 4, dtype=np.int8).reshape(4, 2)
    assert_becomes(
        fixed_point,
        """
        a = qnn.dequantize(x, constant(0.5, "float32"), constant(2, "int8"))
        b = qnn.dequantize(const[0], constant(0.25, "float32"), constant(0, "int8"))
        return sigmoid(matmul(a, b, transpose_b=True))
        """,
        """
        a = subtract(cast(x, dtype=int32), constant(2, "int32"))
        b = cast(matmul(a, const[1], transpose_b=True), dtype=float32)
        return sigmoid(multiply(b, const[2]))
        """,
        constants=[weights, weights.astype(np.int32), np.array([[0.125]], np.float32)],
        x="int8[3, 2]",
    )


def test_what_a_sum_becomes() -> None:
    """The side of the smaller steps is multiplied, the other one is a residual with a place more."""
    assert_becomes(
        fixed_point,
        """
        a = qnn.dequantize(x, constant(0.5, "float32"), constant(2, "int8"))
        b = qnn.dequantize(y, constant(0.25, "float32"), constant(4, "int8"))
        return qnn.quantize(add(a, b), constant(0.25, "float32"), constant(-3, "int8"), dtype=int8)
        """,
        """
        a = subtract(cast(y, dtype=int32), constant(4, "int32"))
        return qnn.fixed_point(a, const[0], const[1], const[2], x, const[1], const[3], offset=-3)
        """,
        constants=[np.full((1, 1), number, np.int32) for number in (-4, 1 << 14, 14, 1)],
        x="int8[3, 2]",
        y="int8[3, 2]",
    )


def test_moves_one_behind_the_other_are_of_integers() -> None:
    x, data = _numbers("x", 1, 2, 3, 4)
    rows = call("take", data, constant(np.arange(6) // 2), axis=2)
    spread = call("take", rows, constant(np.arange(8) // 2), axis=3)
    module = infer_types(IRModule([Function("main", (x,), _rounded(spread, 0.03, 99, UINT8))]))
    after = fixed_point(module)
    assert sum(is_call_to(item, "qnn.quantize") for item in post_order(after["main"])) == 1
    args = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(after, args), evaluate(module, args))
