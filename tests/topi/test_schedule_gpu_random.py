"""GPU templates at random sizes and with random answers to their questions, interpreted thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topi.differential import operator_program, random_array, results_of, run_reference
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.backend import lower
from tilewright.ir.expr import Call
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.interpreter import interpret
from tilewright.tir.row_instructions import ROW_MAX, ROW_SUM
from tilewright.topi.schedule.choices import Answer, Choices, Question

# Few cores: rows and parts are divided over blocks at sizes that can be interpreted.
TARGETS = [Target("opencl -num-cores=2 -max-threads=128"), Target("cuda -arch=sm_80 -num-cores=2 -max-threads=128")]
NHWC = {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}
GATES = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
WARPS = {*ROW_MAX.values(), *ROW_SUM.values()}

Made = tuple[str, list[tuple[int, ...]], dict[str, Any]]


def _axes(draw: Callable[[Any], Any], rank: int) -> tuple[int, ...]:
    return tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))


@st.composite
def reductions(draw: Callable[[Any], Any]) -> Made:
    """Sums and the like over some axes, long and short."""
    sizes = st.sampled_from([1, 2, 3, 4, 7, 8, 20, 33, 64])
    shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
    kind = draw(st.sampled_from(["sum", "max", "mean", "argmax"]))
    if kind == "argmax":
        return kind, [shape], {"axis": draw(st.integers(0, len(shape) - 1))}
    return kind, [shape], {"axes": _axes(draw, len(shape)), "keepdims": draw(st.booleans())}


@st.composite
def rows(draw: Callable[[Any], Any]) -> Made:
    """Normalised rows."""
    count, length = draw(st.integers(1, 9)), draw(st.sampled_from([1, 5, 16, 17, 32, 48, 100, 256]))
    kind = draw(st.sampled_from(["nn.softmax", "nn.log_softmax", "nn.layer_norm"]))
    if kind == "nn.layer_norm":
        return kind, [(count, length), (length,), (length,)], {"axis": 1}
    return kind, [(count, length)], {"axis": draw(st.integers(0, 1))}


@st.composite
def windows(draw: Callable[[Any], Any]) -> Made:
    """Depthwise convolutions and pooling."""
    size, channels, step = draw(st.integers(3, 7)), draw(st.sampled_from([1, 2, 3, 4, 8, 12])), draw(st.integers(1, 2))
    shape = (1, size, size + 1, channels)
    if draw(st.booleans()):
        attributes = {**NHWC, "groups": channels, "strides": (step, step)}
        return "nn.conv2d", [shape, (3, 3, 1, channels)], attributes
    kernel = {"kernel": (3, 2), "strides": (step, step), "padding": (1, 1, 1, 1), "layout": "NHWC"}
    return draw(st.sampled_from(["nn.max_pool2d", "nn.avg_pool2d"])), [shape], kernel


@st.composite
def movements(draw: Callable[[Any], Any]) -> Made:
    """Transposes and elementwise stages."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 3, 8, 17, 32, 36]), min_size=2, max_size=3)))
    if draw(st.booleans()):
        return "transpose", [shape], {"axes": tuple(draw(st.permutations(range(len(shape)))))}
    return "add", [shape, shape[-1:]], {}


def _check(made: Made, target: Target, answer: Callable[[Question], Answer]) -> None:
    name, shapes, attributes = made
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, shape) for shape in shapes]
    func = schedule_gpu(operator_program(name, arrays, **attributes), target, Choices(answer=answer))
    got = results_of(func, arrays)
    lowered = lower(func, target)
    if any(call.name in WARPS for call in find_all(lowered.body, Call)):
        # What threads of a warp combine is one operation of the scheduled program; lowered, no interpreter runs it.
        interpret(func, *arrays, *got)
    else:
        interpret(lowered, *[array.reshape(-1) for array in (*arrays, *got)])
    for one, other in zip(got, run_reference(name, arrays, **attributes), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
@pytest.mark.parametrize("programs", [reductions(), rows(), windows(), movements()], ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_templates_keep_the_meaning(programs: st.SearchStrategy[Made], target: Target, data: st.DataObject) -> None:
    made = data.draw(programs)
    _check(made, target, lambda question: data.draw(st.sampled_from(question.options)))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_layers_keep_the_meaning(target: Target, data: st.DataObject) -> None:
    """Attention and recurrent layers."""
    target = target.replace(max_threads=256)
    if data.draw(st.booleans()):
        queries, keys, depth = data.draw(st.sampled_from([(8, 32, 4), (16, 64, 8), (32, 32, 4), (6, 10, 3)]))
        shapes = [(1, queries, 1, depth), (1, keys, 1, depth), (1, keys, 1, 32)]
        made: Made = ("nn.attention", shapes, {"scale": 0.5})
    else:
        batch, size = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([3, 8, 33]))
        shapes = [(2, batch, 4, size), (4, size, size), (batch, size), (batch, size)]
        made = ("nn.lstm", shapes, {"activations": GATES})
    _check(made, target, lambda question: data.draw(st.sampled_from(question.options)))
