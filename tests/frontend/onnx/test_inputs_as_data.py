"""Axes, sizes, steps, regions and modes that are inputs of the model, and random numbers, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.frontend.onnx.helpers import run_onnxruntime
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.pipeline import optimize
from tilewright.support.errors import UserError

RANDOM = np.random.default_rng(11)


def _model(text, opset=21):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n' + text)


def _run(model, *inputs):
    result = evaluate(from_onnx(model), *inputs)
    return list(result) if isinstance(result, tuple) else [result]


def _check(model, *inputs, tolerance=1e-4):
    expected = run_onnxruntime(model, dict(zip([info.name for info in model.graph.input], inputs, strict=True)))
    for result, other in zip(_run(model, *inputs), expected, strict=True):
        assert result.shape == other.shape and result.dtype == other.dtype
        np.testing.assert_allclose(result, other, tolerance, tolerance)


def _floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def _whole(*values):
    return np.array(values, np.int64)


SLICE = _model("t (float[a, 6] x, int64[n] s, int64[n] e, int64[n] axes) => (float[] y) { y = Slice (x, s, e, axes) }")


@pytest.mark.parametrize(("starts", "ends", "axes"), [([1], [5], [-1]), ([0, 1], [2, 4], [1, 0]), ([], [], [])])
def test_slice_along_axes_that_are_data(starts, ends, axes):
    _check(SLICE, _floats(5, 6), _whole(*starts), _whole(*ends), _whole(*axes))


def test_slice_along_axes_that_are_not_there():
    with pytest.raises(UserError, match="out of range for 2 dimensions"):
        _run(SLICE, _floats(5, 6), _whole(0), _whole(1), _whole(2))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_by_data(mode):
    inputs = "float[3, n] x, int64[2] p, float v, int64[1] a"
    text = f't ({inputs}) => (float[] y) {{ y = Pad <mode = "{mode}"> (x, p, v, a) }}'
    _check(_model(text), _floats(3, 4), _whole(2, 1), np.array(0.5, np.float32), _whole(-1))
    amounts = "p = Constant <value_ints = [1, 0, 0, 2]> ()"
    fixed = f't (float[n, 4] x, float v) => (float[] y) {{ {amounts} y = Pad <mode = "{mode}"> (x, p, v) }}'
    _check(_model(fixed), _floats(3, 4), np.array(0.5, np.float32))


@pytest.mark.parametrize("axis", [-2, 0, 1])
@pytest.mark.parametrize("length", [3, 4, 6])
def test_dft_of_a_length_and_along_an_axis_that_are_data(axis, length):
    model = _model("t (float[3, 4, 1] x, int64 n, int64 axis) => (float[] y) { y = DFT (x, n, axis) }")
    _check(model, _floats(3, 4, 1), np.array(length), np.array(axis))


def test_dft_along_an_axis_that_is_not_there():
    model = _model("t (float[3, 4, 1] x, int64 n, int64 axis) => (float[] y) { y = DFT (x, n, axis) }")
    with pytest.raises(UserError, match="the axis is none of 0, -3, 1, -2, 2, -1"):
        _run(model, _floats(3, 4, 1), np.array(4), np.array(5))


def test_stft_of_steps_and_frames_that_are_data():
    model = _model("t (float[2, n, 1] x, int64 s, float[w] win, int64 l) => (float[] y) { y = STFT (x, s, win, l) }")
    for samples, step, length in ((20, 3, 8), (17, 4, 5)):
        _check(model, _floats(2, samples, 1), np.array(step), _floats(length), np.array(length))


def test_columns_to_an_image_whose_size_is_data():
    model = _model(
        "t (float[b, 8, n] x, int64[2] i, int64[2] k) => (float[] y) { y = Col2Im <strides = [2, 1]> (x, i, k) }"
    )
    _check(model, _floats(2, 8, 9), _whole(6, 4), _whole(2, 2))
    with pytest.raises(UserError, match="do not fit"):
        _run(model, _floats(2, 8, 9), _whole(6, 5), _whole(2, 2))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_with_antialias_to_sizes_that_are_data(mode):
    attributes = f'mode = "{mode}", antialias = 1, exclude_outside = 1'
    text = f"t (float[1, 1, h, w] x, int64[4] s) => (float[] y) {{ y = Resize <{attributes}> (x, , , s) }}"
    _check(_model(text), _floats(1, 1, 9, 7), _whole(1, 1, 4, 5), tolerance=1e-3)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_a_region_that_is_data(mode):
    way = f'mode = "{mode}", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 9.0'
    text = f"t (float[1, 1, h, 7] x, float[8] roi, int64[4] s) => (float[] y) {{ y = Resize <{way}> (x, roi, , s) }}"
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 0.7, 1.1], np.float32)
    _check(_model(text), _floats(1, 1, 6, 7), roi, _whole(1, 1, 5, 4))


@pytest.mark.parametrize("size", [4, 5, 7, 8])
@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_open_sizes(size, pad):
    for operator in ("MaxPool", "AveragePool", "LpPool"):
        window = f'kernel_shape = [3], strides = [2], auto_pad = "{pad}"'
        _check(_model(f"t (float[1, 2, n] x) => (float[] y) {{ y = {operator} <{window}> (x) }}"), _floats(1, 2, size))
    conv = f'Conv <strides = [2, 3], auto_pad = "{pad}"> (x, w)'
    text = f"t (float[1, 2, n, m] x, float[3, 2, 3, 3] w) => (float[] y) {{ y = {conv} }}"
    _check(_model(text), _floats(1, 2, size, size + 1), _floats(3, 2, 3, 3))


def test_recurrent_layers_whose_features_only_the_weights_tell():
    text = """t (float[s, b, a, c] x, float[1, 9, 4] w, float[1, 9, 3] r) => (float[] y) {
  shape = Constant <value_ints = [0, 0, -1]> ()
  z = Reshape (x, shape)
  y, h = GRU <hidden_size = 3> (z, w, r)
}"""
    _check(_model(text), _floats(5, 2, 2, 2), _floats(1, 9, 4), _floats(1, 9, 3))


@pytest.mark.parametrize("training", [True, False])
def test_dropout_whose_mode_is_data(training):
    model = _model(
        "t (float[40, 50] x, float r, bool m) => (float[] y, bool[] k) { y, k = Dropout <seed = 3> (x, r, m) }"
    )
    x = np.abs(_floats(40, 50)) + 1
    y, kept = _run(model, x, np.float32(0.25), np.array(training))
    np.testing.assert_allclose(y, np.where(kept, x / np.float32(0.75), 0) if training else x, rtol=1e-6)
    assert abs(kept.mean() - (0.75 if training else 1)) < 0.05


def test_draws_without_a_seed_differ_and_with_one_agree():
    text = """t (float[100, 50] x) => (float[] a, float[] b, float[] c, float[] d) {
  a = RandomNormalLike <mean = 1.0, scale = 2.0> (x)
  b = RandomNormalLike <mean = 1.0, scale = 2.0> (x)
  c = RandomUniformLike <low = 2.0, high = 3.0, seed = 5.0> (x)
  d = RandomUniformLike <low = 2.0, high = 3.0, seed = 5.0> (x)
}"""
    module = optimize(from_onnx(_model(text)))
    x = np.zeros((100, 50), np.float32)
    (a, b, c, d), again = evaluate(module, x), evaluate(module, x)
    assert not np.array_equal(a, b) and not np.array_equal(a, again[0])
    assert np.array_equal(c, d) and np.array_equal(c, again[2])
    assert abs(a.mean() - 1) < 0.2 and abs(a.std() - 2) < 0.2
    assert c.min() >= 2 and c.max() < 3


def test_draws_of_classes_follow_their_probabilities():
    model = _model("t (float[2, 3] x) => (int64[] y) { y = Multinomial <sample_size = 4000, dtype = 7> (x) }")
    logits = np.log(np.array([[0.7, 0.3, 1e-9], [1e-9, 0.5, 0.5]], np.float32))
    (drawn,) = _run(model, logits)
    assert drawn.shape == (2, 4000) and drawn.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=3) / 4000 for row in drawn])
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.05)


def test_an_optional_that_a_branch_leaves_empty():
    model = _model("""t (bool c, float[2] x) => (bool has) {
  o = If (c) <
    then_branch = a () => (optional(float[2]) p) { p = Optional (x) },
    else_branch = b () => (optional(float[2]) q) { q = Optional <type = float[2]> () }
  >
  has = OptionalHasElement (o)
}""")
    for there in (True, False):
        assert bool(_run(model, np.array(there), _floats(2))[0]) is there
