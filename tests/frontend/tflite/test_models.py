"""Models of TensorFlow's own converter, against LiteRT's answers (`python -m bench.tflite_fixtures` wrote both)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.fuse import primitive_functions

FOLDER = Path(__file__).parent / "models"
EXACT = ("network_int8", "network_uint8", "network_int16")
CLOSE = ("network_float", "network_float16", "network_hybrid", "recurrent")


@pytest.fixture(scope="module")
def answers():
    with np.load(FOLDER / "answers.npz") as stored:
        return dict(stored)


def values(answers, name, kind):
    return [answers[key] for key in sorted(answers) if key.startswith(f"{name}#{kind}")]


@pytest.mark.parametrize("name", EXACT)
def test_quantised_models_are_equal_to_the_bit(answers, name):
    result = evaluate(from_tflite(FOLDER / f"{name}.tflite"), *values(answers, name, "input"))
    np.testing.assert_array_equal(np.asarray(result), values(answers, name, "output")[0])


@pytest.mark.parametrize("name", CLOSE)
def test_models_of_floats(answers, name):
    result = evaluate(from_tflite(FOLDER / f"{name}.tflite"), *values(answers, name, "input"))
    np.testing.assert_allclose(np.asarray(result), values(answers, name, "output")[0], atol=1e-6)


def test_no_transposes_between_convolutions():
    """Data has channels last from the first layer to the last."""
    module = from_tflite(FOLDER / "network_float.tflite", shapes={"keras_tensor": (1, 12, 12, 3)})
    optimized = tw.Compilation(module, options=tw.CompileOptions(threads=1)).optimized
    calls = [item for function in primitive_functions(optimized) for item in post_order(function)]
    assert any(is_call_to(item, "nn.conv2d") for item in calls)
    assert not any(is_call_to(item, "transpose") for item in calls)


def test_signatures_with_a_loop_and_a_branch():
    path = FOLDER / "signatures.tflite"
    x = np.float32([[0.2, -1, 3], [2, 0.7, 0.1]])
    looped = x
    for _ in range(3):
        looped = np.maximum(looped * 2 - 1, 0)
    module = from_tflite(path, signature="loop")
    named = dict(zip((param.name for param in module["main"].params), (None, None), strict=True))
    inputs = [np.int32(3) if name == "count" else x for name in named]
    np.testing.assert_allclose(np.asarray(evaluate(module, *inputs)), looped, rtol=1e-6)
