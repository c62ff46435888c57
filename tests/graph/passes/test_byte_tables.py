"""Slow functions of one byte are looked up: the same integers, whatever lies between the byte and the result."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.passes.test_computed_products import NEON, PLAIN, dequantized, quantized
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import Operator, call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT32, INT8, INT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target


def names(module: IRModule) -> list[str]:
    items = [item for item in post_order(module["main"]) if isinstance(item, Call)]
    return [item.callee.name for item in items if isinstance(item.callee, Operator)]


def check(params: list[Var], body: GraphExpr, looked_up: int, target: Target = NEON) -> None:
    module = IRModule([Function("main", tuple(params), body)])
    made = optimize(module, GraphOptions(target=target, fuse=False))
    arrays = []
    for number, param in enumerate(params):
        kind = np.iinfo(param.tensor_type.dtype.numpy())
        every = np.arange(kind.min, kind.max + 1).astype(kind.dtype)
        arrays.append(np.random.default_rng(number).permutation(every).reshape(16, 16))
    np.testing.assert_array_equal(evaluate(made, *arrays), evaluate(module, *arrays))
    assert names(made).count("take") == looked_up


def erf_gelu(x: GraphExpr) -> GraphExpr:
    half = call("multiply", x, constant(np.float32(0.5)))
    inner = call("erf", call("multiply", x, constant(np.float32(0.70710678))))
    return call("multiply", half, call("add", inner, constant(np.float32(1))))


def again(x: GraphExpr, step: float) -> GraphExpr:
    """A number through bytes of another scale, as quantisers write it between any two operators."""
    return dequantized(quantized(x, step), 9, step)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("target", [NEON, PLAIN], ids=["arm", "x86"])
def test_a_function_of_all_bytes(dtype: str, target: Target) -> None:
    x = Var("x", tensor_type((16, 16), dtype))
    check([x], quantized(erf_gelu(dequantized(x, 100, 0.03)), 0.01), 1, target)


def test_bytes_in_between_are_part_of_the_function() -> None:
    x = Var("x", tensor_type((16, 16), "uint8"))
    value = dequantized(x, 120, 0.05)
    inner = again(call("erf", again(call("multiply", value, constant(np.float32(0.7))), 0.04)), 0.01)
    check([x], quantized(call("multiply", value, call("add", inner, constant(np.float32(1)))), 0.02), 1)


def test_the_sign_that_a_product_wants_is_in_the_table() -> None:
    """Bytes that are moved by 128 for an instruction are looked up as they are wanted."""
    x = Var("x", tensor_type((16, 16), "uint8"))
    rows = dequantized(quantized(call("tanh", dequantized(x, 128, 0.02)), 2.0**-6), 9, 2.0**-6)
    integers = constant(np.random.default_rng(2).integers(-128, 128, (16, 16)).astype(np.int32))
    weights = call("multiply", call("cast", integers, dtype=FLOAT32), constant(np.float32(0.5)))
    check([x], quantized(call("matmul", rows, weights), 4.0), 1)
    module = IRModule([Function("main", (x,), quantized(call("matmul", rows, weights), 4.0))])
    made = optimize(module, GraphOptions(target=NEON, fuse=False))
    (product,) = [item for item in post_order(made["main"]) if is_call_to(item, "qnn.matmul")]
    assert isinstance(product, Call) and is_call_to(product.args[0], "take")


def test_what_is_computed() -> None:
    x, y = (Var(name, tensor_type((16, 16), "uint8")) for name in "xy")
    a, b = dequantized(x, 120, 0.05), dequantized(y, 110, 0.05)
    # Arithmetic is quicker than looking up.
    check([x], quantized(call("nn.relu", dequantized(x, 120, 0.5)), 0.25), 0)
    # No function of one byte, and one whose scale is another for each column.
    check([x, y], quantized(call("tanh", call("add", a, b)), 0.03), 0)
    each = constant(np.linspace(0.5, 2, 16).astype(np.float32))
    check([x], quantized(call("tanh", call("multiply", a, each)), 0.03), 0)
    # GPUs compute functions as quickly as they load.
    check([x], quantized(call("tanh", a), 0.03), 0, Target("opencl"))


def rescaled(x: GraphExpr) -> GraphExpr:
    """Bytes of another scale, by a product of fixed point."""
    steps = call("left_shift", call("cast", x, dtype=INT32), constant(np.int32(8)))
    value = call("right_shift", call("qnn.high_product", steps, constant(np.int32(1 << 30))), constant(np.int32(7)))
    return call("cast", call("clip", value, minimum=-128.0, maximum=127.0), dtype=INT8)


@pytest.mark.parametrize(("target", "looked_up"), [(NEON, 1), (PLAIN, 0)], ids=["arm", "x86"])
def test_an_input_that_is_rescaled(target: Target, looked_up: int) -> None:
    x = Var("x", tensor_type((16, 16), "int8"))
    check([x], rescaled(x), looked_up, target)


def test_what_a_kernel_computes_is_rescaled_by_it() -> None:
    x, y = (Var(name, tensor_type((16, 16), "int8")) for name in ("x", "y"))
    check([x, y], rescaled(call("maximum", x, y)), 0)
