"""Softmax and normalisations against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis):
    x = data(2, 3, 4, dtype="float64")
    expected = np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(apply("nn.softmax", x, axis=axis), expected, rtol=1e-12)
    np.testing.assert_allclose(apply("nn.log_softmax", x, axis=axis), np.log(expected), rtol=1e-9)


def test_softmax_of_large_numbers():
    x = np.array([[1e30, 1e30, 0], [-1e30, 0, -np.inf]], np.float32)
    np.testing.assert_allclose(apply("nn.softmax", x, axis=1), [[0.5, 0.5, 0], [0, 1, 0]])


@pytest.mark.parametrize("axis", [1, 2])
def test_layer_norm(axis):
    x = data(2, 3, 4, dtype="float64")
    shape = x.shape[axis:]
    scale, bias = data(*shape, dtype="float64"), data(*shape, dtype="float64")
    axes = tuple(range(axis, 3))
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    result = apply("nn.layer_norm", x, scale, bias, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(result, normal * scale + bias, rtol=1e-10)


@pytest.mark.parametrize("axis", [1, 2])
def test_rms_norm(axis):
    x = data(2, 3, 4, dtype="float64")
    scale = data(*x.shape[axis:], dtype="float64")
    normal = x / np.sqrt((x * x).mean(tuple(range(axis, 3)), keepdims=True) + 1e-3)
    result = apply("nn.rms_norm", x, scale, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(result, normal * scale, rtol=1e-10)
    halves, wide = tensor_type((2, 3), "float16"), tensor_type((3,), "float32")
    assert infer("nn.rms_norm", halves, wide, axis=1) is halves
    with pytest.raises(UserError, match="do not broadcast"):
        infer("nn.rms_norm", *_f32((2, 3), (5,)), axis=1)
    with pytest.raises(UserError, match=r"scale .* does not fit the data"):
        infer("nn.rms_norm", *_f32((2, 3), (4, 2, 3)), axis=1)


@pytest.mark.parametrize("axis", [1, 3])
def test_batch_norm(axis):
    x = data(2, 5, 3, 5, dtype="float64")
    scale, bias, mean = (data(5, dtype="float64") for _ in range(3))
    variance = data(5, dtype="float64", low=0.5)
    shape = [1, 1, 1, 1]
    shape[axis] = 5
    s, b, m, v = (item.reshape(shape) for item in (scale, bias, mean, variance))
    result = apply("nn.batch_norm", x, scale, bias, mean, variance, epsilon=1e-3, axis=axis)
    np.testing.assert_allclose(result, (x - m) / np.sqrt(v + 1e-3) * s + b, rtol=1e-10)


def test_layer_norm_of_images_with_a_scale_for_each_channel():
    x, scale, bias = data(2, 3, 4, 5, dtype="float64"), data(3, 1, 1, dtype="float64"), data(3, 1, 1, dtype="float64")
    expected = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(apply("nn.layer_norm", x, scale, bias, axis=2), expected, rtol=1e-10)


def _f32(*shapes):
    return [tensor_type(shape, "float32") for shape in shapes]


def test_wrong():
    with pytest.raises(UserError, match="axis 3 is out of range"):
        infer("nn.softmax", *_f32((2, 3)), axis=3)
    with pytest.raises(UserError, match="floating-point"):
        infer("nn.softmax", tensor_type((2, 3), "int32"), axis=1)
    with pytest.raises(UserError, match=r"scale \(5,\) does not fit|do not broadcast"):
        infer("nn.layer_norm", *_f32((2, 3), (5,), (3,)), axis=1)
    with pytest.raises(UserError, match=r"bias \(1, 2, 3\) does not fit the data"):
        infer("nn.layer_norm", *_f32((2, 3), (3,), (1, 2, 3)), axis=1)
    with pytest.raises(UserError, match="does not fit the data"):
        infer("nn.layer_norm", *_f32((2, 1), (4,), (1,)), axis=1)
    with pytest.raises(UserError, match="channels of the data, and length of mean: 3 and 4"):
        infer("nn.batch_norm", *_f32((2, 3, 4), (3,), (3,), (4,), (3,)))
    with pytest.raises(UserError, match="variance must have 1 dimensions"):
        infer("nn.batch_norm", *_f32((2, 3, 4), (3,), (3,), (3,), (3, 1)))
