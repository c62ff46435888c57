"""A 1 x 1 convolution with the depthwise convolution of its results in one kernel: the right numbers, by panels."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of

LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
NEOVERSE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)


class Case:
    """A 1 x 1 convolution and a depthwise one: their program and arrays for its parameters."""

    def __init__(
        self,
        size: tuple[int, int, int, int],
        channels: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: tuple[int, int, int, int] | None = None,
        epilogue: bool = True,
        constants: bool = True,
    ) -> None:
        rng = np.random.default_rng(sum(size))

        def made(name: str, *shape: int) -> Var:
            self.arrays.append(rng.standard_normal(shape).astype(np.float32))
            params.append(Var(name, tensor_type(shape, "float32")))
            return params[-1]

        self.arrays: list[np.ndarray] = []
        params: list[Var] = []
        x, u = made("x", *size), made("u", 1, 1, size[-1], channels)
        body: GraphExpr = call("nn.conv2d", x, u, **LAYOUT)
        if epilogue:
            body = call("nn.relu", call("add", body, made("b", channels)))
        weights = made("w", kernel, kernel, 1, channels)
        around = padding if padding is not None else (kernel // 2,) * 4
        body = call("nn.conv2d", body, weights, groups=channels, padding=around, strides=(stride, stride), **LAYOUT)
        if epilogue:
            body = call("nn.relu", call("add", body, made("d", channels)))
        function = infer_types(Function("main", tuple(params), body))
        assert isinstance(function, Function)
        self.expected = evaluate(IRModule([function]), *self.arrays)
        self.func = lower_primitive(function, "k", tuple(range(1, len(params))) if constants else (), on_cpu=True)

    def check(self, func: PrimFunc, target: Target) -> None:
        """Run a scheduled version, compiled, and compare."""
        packing = packing_of(func)
        arrays = [
            np.ascontiguousarray(packing[n].rearrange(array)) if n in packing else array
            for n, array in enumerate(self.arrays)
        ]
        out = np.full(self.expected.shape, np.nan, np.float32)
        tw.build(func, target=target)(*arrays, out)
        np.testing.assert_allclose(out, self.expected, rtol=0, atol=2e-5 * float(np.abs(self.expected).max()))


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_expanded(kernel: int, stride: int, cores: int) -> None:
    target = Target("native").replace(cores=cores)
    case = Case((2, 14, 28, 24), 48, kernel=kernel, stride=stride)
    scheduled = schedule_cpu(case.func, target)
    assert len(packing_of(scheduled)) == 2
    assert any(loop.kind is LoopKind.PARALLEL for loop in find_all(scheduled.body, For)) == (cores > 1)
    case.check(scheduled, target)


@pytest.mark.parametrize(
    ("size", "channels", "epilogue", "constants", "padding"),
    [
        ((1, 5, 13, 7), 20, True, True, None),
        ((1, 1, 1, 16), 16, True, True, None),
        ((1, 7, 8, 1), 7, True, True, None),
        ((1, 6, 14, 8), 32, False, True, None),
        ((1, 6, 14, 8), 32, True, False, None),
        ((1, 8, 14, 8), 16, True, True, (0, 0, 0, 0)),
        ((1, 8, 14, 8), 16, True, True, (0, 1, 2, 0)),
    ],
)
def test_odd_shapes(
    size: tuple[int, int, int, int],
    channels: int,
    epilogue: bool,
    constants: bool,
    padding: tuple[int, int, int, int] | None,
) -> None:
    target = Target("native").replace(cores=1)
    case = Case(size, channels, epilogue=epilogue, constants=constants, padding=padding)
    case.check(schedule_cpu(case.func, target), target)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("strips", [2, 4])
def test_strips_of_lines(strips: int, cores: int, stride: int) -> None:
    """Lines that two strips share are computed for both."""
    target = Target("native").replace(cores=cores)
    case = Case((1, 16 * stride, 8 * stride, 8), 16, stride=stride)
    choices = Choices({"strips": strips})
    case.check(schedule_cpu(case.func, target, choices), target)
    assert choices.answers["strips"] == strips


def test_large_images_are_cut_into_strips_that_stay_near() -> None:
    choices = Choices()
    schedule_cpu(Case((1, 56, 56, 4), 24, stride=2).func, NEOVERSE.replace(l2_bytes=128 << 10), choices)
    strips, vectors = choices.answers["strips"], choices.answers["tile_vectors"]
    assert isinstance(strips, int) and isinstance(vectors, int) and strips > 1
    assert prod((56, 56, vectors * 4, 4)) / strips <= 0.2 * (128 << 10)
    schedule_cpu(Case((1, 56, 56, 4), 24, stride=2).func, NEOVERSE, choices := Choices())
    assert choices.answers["strips"] == 1


@pytest.mark.parametrize("channels", [20, 28, 44])
def test_panels_divide_all_channels(channels: int) -> None:
    choices = Choices()
    schedule_cpu(Case((1, 28, 28, 16), channels).func, NEOVERSE, choices)
    vectors = choices.answers["tile_vectors"]
    assert isinstance(vectors, int) and channels // 4 % vectors == 0
