"""Convolutions: random strides, dilation, padding, groups, both layouts, every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.topi.differential import check, cpu_program, random_array, results_of, run_compiled
from tilewright.graph.ir.op import get_operator
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UnsupportedError
from tilewright.te.language import placeholder
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import compute_operator

DTYPES = ("float32", "float16", "float64", "int8", "int32")
TOLERANCE = {"float32": 5e-6, "float16": 8e-3}
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    image=st.tuples(st.integers(1, 2), st.integers(3, 7), st.integers(3, 7)),
    groups=st.sampled_from([1, 1, 2, 3]),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=PAIRS,
    strides=PAIRS,
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    layout=st.sampled_from([("NCHW", "OIHW"), ("NHWC", "HWIO")]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_conv2d(
    image: tuple[int, int, int],
    groups: int,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    layout: tuple[str, str],
    dtype: str,
) -> None:
    batch, height, width = image
    top, left, bottom, right = padding
    assume((kernel[0] - 1) * dilation[0] < height + top + bottom)
    assume((kernel[1] - 1) * dilation[1] < width + left + right)
    rng = np.random.default_rng(groups + sum(kernel))
    data = random_array(rng, (batch, groups * channels[0], height, width), dtype)
    weight = random_array(rng, (groups * channels[1], channels[0], *kernel), dtype)
    if layout[0] == "NHWC":
        data, weight = data.transpose(0, 2, 3, 1).copy(), weight.transpose(2, 3, 1, 0).copy()
    check(
        "nn.conv2d",
        data,
        weight,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        data_layout=layout[0],
        kernel_layout=layout[1],
        tolerance=TOLERANCE.get(dtype),
    )


@pytest.mark.parametrize("layout", [("NCHW", "OIHW"), ("NHWC", "HWIO")])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(layout: tuple[str, str], multiplier: int) -> None:
    rng = np.random.default_rng(1)
    data, weight = random_array(rng, (1, 4, 6, 5)), random_array(rng, (4 * multiplier, 1, 3, 3))
    if layout[0] == "NHWC":
        data, weight = data.transpose(0, 2, 3, 1).copy(), weight.transpose(2, 3, 1, 0).copy()
    check(
        "nn.conv2d",
        data,
        weight,
        strides=(2, 1),
        padding=(1, 1, 1, 1),
        groups=4,
        data_layout=layout[0],
        kernel_layout=layout[1],
        tolerance=5e-6,
    )


def test_padding_is_not_multiplied_into_infinity() -> None:
    data = np.ones((1, 1, 3, 3), np.float32)
    weight = np.full((1, 1, 3, 3), np.inf, np.float32)
    check("nn.conv2d", data, weight, padding=(1, 1, 1, 1))


def test_windows_of_single_channels_leave_padding_out_on_cpus() -> None:
    """Where weights are infinite, zeros around the image would make NaN of results."""
    attributes: dict[str, Any] = {"groups": 3, "padding": (1, 0, 1, 2), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    arrays = np.ones((1, 4, 5, 3), np.float32), np.full((3, 3, 1, 3), np.inf, np.float32)
    func = cpu_program("nn.conv2d", arrays, **attributes)
    (result,) = results_of(func, arrays)
    interpret(func, *arrays, result)
    assert np.all(result == np.inf)
    (everywhere,) = run_compiled("nn.conv2d", arrays, **attributes)
    assert np.isnan(everywhere).sum() == 3 * (20 - 2 * 3)


def test_empty_batches_and_channels() -> None:
    check("nn.conv2d", np.zeros((0, 2, 3, 3), np.float32), np.ones((4, 2, 3, 3), np.float32), padding=(1, 1, 1, 1))
    check("nn.conv2d", np.zeros((1, 2, 3, 3), np.float32), np.ones((0, 2, 1, 1), np.float32))


@given(
    image=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)),
    groups=st.sampled_from([1, 1, 2]),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=PAIRS,
    dilation=st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3)]),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    extra=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_conv2d_transpose(
    image: tuple[int, int, int],
    groups: int,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    extra: tuple[int, int],
    dtype: str,
) -> None:
    batch, height, width = image
    top, left, bottom, right = padding
    assume((height - 1) * strides[0] + (kernel[0] - 1) * dilation[0] + 1 + extra[0] >= top + bottom)
    assume((width - 1) * strides[1] + (kernel[1] - 1) * dilation[1] + 1 + extra[1] >= left + right)
    rng = np.random.default_rng(groups + sum(kernel))
    data = random_array(rng, (batch, groups * channels[0], height, width), dtype)
    weight = random_array(rng, (groups * channels[0], channels[1], *kernel), dtype)
    check(
        "nn.conv2d_transpose",
        data,
        weight,
        strides=strides,
        padding=padding,
        output_padding=extra,
        dilation=dilation,
        groups=groups,
        tolerance=TOLERANCE.get(dtype),
    )


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("nn.conv2d", {"data_layout": "NCHW4c", "kernel_layout": "OIHW"}),
        ("nn.conv2d_transpose", {"data_layout": "NCHW", "kernel_layout": "OIHW4i"}),
    ],
)
def test_unknown_layouts_are_unsupported(name: str, layouts: dict[str, Any]) -> None:
    attributes = get_operator(name).attributes_class(**layouts)
    inputs = [placeholder((1, 4, 4, 4)), placeholder((4, 4, 1, 1))]
    with pytest.raises(UnsupportedError, match="in layout"):
        compute_operator(name, inputs, attributes, tensor_type((1, 4, 4, 4), "float32"))
