"""The models for GPUs: a batch is its elements one by one, and half precision is near."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from bench import gpu_models, zoo


def _run(model: bytes, inputs: zoo.Arrays) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    results: list[np.ndarray] = onnxruntime.InferenceSession(model, options).run(None, inputs)
    return results


@pytest.mark.parametrize(("name", "half"), [("dqn", False), ("dqn", True), ("lstm_lm_1", False)])
def test_a_batch_is_its_elements(name: str, half: bool) -> None:
    model, inputs = gpu_models.model(name, 2, half), gpu_models.inputs(name, 2, half)
    assert {item.dtype for item in inputs.values()} & {np.dtype(np.float16 if half else np.float32)}
    joined = _run(model.SerializeToString(), inputs)
    for seed in range(2):
        alone = _run(zoo.build(name).SerializeToString(), zoo.inputs(name, seed))
        for whole, part in zip(joined, alone, strict=True):
            got = np.take(whole, [seed], axis=gpu_models.batch_axis(name))
            scale = float(np.abs(part).max())
            np.testing.assert_allclose(got / scale, part / scale, atol=5e-3 if half else 1e-5)
