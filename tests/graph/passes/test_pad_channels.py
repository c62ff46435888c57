"""Channels of images and steps of products filled up for tensor cores: that the meaning stays, and where it is done."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Constant, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.pad_channels import pad_channels
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.function import IRModule
from tilewright.target import Target

HOPPER = Target("cuda -arch=sm_90a")
CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def module(channels: int, dtype: str = "float16", moved: bool = True, groups: int = 1) -> IRModule:
    x = var("x", 1, channels, 9, 8, dtype=dtype) if moved else var("x", 1, 9, 8, channels, dtype=dtype)
    image = op("transpose", x, axes=(0, 2, 3, 1)) if moved else x
    weight = constant(random(0, 3, 3, channels // groups, 6 * groups).astype(dtype))
    attributes = {**CHANNELS_LAST, "strides": (2, 2), "padding": (1, 1, 1, 1), "groups": groups}
    return infer_types(IRModule([function([x], op("nn.conv2d", image, weight, **attributes))]))


def convolution(found: IRModule) -> Call:
    (call,) = (item for item in post_order(found["main"]) if is_call_to(item, "nn.conv2d"))
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize(("channels", "filled"), [(3, 4), (5, 8), (7, 8)])
def test_channels_are_filled_with_zeros(channels: int, filled: int) -> None:
    before = module(channels)
    after = pad_channels(before, GraphOptions(target=HOPPER))
    call = convolution(after)
    data, weight = call.args
    assert is_call_to(data, "pad") and isinstance(weight, Constant)
    assert weight.data.shape == (3, 3, filled, 6) and not weight.data[:, :, channels:].any()
    x = random(1, 1, channels, 9, 8).astype("float16")
    np.testing.assert_array_equal(evaluate(after, x), evaluate(before, x))
    assert pad_channels(after, GraphOptions(target=HOPPER))["main"] is after["main"]


def test_weights_that_are_trained_and_their_gradients_are_filled_too() -> None:
    x, w, g = var("x", 2, 3, 9, 8, dtype="float16"), var("w", 3, 3, 3, 6), var("g", 2, 5, 4, 6, dtype="float16")
    attributes = {**CHANNELS_LAST, "strides": (2, 2), "padding": (1, 1, 1, 1)}
    image = op("transpose", x, axes=(0, 2, 3, 1))
    forward = op("nn.conv2d", image, op("cast", w, dtype=FLOAT16), **attributes)
    back = op("nn.conv2d_weight_gradient", image, g, kernel=(3, 3), **attributes)
    before = infer_types(IRModule([function([x, w, g], Tuple((forward, back)))]))
    after = pad_channels(before, GraphOptions(target=HOPPER))
    assert all(is_call_to(item, "pad") for item in convolution(after).args)
    (found,) = (item for item in post_order(after["main"]) if is_call_to(item, "nn.conv2d_weight_gradient"))
    assert isinstance(found, Call) and is_call_to(found.args[0], "pad")
    given = [random(0, 2, 3, 9, 8).astype("float16"), random(1, 3, 3, 3, 6), random(2, 2, 5, 4, 6).astype("float16")]
    for one, other in zip(evaluate(after, *given), evaluate(before, *given), strict=True):
        np.testing.assert_array_equal(one, other)
    assert pad_channels(after, GraphOptions(target=HOPPER))["main"] is after["main"]


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (module(4), HOPPER),
        (module(2), HOPPER),
        (module(19), HOPPER),
        (module(3, "float32"), HOPPER),
        (module(3, moved=False), HOPPER),
        (module(6, groups=2), HOPPER),
        (module(3), Target("opencl")),
        (module(3), Target("cuda -arch=sm_75")),
    ],
    ids=["whole", "few", "many", "float32", "not moved", "groups", "opencl", "no tensor cores"],
)
def test_the_rest_stays(case: IRModule, target: Target) -> None:
    assert pad_channels(case, GraphOptions(target=target))["main"] is case["main"]


def product(rows: int, depth: int, columns: int, dtype: str = "float16", turned: bool = False) -> IRModule:
    x, shape = var("x", 2, rows // 2, depth, dtype=dtype), (columns, depth) if turned else (depth, columns)
    return infer_types(
        IRModule([function([x], op("matmul", x, constant(random(0, *shape).astype(dtype)), transpose_b=turned))])
    )


@pytest.mark.parametrize("turned", [False, True])
def test_steps_of_large_products_are_filled_with_zeros(turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.graph.passes.pad_channels._LARGE_PRODUCT", 6 * 50 * 520)
    before = product(6, 50, 520, turned=turned)
    after = pad_channels(before, GraphOptions(target=HOPPER))
    (call,) = (item for item in post_order(after["main"]) if is_call_to(item, "matmul"))
    assert isinstance(call, Call) and is_call_to(call.args[0], "pad") and isinstance(call.args[1], Constant)
    assert call.args[1].data.shape == ((520, 56) if turned else (56, 520))
    x = random(1, 2, 3, 50).astype("float16")
    np.testing.assert_array_equal(evaluate(after, x), evaluate(before, x))
    assert pad_channels(after, GraphOptions(target=HOPPER))["main"] is after["main"]


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (product(2000, 656, 1000), HOPPER),
        (product(20, 650, 1000), HOPPER),
        (product(20000, 650, 100), HOPPER),
        (product(2000, 650, 1000, "float32"), HOPPER),
        (product(2000, 650, 1000), Target("opencl")),
    ],
    ids=["whole", "small", "few columns", "float32", "opencl"],
)
def test_other_products_stay(case: IRModule, target: Target) -> None:
    assert pad_channels(case, GraphOptions(target=target))["main"] is case["main"]


def test_products_of_rounded_operands_are_filled_too() -> None:
    assert is_call_to(
        convolution(pad_channels(module(3, "float32"), GraphOptions(target=HOPPER.replace(features="+tf32")))).args[0],
        "pad",
    )


def test_a_half_precision_image_is_moved_rounded_and_filled_in_one_kernel() -> None:
    x = var("x", 1, 3, 12, 12)
    call = op("nn.conv2d", x, constant(random(0, 8, 3, 3, 3)), padding=(1, 1, 1, 1))
    options = GraphOptions(layout="NHWC", target=HOPPER, half=FLOAT16)
    first = primitive_functions(optimize(IRModule([function([x], call)]), options))[0]
    made = [item.callee.name for item in post_order(first.body) if isinstance(item, Call)]
    assert made == ["cast", "transpose", "pad"]
