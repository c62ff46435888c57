"""Winograd's algorithm in whole models: used where it pays, exact enough, and switched off when asked."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench import zoo
from tilewright.cli.measure import max_relative_error
from tilewright.cli.peers import onnxruntime

pytest.importorskip("onnxruntime")

AVX512 = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"


def winograd_kernels(compilation: tw.Compilation) -> int:
    return sum("winograd" in kernel.symbol for kernel in compilation.kernels)


def test_resnet_uses_it_unless_told_otherwise() -> None:
    assert winograd_kernels(tw.Compilation(zoo.path("resnet18"), AVX512)) >= 4
    assert winograd_kernels(tw.Compilation(zoo.path("resnet18"), AVX512, winograd=False)) == 0


def test_resnet_is_as_exact_on_two_threads_as_with_direct_convolutions() -> None:
    inputs = zoo.inputs("resnet18")
    expected = onnxruntime(zoo.path("resnet18"), 1, inputs)()
    executable = tw.compile(zoo.path("resnet18"), threads=2)
    outputs = executable.run(inputs)
    assert max_relative_error(outputs, expected) <= 5e-6
    for first, second in zip(outputs, executable.run(inputs), strict=True):
        np.testing.assert_array_equal(first, second)
