"""`precision="int8"` and the others of few bits, as options of a compilation and on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.quantization.networks import images, perceptron, residual_network
from tilewright.cli.main import main
from tilewright.options import LOW_PRECISIONS
from tilewright.quantization.precision import REQUESTS
from tilewright.support.errors import UserError

MODEL = residual_network().SerializeToString()


def test_every_low_precision_says_how_it_is_quantised() -> None:
    assert set(REQUESTS) == set(LOW_PRECISIONS)


def test_int8_with_data_is_static_quantisation() -> None:
    data, x = images(), images(1, seed=7)
    exe = tw.compile(MODEL, threads=1, precision="int8", calibration=data)
    quantized = tw.compile(tw.quantize(MODEL, data, threads=1).module, threads=1)
    np.testing.assert_array_equal(np.asarray(exe(x)), np.asarray(quantized(x)))
    compilation = tw.Compilation(MODEL, threads=1, precision="int8", calibration=data)
    assert "qnn.quantize" in str(compilation.imported)


def test_int8_without_data_is_dynamic_in_matrix_products() -> None:
    compilation = tw.Compilation(MODEL, threads=1, precision="int8")
    text = str(compilation.imported)
    assert text.count("qnn.quantize") == 1 and "nn.conv2d" in text
    x = images(1, seed=3)
    exact = np.asarray(tw.compile(MODEL, threads=1)(x))
    assert np.abs(np.asarray(compilation.executable()(x)) - exact).max() < 0.05 * np.abs(exact).max()


def test_mixed_leaves_layers_in_float32() -> None:
    exe = tw.compile(MODEL, threads=1, precision="mixed", calibration=images())
    x = images(1, seed=3)
    exact = np.asarray(tw.compile(MODEL, threads=1)(x))
    assert np.square(np.asarray(exe(x)) - exact).sum() < 1e-2 * np.square(exact).sum()
    with pytest.raises(UserError, match="precision 'mixed' needs calibration data"):
        tw.compile(MODEL, precision="mixed")


def test_int4_weights_need_no_data() -> None:
    model = perceptron().SerializeToString()
    assert "qnn.dequantize" in str(tw.Compilation(model, threads=1, precision="int4_weights").imported)


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(UserError, match="there is no precision 'int7'"):
        tw.compile(MODEL, precision="int7")
    with pytest.raises(UserError, match="calibration data changes nothing in precision 'float16'"):
        tw.compile(MODEL, precision="float16", calibration=images())
    with pytest.raises(UserError, match="there is no calibration data"):
        tw.compile(MODEL, precision="int8", calibration=[])


def test_calibration_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "examples.npy"
    model.write_bytes(MODEL)
    np.save(data, images())
    words = ["inspect", str(model), "--stage", "graph", "--threads", "1"]
    assert main([*words, "--precision", "int8", "--calibration", str(data)]) == 0
    assert "qnn" in capsys.readouterr().out
