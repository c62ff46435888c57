"""Normalisations against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UnsupportedError, UserError


def _statistics(channels):
    return data(channels), data(channels), data(channels), data(channels, low=0.5, high=2)


@pytest.mark.parametrize("opset", [9, 14, 15, 21])
def test_batch_normalization(opset):
    check("BatchNormalization", data(2, 3, 4, 5), *_statistics(3), opset=opset, epsilon=1e-3, tolerance=1e-4)
    check("BatchNormalization", data(4, 3), *_statistics(3), opset=opset, tolerance=1e-4)


def test_old_statistics_for_every_element_are_unsupported():
    with pytest.raises(UnsupportedError, match="spatial=0"):
        import_one("BatchNormalization", data(2, 3, 4), *_statistics(3), opset=7, spatial=0)
    with pytest.raises(UserError, match="channels of the data, and length of scale: 3 and 4"):
        import_one("BatchNormalization", data(2, 3, 4), *_statistics(4))


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_normalization(axis):
    x = data(2, 3, 4)
    shape = x.shape[axis:] if axis >= 0 else x.shape[-1:]
    check("LayerNormalization", x, data(*shape), data(*shape), axis=axis, tolerance=1e-4)
    check("LayerNormalization", x, data(*shape), axis=axis, epsilon=1e-2, tolerance=1e-4)


def test_layer_normalization_with_statistics():
    check("LayerNormalization", data(2, 3, 4), data(4), data(4), outputs=3, tolerance=1e-4)


def test_layer_normalization_is_one_operator():
    found = operators_of(import_one("LayerNormalization", data(2, 3, 4), data(4), constants=[1]))
    assert found == ["nn.layer_norm"]


def test_layer_normalization_with_a_scale_of_more_dimensions():
    scale = data(1, 4)
    module = import_one("LayerNormalization", data(3, 4), scale, None)
    assert "rsqrt" in operators_of(module)


def test_instance_normalization():
    check("InstanceNormalization", data(2, 3, 4, 5), data(3), data(3), tolerance=1e-4)
    with pytest.raises(UserError, match="the scale has shape"):
        import_one("InstanceNormalization", data(2, 3, 4, 5), data(2), data(3))
    with pytest.raises(UserError, match="at least 3 dimensions"):
        import_one("InstanceNormalization", data(2, 3), data(3), data(3))


def test_group_normalization_per_channel():
    check("GroupNormalization", data(2, 6, 4, 5), data(6), data(6), num_groups=3, tolerance=1e-4)


def test_group_normalization_per_group():
    check("GroupNormalization", data(2, 6, 4, 5), data(3), data(3), num_groups=3, opset=18, tolerance=1e-4)


def test_group_normalization_refuses():
    with pytest.raises(UserError, match="4 groups do not fit"):
        import_one("GroupNormalization", data(2, 6, 4, 5), data(6), data(6), num_groups=4)


def test_mean_variance_normalization_is_expanded_from_its_definition():
    check("MeanVarianceNormalization", data(2, 3, 4, 5), tolerance=1e-4)


def test_rms_normalization():
    found = operators_of(import_one("RMSNormalization", data(2, 8), np.ones(8, np.float32), opset=23))
    assert found == ["add", "mean", "multiply", "multiply", "multiply", "rsqrt"]


def test_batch_normalization_in_training_form():
    values = (data(3, 4, 5), data(4), data(4), data(4), data(4, low=0.5))
    check("BatchNormalization", *values, outputs=3, opset=15, training_mode=1, momentum=0.8, tolerance=1e-4)
