"""Models of float16 where no products of halves are quicker: what is computed in float32, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator, call
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.widen_halves import widen_halves
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT16, FLOAT32, INT64
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.target import Target

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
HALVES = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")


def halves(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float16)


def computed(params: list[Var], body: GraphExpr, target: Target = AVX512) -> dict[str, str]:
    """The type that each operator computes in; results are as they were, but for rounding."""
    before = infer_types(IRModule([Function("main", tuple(params), body)]))
    after = widen_halves(before, GraphOptions(target=target))
    arrays = [halves(n, *(param.tensor_type.static_shape or ())) for n, param in enumerate(params)]
    want, got = evaluate(before, *arrays), evaluate(after, *arrays)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-2, atol=2e-2)
    return {
        item.callee.name: str(item.args[0].tensor_type.dtype)
        for item in post_order(after["main"])
        if isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.name != "cast"
    }


@pytest.mark.parametrize(("target", "dtype"), [(AVX512, "float32"), (NEON, "float32"), (HALVES, "float16")])
def test_products_and_all_else(target: Target, dtype: str) -> None:
    x = Var("x", tensor_type((1, 3, 8, 8), "float16"))
    body = call("sigmoid", call("nn.conv2d", x, constant(halves(1, 4, 3, 3, 3))))
    assert set(computed([x], body, target).values()) == {dtype}


def test_products_of_a_few_rows_read_halves() -> None:
    x = Var("x", tensor_type((1, 32), "float16"))
    body = call("nn.relu", call("matmul", x, constant(halves(1, 32, 16))))
    assert computed([x], body) == {"matmul": "float16", "nn.relu": "float32"}


def test_parts_of_tables_are_converted_after_they_are_taken() -> None:
    x = Var("x", tensor_type((2,), "float16"))
    indices = call("cast", call("abs", x), dtype=INT64)
    body = call("tanh", call("take", constant(halves(1, 9, 16)), indices, axis=0))
    assert computed([x], body) == {"abs": "float32", "take": "float16", "tanh": "float32"}


def test_conversions_and_several_results() -> None:
    x = Var("x", tensor_type((4, 6), "float16"))
    exact = call("cast", call("exp", call("cast", x, dtype=FLOAT32)), dtype=FLOAT16)
    parts = call("split", exact, axis=1, sizes=(2, 4))
    body = call("add", call("mean", TupleGet(parts, 0), axes=(1,), keepdims=True), TupleGet(parts, 1))
    assert set(computed([x], body).values()) == {"float32"}


def test_convolutions_may_use_winograd() -> None:
    x = Var("x", tensor_type((1, 64, 56, 56), "float16"))
    module = IRModule(
        [Function("main", (x,), call("nn.conv2d", x, constant(halves(1, 64, 64, 3, 3)), padding=(1,) * 4))]
    )
    made = optimize(module, GraphOptions("NHWC", target=AVX512, fuse=False))
    names = {
        item.callee.name
        for item in post_order(made["main"])
        if isinstance(item, Call) and isinstance(item.callee, Operator)
    }
    assert any("winograd" in name for name in names)
    result = made["main"]
    assert isinstance(result, Function)
    assert isinstance(result.body.type, TensorType)
    assert result.body.type.dtype is FLOAT16
