"""What CPU templates ask a tuner: every answer keeps the meaning, and the analytic ones change nothing."""

from __future__ import annotations

from random import Random

import pytest

from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import TARGETS, compare, conv, kernel, var
from tests.topi.test_winograd import Case
from tilewright.graph.ir.op import call
from tilewright.ir.structural import structural_key
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import CONSTANTS
from tilewright.tune.space import Space

SMALL = {name: target.replace(l1_bytes=256, l2_bytes=2048) for name, target in TARGETS.items()}
"""Caches so small that small kernels are asked what large ones are."""


def _matmul() -> PrimFunc:
    a, b, c = var("a", 24, 12), var("b", 12, 40), var("c", 40)
    return kernel([a, b, c], call("nn.relu", call("add", call("matmul", a, b), c)))


def _convolution() -> PrimFunc:
    x, w = var("x", 1, 4, 9, 4), var("w", 3, 3, 4, 32)
    return kernel([x, w], conv(x, w, padding=(1, 1, 1, 1)))


def _narrow() -> PrimFunc:
    x, w = var("x", 1, 6, 4, 8), var("w", 1, 1, 8, 32)
    return kernel([x, w], conv(x, w))


def _depthwise() -> PrimFunc:
    x, w = var("x", 1, 6, 12, 16), var("w", 3, 3, 1, 16)
    return kernel([x, w], call("nn.relu", conv(x, w, padding=(1, 1, 1, 1), groups=16)))


def _large_windows() -> PrimFunc:
    x, w = var("x", 1, 6, 7, 16), var("w", 5, 5, 1, 16)
    return kernel([x, w], call("nn.relu", conv(x, w, padding=(2, 2, 2, 2), groups=16)))


def _softmax() -> PrimFunc:
    x = var("x", 16, 8, 64)
    return kernel([x], call("nn.softmax", x, axis=2))


def _elementwise() -> PrimFunc:
    x = var("x", 8, 1024)
    return kernel([x], call("tanh", x))


def _winograd() -> PrimFunc:
    return Case((1, 8, 8, 16), 32, tile=2).func


KERNELS = {
    "matmul": (_matmul, {"tile_rows", "tile_vectors", "weights_stay", "unroll"}),
    "convolution": (_convolution, {"tile_rows", "tile_vectors", "unroll"}),
    "narrow": (_narrow, {"tile_rows", "tile_vectors", "unroll"}),
    "depthwise": (_depthwise, {"pixels", "unroll_taps", "unroll_rows_of_taps"}),
    "large windows": (_large_windows, {"pixels", "unroll_taps", "unroll_rows_of_taps"}),
    "softmax": (_softmax, {"partial"}),
    "elementwise": (_elementwise, {"vector"}),
    "winograd": (_winograd, {"tile_rows", "tile_vectors", "group", "streamed"}),
}


@pytest.mark.grid
@pytest.mark.parametrize("target", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("name", KERNELS)
def test_any_answers_keep_the_meaning(name: str, target: Target) -> None:
    make, expected = KERNELS[name]
    func = make()
    if not func.attributes.get(CONSTANTS):
        func = func.replace(attributes={**func.attributes, CONSTANTS: tuple(range(1, len(func.buffers) - 1))})
    space = Space(func, target)
    asked = {question.name for question in space.open_questions}
    assert expected <= asked
    random = Random(3)
    keys = set()
    for _ in range(3):
        point = space.canonical(space.random(random))
        scheduled = space.schedule(Choices(point))
        keys.add(structural_key(scheduled))
        compare(func, scheduled)
    assert len(keys) > 1


@pytest.mark.parametrize("name", KERNELS)
def test_the_analytic_answers_change_nothing(name: str) -> None:
    func = KERNELS[name][0]()
    for target in (*TARGETS.values(), *SMALL.values()):
        plain = schedule_cpu(func, target)
        asked = Choices()
        schedule_cpu(func, target, asked)
        assert all(question.default in question.options for question in asked.asked.values())
        again = Choices({name: question.default for name, question in asked.asked.items()})
        assert structural_key(schedule_cpu(func, target, again)) == structural_key(plain)


def test_answers_that_do_not_fit_are_not_taken() -> None:
    func, target = _matmul(), TARGETS["avx512"]
    strange = Choices({"tile_rows": 1000, "tile_vectors": -1, "no_such_question": 3})
    assert structural_key(schedule_cpu(func, target, strange)) == structural_key(schedule_cpu(func, target))


def test_different_answers_are_different_programs() -> None:
    """Every question matters: a kernel is not asked what changes nothing."""
    func, target = _matmul(), SMALL["avx512"].replace(cores=1)
    func = func.replace(attributes={**func.attributes, CONSTANTS: (1,)})
    space = Space(func, target)
    default = structural_key(space.schedule(Choices(space.default)))
    for question in space.open_questions:
        other = next(option for option in question.options if option != question.default)
        changed = space.canonical({**space.default, question.name: other})
        assert structural_key(space.schedule(Choices(changed))) != default, question.name


@pytest.mark.parametrize(
    ("pixels", "depth", "columns", "stays"),
    [
        (56, 64, 128, True),  # many pixels: they hide where weights come from
        (28, 128, 128, True),
        (14, 96, 576, False),
        (7, 512, 128, False),
        (14, 192, 48, True),  # weights that the first cache level holds
        (1, 672, 96, True),  # nothing to hide a fetch behind
        (56, 512, 512, False),  # too large to stay
    ],
)
def test_weights_that_few_pixels_meet_come_panel_by_panel(pixels: int, depth: int, columns: int, stays: bool) -> None:
    x, w = var("x", 1, pixels, pixels, depth), var("w", 1, 1, depth, columns)
    func, target = kernel([x, w], conv(x, w)), TARGETS["avx512"].replace(l1_bytes=48 << 10, l2_bytes=2 << 20)
    constant, computed = Choices(), Choices()
    schedule_cpu(func.replace(attributes={**func.attributes, CONSTANTS: (1,)}), target, constant)
    assert constant.answers["weights_stay"] is stays
    # What was computed just before is near.
    schedule_cpu(func, target, computed)
    assert computed.answers["weights_stay"] is (depth * columns * 4 <= target.l2_bytes / 4)
