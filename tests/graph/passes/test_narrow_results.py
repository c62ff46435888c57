"""Rescaled sums in 16 bits: which ones may need more, and the bounds by which that is known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.graph.passes.checking import assert_becomes
from tilewright.graph.ir.expr import Var, constant
from tilewright.graph.ir.rewrite import make
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.narrow_results import narrow_results
from tilewright.graph.passes.sum_bounds import bounded_sum
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
