"""Convolutions of open batch, height and width: right at every size, and shared where only names of symbols differ."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Var, constant
from tilewright.ir.expr import FloorDiv, FloorMod, const_value
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.tir.stmt import BufferStore

SIZES = ((1, 1, 1), (1, 2, 3), (2, 7, 5), (1, 9, 16), (1, 17, 8), (3, 6, 25), (0, 4, 4), (1, 0, 6))


def images(kind: str, names: tuple[str, str, str] = ("n", "h", "w")) -> IRModule:
    """A convolution with a function in its epilogue, of images whose sizes have these names."""
    n, h, w = map(Symbol, names)
    x = Var("x", tensor_type((n, h, w, 8), "float32"))
    taps = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    if kind == "depthwise":
        convolved = op("nn.conv2d", x, constant(random(1, 5, 5, 1, 8)), padding=(2, 2, 2, 2), groups=8, **taps)
    elif kind.startswith("transposed"):
        weights = constant(random(2, 4, 4, 8, 1 if kind.endswith("to one") else 6) / 4)
        padding = (2, 2, 2, 2) if kind.endswith("cut") else (1, 1, 1, 1)
        convolved = op("nn.conv2d_transpose", x, weights, padding=padding, strides=(2, 2), **taps)
    elif kind == "strided":
        weights = constant(random(2, 3, 3, 8, 16) / 4)
        convolved = op("nn.conv2d", x, weights, padding=(1, 1, 1, 1), strides=(2, 2), **taps)
    else:
        convolved = op("nn.conv2d", x, constant(random(3, 1, 1, 8, 16) / 4), padding=(0, 0, 0, 0), **taps)
    return IRModule([function([x], op("sigmoid", convolved))])


@pytest.mark.parametrize(
    "kind", ["depthwise", "strided", "pointwise", "transposed", "transposed, cut", "transposed to one"]
)
def test_one_compilation_is_right_at_all_sizes(kind: str) -> None:
    module = images(kind)
    executable = tw.compile(module, threads=1)
    for number, (n, h, w) in enumerate(SIZES):
        if kind == "transposed, cut" and 0 in (h, w):
            continue  # less than nothing would be left
        x = random(number, n, h, w, 8)
        expected = evaluate(module, x)
        np.testing.assert_allclose(executable(x), expected, rtol=1e-4, atol=1e-5)


def test_names_of_symbols_make_no_kernels() -> None:
    one, other = (Compilation(images("strided", names), threads=1) for names in (("n", "h", "w"), ("b", "rows", "w")))
    assert [kernel.symbol for kernel in one.kernels] == [kernel.symbol for kernel in other.kernels]


def moved(kind: str) -> IRModule:
    """Images of open sizes whose channels change places: rows of pixels, or pixels beside their channels."""
    n, h, w = map(Symbol, ("n", "h", "w"))
    if kind == "rows":
        x = Var("x", tensor_type((n, h, w, 5), "float32"))
        value = op("reshape", op("transpose", x, axes=(0, 3, 1, 2)), shape=(n, 5, h * w))
    else:
        x = Var("x", tensor_type((n, 3, h, w), "float32"))
        value = op("transpose", x, axes=(0, 2, 3, 1))
    return IRModule([function([x], value)])


@pytest.mark.parametrize("kind", ["rows", "pixels"])
def test_channels_change_places_without_divisions_and_in_vectors(kind: str) -> None:
    module = moved(kind)
    compilation = Compilation(module, threads=1)
    (kernel,) = compilation.kernels
    lowered = compilation.lowered_kernel(kernel)
    divisions = [*find_all(lowered.body, FloorDiv), *find_all(lowered.body, FloorMod)]
    assert not [item for item in divisions if const_value(item.b) is None]
    stores = [store.indices[0].dtype.lanes for store in find_all(lowered.body, BufferStore)]
    assert max(stores) > 3
    executable = tw.compile(module, threads=1)
    for number, (n, h, w) in enumerate(SIZES):
        x = random(number, n, h, w, 5) if kind == "rows" else random(number, n, 3, h, w)
        np.testing.assert_array_equal(executable(x), evaluate(module, x))
