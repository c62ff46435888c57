"""Steps of optimisers against ONNX's own reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.helpers import data, make_model, run_tilewright
from tilewright.support.errors import UserError

DOMAIN = "ai.onnx.preview.training"


def _run(op_type: str, kinds: int, count: int, steps: int, **attributes: object) -> None:
    names = [f"x{index}" for index in range(kinds * count)]
    inputs = {"r": np.array(0.1, np.float32), "t": np.array(steps, np.int64)}
    inputs |= {name: data(3, 2, low=0.1) for name in names}
    outputs = [f"y{index}" for index in range((kinds - 1) * count)]
    node = helper.make_node(op_type, ["r", "t", *names], outputs, domain=DOMAIN, **attributes)
    model = make_model([node], inputs, outputs, domains={DOMAIN: 1})
    results = run_tilewright(model, inputs)
    for mine, other in zip(results, ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [0, 3])
def test_momentum(steps):
    _run("Momentum", 3, 1, steps, alpha=0.9, beta=0.5, norm_coefficient=0.01, mode="standard")
    _run("Momentum", 3, 1, steps, alpha=0.9, beta=0.5, norm_coefficient=0.01, mode="nesterov")
    _run("Momentum", 3, 2, steps, alpha=0.9, beta=0.5, norm_coefficient=0.01, mode="standard")


@pytest.mark.parametrize("count", [1, 2])
def test_adagrad(count):
    _run("Adagrad", 3, count, 3, norm_coefficient=0.02, epsilon=1e-3, decay_factor=0.1)


@pytest.mark.parametrize("steps", [0, 4])
def test_adam(steps):
    _run("Adam", 4, 1, steps, alpha=0.95, beta=0.85, epsilon=1e-2, norm_coefficient=0.01)
    _run("Adam", 4, 2, steps, alpha=0.95, beta=0.85, epsilon=1e-2, norm_coefficient_post=0.1)


def test_refusals():
    with pytest.raises(UserError, match="groups of 3 inputs"):
        _run("Momentum", 2, 1, 0, alpha=0.9, beta=0.5, norm_coefficient=0.0, mode="standard")
    node = helper.make_node("Momentum", ["r", "t", "x", "g", "v"], ["y", "w"], domain=DOMAIN, alpha=0.9,
                                beta=0.5, norm_coefficient=0.0, mode="magic")  # fmt: skip
    inputs = {"r": np.array(0.1, np.float32), "t": np.array(1, np.int64)}
    inputs |= {name: data(2) for name in ("x", "g", "v")}
    model = make_model([node], inputs, ["y", "w"], domains={DOMAIN: 1})
    with pytest.raises(UserError, match="unknown mode 'magic'"):
        run_tilewright(model, inputs)
