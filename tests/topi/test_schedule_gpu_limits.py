"""What GPU templates ask for: no more threads and shared memory than any kind of device has, at any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.backend import lower
from tilewright.target import Target
from tilewright.target.kinds import target_kinds
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.buffer import Buffer
from tilewright.tir.passes.split_host_device import SplitFunction, split_host_device
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices

TARGETS = [
    *(Target(kind.name) for kind in target_kinds() if not kind.is_cpu and not kind.capabilities.block_layers),
    Target("cuda -arch=sm_90a -num-cores=132 -shared-bytes=232448"),
    # Devices that have as little as a standard lets them have, or as someone says they have.
    Target("opencl -max-threads=64 -shared-bytes=16384"),
    Target("webgpu -mattr=+software"),
    Target("cuda -max-threads=128 -shared-bytes=8192"),
]
SIZES = (1, 2, 3, 4, 7, 8, 9, 16, 20, 33, 64, 70, 80, 100, 128, 300, 512, 1000, 2048, 5000, 20000)
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
GATES = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))

Made = tuple[str, list[tuple[int, ...]], dict[str, Any]]
Draw = Callable[[Any], Any]


def _shape(draw: Draw, least: int, most: int) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from(SIZES), min_size=least, max_size=most)))


@st.composite
def reductions(draw: Draw) -> Made:
    """Reductions of some axes, in any order of rows and columns."""
    shape = _shape(draw, 1, 4)
    kind = draw(st.sampled_from(["sum", "max", "prod", "argmax"]))
    if kind == "argmax":
        return kind, [shape], {"axis": draw(st.integers(0, len(shape) - 1))}
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return kind, [shape], {"axes": tuple(sorted(axes)), "keepdims": draw(st.booleans())}


@st.composite
def rows(draw: Draw) -> Made:
    """Normalised rows and columns."""
    shape = _shape(draw, 2, 3)
    if draw(st.booleans()):
        return "nn.layer_norm", [shape, shape[-1:], shape[-1:]], {"axis": len(shape) - 1}
    kind = draw(st.sampled_from(["nn.softmax", "nn.log_softmax"]))
    return kind, [shape], {"axis": draw(st.integers(0, len(shape) - 1))}


@st.composite
def products(draw: Draw) -> Made:
    """Matrix products and convolutions."""
    if draw(st.booleans()):
        m, n, k = (draw(st.sampled_from(SIZES[:-2])) for _ in range(3))
        batch = draw(st.sampled_from([(), (3,), (16,)]))
        turned = draw(st.booleans())
        return "matmul", [(*batch, m, k), (*batch, n, k) if turned else (*batch, k, n)], {"transpose_b": turned}
    kernel, step = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 2))
    channels, made, size = (draw(st.sampled_from([1, 3, 7, 8, 16, 33, 64])) for _ in range(3))
    attributes = {"padding": (kernel // 2,) * 4, "strides": (step, step), **NHWC}
    if draw(st.booleans()):
        return "nn.conv2d", [(1, size, size, channels), (3, 3, 1, channels)], {**attributes, "groups": channels}
    return "nn.conv2d", [(2, size, size, channels), (kernel, kernel, channels, made)], attributes


@st.composite
def layers(draw: Draw) -> Made:
    """Attention, recurrent layers, pooling and transposes."""
    kind = draw(st.sampled_from(["nn.attention", "nn.lstm", "nn.max_pool2d", "transpose"]))
    if kind == "nn.attention":
        queries, keys = (draw(st.sampled_from([8, 33, 64, 128, 512])) for _ in range(2))
        depth, heads = draw(st.sampled_from([8, 33, 64, 128])), draw(st.sampled_from([1, 12]))
        return kind, [(1, count, heads, depth) for count in (queries, keys, keys)], {"scale": 0.5}
    if kind == "nn.lstm":
        batch, size = draw(st.sampled_from([1, 5, 16, 64])), draw(st.sampled_from([3, 64, 256, 1024]))
        return kind, [(3, batch, 4, size), (4, size, size), (batch, size), (batch, size)], {"activations": GATES}
    if kind == "nn.max_pool2d":
        size, channels = draw(st.sampled_from([7, 28, 112])), draw(st.sampled_from([3, 64, 100]))
        return kind, [(4, size, size, channels)], {"kernel": (3, 3), "strides": (2, 2), "layout": "NHWC"}
    shape = _shape(draw, 2, 4)
    return kind, [shape], {"axes": tuple(draw(st.permutations(range(len(shape)))))}


def _launches(made: Made, target: Target, choices: Choices | None = None, dtype: str = "float32") -> SplitFunction:
    """The kernels of an operator: what is too large for the target raises an error here."""
    name, shapes, attributes = made
    inputs = [placeholder(shape, dtype, f"in{n}") for n, shape in enumerate(shapes)]
    func = create_prim_func([*inputs, *apply_operator(name, inputs, **attributes)], "kernel")
    return split_host_device(lower(schedule_gpu(func, target, choices), target), target)


@pytest.mark.parametrize("programs", [reductions(), rows(), products(), layers()], ids=str)
@settings(max_examples=16, deadline=None)
@given(data=st.data())
def test_kernels_fit_every_device(programs: st.SearchStrategy[Made], data: st.DataObject) -> None:
    made, target = data.draw(programs), data.draw(st.sampled_from(TARGETS))
    dtype = data.draw(st.sampled_from(["float32", "float16", *(["float64"] if target.kind == "cuda" else [])]))
    free = data.draw(st.booleans())
    choices = Choices(answer=lambda question: data.draw(st.sampled_from(question.options))) if free else None
    split = _launches(made, target, choices, dtype)
    assert split.kernels
    for kernel in split.kernels:
        x, y, z = kernel.block
        assert x * y * z <= target.max_threads
        assert sum(_shared(buffer, target) for buffer in kernel.shared) <= target.shared_bytes or target.kind == "cuda"
        assert kernel.shared_bytes <= target.shared_bytes


def _shared(buffer: Buffer, target: Target) -> int:
    return math.prod(buffer.static_shape or ()) * target.shared_item(buffer.dtype.itemsize)


def test_rows_that_are_not_the_last_axes_are_read_where_they_lie() -> None:
    """Sums over the first and last axis: a copy would not be private to threads, and needs more than there is."""
    (kernel,) = _launches(("sum", [(70, 9, 80)], {"axes": (0, 2)}), Target("vulkan")).kernels
    assert kernel.shared_bytes < 2048


@pytest.mark.parametrize("name", ["nn.softmax", "nn.log_softmax"])
def test_long_rows_of_devices_with_little_memory_are_one_kernel(name: str) -> None:
    """Powers of a row that neither registers nor shared memory hold are computed twice."""
    (kernel,) = _launches((name, [(1000, 20000)], {"axis": 1}), Target("vulkan")).kernels
    assert kernel.shared_bytes < 4096


def test_attention_in_double_precision_knows_how_much_it_holds() -> None:
    made: Made = ("nn.attention", [(1, 32, 12, 128), (1, 64, 12, 128), (1, 64, 12, 128)], {"scale": 0.5})
    assert all(kernel.shared_bytes <= 49152 for kernel in _launches(made, Target("cuda"), None, "float64").kernels)


def test_sums_of_slices_are_private_where_columns_end_inside_a_tile() -> None:
    """A convolution to four channels: half the threads of a tile have nothing to write."""
    attributes = {"padding": (3, 3, 3, 3), "strides": (1, 1), **NHWC}
    made: Made = ("nn.conv2d", [(16, 7, 14, 100), (7, 7, 100, 4)], attributes)
    (kernel,) = _launches(made, Target("vulkan"), Choices({"tile": (7, 4, 8, 2, 4, 32, 1, 1)})).kernels
    assert "conv2d_reindex_pad" not in [buffer.name for buffer in kernel.shared]
