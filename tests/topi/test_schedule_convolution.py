"""Convolutions tap by tap: chosen where weights are many and pixels few, and right for shapes that do not divide."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.expr import const_value
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import Block, For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of

SMALL = {"l1_bytes": 16 << 10, "l2_bytes": 32 << 10}
"""Caches so small that the weights of these tests do not fit."""


class Case:
    """A convolution with constant weights, bias and ReLU: its program, inputs and expected result."""

    def __init__(
        self,
        size: tuple[int, int, int, int],
        outputs: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        epilogue: bool = True,
        transposed: bool = False,
        planar: bool = False,
        is_open: bool = False,
        constants: tuple[int, ...] = (1, 2),
    ) -> None:
        rng = np.random.default_rng(sum(size) + outputs)
        pads = (kernel // 2,) * 4
        attributes = {
            "padding": pads,
            "strides": (stride, stride),
            "groups": groups,
            "data_layout": "NHWC",
            "kernel_layout": "HWIO",
        }
        data = rng.standard_normal(size).astype(np.float32)
        weight = (rng.standard_normal((kernel, kernel, size[-1] // groups, outputs)) / size[-1]).astype(np.float32)
        bias = rng.standard_normal(outputs).astype(np.float32)
        expected = get_operator("nn.conv2d").reference([data, weight], Conv2dAttributes(**attributes))
        assert isinstance(expected, np.ndarray)
        x, w, b = (Var(n, tensor_type(a.shape, "float32")) for n, a in (("x", data), ("w", weight), ("b", bias)))
        image: GraphExpr = x
        if planar:
            data = np.ascontiguousarray(data.transpose(0, 3, 1, 2))
            x = Var("x", tensor_type(data.shape, "float32"))
            image = call("transpose", x, axes=(0, 2, 3, 1))
        if is_open:
            image = x = Var("x", tensor_type((Symbol("n"), *data.shape[1:]), "float32"))
        body: GraphExpr = call("nn.conv2d", image, w, **attributes)
        self.inputs, params = [data, weight], [x, w]
        if epilogue:
            body, expected = call("nn.relu", call("add", body, b)), np.maximum(expected + bias, 0)
            self.inputs, params = [*self.inputs, bias], [*params, b]
        if transposed:
            body, expected = call("transpose", body, axes=(0, 3, 1, 2)), expected.transpose(0, 3, 1, 2)
        function = infer_types(Function("k", tuple(params), body))
        assert isinstance(function, Function)
        self.func = lower_primitive(function, "k", tuple(n for n in constants if n < len(params)))
        self.expected = expected

    def check(self, func: PrimFunc, target: Target | None = None) -> None:
        """Run a scheduled version, compiled for a target or interpreted, and compare."""
        packing = packing_of(func)
        arrays = [
            np.ascontiguousarray(packing[n].rearrange(array)) if n in packing else array
            for n, array in enumerate(self.inputs)
        ]
        out = np.full(self.expected.shape, np.nan, np.float32)
        if target is None:
            interpret(func, *arrays, out)
        else:
            tw.build(func, target=target)(*arrays, out)
        np.testing.assert_allclose(out, self.expected, rtol=0, atol=1e-5)


def goes_tap_by_tap(func: PrimFunc) -> bool:
    """Whether sums over channels are made for each tap, and the weights of the next are fetched."""
    fetching = [loop for loop in find_all(func.body, For) if PREFETCH.is_on(loop)]
    return bool(fetching) and any(block.name.endswith("_rf") for block in find_all(func.body, Block))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("epilogue", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "is_open"), [(3, 1, False), (3, 2, False), (5, 1, False), (3, 1, True)])
def test_compiled(kernel: int, stride: int, is_open: bool, epilogue: bool, cores: int) -> None:
    target = Target("native").replace(cores=cores, **SMALL)
    case = Case((2, 7, 9, 24), 64, kernel=kernel, stride=stride, is_open=is_open, epilogue=epilogue)
    scheduled = schedule_cpu(case.func, target)
    assert goes_tap_by_tap(scheduled)
    assert any(loop.kind is LoopKind.PARALLEL for loop in find_all(scheduled.body, For)) == (cores > 1)
    case.check(scheduled, target)


@pytest.mark.parametrize(
    ("spec", "height", "cores", "pieces"),
    [
        ("aarch64-linux-gnu -mcpu=neoverse-n1", 14, 2, 14),
        ("aarch64-linux-gnu -mcpu=neoverse-n1", 14, 8, 14),
        # Two lines for three cores leave one of them without work: tiles are tested instead.
        ("aarch64-linux-gnu -mcpu=neoverse-n1", 2, 3, 6),
        ("x86_64-linux-gnu -mcpu=skylake-avx512", 14, 2, 42),
    ],
)
def test_loops_with_a_partial_tile_stay_out_of_parallel_ones(spec: str, height: int, cores: int, pieces: int) -> None:
    """Lines of fourteen pixels are two tiles of five and one of four: in a parallel loop all would be tested."""
    case = Case((1, height, 14, 64), 48, kernel=1)
    given = {"tile_rows": 5, "weights_stay": True}
    target = Target(f"llvm -mtriple={spec}").replace(cores=cores)
    scheduled = schedule_cpu(case.func, target, Choices(given))
    (loop,) = (loop for loop in find_all(scheduled.body, For) if loop.kind is LoopKind.PARALLEL)
    assert const_value(loop.extent) == pieces
    native = Target("native").replace(cores=cores)
    case.check(schedule_cpu(case.func, native, Choices(given)), native)


@pytest.mark.parametrize(("l1_bytes", "together"), [(64 << 10, 96), (16 << 10, 48), (8 << 10, 24)])
def test_weights_of_some_channels_stay_in_the_first_cache_level(l1_bytes: int, together: int) -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(
        cores=1, l1_bytes=l1_bytes, l2_bytes=32 << 10
    )
    case = Case((1, 4, 4, 96), 64)
    scheduled = schedule_cpu(case.func, target)
    (walk,) = (loop for loop in find_all(scheduled.body, For) if PREFETCH.is_on(loop))
    columns = packing_of(scheduled)[1].rearrange(case.inputs[1]).shape[-1]
    assert walk.annotations[PREFETCH.name] == {"p1": together * columns}
    case.check(scheduled)


@pytest.mark.parametrize("cpu", ["x86_64-linux-gnu -mcpu=skylake-avx512", "aarch64-linux-gnu -mcpu=neoverse-n1"])
@pytest.mark.parametrize("outputs", [40, 7])
def test_interpreted(cpu: str, outputs: int) -> None:
    target = Target(f"llvm -mtriple={cpu}").replace(cores=1, l1_bytes=16 << 10, l2_bytes=1 << 10)
    case = Case((1, 5, 4, 6), outputs)
    scheduled = schedule_cpu(case.func, target)
    assert goes_tap_by_tap(scheduled)
    case.check(scheduled)


@pytest.mark.parametrize("outputs", [40, 64])
def test_taps_of_one_channel_are_not_walked_one_by_one(outputs: int) -> None:
    """A tap of one channel has no sum over channels, whose loop the weights of the next tap would be fetched in."""
    target = Target("native").replace(cores=1, l1_bytes=16 << 10, l2_bytes=1 << 10)
    case = Case((1, 4, 4, 1), outputs)
    scheduled = schedule_cpu(case.func, target)
    assert not goes_tap_by_tap(scheduled)
    case.check(scheduled, target)


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_parts_of_a_tap_have_several_channels(depth: int) -> None:
    target = Target("native").replace(cores=1, l1_bytes=16 << 10, l2_bytes=1 << 10)
    case, asked = Case((1, 4, 4, depth), 40), Choices({})
    schedule_cpu(case.func, target, asked)
    options = asked.asked["channels_together"].options
    assert min(options) > 1
    for option in options:
        case.check(schedule_cpu(case.func, target, Choices({"channels_together": option})), target)


@pytest.mark.parametrize(
    "changed",
    [
        {"l2_bytes": 4 << 20},
        {"l1_bytes": 1 << 10},
        {"cores": 7},
    ],
    ids=["weights stay", "too many pixels", "cores without panels"],
)
def test_where_it_would_not_pay(changed: dict[str, int]) -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1, **SMALL)
    case = Case((1, 7, 9, 24), 64)
    assert goes_tap_by_tap(schedule_cpu(case.func, target))
    assert not goes_tap_by_tap(schedule_cpu(case.func, target.replace(**changed)))


def test_groups_varying_weights_and_moved_results_stay_as_they_are() -> None:
    target = Target("native").replace(cores=1, **SMALL)
    size = (1, 7, 9, 64)
    for case in (Case(size, 64, groups=2), Case(size, 64, constants=(2,)), Case(size, 64, transposed=True)):
        scheduled = schedule_cpu(case.func, target)
        assert not goes_tap_by_tap(scheduled)
        case.check(scheduled, target)


@pytest.mark.parametrize("stride", [1, 2])
def test_planar_images_are_padded_as_they_are(stride: int) -> None:
    target = Target("native").replace(cores=1)
    case = Case((2, 9, 35, 3), 32, stride=stride, planar=True)
    scheduled = schedule_cpu(case.func, target)
    (pad,) = [block for block in find_all(scheduled.body, Block) if block.name == "pad_data"]
    assert pad.writes[0].buffer.static_shape == (2, 3, 11, 37)
    case.check(scheduled, target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "is_copied"),
    [
        ((1, 8, 11, 3), 3, 2, False),
        ((2, 7, 7, 4), 5, 1, False),
        ((1, 2, 3, 1), 7, 2, False),
        ((1, 8, 11, 8), 3, 2, True),
    ],
)
def test_images_of_few_channels_are_read_where_they_lie(
    size: tuple[int, int, int, int], kernel: int, stride: int, is_copied: bool, cores: int
) -> None:
    """On Arm: tiles at the border test for it, and nothing is copied."""
    neoverse = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=cores)
    case = Case(size, 12, kernel=kernel, stride=stride)
    scheduled = schedule_cpu(case.func, neoverse)
    assert any(block.name == "pad_data" for block in find_all(scheduled.body, Block)) == is_copied
    case.check(scheduled)
    native = Target("native").replace(cores=cores)
    case.check(schedule_cpu(case.func, native), native)


def test_planar_images_are_copied() -> None:
    case = Case((1, 8, 11, 3), 12, stride=2, planar=True)
    scheduled = schedule_cpu(case.func, Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"))
    assert any(block.name == "pad_data" for block in find_all(scheduled.body, Block))


@pytest.mark.parametrize("cores", [1, 2])
def test_an_open_number_of_images_is_read_where_they_lie(cores: int) -> None:
    case = Case((2, 8, 11, 3), 12, stride=2, is_open=True)
    neoverse = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=cores)
    scheduled = schedule_cpu(case.func, neoverse)
    assert not any(block.name == "pad_data" for block in find_all(scheduled.body, Block))
    case.check(scheduled)
    native = Target("native").replace(cores=cores)
    case.check(schedule_cpu(case.func, native), native)


def test_pixels_and_results_beyond_the_cache_are_fetched_ahead() -> None:
    target = Target("native").replace(cores=1, l2_bytes=128 << 10)
    case = Case((1, 28, 28, 64), 32, kernel=1)
    scheduled = schedule_cpu(case.func, target)
    (loop,) = [loop for loop in find_all(scheduled.body, For) if PREFETCH.is_on(loop)]
    notes = loop.annotations[PREFETCH.name]
    assert isinstance(notes, dict)
    image, result = scheduled.buffers[0].name, scheduled.buffers[-1].name
    assert {*notes} == {image, result}
    # As many pixels of each.
    assert notes[image] == 2 * notes[result]
    case.check(scheduled, target)
    roomy = schedule_cpu(case.func, target.replace(l2_bytes=8 << 20))
    assert not any(PREFETCH.is_on(loop) for loop in find_all(roomy.body, For))
