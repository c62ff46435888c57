"""Pooling: windows over padding, dilation, both layouts, every type, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.differential import check, cpu_program, random_array, results_of, run_reference
from tests.topi.scheduling import schedule_cpu
from tilewright.target import Target

DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int32")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("kernel", "dilation", "padding"), [((2, 2), (2, 2), (1, 1, 1, 1)), ((1, 2), (1, 1), (1, 2, 1, 2))]
)
def test_windows_wholly_in_the_padding_average_to_zero(layout, dtype, kernel, dilation, padding) -> None:
    data = np.full((1, 1, 1, 1), 3, dtype)
    options = {"kernel": kernel, "dilation": dilation, "padding": padding, "layout": layout}
    check("nn.avg_pool2d", data, **options)
    (result,) = run_reference("nn.avg_pool2d", [data], **options)
    assert np.isfinite(result).all() and (result == 0).any()


@pytest.mark.parametrize("name", ["nn.max_pool2d", "nn.avg_pool2d"])
@given(
    size=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    count_include_pad=st.booleans(),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_pooling(
    name: str,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    count_include_pad: bool,
    layout: str,
    dtype: str,
) -> None:
    top, left, bottom, right = padding
    assume((kernel[0] - 1) * dilation[0] < size[0] + top + bottom)
    assume((kernel[1] - 1) * dilation[1] < size[1] + left + right)
    shape = (2, 2, *size) if layout == "NCHW" else (2, *size, 2)
    check(
        name,
        random_array(np.random.default_rng(sum(size)), shape, dtype, -100, 100),
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        count_include_pad=count_include_pad,
        layout=layout,
        tolerance=1e-5 if dtype == "float32" else None,
    )


def test_integer_averages_do_not_wrap() -> None:
    data = np.full((1, 1, 3, 3), 127, np.int8)
    check("nn.avg_pool2d", data, kernel=(3, 3))
    check("nn.avg_pool2d", -data, kernel=(2, 3), padding=(0, 1, 0, 1))


@pytest.mark.parametrize("name", ["nn.max_pool2d", "nn.avg_pool2d"])
def test_nan_and_infinity(name: str) -> None:
    data = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    data[0, 0, 2, 2] = np.nan
    data[0, 0, 0, 4] = -np.inf
    check(name, data, kernel=(2, 2), padding=(1, 1, 1, 1))


def test_padding_never_wins_a_maximum() -> None:
    for dtype in DTYPES:
        data = np.full((1, 1, 2, 2), -5 if dtype != "uint8" else 3, dtype)
        check("nn.max_pool2d", data, kernel=(3, 3), padding=(1, 1, 1, 1))


def test_empty_batch() -> None:
    check("nn.max_pool2d", np.zeros((0, 1, 4, 4), np.float32), kernel=(2, 2), strides=(2, 2))


@pytest.mark.parametrize("name", ["nn.max_pool2d", "nn.avg_pool2d"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 2, 9, 70), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
        ((2, 1, 60, 33), {"kernel": (5, 5), "padding": (2, 2, 2, 2)}),
        ((1, 2, 20, 150), {"kernel": (3, 2), "strides": (2, 2), "padding": (1, 0, 0, 1)}),
        ((1, 1, 30, 41), {"kernel": (11, 12), "strides": (1, 3), "padding": (5, 6, 5, 5)}),
        ((1, 1, 17, 19), {"kernel": (3, 3), "dilation": (2, 3), "padding": (2, 3, 2, 3)}),
        ((1, 1, 1, 200), {"kernel": (1, 4), "strides": (1, 4)}),
        ((2, 4, 1, 28), {"kernel": (2, 1), "padding": (0, 0, 1, 0)}),  # no window lies in the plane
        ((1, 3, 5, 7), {"kernel": (2, 2), "strides": (2, 2), "padding": (0, 0, 1, 1)}),
    ],
)
def test_planes_in_vectors(name: str, shape: tuple[int, ...], attributes: dict[str, object]) -> None:
    x = random_array(np.random.default_rng(3), shape)
    for more in ({}, {"count_include_pad": True}) if name == "nn.avg_pool2d" else ({},):
        func = cpu_program(name, [x], **attributes, **more)
        results = results_of(func, [x])
        target = Target("native").replace(cores=1)
        tw.build(schedule_cpu(func, target), target=target)(x, *results)
        (expected,) = run_reference(name, [x], **attributes, **more)
        np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
