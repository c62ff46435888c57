"""Transposed convolutions with computed weights as plain ones: that the meaning stays, on all kinds of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.computed_kernels import computed_kernels
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
three = st.integers(1, 3)


def _module(data: tuple[Any, ...], taps: tuple[int, ...], **attributes: object) -> IRModule:
    x, w = var("x", *data), var("w", *taps)
    return infer_types(IRModule([function([x, w], op("nn.conv2d_transpose", x, w, **NHWC, **attributes))]))


def _names(module: IRModule) -> set[str]:
    known = ("nn.conv2d", "nn.conv2d_transpose")
    return {name for name in known for item in post_order(module["main"]) if is_call_to(item, name)}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_window(source):
    draw = source.draw
    groups = draw(st.sampled_from([1, 1, 2]))
    data = (draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2 * groups)
    taps = (draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2 * groups, draw(three))
    attributes = {
        "strides": (draw(three), draw(three)),
        "padding": tuple(draw(st.integers(0, 2)) for _ in range(4)),
        "output_padding": (draw(st.integers(0, 1)), draw(st.integers(0, 1))),
        "dilation": draw(st.sampled_from([(1, 1), (1, 1), (2, 1)])),
        "groups": groups,
    }
    try:
        before = _module(data, taps, **attributes)
    except UserError:
        assume(False)
    after = computed_kernels(before)
    infer_types(after)
    values = random(0, *data), random(1, *taps)
    np.testing.assert_allclose(evaluate(after, *values), evaluate(before, *values), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"padding": (1, 1, 1, 1)}, {"nn.conv2d"}),
        ({"padding": (1, 1, 1, 1), "groups": 2}, {"nn.conv2d"}),
        ({"padding": (1, 1, 1, 1), "strides": (2, 2), "output_padding": (1, 1)}, {"nn.conv2d"}),
        ({"padding": (3, 1, 1, 1)}, {"nn.conv2d_transpose"}),
        ({"strides": (2, 2), "groups": 2}, {"nn.conv2d_transpose"}),
        ({"strides": (2, 2), "dilation": (2, 2)}, {"nn.conv2d_transpose"}),
    ],
)
def test_which_become_plain(attributes, names):
    assert _names(computed_kernels(_module((1, 5, 5, 4), (3, 3, 4, 6), **attributes))) == names


def test_open_batch():
    after = computed_kernels(_module((Symbol("n"), 5, 5, 4), (3, 3, 4, 6), strides=(2, 2)))
    assert _names(after) == {"nn.conv2d"}
