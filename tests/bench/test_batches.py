"""The models for GPUs: a batch is its elements one by one, and half precision is near."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright as tw
from bench import batches, zoo
from tilewright.onnx_writer import to_onnx


def _run(model: bytes, inputs: zoo.Arrays) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    results: list[np.ndarray] = onnxruntime.InferenceSession(model, options).run(None, inputs)
    return results


@pytest.mark.parametrize(("name", "half"), [("dqn", False), ("dqn", True), ("lstm_lm_1", False)])
def test_a_batch_is_its_elements(name: str, half: bool) -> None:
    model, inputs = batches.model(name, 2, half), batches.inputs(name, 2, half)
    assert {item.dtype for item in inputs.values()} & {np.dtype(np.float16 if half else np.float32)}
    joined = _run(model.SerializeToString(), inputs)
    for seed in range(2):
        alone = _run(zoo.build(name).SerializeToString(), zoo.inputs(name, seed))
        for whole, part in zip(joined, alone, strict=True):
            got = np.take(whole, [seed], axis=batches.batch_axis(name))
            scale = float(np.abs(part).max())
            np.testing.assert_allclose(got / scale, part / scale, atol=5e-3 if half else 1e-5)


def test_a_larger_batch_leaves_quantised_weights_alone() -> None:
    """They were taken for masks of windows, once for each image."""
    rows = [list(zoo.inputs("dqn", seed).values()) for seed in (7, 8)]
    alone = onnx.load_from_string(to_onnx(tw.quantize(zoo.build("dqn"), rows).module))
    larger = batches.with_batch(alone, "dqn", 2)
    sizes = [{item.name: list(item.dims) for item in model.graph.initializer} for model in (alone, larger)]
    assert sizes[0] == sizes[1]
    (whole,) = _run(larger.SerializeToString(), batches.inputs("dqn", 2, False))
    (part,) = _run(alone.SerializeToString(), zoo.inputs("dqn", 0))
    np.testing.assert_allclose(whole[:1], part, rtol=1e-5, atol=1e-6)
