"""Which convolutions go to Winograd's algorithm, and that their meaning stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.winograd import plain_weight
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.choose_algorithm import (
    ConvolutionSize,
    best_algorithm,
    best_tile,
    choose_algorithm,
    direct_cycles,
    is_plain_possible,
    is_transformed_in_kernel,
    plain_cycles,
    possible_tiles,
    winograd_cycles,
)
from tilewright.graph.pipeline import graph_pipeline, optimize
from tilewright.ir.build import floordiv
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as SymbolicVar
from tilewright.ir.function import IRModule
from tilewright.target import Target

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1, 1, 1)}


def module(data: tuple[PrimExpr | int, ...], taps: tuple[int, ...], **attributes: object) -> IRModule:
    x = var("x", *data)
    body = op("nn.relu", op("nn.conv2d", x, constant(random(0, *taps)), **{**NHWC, **attributes}))
    return infer_types(IRModule([function([x], body)]))


def calls(found: IRModule, name: str) -> list[GraphExpr]:
    return [item for item in post_order(found["main"]) if is_call_to(item, name)]


def test_a_convolution_is_rewritten_and_keeps_its_meaning() -> None:
    before = module((1, 28, 28, 32), (3, 3, 32, 32))
    after = choose_algorithm(before, GraphOptions(target=AVX512))
    assert not calls(after, "nn.conv2d")
    (call,) = calls(after, "nn.conv2d_winograd")
    assert call.attributes.tile == 4
    assert isinstance(call.args[1], Constant)
    assert call.args[1].data.shape == (6, 6, 32, 32)
    x = random(1, 1, 28, 28, 32)
    expected, actual = evaluate(before, x), evaluate(after, x)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize(
    "changes",
    [
        {"strides": (2, 2)},
        {"dilation": (2, 2)},
        {"groups": 2, "taps": (3, 3, 16, 32)},
        {"taps": (5, 5, 32, 32)},
        {"taps": (1, 1, 32, 32)},
        {"data": (1, 28, 28, 3), "taps": (3, 3, 3, 32)},
        {"data": (1, 32, 28, 28), "taps": (32, 32, 3, 3), "data_layout": "NCHW", "kernel_layout": "OIHW"},
    ],
)
def test_others_stay(changes: dict[str, object]) -> None:
    sizes = {"data": (1, 28, 28, 32), "taps": (3, 3, 32, 32)}
    found = module(**{**sizes, **changes})  # type: ignore[arg-type]
    assert len(calls(choose_algorithm(found, GraphOptions(target=AVX512)), "nn.conv2d")) == 1


@pytest.mark.parametrize(("height", "channels"), [(56, 64), (28, 128), (14, 256), (7, 512), (14, 4)])
@pytest.mark.parametrize("times", [1, 2])
def test_an_open_batch_is_computed_as_one_image_is(height: int, channels: int, times: int) -> None:
    def chosen(batch: PrimExpr | int) -> list[tuple[str, object]]:
        found = choose_algorithm(
            module((batch, height, height, channels), (3, 3, channels, channels)), GraphOptions(target=AVX512)
        )
        names = ("nn.conv2d", "nn.conv2d_winograd", "nn.conv2d_winograd_plain")
        return [(name, getattr(item.attributes, "tile", None)) for name in names for item in calls(found, name)]

    assert chosen(times * SymbolicVar("n")) == chosen(1)


def test_an_open_batch_keeps_its_meaning() -> None:
    before = module((SymbolicVar("n"), 28, 28, 32), (3, 3, 32, 32))
    after = choose_algorithm(before, GraphOptions(target=AVX512))
    assert calls(after, "nn.conv2d_winograd")
    for batch in (0, 1, 3):
        x = random(1, batch, 28, 28, 32)
        expected = evaluate(before, x)
        tolerance = 1e-5 * float(np.abs(expected).max(initial=1.0))
        np.testing.assert_allclose(evaluate(after, x), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("axes", [(1,), (2,), (0, 1, 2)])
def test_images_of_open_size_keep_their_meaning(axes: tuple[int, ...]) -> None:
    shape: list[PrimExpr | int] = [1, 28, 28, 32]
    for axis in axes:
        shape[axis] = SymbolicVar(f"n{axis}")
    before = module(tuple(shape), (3, 3, 32, 32))
    after = choose_algorithm(before, GraphOptions(target=AVX512))
    (call,) = calls(after, "nn.conv2d_winograd")
    assert call.attributes.tile == 4
    for size in (1, 3, 9):
        x = random(1, *(size if axis in axes else dim for axis, dim in enumerate((1, 28, 28, 32))))
        expected = evaluate(before, x)
        np.testing.assert_allclose(evaluate(after, x), expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("target", [AVX512, NEON])
def test_likely_sizes_decide_for_layers_of_open_sizes(target: Target) -> None:
    """A fraction of the image counts as that of the likely one: two pixels are computed directly, eighty are not."""
    height, width = SymbolicVar("h"), SymbolicVar("w")
    sizes = (1, floordiv(height + 31, 32), floordiv(width + 31, 32), 64)

    def tiles(**likely: int) -> list[int]:
        asking = GraphChoices(likely=likely)
        after = choose_algorithm(module(sizes, (3, 3, 64, 64)), GraphOptions(target=target, choices=asking))
        return [call.attributes.tile for call in calls(after, "nn.conv2d_winograd")]

    assert tiles(h=64, w=64) == []
    assert tiles(h=2560, w=2560) == [4]
    # Of images nothing is known but that they are images.
    assert tiles(h=64) == tiles(h=64, w=320) and tiles() == tiles(h=320, w=320)


def test_layers_of_other_likely_sizes_are_other_questions() -> None:
    height, w = SymbolicVar("h"), constant(random(0, 3, 3, 64, 64))
    sizes = (height, floordiv(height + 3, 4), floordiv(height + 19, 20))
    images = [var(f"x{n}", 1, size, size, 64) for n, size in enumerate(sizes)]
    results = tuple(op("nn.conv2d", x, w, span=x.name, **NHWC) for x in images)
    found = infer_types(IRModule([function(images, Tuple(results))]))
    asking = GraphChoices(likely={"h": 40})
    after = choose_algorithm(found, GraphOptions(target=AVX512, choices=asking))
    assert [key.split()[2] for key in asking.asked] == ["1x?40x?40x64", "1x?10x?10x64"]
    assert [item.nodes for item in asking.asked.values()] == [("x0",), ("x1",)]
    # Two by two pixels leave nothing to ask: no tile of Winograd's algorithm has fewer multiplications.
    assert len(calls(after, "nn.conv2d")) == 1 and len(calls(after, "nn.conv2d_winograd")) == 2


def test_sizes_of_images_count_as_usual_ones() -> None:
    """Layers that see a thirty-second of an image are chosen for ten rows, those that see a quarter for eighty."""
    height, w, asking = SymbolicVar("h"), constant(random(0, 3, 3, 128, 128)), GraphChoices()
    images = [var(f"x{n}", 1, floordiv(height + part - 1, part), height, 128) for n, part in enumerate((4, 32))]
    results = tuple(op("nn.conv2d", x, w, span=x.name, **NHWC) for x in images)
    found = infer_types(IRModule([function(images, Tuple(results))]))
    after = choose_algorithm(found, GraphOptions(target=AVX512, choices=asking))
    assert [key.split()[2] for key in asking.asked] == ["1x?80x?320x128", "1x?10x?320x128"]
    assert len(calls(after, "nn.conv2d_winograd")) == 2


def test_open_sizes_never_have_plain_weights() -> None:
    for size in (ConvolutionSize(1, 7, 7, 512, 512), ConvolutionSize(1, 7, 7, 512, 512, is_open=True)):
        assert is_plain_possible(size, AVX512) == (not size.is_open)


def test_open_batches_of_images_of_different_sizes_are_different_questions() -> None:
    batch, w, asking = SymbolicVar("n"), constant(random(0, 3, 3, 16, 16)), GraphChoices()
    images = [var(f"x{size}", batch, size, size, 16) for size in (12, 2)]
    results = tuple(op("nn.conv2d", x, w, span=x.name, **NHWC) for x in images)
    choose_algorithm(
        infer_types(IRModule([function(images, Tuple(results))])), GraphOptions(target=AVX512, choices=asking)
    )
    assert sorted(len(question.options) for question in asking.asked.values()) == [2, 4]
    assert all("?x" in key for key in asking.asked)


@pytest.mark.parametrize(("rows", "name"), [(32, "nn.conv2d_winograd"), (7, "nn.conv2d")])
def test_computed_weights_are_transformed_where_many_tiles_meet_them(rows: int, name: str) -> None:
    x, w = var("x", 2, rows, rows, 32), var("w", 3, 3, 32, 32)
    before = infer_types(IRModule([function([x, w], op("nn.conv2d", x, w, **NHWC))]))
    after = choose_algorithm(before, GraphOptions(target=AVX512))
    assert calls(after, name)
    values = random(0, 2, rows, rows, 32), random(1, 3, 3, 32, 32)
    np.testing.assert_allclose(evaluate(after, *values), evaluate(before, *values), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("size", "tile", "expected"),
    [
        (ConvolutionSize(1, 32, 32, 512, 512), 4, True),  # read eight times, 38 MB each
        (ConvolutionSize(1, 16, 16, 512, 512), 4, True),
        (ConvolutionSize(1, 16, 16, 256, 128), 4, False),  # 4.7 MB, read once
        (ConvolutionSize(1, 128, 128, 512, 128), 4, False),  # the transformed image is larger
        (ConvolutionSize(1, 8, 8, 2048, 512), 4, False),  # four tiles would wait for the transforms
        (ConvolutionSize(1, 32, 32, 512, 508), 4, False),
        (ConvolutionSize(1, 32, 32, 512, 512, is_open=True), 4, False),
    ],
)
def test_weights_that_kernels_transform(size: ConvolutionSize, tile: int, expected: bool) -> None:
    target = AVX512.replace(l2_bytes=1 << 20)
    assert is_transformed_in_kernel(size, tile, target) == expected
    assert not is_transformed_in_kernel(size, tile, target.replace(cores=16)), "eight panels"
    assert not is_transformed_in_kernel(size, tile, target.replace(l2_bytes=0))


def test_weights_of_halves_are_halves_again() -> None:
    target = AVX512.replace(l2_bytes=64 << 10)
    for halves, dtype in ((True, "float16"), (False, "float32")):
        weight = random(0, 3, 3, 32, 64)
        weight = weight.astype(np.float16).astype(np.float32) if halves else weight
        x = var("x", 1, 28, 28, 32)
        before = infer_types(IRModule([function([x], op("nn.conv2d", x, constant(weight), **NHWC))]))
        (call,) = calls(choose_algorithm(before, GraphOptions(target=target)), "nn.conv2d_winograd")
        assert isinstance(call.args[1], Constant)
        assert call.args[1].data.shape == (3, 3, 32, 64) and call.args[1].dtype.name == dtype


def test_shared_weights_are_transformed_once() -> None:
    x, w = var("x", 1, 28, 28, 32), constant(random(0, 3, 3, 32, 32))
    found = infer_types(IRModule([function([x], op("nn.conv2d", op("nn.conv2d", x, w, **NHWC), w, **NHWC))]))
    first, second = calls(choose_algorithm(found, GraphOptions(target=AVX512)), "nn.conv2d_winograd")
    assert first.args[1] is second.args[1]


@pytest.mark.parametrize(
    ("height", "channels", "target", "expected"),
    [
        (56, 64, AVX512, 4),
        (28, 128, AVX512, 4),
        # Few tiles and many weights: reading those of larger tiles costs more than is saved.
        (14, 256, AVX512, 3),
        (7, 512, AVX512, 2),
        (7, 512, AVX512.replace(cores=16), None),
        # Narrow vectors: arithmetic weighs more.
        (14, 256, NEON, 4),
    ],
)
def test_choices_for_layers_of_resnet(height: int, channels: int, target: Target, expected: int | None) -> None:
    assert best_tile(ConvolutionSize(1, height, height, channels, channels), target) == expected


def test_batches_share_the_weights() -> None:
    size = ConvolutionSize(16, 7, 7, 512, 512)
    assert best_tile(size, AVX512) is not None
    assert winograd_cycles(size, 4, AVX512) < direct_cycles(size, AVX512)


def test_the_pipeline_has_the_choice_only_where_asked() -> None:
    def names(options: GraphOptions) -> list[str]:
        return [name for name, _ in graph_pipeline(options)]

    assert "choose_algorithm" in names(GraphOptions(layout="NHWC", target=AVX512))
    assert "choose_algorithm" not in names(GraphOptions(layout="NHWC", target=AVX512, winograd=False))
    assert "choose_algorithm" not in names(GraphOptions(layout="NHWC"))
    assert "choose_algorithm" not in names(GraphOptions(target=AVX512))


def test_planar_models_are_converted_and_then_rewritten() -> None:
    x, w = var("x", 1, 32, 28, 28), constant(random(0, 32, 32, 3, 3))
    body = op("nn.relu", op("nn.conv2d", x, w, padding=(1, 1, 1, 1)))
    before = IRModule([function([x], body)])
    after = optimize(before, GraphOptions(layout="NHWC", target=AVX512))
    data = random(1, 1, 32, 28, 28)
    expected, actual = evaluate(infer_types(before), data), evaluate(after, data)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    assert any(is_call_to(item, "nn.conv2d_winograd") for item in _all_calls(after))


def _all_calls(module: IRModule) -> list[GraphExpr]:
    """What the functions of a module are made of, those that are fused among them."""
    found: list[GraphExpr] = []
    functions = [item for item in module.functions.values() if isinstance(item, Function)]
    while functions:
        order = post_order(functions.pop().body)
        found += order
        functions += [item.callee for item in order if isinstance(item, Call) and isinstance(item.callee, Function)]
    return found


def answered(data: tuple[int, ...], taps: tuple[int, ...], answer: str) -> tuple[IRModule, IRModule, GraphChoices]:
    """A convolution before and after the pass, with an answer to its question."""
    before = module(data, taps)
    asking = GraphChoices()
    x = var("x", *data)
    named = op("nn.conv2d", x, constant(random(0, *taps)), span="conv", **NHWC)
    choose_algorithm(infer_types(IRModule([function([x], named)])), GraphOptions(target=AVX512, choices=asking))
    choices = GraphChoices(dict.fromkeys(asking.asked, answer))
    return before, choose_algorithm(before, GraphOptions(target=AVX512, choices=choices)), asking


@pytest.mark.parametrize("size", [11, 28])
@pytest.mark.parametrize("tile", [None, 2, 3, 4])
def test_answers_go_before_the_estimate(size: int, tile: int | None) -> None:
    shape = (1, size, size, 16)
    before, after, asking = answered(shape, (3, 3, 16, 16), "direct" if tile is None else f"winograd{tile}")
    (question,) = asking.asked.values()
    assert question.options == ("direct", "winograd2", "winograd3", "winograd4") and question.nodes == ("conv",)
    assert [call.attributes.tile for call in calls(after, "nn.conv2d_winograd")] == ([] if tile is None else [tile])
    x = random(1, *shape)
    expected = evaluate(before, x)
    np.testing.assert_allclose(evaluate(after, x), expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_answers_that_are_not_possible_are_not_taken() -> None:
    for answer in ("winograd6", "fourier"):
        _, after, _ = answered((1, 28, 28, 32), (3, 3, 32, 32), answer)
        assert len(calls(after, "nn.conv2d_winograd")) == 1, "as estimated"
    # Too few channels, and pixels that are no fewer multiplications: nothing to ask.
    for size, channels in ((28, 4), (1, 32)):
        *_, asking = answered((1, size, size, channels), (3, 3, channels, channels), "winograd4")
        assert not asking.asked
    assert possible_tiles(ConvolutionSize(1, 5, 1, 32, 32), AVX512) == ()
    assert possible_tiles(ConvolutionSize(1, 2, 2, 32, 32), AVX512) == (2,)
    assert possible_tiles(ConvolutionSize(1, 4, 4, 32, 32), AVX512) == (2, 4), "tiles of 3 multiply more than of 2"


def test_few_tiles_of_many_channels_have_no_more_weights() -> None:
    """7 x 7 x 512: transformed weights would take longer to read than to multiply by."""
    before = module((1, 7, 7, 512), (3, 3, 512, 512))
    after = choose_algorithm(before, GraphOptions(target=AVX512))
    (call,) = calls(after, "nn.conv2d_winograd_plain")
    assert call.attributes.tile == 4
    (convolution,) = calls(before, "nn.conv2d")
    assert isinstance(call.args[1], Constant) and isinstance(convolution.args[1], Constant)
    np.testing.assert_array_equal(call.args[1].data, plain_weight(convolution.args[1].data, 4))
    size = ConvolutionSize(1, 7, 7, 512, 512)
    # 11 x 11 points for 7 x 7 results, and 48 multiply-adds for the weights.
    assert plain_cycles(size, AVX512.replace(cores=16)) == direct_cycles(size, AVX512.replace(cores=16)), "reading"
    assert plain_cycles(size, AVX512) < winograd_cycles(size, 2, AVX512) / 1.5
    # Many cores wait for weights at any rate.
    assert best_algorithm(size, AVX512.replace(cores=16)) == "direct"
    assert best_algorithm(size, AVX512.replace(cores=2)) == "winograd4_plain"


@pytest.mark.parametrize(
    ("size", "target"),
    [
        (ConvolutionSize(2, 7, 7, 512, 512), AVX512),
        (ConvolutionSize(1, 9, 7, 512, 512), AVX512),
        (ConvolutionSize(1, 7, 7, 500, 512), AVX512),
        (ConvolutionSize(1, 7, 7, 512, 24), AVX512),
        (ConvolutionSize(1, 2, 2, 512, 512), AVX512),
        (ConvolutionSize(1, 7, 7, 512, 512), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")),
        (ConvolutionSize(1, 7, 7, 512, 512), NEON),
    ],
)
def test_where_weights_cannot_be_transformed_in_registers(size: ConvolutionSize, target: Target) -> None:
    assert is_plain_possible(ConvolutionSize(1, 7, 7, 512, 512), AVX512)
    assert not is_plain_possible(size, target)
