"""Quantization-aware training: roundings in place, gradients straight through, integers again afterwards."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tests.train.models import weight
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Constant, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.dtype import INT8
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import SGD, QuantizationAware, Step

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6)).astype(np.float32)
Y = np.abs(X[:, :3]).argmax(axis=1).astype(np.int64)


def dense() -> IRModule:
    """Two dense layers with biases."""
    x = var("x", 16, 6)
    inner = op("nn.relu", op("add", op("matmul", x, weight("a", 1, 6, 12)), weight("b", 2, 12)))
    result = op("add", op("matmul", inner, weight("c", 3, 12, 3)), weight("d", 4, 3))
    return infer_types(IRModule([function([x], result)], attributes={"output_names": ("y",)}))


@pytest.fixture(scope="module")
def quantized() -> IRModule:
    return tw.quantize(dense(), X).module


def integers(module: IRModule) -> list[np.ndarray]:
    found = [item for item in post_order(module["main"]) if isinstance(item, Constant) and item.dtype is INT8]
    return [item.data for item in found if item.data.ndim == 2]


def test_the_model_starts_as_the_quantised_one(quantized: IRModule) -> None:
    aware = QuantizationAware(quantized)
    np.testing.assert_allclose(evaluate(aware.module, X), evaluate(quantized, X), rtol=1e-5, atol=1e-5)


def test_training_changes_the_integers_and_they_say_what_was_trained(quantized: IRModule) -> None:
    aware = QuantizationAware(quantized)
    step = Step(aware.module, "cross_entropy", SGD(0.2), threads=1)
    assert sum(value.ndim == 2 for value in step.parameters().values()) == 2
    losses = [step(X, Y).loss for _ in range(10)]
    assert losses[-1] < losses[0]
    again = aware.quantized(step.parameters())
    for before, after in zip(integers(quantized), integers(again), strict=True):
        assert before.dtype == after.dtype and (before != after).any()
    # Biases are rounded to steps of the sums, which are smaller than those of the results.
    np.testing.assert_allclose(evaluate(again, X), evaluate(step.module(), X), atol=0.05)
    np.testing.assert_allclose(tw.compile(again, threads=1)(X), evaluate(again, X), atol=0.05)


def test_gradients_stop_where_numbers_saturate() -> None:
    x = var("x", 4)
    scale, zero = constant(np.float32(0.1)), constant(np.int8(0))
    through = op("qnn.dequantize", op("qnn.quantize", x, scale, zero, dtype=INT8, bits=8), scale, zero)
    held = op("qnn.dequantize", constant(np.array([1, 2, 3, 4], np.int8)), scale, zero)
    module = infer_types(IRModule([function([x], op("sum", op("multiply", through, held), axes=(0,), keepdims=False))]))
    aware = QuantizationAware(module).module
    _, slope = evaluate(tw.value_and_grad(aware, "x"), np.array([0.04, 1.0, 50.0, -50.0], np.float32))
    np.testing.assert_allclose(slope, [0.1, 0.2, 0.0, 0.0], rtol=1e-6)


def test_wrong_models_are_refused(quantized: IRModule) -> None:
    with pytest.raises(UserError, match="the model has no quantised weights"):
        QuantizationAware(dense())
    with pytest.raises(UserError, match="the parameters have no"):
        QuantizationAware(quantized).quantized({})
