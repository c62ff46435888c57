"""Products of two computed values of bytes: the meaning stays, whatever the signs and zero points, and sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT32, INT32, INT64, UINT8
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

VNNI = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
PLAIN = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
BARE = Target("llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64")
GPU = Target("opencl")


def dequantized(value: GraphExpr, zero: int, scale: float | GraphExpr) -> GraphExpr:
    shifted = call("subtract", call("cast", value, dtype=INT32), constant(np.int32(zero)))
    factor = scale if isinstance(scale, GraphExpr) else constant(np.float32(scale))
    return call("multiply", call("cast", shifted, dtype=FLOAT32), factor)


def quantized(value: GraphExpr, step: float) -> GraphExpr:
    level = call("add", call("round", call("divide", value, constant(np.float32(step)))), constant(np.float32(9)))
    return call("cast", call("clip", level, minimum=0.0, maximum=255.0), dtype=UINT8)


def module(
    left: Var,
    right: Var,
    zeros: tuple[int, int],
    is_quantized: bool = True,
    turned: bool = False,
    step: float = 64.0,
) -> IRModule:
    a, b = dequantized(left, zeros[0], 0.25), dequantized(right, zeros[1], 0.5)
    if turned:
        b = call("transpose", b, axes=(0, 2, 1))
    body = call("matmul", a, b)
    return IRModule([Function("main", (left, right), quantized(body, step) if is_quantized else body)])


def products(made: IRModule) -> list[Call]:
    function = made["main"]
    assert isinstance(function, Function)
    return [item for item in post_order(function) if isinstance(item, Call) and is_call_to(item, "qnn.matmul")]


def options(target: Target) -> GraphOptions:
    return GraphOptions(layout="NHWC", target=target, fuse=False)


@pytest.mark.parametrize("target", [VNNI, NEON], ids=["x86", "arm"])
@pytest.mark.parametrize("types", [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("zeros", [(0, 0), (3, 0), (0, 5), (7, 11)])
def test_signs_and_zero_points(target: Target, types: tuple[str, str], zeros: tuple[int, int]) -> None:
    left = Var("a", tensor_type((2, 9, 18), types[0]))
    right = Var("b", tensor_type((2, 18, 10), types[1]))
    before = module(left, right, zeros)
    after = optimize(before, options(target))
    (product,) = products(after)
    # Reductions are whole groups, and columns whole vectors.
    assert product.args[1].tensor_type.static_shape == (2, 20, -(-10 // target.lanes(32)) * target.lanes(32))
    random = np.random.default_rng(0)
    arrays = []
    for item in (left, right):
        shape, dtype = item.tensor_type.static_shape, item.tensor_type.dtype.numpy()
        assert shape is not None
        arrays.append(random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype))
    np.testing.assert_array_equal(evaluate(after, *arrays), evaluate(before, *arrays))


def test_columns_that_lie_as_rows() -> None:
    left, right = Var("q", tensor_type((2, 9, 16), "int8")), Var("k", tensor_type((2, 8, 16), "int8"))
    before = module(left, right, (1, 2), turned=True)
    after = optimize(before, options(NEON))
    assert len(products(after)) == 1
    random = np.random.default_rng(1)
    arrays = [random.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 9, 16), (2, 8, 16))]
    np.testing.assert_array_equal(evaluate(after, *arrays), evaluate(before, *arrays))


def test_an_open_number_of_matrices_and_rows() -> None:
    n, m = Symbol("n", INT64), Symbol("m", INT64)
    left, right = Var("a", tensor_type((n, m, 32), "uint8")), Var("b", tensor_type((n, 32, 16), "uint8"))
    assert len(products(optimize(module(left, right, (3, 4)), options(NEON)))) == 1


def test_what_stays_in_floats() -> None:
    m = Symbol("m", INT64)
    rows, columns = Var("a", tensor_type((2, 9, 32), "uint8")), Var("b", tensor_type((2, 32, 16), "uint8"))
    # Softmax of scores that are floats is one kernel with its products.
    assert not products(optimize(module(rows, columns, (0, 0), is_quantized=False), options(NEON)))
    few = Var("a", tensor_type((2, 1, 32), "uint8"))
    deep, open_columns = Var("a", tensor_type((2, 9, 8), "uint8")), Var("b", tensor_type((2, 32, m), "uint8"))
    shared = Var("b", tensor_type((1, 32, 16), "uint8"))
    for left, right in ((few, columns), (deep, Var("b", tensor_type((2, 8, 16), "uint8"))), (rows, open_columns)):
        assert not products(optimize(module(left, right, (0, 0)), options(NEON)))
    assert not products(optimize(module(rows, shared, (0, 0)), options(NEON)))


def random_bytes(items: tuple[Var, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [item.tensor_type.static_shape for item in items]
    kinds = [np.iinfo(item.tensor_type.dtype.numpy()) for item in items]
    return [
        random.integers(kind.min, kind.max + 1, shape).astype(kind.dtype)
        for kind, shape in zip(kinds, shapes, strict=True)
    ]


@pytest.mark.parametrize("target", [NEON, PLAIN, BARE, GPU], ids=["arm", "pairs", "plain", "gpu"])
@pytest.mark.parametrize(("depth", "rows"), [(258, 9), (259, 9), (259, 1)])
def test_sums_are_of_integers_on_every_target(target: Target, depth: int, rows: int) -> None:
    """Floats where they represent all sums, which is quick; what is deeper is added up in integers."""
    left, right = Var("a", tensor_type((2, rows, depth), "uint8")), Var("b", tensor_type((2, depth, 10), "int8"))
    before = module(left, right, (3, 4), step=2.0**14)
    after = optimize(before, options(target))
    arrays = random_bytes((left, right))
    np.testing.assert_array_equal(evaluate(after, *arrays), evaluate(before, *arrays))
    sums = [item for item in post_order(after["main"]) if is_call_to(item, "matmul") or is_call_to(item, "qnn.matmul")]
    assert len(sums) == 1
    has_bytes = target is NEON and rows > 1
    assert (sums[0].tensor_type.dtype is FLOAT32) == (depth == 258 and not has_bytes)


def test_scales_that_a_model_computes_stay_in_floats() -> None:
    left, right = Var("a", tensor_type((2, 9, 32), "uint8")), Var("b", tensor_type((2, 32, 16), "uint8"))
    scale = Var("s", tensor_type((), "float32"))
    body = quantized(call("matmul", dequantized(left, 3, scale), dequantized(right, 4, 0.5)), 64.0)
    made = optimize(IRModule([Function("main", (left, right, scale), body)]), options(NEON))
    assert not products(made)
