"""ncnn's layers and a network against what ncnn itself gave (`bench/ncnn_fixtures.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from bench.case_archive import read_archive
from bench.ncnn_cases import binary
from tilewright.frontend.ncnn import from_ncnn
from tilewright.graph.interpreter import evaluate

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "ncnn"
CASES = read_archive(FOLDER / "cases.npz")


@pytest.mark.parametrize("name", CASES)
def test_layers_give_what_ncnn_gives(name: str) -> None:
    parts = CASES[name]
    inputs = {key[3:]: value for key, value in parts.items() if key.startswith("in|")}
    shapes = {key: value.shape for key, value in inputs.items()}
    module = from_ncnn(parts["text"].tobytes(), shapes, parts["weights"].tobytes())
    result = evaluate(module, *(inputs[param.name] for param in module["main"].params))
    found = result if isinstance(result, tuple) else (result,)
    expected = [value for key, value in parts.items() if key.startswith("out|")]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 if "integers" in name else 1e-4)


@pytest.mark.parametrize("name", ["network.param", "network.bin"])
def test_a_network_in_two_files(name: str) -> None:
    parts = CASES["network"]
    exe = tw.compile(FOLDER / name, threads=1, shapes={"data": (3, 16, 16)})
    np.testing.assert_allclose(exe(parts["in|data"]), parts["out|0"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["network", "PixelShuffle 0=2", "eltwise weighted", "Clip 0=-0.3 1=0.4", "slice"])
def test_the_binary_form_is_the_same_net(name: str) -> None:
    parts = CASES[name]
    content, names = binary(parts["text"].tobytes().decode())
    shapes = {key: parts[f"in|{value}"].shape for key, value in names.items() if f"in|{value}" in parts}
    module = from_ncnn(content, shapes, parts["weights"].tobytes())
    values = [parts[f"in|{names[param.name]}"] for param in module["main"].params]
    result = evaluate(module, *values)
    found = result if isinstance(result, tuple) else (result,)
    for at, ours in enumerate(found):
        np.testing.assert_allclose(ours, parts[f"out|{at}"], rtol=1e-4, atol=1e-4)
