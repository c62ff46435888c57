"""Fourier transforms against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.helpers import data, import_one, open_model
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Constant
from tilewright.graph.ir.traverse import post_order
from tilewright.support.errors import UnsupportedError, UserError


def _complex(pairs: np.ndarray) -> np.ndarray:
    return pairs[..., 0] + 1j * pairs[..., 1]


def _axis(value: int) -> np.ndarray:
    return np.array(value, np.int64)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_complex_transforms(inverse, axis):
    x = data(3, 5, 4, 2)
    module = import_one("DFT", x, None, _axis(axis), constants=[2], opset=20, inverse=inverse)
    transform = np.fft.ifft if inverse else np.fft.fft
    wanted = transform(_complex(x), axis=axis if axis >= 0 else 2)
    np.testing.assert_allclose(_complex(evaluate(module, x)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [6, 9, 12])
def test_one_sided_transforms(length):
    x = data(2, 9, 1)
    lengths = np.array(length, np.int64)
    module = import_one("DFT", x, lengths, _axis(1), constants=[1, 2], opset=20, onesided=1)
    half = evaluate(module, x)
    np.testing.assert_allclose(_complex(half), np.fft.rfft(x[..., 0], length), rtol=1e-4, atol=1e-4)
    module = import_one("DFT", half, lengths, _axis(1), constants=[1, 2], opset=20, onesided=1, inverse=1)
    wanted = np.fft.irfft(_complex(half), length)
    np.testing.assert_allclose(evaluate(module, half)[..., 0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [64, 66, 100, 254, 256, 400, 512, 514, 1028, 2 * 521])
def test_half_spectra_of_real_samples_are_folded(length):
    x = data(2, length, 1)
    for signal in (x, x[0]):
        module = import_one("DFT", signal, None, _axis(-2), constants=[2], opset=20, onesided=1)
        half = evaluate(module, signal)
        np.testing.assert_allclose(_complex(half), np.fft.rfft(signal[..., 0]), rtol=1e-4, atol=1e-4)
        tables = [item for item in post_order(module["main"]) if isinstance(item, Constant) and item.data.ndim == 2]
        assert sum(table.data.size for table in tables) <= length * (length / 2 + 1)


@pytest.mark.parametrize("length", [1024, 1025, 6000])
def test_long_transforms_are_split(length):
    x = data(2, length, 1)
    half = evaluate(import_one("DFT", x, None, _axis(1), constants=[2], opset=20, onesided=1), x)
    np.testing.assert_allclose(_complex(half), np.fft.rfft(x[..., 0]), rtol=1e-3, atol=1e-3)
    lengths = np.array(length, np.int64)
    module = import_one("DFT", half, lengths, _axis(1), constants=[1, 2], opset=20, onesided=1, inverse=1)
    np.testing.assert_allclose(evaluate(module, half), x, rtol=1e-3, atol=1e-4)


def test_transforms_of_any_length():
    node = helper.make_node("DFT", ["x", "", "axis"], ["y"], onesided=1)
    back = helper.make_node("DFT", ["y", "", "axis"], ["z"], onesided=1, inverse=1)
    model = open_model(
        [node, back], {"x": (TensorProto.FLOAT, ["n", "t", 1])}, ["y", "z"], {"axis": _axis(1)}, opset=20
    )
    module = from_onnx(model)
    for shape in ((2, 8, 1), (1, 30, 1)):
        x = data(*shape)
        half, again = evaluate(module, x)
        np.testing.assert_allclose(_complex(half), np.fft.rfft(x[..., 0]), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(again, x, rtol=1e-4, atol=1e-4)


def test_the_old_form_names_the_axis_as_an_attribute():
    x = data(2, 4, 3, 1)
    module = import_one("DFT", x, opset=17, axis=2)
    np.testing.assert_allclose(_complex(evaluate(module, x)), np.fft.fft(x[..., 0], axis=2), rtol=1e-4, atol=1e-4)


def test_short_time_transforms():
    x, window = data(2, 20, 1), data(8, low=0.1)
    module = import_one("STFT", x, np.array(4, np.int64), window, constants=[1, 2], opset=17)
    frames = np.stack([x[:, start : start + 8, 0] * window for start in range(0, 13, 4)], axis=1)
    np.testing.assert_allclose(_complex(evaluate(module, x)), np.fft.rfft(frames), rtol=1e-4, atol=1e-4)
    pairs = data(2, 20, 2)
    length = np.array(8, np.int64)
    module = import_one("STFT", pairs, np.array(4, np.int64), None, length, constants=[1, 3], opset=17, onesided=0)
    frames = np.stack([_complex(pairs)[:, start : start + 8] for start in range(0, 13, 4)], axis=1)
    np.testing.assert_allclose(_complex(evaluate(module, pairs)), np.fft.fft(frames), rtol=1e-4, atol=1e-4)


def test_refusals():
    with pytest.raises(UserError, match="real or complex data"):
        import_one("DFT", data(2, 4, 3), opset=20)
    with pytest.raises(UserError, match="along the axis of real"):
        import_one("DFT", data(2, 4, 2), opset=17, axis=2)
    with pytest.raises(UserError, match="needs real data"):
        import_one("DFT", data(2, 4, 2), opset=20, onesided=1)
    with pytest.raises(UnsupportedError, match="length 5003, which has no factors"):
        import_one("DFT", data(1, 5003, 1), opset=20)
    with pytest.raises(UserError, match="needs a window or the length"):
        import_one("STFT", data(2, 20, 1), np.array(4, np.int64), constants=[1], opset=17)
    with pytest.raises(UserError, match="does not fit a signal"):
        import_one("STFT", data(2, 20, 1), np.array(4, np.int64), data(30), constants=[1, 2], opset=17)
