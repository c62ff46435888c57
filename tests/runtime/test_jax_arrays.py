"""Models take arrays of jax's by DLPack and give such back; a stand-in for jax shows it where that is not installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np

import tilewright as tw
from tilewright.frontend import from_stablehlo

TEXT = """
func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %0 = stablehlo.add %a, %b : tensor<3xf32>
  %1 = stablehlo.multiply %a, %b : tensor<3xf32>
  return %0, %1 : tensor<3xf32>, tensor<3xf32>
}
"""


class Array:
    """An array of the stand-in."""

    def __init__(self, data):
        self.data = np.asarray(data)

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def test_results_are_what_the_first_input_is(monkeypatch):
    executable = tw.compile(from_stablehlo(TEXT), threads=1)
    x = np.arange(3, dtype=np.float32)
    assert all(isinstance(item, np.ndarray) for item in executable(x, x))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Array, numpy=SimpleNamespace(asarray=Array)))
    total, product = executable(Array(x), x)
    assert isinstance(total, Array)
    np.testing.assert_array_equal(total.data, x + x)
    np.testing.assert_array_equal(product.data, x * x)
