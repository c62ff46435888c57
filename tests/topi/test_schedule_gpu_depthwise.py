"""Convolutions by channels with large windows on GPUs: tiles of the image in shared memory, runs of results."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.cuda_on_fibers import on_cuda
from tests.topi.test_schedule_gpu_batches import assert_same
from tests.topi.test_schedule_tensor_core import WGMMA, arrays, text
from tilewright import te
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.depthwise import DepthwiseTile, Window, depthwise_tiles
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

SMALL = WGMMA.replace(cores=1)
"""A device that small images fill."""
HALVES = Window(16, 56, 56, 96, (7, 7), (1, 1), 2, 2)


def convolution(size: int, channels: int, taps: int, stride: int = 1, dtype: str = "float16") -> PrimFunc:
    """A convolution by channels (NHWC) of an image, with bias."""
    x = te.placeholder((1, size, size, channels), dtype, "x")
    w = te.placeholder((taps, taps, 1, channels), dtype, "w")
    bias = te.placeholder((channels,), dtype, "bias")
    (y,) = apply_operator(
        "nn.conv2d",
        [x, w],
        strides=(stride, stride),
        padding=(taps // 2,) * 4,
        groups=channels,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    z = te.compute(y.shape, lambda *i: y[i] + bias[i[-1]], "z")
    func = create_prim_func([x, w, bias, z], "convolution")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


CASES = [
    (8, 32, 5, 1, "float16"),
    (10, 16, 7, 1, "float16"),
    (16, 16, 5, 2, "float16"),
    (7, 32, 7, 1, "float32"),
]


@pytest.mark.parametrize(("size", "channels", "taps", "stride", "dtype"), CASES)
def test_large_windows_are_read_from_shared_memory(
    size: int, channels: int, taps: int, stride: int, dtype: str
) -> None:
    """Interpreted, and on fibers: sums of small integers are exact in any order."""
    func = convolution(size, channels, taps, stride, dtype)
    scheduled = schedule_gpu(func, SMALL)
    assert scheduled.templates[0].name == "depthwise_tile"
    assert_same(func, scheduled.func)
    given = arrays(func)
    expected = [array.copy() for array in given]
    interpret(func, *expected)
    on_cuda([scheduled.func], SMALL)["convolution"](*given)
    np.testing.assert_array_equal(given[-1], expected[-1])


def test_the_image_is_moved_as_it_is() -> None:
    """Zeros around it are chosen as bits, by threads that do not wait for each other between their turns."""
    source = text(schedule_gpu(convolution(8, 32, 5), SMALL).func, SMALL)
    copy, sums = source.split("float depthwise_conv2d_", 1)
    kernel = copy[copy.index("griddepcontrol.wait") :]
    assert "tw_half" not in kernel and "*(uint4*)(pad_data_" in kernel
    assert kernel.count("__syncthreads") == 1 and "__syncthreads" not in sums


@pytest.mark.parametrize(
    ("size", "taps", "reason"), [(13, 5, "of a padded image"), (8, 3, "whole window in registers")]
)
def test_other_sizes_have_other_templates(size: int, taps: int, reason: str) -> None:
    """Runs of pixels divide rows; small windows stay in registers."""
    scheduled = schedule_gpu(convolution(size, 32, taps), SMALL)
    (choice,) = (choice for choice in scheduled.templates if choice.stage.startswith("depthwise"))
    (passed_over,) = (item for item in choice.passed_over if item.name == "depthwise_tile")
    assert reason in passed_over.reason


def test_few_results_have_other_templates() -> None:
    """Threads that have several would leave others without work."""
    names = [choice.name for choice in schedule_gpu(convolution(8, 32, 5), WGMMA).templates]
    assert "depthwise_tile" not in names


def test_the_model_fills_the_machine() -> None:
    """Blocks for all multiprocessors, and runs of pixels that share what they read."""
    best = depthwise_tiles(HALVES, WGMMA)[0]
    blocks = HALVES.images * (HALVES.rows // best.rows) * (HALVES.columns // best.columns)
    assert blocks * (HALVES.channels // best.channels) >= WGMMA.cores and best.run >= 7


def test_a_tuner_chooses_the_tile() -> None:
    """Any tile of the model's list, by its numbers."""
    func = convolution(8, 32, 5)
    choices = Choices()
    schedule_gpu(func, SMALL, choices)
    options = choices.asked["depthwise_tile"].options
    scheduled = schedule_gpu(func, SMALL, Choices({"depthwise_tile": options[1]}))
    tile = DepthwiseTile(*(options[1] if isinstance(options[1], tuple) else ()))
    assert astuple(tile) == options[1] and f'thread_binding("threadIdx.x", {tile.threads})' in str(scheduled.func)
    assert_same(func, scheduled.func)
