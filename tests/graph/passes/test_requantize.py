"""Bytes that are quantised as they were: which stay bytes, and which must not."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.requantize import requantize
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type


def dequantized(x: GraphExpr, scale: float, zero: int) -> GraphExpr:
    shifted = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(zero)))
    return call("multiply", call("cast", shifted, dtype=FLOAT32), constant(np.float32(scale)))


def quantized(x: GraphExpr, scale: float, zero: int, dtype: DataType) -> GraphExpr:
    level = call("add", call("round", call("divide", x, constant(np.float32(scale)))), constant(np.float32(zero)))
    low, high = (0.0, 255.0) if dtype is UINT8 else (-128.0, 127.0)
    return call("cast", call("clip", level, minimum=low, maximum=high), dtype=dtype)


def is_dequantized(params: list[Var], body: GraphExpr) -> bool:
    """Whether anything is computed in floats after the pass, which keeps every byte of the result."""
    before = infer_types(IRModule([Function("main", tuple(params), body)]))
    after = requantize(before)
    arrays = [
        np.arange(256).astype(param.tensor_type.dtype.numpy()).reshape(param.tensor_type.static_shape)
        for param in params
    ]
    np.testing.assert_array_equal(evaluate(after, *arrays), evaluate(before, *arrays))
    return any(is_call_to(item, "divide") for item in post_order(after["main"]))


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("scale", [0.1, 0.0078, 3.7e-5, 1e30])
def test_every_byte_comes_back(dtype: DataType, scale: float) -> None:
    x = Var("x", tensor_type((4, 64), dtype))
    moved = call("transpose", dequantized(x, scale, 5), axes=(1, 0))
    assert not is_dequantized([x], quantized(moved, scale, 5, dtype))


def test_moves_of_several_inputs_and_in_a_row() -> None:
    x, y = Var("x", tensor_type((4, 64), "uint8")), Var("y", tensor_type((4, 64), "uint8"))
    both = call("concatenate", dequantized(x, 0.5, 9), dequantized(y, 0.5, 9), axis=0)
    cut = call("slice", call("reshape", both, shape=(64, 8)), begin=(0, 2), end=(64, 6), strides=(1, 1))
    assert not is_dequantized([x, y], quantized(cut, 0.5, 9, UINT8))


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_the_greatest_number_is_the_greatest_byte(dtype: DataType, padding: tuple[int, ...]) -> None:
    x = Var("x", tensor_type((1, 1, 16, 16), dtype))
    pooled = call("nn.max_pool2d", dequantized(x, 0.1, 7), kernel=(3, 3), strides=(2, 2), padding=padding)
    assert not is_dequantized([x], quantized(pooled, 0.1, 7, dtype))


def test_resizing_to_the_nearest_takes_bytes() -> None:
    x = Var("x", tensor_type((1, 1, 16, 16), "uint8"))
    rows = call("take", dequantized(x, 0.1, 7), constant(np.arange(32) // 2), axis=2)
    both = call("take", rows, constant(np.arange(24) * 2 // 3), axis=3)
    assert not is_dequantized([x], quantized(both, 0.1, 7, UINT8))


@pytest.mark.parametrize("scale", [0.1, 0.0307, 1 / 3, 3.7e-5])
def test_multiplying_by_the_inverse_is_quantising_too(scale: float) -> None:
    x = Var("x", tensor_type((4, 64), "uint8"))
    moved = call("transpose", dequantized(x, scale, 5), axes=(1, 0))
    steps = call("multiply", moved, constant(np.float32(1 / scale)))
    level = call("add", call("round", steps), constant(np.float32(5)))
    body = call("cast", call("clip", level, minimum=0.0, maximum=255.0), dtype=UINT8)
    module = infer_types(IRModule([Function("main", (x,), body)]))
    after = requantize(module)
    assert not any(is_call_to(item, "round") for item in post_order(after["main"]))
    values = np.arange(256, dtype=np.uint8).reshape(4, 64)
    np.testing.assert_array_equal(evaluate(after, values), evaluate(module, values))


@pytest.mark.parametrize("scale", [1e-40, 3e37])
def test_numbers_beyond_float32_are_computed(scale: float) -> None:
    x = Var("x", tensor_type((4, 64), "uint8"))
    moved = call("transpose", dequantized(x, scale, 5), axes=(1, 0))
    with np.errstate(over="ignore"):
        assert is_dequantized([x], quantized(moved, scale, 5, UINT8))


@pytest.mark.parametrize(("scale", "zero", "dtype"), [(0.5, 9, UINT8), (0.25, 8, UINT8), (0.25, 9, INT8)])
def test_other_levels_are_computed(scale: float, zero: int, dtype: DataType) -> None:
    x = Var("x", tensor_type((4, 64), "uint8"))
    moved = call("transpose", dequantized(x, 0.25, 9), axes=(1, 0))
    assert is_dequantized([x], quantized(moved, scale, zero, dtype))


def test_what_computes_in_between_is_computed() -> None:
    x, y = Var("x", tensor_type((4, 64), "uint8")), Var("y", tensor_type((4, 64), "uint8"))
    raised = call("nn.relu", dequantized(x, 0.25, 9))
    assert is_dequantized([x], quantized(raised, 0.25, 9, UINT8))
    mixed = call("concatenate", dequantized(x, 0.25, 9), dequantized(y, 0.5, 9), axis=0)
    assert is_dequantized([x, y], quantized(mixed, 0.25, 9, UINT8))


def test_a_value_that_is_put_beside_itself_again_and_again() -> None:
    """Ways to it are many more than operators: few of them are looked at."""
    x = Var("x", tensor_type((1, 256), "uint8"))
    value = dequantized(x, 0.25, 9)
    for _ in range(12):
        value = call("concatenate", value, value, axis=0)
    assert is_dequantized([x], quantized(value, 0.25, 9, UINT8))
