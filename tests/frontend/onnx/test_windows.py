"""Windows of convolutions and pools: every auto_pad with every stride, kernel and dilation; windows that do not fit.

onnxruntime is asked with the padding written out, by the standard's equations: its own for auto_pad forget dilations in
pools, and strides over the kernel in transposed convolutions.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.helpers import data, import_one, make_model, run_onnxruntime, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.support.errors import UserError

LENGTHS, KERNELS, STRIDES, DILATIONS = (1, 4, 7), (1, 2, 3, 5), (1, 2, 3), (1, 2)
WINDOWS = list(itertools.product(LENGTHS, KERNELS, STRIDES, DILATIONS))
MODES = ("VALID", "SAME_UPPER", "SAME_LOWER")
OPSET = 22


def model_of(op_type, values, **attributes):
    names = [f"x{index}" for index in range(len(values))]
    given = dict(zip(names, values, strict=True))
    return make_model([helper.make_node(op_type, names, ["y"], **attributes)], given, ["y"], opset=OPSET), given


def values_of(op_type, length, kernel):
    image = data(1, 2, length)
    return [image, data(2, 2, kernel)] if op_type.startswith("Conv") else [image]


def shared(op_type, kernel, stride, dilation):
    own = {} if op_type.startswith("Conv") else {"kernel_shape": [kernel]}
    return {"strides": [stride], "dilations": [dilation], **own}


def padding_of(mode, length, kernel, stride, dilation):
    """Padding before and after by the standard's equations for auto_pad."""
    if mode == "VALID":
        return [0, 0]
    reach = (kernel - 1) * dilation + 1
    total = max(0, (-(-length // stride) - 1) * stride + reach - length)
    halves = [total // 2, total - total // 2]
    return halves if mode == "SAME_UPPER" else halves[::-1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_automatic_padding_is_the_padding_of_the_equations(op_type, mode):
    for length, kernel, stride, dilation in WINDOWS:
        values, common = values_of(op_type, length, kernel), shared(op_type, kernel, stride, dilation)
        pads = padding_of(mode, length, kernel, stride, dilation)
        if length + sum(pads) < (kernel - 1) * dilation + 1:
            continue  # below
        model, given = model_of(op_type, values, auto_pad=mode, **common)
        written, _ = model_of(op_type, values, pads=pads, **common)
        (mine,), (other,) = run_tilewright(model, given), run_onnxruntime(written, given)
        assert mine.shape == other.shape, (length, kernel, stride, dilation)
        if op_type == "MaxPool":  # of a window wholly in the padding: minus infinity, or the least finite number
            other = np.where(other == np.finfo(np.float32).min, -np.inf, other)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1])
def test_transposed_convolutions_give_input_times_stride(mode, rank, extra):
    """Also with strides over the kernel, where onnxruntime gives less than the standard says."""
    for length, kernel, stride, dilation in WINDOWS if rank == 1 else [(3, 1, 2, 1), (2, 2, 3, 1), (2, 2, 2, 2)]:
        image, weight = data(2, 2, *(length,) * rank), data(2, 3, *(kernel,) * rank)
        common = {"strides": [stride] * rank, "dilations": [dilation] * rank, "output_padding": [extra] * rank}
        if extra >= stride:
            continue
        model, given = model_of("ConvTranspose", [image, weight, data(3)], auto_pad=mode, **common)
        (mine,), (wanted,) = run_tilewright(model, given), ReferenceEvaluator(model).run(None, given)
        assert mine.shape == (2, 3, *(length * stride,) * rank)
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)
        if (kernel - 1) * dilation + 1 + extra >= stride:
            np.testing.assert_allclose(mine, run_onnxruntime(model, given)[0], rtol=1e-4, atol=1e-5)


def test_groups_of_transposed_convolutions_with_strides_over_the_kernel():
    image, weight = data(1, 4, 3), data(4, 1, 1)
    model, given = model_of("ConvTranspose", [image, weight], auto_pad="SAME_LOWER", strides=[3], group=2)
    (mine,) = run_tilewright(model, given)
    assert mine.shape == (1, 2, 9)
    products = (image * weight[:, :, 0].reshape(1, 4, 1)).reshape(1, 2, 2, 3).sum(axis=2)
    np.testing.assert_allclose(mine[:, :, 1::3], products, rtol=1e-5)
    assert not mine[:, :, 0::3].any() and not mine[:, :, 2::3].any()


@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_windows_over_the_data_give_nothing_or_are_refused(op_type):
    """The standard's count of windows, (data - reach) / stride + 1 rounded down: 0 is a size, less is none."""
    seen = set()
    for length, kernel, stride, dilation in WINDOWS:
        missing = (kernel - 1) * dilation + 1 - length
        if missing <= 0:
            continue
        seen.add(missing <= stride)
        model, given = model_of(
            op_type, values_of(op_type, length, kernel), **shared(op_type, kernel, stride, dilation)
        )
        if missing <= stride:
            assert run_tilewright(model, given)[0].shape == (1, 2, 0)
        else:
            with pytest.raises(UserError, match="the window does not fit along the width"):
                from_onnx(model)
    assert seen == {True, False}


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_over_the_data_with_a_ceiling(op_type):
    for length, kernel, stride in itertools.product((1, 3, 4), (2, 4, 5, 6), STRIDES):
        if kernel - length >= 2 * stride:
            continue
        model, given = model_of(op_type, [data(1, 2, length)], kernel_shape=[kernel], strides=[stride], ceil_mode=1)
        (mine,), (other,) = run_tilewright(model, given), run_onnxruntime(model, given)
        assert mine.shape == other.shape, (length, kernel, stride)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_convolutions_in_three_dimensions_may_give_nothing():
    for depth, kernel, stride, dilation in WINDOWS:
        lacking = (kernel - 1) * dilation + 1 - depth
        if 0 < lacking <= stride:
            values = [data(1, 2, depth, 5, 5), data(2, 2, kernel, 2, 2)]
            model, given = model_of("Conv", values, strides=[stride, 1, 1], dilations=[dilation, 1, 1])
            assert run_tilewright(model, given)[0].shape == (1, 2, 0, 4, 4), (depth, kernel, stride, dilation)
    with pytest.raises(UserError, match="does not fit along the depth"):
        import_one("Conv", data(1, 2, 3, 5, 5), data(2, 2, 5, 2, 2))


def test_averages_of_windows_wholly_in_the_padding_are_zero():
    attributes = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    model, given = model_of("AveragePool", [data(1, 2, 1)], **attributes)
    (mine,), (other,) = run_tilewright(model, given), run_onnxruntime(model, given)
    np.testing.assert_array_equal(mine, other)
    assert not mine.any() and mine.shape == (1, 2, 1)
