"""Transposed convolutions in other forms: that the meaning stays, and where the forms are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.transposed_convolution import transposed_convolution
from tilewright.ir.function import IRModule
from tilewright.target import Target

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def module(data: tuple[int, ...], taps: tuple[int, ...], **attributes: object) -> IRModule:
    x = var("x", *data)
    body = op("tanh", op("nn.conv2d_transpose", x, constant(random(0, *taps)), **{**NHWC, **attributes}))
    return infer_types(IRModule([function([x], body)]))


def calls(found: IRModule, name: str) -> list[GraphExpr]:
    return [item for item in post_order(found["main"]) if is_call_to(item, name)]


def check_meaning(before: IRModule, after: IRModule, shape: tuple[int, ...]) -> None:
    x = random(1, *shape)
    np.testing.assert_allclose(evaluate(after, x), evaluate(before, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("strides", "padding", "left"),
    [((1, 1), (0, 0, 0, 0), (4, 5)), ((3, 2), (1, 0, 0, 2), (3, 3)), ((2, 2), (1, 1, 1, 1), (2, 3))],
)
def test_one_pixel_has_a_tap_for_each_result(
    strides: tuple[int, int], padding: tuple[int, ...], left: tuple[int, int]
) -> None:
    shape = (2, 1, 1, 6)
    before = module(shape, (4, 5, 6, 7), strides=strides, padding=padding)
    after = transposed_convolution(before, GraphOptions(target=AVX512, winograd=False))
    (call,) = calls(after, "nn.conv2d_transpose")
    assert call.attributes.strides == left
    assert call.attributes.padding == (0, 0, 0, 0)
    check_meaning(before, after, shape)
    assert transposed_convolution(after, GraphOptions(target=AVX512, winograd=False))["main"] is after["main"]


@pytest.mark.parametrize(
    ("taps", "attributes"),
    [
        ((4, 4, 5, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
        ((5, 4, 5, 3), {"strides": (2, 2), "padding": (2, 1, 1, 1)}),
        ((5, 5, 5, 1), {"strides": (2, 2), "padding": (2, 2, 2, 2), "output_padding": (1, 1)}),
        ((6, 6, 5, 2), {"strides": (3, 2), "padding": (0, 2, 3, 2)}),
        ((2, 2, 5, 3), {"strides": (2, 2)}),
        ((4, 4, 5, 3), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
    ],
)
def test_phases_of_few_channels_are_one_convolution(taps: tuple[int, ...], attributes: dict[str, object]) -> None:
    shape = (2, 5, 4, 5)
    before = module(shape, taps, **attributes)
    after = transposed_convolution(before, GraphOptions(target=AVX512, winograd=False))
    assert not calls(after, "nn.conv2d_transpose")
    (call,) = calls(after, "nn.conv2d")
    assert call.tensor_type.static_shape is not None
    assert call.tensor_type.static_shape[-1] == 16
    check_meaning(before, after, shape)


@pytest.mark.parametrize(
    ("taps", "attributes", "target"),
    [
        ((4, 4, 5, 64), {"strides": (2, 2), "padding": (1, 1, 1, 1)}, AVX512),
        ((4, 4, 5, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}, NEON),
        ((3, 3, 5, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}, AVX512),
        ((4, 4, 5, 3), {"strides": (1, 1), "padding": (1, 1, 1, 1)}, AVX512),
        ((4, 4, 2, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 1, "dilation": (3, 3)}, AVX512),
    ],
)
def test_what_gains_nothing_stays(taps: tuple[int, ...], attributes: dict[str, object], target: Target) -> None:
    before = module((1, 6, 6, taps[2]), taps, **attributes)
    assert transposed_convolution(before, GraphOptions(target=target, winograd=False))["main"] is before["main"]


@pytest.mark.parametrize(("kernel", "channels"), [(4, 8), (3, 16)], ids=["few channels", "phases of different sizes"])
def test_a_gpu_takes_all_phases_together_where_one_fills_no_tile(kernel: int, channels: int) -> None:
    shape = (1, 5, 6, 8)
    padding = (1, 1, 1, 1) if kernel == 4 else (1, 1, 0, 0)
    before = module(shape, (kernel, kernel, 8, channels), strides=(2, 2), padding=padding)
    assert calls(transposed_convolution(before, GraphOptions(target=NEON, winograd=False)), "nn.conv2d_transpose")
    after = transposed_convolution(before, GraphOptions(target=Target("cuda"), winograd=False))
    assert calls(after, "nn.conv2d") and not calls(after, "nn.conv2d_transpose")
    check_meaning(before, after, shape)


def test_a_gpu_computes_phases_of_many_channels_one_by_one() -> None:
    before = module((1, 5, 6, 8), (4, 4, 8, 16), strides=(2, 2), padding=(1, 1, 1, 1))
    assert transposed_convolution(before, GraphOptions(target=Target("cuda"), winograd=False))["main"] is before["main"]


@pytest.mark.parametrize(("channels", "estimated"), [(3, "together"), (32, "apart")])
def test_what_was_measured_goes_before_the_count(channels: int, estimated: str) -> None:
    shape = (1, 5, 5, 8)
    x = var("x", *shape)
    attributes = {**NHWC, "strides": (2, 2), "padding": (1, 1, 1, 1)}
    body = op("nn.conv2d_transpose", x, constant(random(0, 4, 4, 8, channels)), span="up", **attributes)
    before, asking = infer_types(IRModule([function([x], body)])), GraphChoices()
    transposed_convolution(before, GraphOptions(target=AVX512, choices=asking, winograd=False))
    (question,) = asking.asked.values()
    assert question.default == estimated and question.nodes == ("up",)
    for answer in question.options:
        after = transposed_convolution(
            before, GraphOptions(target=AVX512, choices=GraphChoices({question.key: answer}), winograd=False)
        )
        assert len(calls(after, "nn.conv2d_transpose")) == (answer == "apart")
        check_meaning(before, after, shape)


@pytest.mark.parametrize(
    ("size", "channels", "outputs", "expected"),
    # Layers of DCGAN: with few pixels the transformed weights of all phases take longer to read.
    [(4, 512, 256, False), (8, 256, 128, False), (16, 128, 64, True)],
)
def test_winograds_algorithm_may_pay_for_all_phases(size: int, channels: int, outputs: int, expected: bool) -> None:
    before = module((1, size, size, channels), (4, 4, channels, outputs), strides=(2, 2), padding=(1, 1, 1, 1))
    assert (
        bool(calls(transposed_convolution(before, GraphOptions(target=AVX512, winograd=True)), "nn.conv2d")) == expected
    )
    assert not calls(transposed_convolution(before, GraphOptions(target=AVX512, winograd=False)), "nn.conv2d")
