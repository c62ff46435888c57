"""MXNet's operators, control flow and a network against what MXNet itself gave (`bench/mxnet_cases.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from bench.case_archive import read_archive
from bench.frontend_mxnet import loaded
from tilewright.graph.interpreter import evaluate

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "mxnet"
CASES = read_archive(FOLDER / "cases.npz")


@pytest.mark.parametrize("name", CASES)
def test_operators_give_what_mxnet_gives(name: str) -> None:
    module, inputs, expected = loaded(CASES[name])
    if name.startswith("control"):
        found = tuple(tw.compile(module, threads=1).run(inputs))
    else:
        result = evaluate(module, *(inputs[param.name] for param in module["main"].params))
        found = result if isinstance(result, tuple) else (result,)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["network-symbol.json", "network-0000.params"])
def test_a_network_as_gluon_exports_it(name: str) -> None:
    parts = CASES["network"]
    exe = tw.compile(FOLDER / name, threads=1)
    image = parts["in|data"]
    np.testing.assert_allclose(exe(image), parts["out|0"], rtol=1e-4, atol=1e-5)
    # The batch and the size of the image are open.
    both = exe(np.concatenate([image, image[:, :, ::-1]]))
    np.testing.assert_allclose(both[:1], parts["out|0"], rtol=1e-4, atol=1e-5)
    assert exe(np.zeros((1, 3, 20, 15), np.float32)).shape == (1, 5)
