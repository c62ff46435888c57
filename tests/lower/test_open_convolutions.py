"""Convolutions of open batch, height and width: right at every size, and shared where only names of symbols differ."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Var, constant
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

SIZES = ((1, 1, 1), (1, 2, 3), (2, 7, 5), (1, 9, 16), (1, 17, 8), (3, 6, 25), (0, 4, 4), (1, 0, 6))


def images(kind: str, names: tuple[str, str, str] = ("n", "h", "w")) -> IRModule:
    """A convolution with a function in its epilogue, of images whose sizes have these names."""
    n, h, w = map(Symbol, names)
    x = Var("x", tensor_type((n, h, w, 8), "float32"))
    taps = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    if kind == "depthwise":
        convolved = op("nn.conv2d", x, constant(random(1, 5, 5, 1, 8)), padding=(2, 2, 2, 2), groups=8, **taps)
    elif kind == "strided":
        weights = constant(random(2, 3, 3, 8, 16) / 4)
        convolved = op("nn.conv2d", x, weights, padding=(1, 1, 1, 1), strides=(2, 2), **taps)
    else:
        convolved = op("nn.conv2d", x, constant(random(3, 1, 1, 8, 16) / 4), padding=(0, 0, 0, 0), **taps)
    return IRModule([function([x], op("sigmoid", convolved))])


@pytest.mark.parametrize("kind", ["depthwise", "strided", "pointwise"])
def test_one_compilation_is_right_at_all_sizes(kind: str) -> None:
    module = images(kind)
    executable = tw.compile(module, threads=1)
    for number, (n, h, w) in enumerate(SIZES):
        x = random(number, n, h, w, 8)
        expected = evaluate(module, x)
        np.testing.assert_allclose(executable(x), expected, rtol=1e-4, atol=1e-5)


def test_names_of_symbols_make_no_kernels() -> None:
    one, other = (Compilation(images("strided", names), threads=1) for names in (("n", "h", "w"), ("b", "rows", "w")))
    assert [kernel.symbol for kernel in one.kernels] == [kernel.symbol for kernel in other.kernels]
