"""Groups of convolutions joined until they fill a vector: that the meaning stays, and where it is done."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.join_groups import groups_to_join, join_groups
from tilewright.ir.function import IRModule
from tilewright.target import Target

WIDE = Target("llvm -mcpu=sapphirerapids")
NARROW = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


def module(groups: int, depth: int, width: int, dtype: str = "float32") -> IRModule:
    x = var("x", 1, 6, 5, groups * depth, dtype=dtype)
    weight = constant(random(0, 3, 3, depth, groups * width).astype(dtype))
    attributes = {"data_layout": "NHWC", "kernel_layout": "HWIO", "strides": (2, 1), "groups": groups}
    return infer_types(IRModule([function([x], op("nn.conv2d", x, weight, span="grouped", **attributes))]))


def groups_of(found: IRModule) -> int:
    (call,) = (item for item in post_order(found["main"]) if is_call_to(item, "nn.conv2d"))
    assert isinstance(call, Call) and isinstance(call.attributes, Conv2dAttributes)
    return call.attributes.groups


@pytest.mark.parametrize(
    ("groups", "depth", "width", "joined"), [(32, 4, 4, 8), (8, 8, 8, 4), (6, 2, 24, 3), (3, 5, 7, 1), (32, 2, 1, 2)]
)
def test_joined_groups_give_the_same_results(groups: int, depth: int, width: int, joined: int) -> None:
    before = module(groups, depth, width)
    after = join_groups(before, GraphOptions(target=WIDE))
    assert groups_of(after) == joined
    x = random(1, 1, 6, 5, groups * depth)
    np.testing.assert_allclose(evaluate(after, x), evaluate(before, x), rtol=1e-5, atol=1e-5)


def test_what_stays_as_it_is() -> None:
    for before in (module(4, 8, 16), module(4, 8, 32), module(32, 1, 1), module(1, 4, 4), module(8, 4, 4, "float64")):
        assert join_groups(before, GraphOptions(target=WIDE))["main"] is before["main"]
    assert groups_of(join_groups(module(32, 4, 4), GraphOptions(target=NARROW))) == 32
    before = module(32, 4, 4)
    assert join_groups(before, GraphOptions(target=Target("cuda -arch=sm_90a")))["main"] is before["main"]


def test_a_measurement_goes_before_the_estimate() -> None:
    before = module(32, 4, 4)
    asking = GraphChoices()
    assert groups_of(join_groups(before, GraphOptions(target=WIDE, choices=asking))) == 8
    (question,) = asking.asked.values()
    assert (question.default, question.nodes) == ("together", ("grouped",))
    assert (
        groups_of(join_groups(before, GraphOptions(target=WIDE, choices=GraphChoices({question.key: "apart"})))) == 32
    )


def test_how_many_are_joined() -> None:
    assert groups_to_join(32, 4, 16, 16) == 4
    assert groups_to_join(7, 3, 16, 16) == 7
    assert groups_to_join(64, 1, 16, 16) == 16
    assert groups_to_join(29, 3, 16, 16) == 1
