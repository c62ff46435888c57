"""Rescaled sums in 16 bits: which ones may need more, and the bounds by which that is known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tilewright as tw
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.ir.rewrite import make
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.narrow_results import narrow_results
from tilewright.graph.passes.sum_bounds import bounded_sum
from tilewright.ir.dtype import FLOAT32, INT32, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


@pytest.mark.parametrize(
    "rescaled",
    [
        'qnn.high_product(left_shift(qnn.matmul(x, const[0]), constant(8, "int32")), constant(1073741824, "int32"))',
        'qnn.high_product(add(qnn.matmul(x, const[0]), constant(70000, "int32")), constant(2147483647, "int32"))',
        "y",
    ],
)
def test_results_that_may_need_more_than_16_bits_stay(rescaled: str) -> None:
    weights = np.array([[1, -128], [3, 127], [-128, 5]], np.int8)
    shifted = f'qnn.rounded_shift({rescaled}, constant(0, "int32"))'
    text = f"return cast(clip({shifted}, minimum=-128.0, maximum=127.0), dtype=int8)"
    options = GraphOptions(target=NEON)
    assert_becomes(
        partial(narrow_results, options=options), text, text, constants=[weights], x="int8[5, 3]", y="int32[5, 2]"
    )


@pytest.mark.parametrize(
    "scaled",
    [
        "multiply(cast(qnn.matmul(x, const[0]), dtype=float32), const[1])",
        "multiply(z, const[2])",
        'multiply(add(cast(qnn.matmul(x, const[0]), dtype=float32), constant(1.0, "float32")), const[2])',
        "multiply(cast(qnn.matmul(x, const[0]), dtype=float32), z)",
        "multiply(cast(qnn.matmul(x, const[0]), dtype=float32), const[3])",
    ],
    ids=["large", "floats", "moved", "computed scale", "infinite"],
)
def test_floats_that_may_need_more_than_16_bits_stay(scaled: str) -> None:
    scales = [np.float32(value) for value in (1.0, 0.001, np.inf)]
    weights = np.array([[1, -128], [3, 127], [-128, 5]], np.int8)
    text = f'return cast(add(round({scaled}), constant(10.0, "float32")), dtype=uint8)'
    narrow = partial(narrow_results, options=GraphOptions(target=NEON))
    assert_becomes(narrow, text, text, constants=[weights, *scales], x="int8[5, 3]", z="float32[5, 2]")


@pytest.mark.parametrize("zero", [0, 3, -128, 128])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_compiled_bytes_are_those_of_the_reference(kind: str, zero: int) -> None:
    """Ties go to the even number before the zero point is added, saturated on both sides, for any number of columns."""
    random = np.random.default_rng(zero % 256)
    for columns in (16, 20, 64):
        weight = constant(random.integers(-127, 128, (64, columns)).astype(np.int8))
        x = Var("x", tensor_type((9, 64), "int8"))
        wide = [call("cast", item, dtype=INT32) for item in (x, weight)]
        scaled = call("multiply", call("cast", call("matmul", *wide), dtype=FLOAT32), constant(np.float32(2**-9)))
        moved = call("add", call("round", scaled), constant(np.float32(zero)))
        info = np.iinfo(kind)
        clipped = call("clip", moved, minimum=float(info.min), maximum=float(info.max))
        module = IRModule([Function("main", (x,), call("cast", clipped, dtype=DataType.of(kind)))])
        data = random.integers(-128, 128, (9, 64)).astype(np.int8)
        np.testing.assert_array_equal(tw.compile(module, threads=1)(data), evaluate(module, data))


def test_bounds_of_sums_are_reached() -> None:
    """The data that makes a sum the least or the greatest gives that sum, and other data nothing beyond."""
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (1, 3, 1, 16, 4)).astype(np.int8)
    weight[..., 3] = 0
    bias = random.integers(-500, 500, 16).astype(np.int32)
    data, zero = Var("x", tensor_type((1, 3, 4, 16), "int8")), constant(np.int8(0))
    dots = make("qnn.window_dots", data, constant(weight), zero, strides=(1, 2), width=3)
    found = bounded_sum(make("add", dots, constant(bias)))
    assert found is not None
    taps = weight[0, :, 0].transpose(0, 2, 1)[None]
    for ends, extremes in ((found.least, (127, -128)), (found.most, (-128, 127))):
        image = np.where(taps < 0, *extremes).astype(np.int32)
        np.testing.assert_array_equal((image * taps).sum(axis=(0, 1, 2)) + bias, ends)
