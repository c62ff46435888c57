"""Weights of few bits: models keep them packed, and compute what numpy computes with the numbers they stand for."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import Operator, call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.packed import DigitsAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

VNNI = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
PLAIN = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")


def dequantized(depth: int, columns: int, bits: int, group: int, is_affine: bool, is_turned: bool) -> GraphExpr:
    """A weight [k, n] (or [n, k]) as `qnn.dequantize` of integers in groups along k."""
    random = np.random.default_rng(bits * group)
    low = 0 if is_affine else -(1 << (bits - 1))
    integers = random.integers(low, low + (1 << bits), (depth // group, group, columns)).astype(np.int16)
    scale = random.uniform(0.01, 0.02, (depth // group, 1, columns)).astype(np.float32)
    zero = np.zeros(scale.shape, np.int16)
    if is_affine:
        zero = random.integers(0, 1 << bits, scale.shape).astype(np.int16)
    parts = [integers, scale, zero]
    if is_turned:
        parts = [np.ascontiguousarray(item.transpose(2, 0, 1)) for item in parts]
    numbers = call("qnn.dequantize", *(constant(item) for item in parts))
    return call("reshape", numbers, shape=(columns, depth) if is_turned else (depth, columns))


def names_of(module: IRModule) -> set[str]:
    found = post_order(module["main"])
    return {item.callee.name for item in found if isinstance(item, Call) and isinstance(item.callee, Operator)}


@pytest.mark.parametrize(
    ("target", "few"), [(VNNI, "packed.digit_matmul"), (NEON, "packed.digit_matmul"), (PLAIN, "packed.matmul")]
)
@pytest.mark.parametrize(
    ("rows", "bits", "group", "is_affine", "is_turned"),
    [
        (1, 4, 32, False, True),
        (2, 4, 64, True, False),
        (1, 8, 128, False, False),
        (3, 8, 256, True, True),
        (9, 2, 32, True, False),
    ],
)
def test_products(target: Target, few: str, rows: int, bits: int, group: int, is_affine: bool, is_turned: bool) -> None:
    x = Var("x", tensor_type((rows, 256), "float32"))
    body = call("matmul", x, dequantized(256, 72, bits, group, is_affine, is_turned), transpose_b=is_turned)
    module = IRModule([Function("main", (x,), body)])
    made = optimize(module, GraphOptions(target=target, fuse=False))
    assert (few if rows < 5 else "packed.matmul") in names_of(made)
    assert "matmul" not in names_of(made)
    data = np.random.default_rng(0).normal(size=(rows, 256)).astype(np.float32)
    np.testing.assert_allclose(evaluate(made, data), evaluate(module, data), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("target", [VNNI, NEON])
@pytest.mark.parametrize(
    ("row_bits", "digit_count", "error"), [(0, 3, 1e-6), (8, 1, 2e-2), (16, 2, 1e-4), (24, 3, 1e-6)]
)
@pytest.mark.parametrize(("bits", "is_affine"), [(4, True), (4, False), (8, True)])
def test_rows_have_as_many_bytes_as_a_product_asks_for(
    target: Target, row_bits: int, digit_count: int, error: float, bits: int, is_affine: bool
) -> None:
    x = Var("x", tensor_type((2, 256), "float32"))
    body = call("matmul", x, dequantized(256, 72, bits, 32, is_affine, False), row_bits=row_bits)
    module = IRModule([Function("main", (x,), body)])
    made = optimize(module, GraphOptions(target=target, fuse=False))
    (rows,) = (item for item in post_order(made["main"]) if is_call_to(item, "packed.digits"))
    assert isinstance(rows, Call) and isinstance(rows.attributes, DigitsAttributes)
    assert rows.attributes.digits == digit_count
    data = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)
    expected = evaluate(module, data)
    np.testing.assert_allclose(evaluate(made, data), expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize(("bits", "is_affine"), [(4, True), (4, False), (8, False)])
@pytest.mark.parametrize("rows", [(1,), (2, 2), (3, 5), None], ids=str)
def test_compiled_products_of_few_bits(bits: int, is_affine: bool, rows: tuple[int, ...] | None) -> None:
    """Rows few and many, of several dimensions and open; columns that are not whole vectors; a bias behind it."""
    sizes: tuple[Symbol | int, ...] = (Symbol("rows"),) if rows is None else rows
    x = Var("x", tensor_type((*sizes, 256), "float32"))
    if len(sizes) == 1 and rows is not None:
        x = Var("x", tensor_type((rows[0], 256), "float32"))
    bias = constant(np.random.default_rng(3).normal(size=71).astype(np.float32))
    body = call("add", call("matmul", x, dequantized(256, 71, bits, 32, is_affine, False)), bias)
    module = IRModule([Function("main", (x,), body)])
    exe = tw.compile(module, threads=1)
    for count in [(1,), (7,)] if rows is None else [rows]:
        data = np.random.default_rng(0).normal(size=(*count, 256)).astype(np.float32)
        np.testing.assert_allclose(exe(data), evaluate(module, data), rtol=1e-4, atol=2e-5)


def test_weights_take_the_space_of_their_bits() -> None:
    x = Var("x", tensor_type((1, 1024), "float32"))
    body = call("matmul", x, dequantized(1024, 512, 4, 128, False, False))
    exe = tw.compile(IRModule([Function("main", (x,), body)]), threads=1)
    assert len(exe.to_bytes()) < 1024 * 512 * 4 / 8 * 1.15 + 100_000


def test_embeddings_dequantise_the_rows_that_are_taken() -> None:
    indices = Var("indices", tensor_type((2, 3), "int64"))
    table = dequantized(64, 300, 4, 32, True, True)
    module = IRModule([Function("main", (indices,), call("take", table, indices, axis=0))])
    made = optimize(module, GraphOptions(target=NEON, fuse=False))
    assert "packed.dequantize" in names_of(made)
    places = np.array([[0, 299, 7], [5, 5, 150]])
    expected = evaluate(module, places)
    np.testing.assert_array_equal(evaluate(made, places), expected)
    np.testing.assert_array_equal(tw.compile(module, threads=1)(places), expected)


def test_what_is_not_finite_stays_visible() -> None:
    x = Var("x", tensor_type((2, 256), "float32"))
    module = IRModule([Function("main", (x,), call("matmul", x, dequantized(256, 80, 4, 32, False, False)))])
    data = np.ones((2, 256), np.float32)
    data[1, 3] = np.nan
    result = tw.compile(module, threads=1)(data)
    assert np.isfinite(result[0]).all() and np.isnan(result[1]).all()


def test_small_and_wide_integers_are_folded() -> None:
    """Small weights are floats; so are integers of more than eight bits, and groups that are no whole words."""
    x = Var("x", tensor_type((1, 256), "float32"))
    wide = constant(np.arange(256 * 80, dtype=np.int32).reshape(256, 80))
    products = [
        call("matmul", x, call("qnn.dequantize", wide, constant(np.float32(0.1)), constant(np.int32(0)))),
        call("matmul", x, dequantized(256, 80, 4, 4, False, False)),
        call("matmul", x, dequantized(256, 8, 4, 32, False, False)),
    ]
    for body in products:
        made = optimize(IRModule([Function("main", (x,), body)]), GraphOptions(target=NEON, fuse=False))
        assert names_of(made) == {"matmul"}
