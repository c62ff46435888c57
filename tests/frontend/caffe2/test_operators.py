"""Caffe2's operators and a network against what PyTorch gave for the same layers (`bench/caffe2_fixtures.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench.caffe2_cases import net, operator, random
from bench.case_archive import read_archive
from tilewright.frontend.caffe2 import from_caffe2
from tilewright.graph.interpreter import evaluate

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "caffe2"
CASES = read_archive(FOLDER / "cases.npz")


@pytest.mark.parametrize("name", CASES)
def test_operators_give_what_is_expected(name: str) -> None:
    parts = CASES[name]
    inputs = {key[3:]: value for key, value in parts.items() if key.startswith("in|")}
    shapes = {key: value.shape for key, value in inputs.items()}
    module = from_caffe2(parts["net"].tobytes(), shapes, parts["weights"].tobytes())
    result = evaluate(module, *(inputs[param.name] for param in module["main"].params))
    found = result if isinstance(result, tuple) else (result,)
    expected = [value for key, value in parts.items() if key.startswith("out|")]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["predict_net.pb", "init_net.pb"])
def test_a_network_in_two_files(name: str) -> None:
    parts = CASES["network"]
    exe = tw.compile(FOLDER / name, threads=1)
    np.testing.assert_allclose(exe(parts["in|data"]), parts["out|0"], rtol=1e-4, atol=1e-5)
    assert exe(np.zeros((2, 3, 9, 11), np.float32)).shape == (2, 5)


def levels(x: Any, scale: float, zero: int) -> Any:
    return np.clip(np.rint(x / scale) + zero, 0, 255)


def test_integers_stand_for_numbers() -> None:
    """Each operator gives the nearest integers to what its numbers give."""
    weight, bias = np.random.default_rng(1).integers(0, 256, (3, 1, 1, 2)), np.array([5, -7, 0])
    fills = [
        operator("Int8GivenTensorFill", "", "w", shape=[3, 1, 1, 2], values=weight.astype(np.uint8).tobytes(),
                 Y_scale=0.02, Y_zero_point=120),
        operator("Int8GivenIntTensorFill", "", "b", shape=[3], values=bias.tolist(), Y_scale=0.001, Y_zero_point=0),
    ]  # fmt: skip
    operators = [
        operator("Int8Quantize", "x", "q", Y_scale=0.05, Y_zero_point=128),
        operator("Int8ConvRelu", "q w b", "c", kernel=1, order="NHWC", Y_scale=0.03, Y_zero_point=3),
        operator("Int8MaxPool", "c", "p", kernel=2, stride=2, order="NHWC"),
        operator("Int8Add", "p p", "a", Y_scale=0.07, Y_zero_point=1),
        operator("Int8Dequantize", "a", "y"),
    ]
    x = random(1, 4, 4, 2)
    module = from_caffe2(net(operators, "x w b"), {"x": x.shape}, net(fills))
    numbers = (levels(x, 0.05, 128) - 128) * 0.05
    conv = np.maximum(numbers @ ((weight - 120) * 0.02).reshape(3, 2).T + bias * 0.001, 0)
    conv = (levels(conv, 0.03, 3) - 3) * 0.03
    pooled = conv.reshape(1, 2, 2, 2, 2, 3).max(axis=(2, 4))
    expected = (levels(2 * pooled, 0.07, 1) - 1) * 0.07
    np.testing.assert_allclose(evaluate(module, x), expected, atol=0.0701)
    assert (np.abs(np.asarray(evaluate(module, x)) - expected) < 1e-4).mean() > 0.9
