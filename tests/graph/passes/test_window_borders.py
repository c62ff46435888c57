"""Images that depthwise convolutions read get their border where they are made, if that is no kernel's own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.passes.checking import assert_same_meaning
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.window_dots import WindowDotsAttributes, arranged
from tilewright.graph.passes.window_borders import window_borders
from tilewright.ir.dtype import INT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

ZERO = -3


def dots(image: GraphExpr, width: int, stride: int, padding: tuple[int, ...]) -> GraphExpr:
    taps = np.random.default_rng(width).integers(-9, 9, (3, width, 1, 8)).astype(np.int8)
    weight, zero = constant(arranged(taps, stride)), constant(np.int8(ZERO))
    return call("qnn.window_dots", image, weight, zero, strides=(stride, stride), padding=padding, width=width)


def rewritten(body: GraphExpr, *params: Var) -> list[Call]:
    """The calls of a program when its images have borders; it computes what it did."""
    before = infer_types(IRModule([Function("main", params, body)]))
    after = infer_types(window_borders(before))
    assert_same_meaning(before, after)
    return [item for item in post_order(after["main"]) if isinstance(item, Call)]


def padding_of(calls: list[Call]) -> tuple[int, ...]:
    (found,) = [item.attributes for item in calls if is_call_to(item, "qnn.window_dots")]
    assert isinstance(found, WindowDotsAttributes)
    return found.padding


@pytest.mark.parametrize(("width", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 1), (2, 2, 2, 2)])
def test_images_that_are_padded_anyway(width: int, stride: int, padding: tuple[int, ...]) -> None:
    x = Var("x", tensor_type((2, 6, 9, 8), "int8"))
    image = call("pad", x, before=(0, 0, 1, 0), after=(0, 1, 0, 0), value=float(ZERO))
    calls = rewritten(dots(image, width, stride, padding), x)
    assert sum(is_call_to(item, "pad") for item in calls) == 1
    assert padding_of(calls)[:3] == (0, 0, 0) and padding_of(calls)[3] <= 0


def test_other_images_stay_as_they_are() -> None:
    """Those that a kernel computes, that others read too, or whose border is another number."""
    x, places = Var("x", tensor_type((1, 6, 9, 8), "int8")), Var("places", tensor_type((1, 6, 9, 8), "uint8"))
    computed = call("maximum", x, constant(np.int8(0)))
    other = call("pad", x, before=(0, 1, 1, 0), after=(0, 1, 1, 0), value=float(ZERO + 1))
    edges = call("pad", x, before=(0, 1, 1, 0), after=(0, 1, 1, 0), mode="edge")
    for image in (x, computed, other, edges):
        assert padding_of(rewritten(dots(image, 3, 1, (1, 1, 1, 1)), x)) == (1, 1, 1, 1)
    table = constant(np.arange(256).astype(np.int8))
    shared = call("take", table, places, axis=0, mode="inside")
    wide = call("add", dots(shared, 3, 1, (1, 1, 1, 1)), call("cast", shared, dtype=INT32))
    assert padding_of(rewritten(wide, places)) == (1, 1, 1, 1)


def test_whole_groups_need_nothing() -> None:
    x = Var("x", tensor_type((1, 6, 10, 8), "int8"))
    image = call("pad", x, before=(0, 0, 0, 0), after=(0, 1, 0, 0), value=float(ZERO))
    assert padding_of(rewritten(dots(image, 3, 1, (0, 0, 0, 0)), x)) == (0, 0, 0, 0)


def test_only_the_padding_on_the_right_may_be_less_than_nothing() -> None:
    x = Var("x", tensor_type((1, 6, 10, 8), "int8"))
    for padding in ((-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0)):
        with pytest.raises(UserError, match="padding at the top, on the left and at the bottom"):
            infer_types(IRModule([Function("main", (x,), dots(x, 3, 1, padding))]))
