"""Signals between convolutions of one dimension are images of one line; the meaning stays, and kernels join."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.passes.image_lines import image_lines
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

X = var("x", 2, 3, 20)
R = var("r", 2, 4, 18)
SHAPES = [(2, 3, 20), (2, 4, 18)]
ARM = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)


def signal() -> GraphExpr:
    image = op("nn.conv2d", op("reshape", X, shape=(2, 3, 1, 20)), constant(random(1, 4, 3, 1, 3)))
    return op("reshape", image, shape=(2, 4, 18))


def module(body: GraphExpr) -> IRModule:
    return infer_types(IRModule([function([X, R], body)]))


def check(before: IRModule) -> IRModule:
    after = image_lines(before)
    arrays = [random(n, *shape) for n, shape in enumerate(SHAPES)]
    np.testing.assert_allclose(evaluate(after, *arrays), evaluate(before, *arrays), rtol=1e-6, atol=1e-6)
    return after


@pytest.mark.parametrize(
    "build",
    [
        lambda s: op("multiply", s, op("sigmoid", s)),
        lambda s: op("add", R, s),
        lambda s: op("add", s, constant(random(5, 18))),
        lambda s: op("add", s, constant(random(5, 2, 4, 1))),
        lambda s: op("multiply", s, constant(np.float32(2))),
        lambda s: op("concatenate", s, R, axis=1),
        lambda s: op("concatenate", R, s, axis=2),
        lambda s: op("nn.softmax", s, axis=2),
        lambda s: op("subtract", s, op("mean", s, axes=(2,), keepdims=True)),
        lambda s: op("max", s, axes=(1,), keepdims=True),
        lambda s: op("slice", s, begin=(0, 1, 2), end=(2, 4, 17), strides=(1, 2, 3)),
        lambda s: op("pad", s, before=(0, 1, 2), after=(0, 0, 3), value=1.0),
    ],
)
def test_what_is_computed_on_a_signal_is_computed_on_its_image(build: Callable[[GraphExpr], GraphExpr]) -> None:
    last = check(module(build(signal())))["main"].body
    assert is_call_to(last, "reshape")
    assert isinstance(last, Call)
    assert not is_call_to(last.args[0], "nn.conv2d")


def test_other_signals_stay() -> None:
    flat = op("reshape", X, shape=(2, 60))
    from_nothing = op("nn.relu", op("reshape", op("reshape", X, shape=(2, 3, 1, 20)), shape=(2, 3, 20)))
    column_sums = op("sum", signal(), axes=(2,))
    turned = op("transpose", signal(), axes=(0, 2, 1))
    for body in (op("nn.relu", flat), from_nothing, column_sums, turned):
        before = module(body)
        assert image_lines(before)["main"] is before["main"]


def test_convolutions_of_one_dimension_keep_their_activations_in_their_kernels() -> None:
    weights = [constant(random(n, 16, channels, 1, 3)) for n, channels in enumerate((3, 16))]
    body: GraphExpr = X
    for width, weight in zip((20, 18), weights, strict=True):
        image = op("reshape", body, shape=(2, 3 if width == 20 else 16, 1, width))
        body = op("nn.relu", op("reshape", op("nn.conv2d", image, weight), shape=(2, 16, width - 2)))
    found = optimize(module(body), GraphOptions(layout="NHWC", target=ARM, winograd=False))
    names = [str(item.notes["name"]) for item in primitive_functions(found)]
    assert sum("conv2d_nn_relu" in name for name in names) == 2, names
