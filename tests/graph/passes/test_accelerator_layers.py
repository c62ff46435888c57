"""Layers of the tensor processor: the same integers as the layers they replace, in every layout and grouping."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.graph.fixed_layers import RandomLayers
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.accelerator_layers import accelerator_layers
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.channel_blocks import Blocks
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

BLOCKS = [Blocks(1, 16, 16), Blocks(2, 8, 16), Blocks(1, 4, 4)]


def _check(params: list[Var], body: GraphExpr, blocks: Blocks) -> IRModule:
    before = infer_types(IRModule([Function("main", tuple(params), body)]))
    after = eliminate_common_subexpressions(canonicalize(infer_types(accelerator_layers(before, blocks))))
    rng = np.random.default_rng(0)
    args = [rng.integers(-128, 128, param.tensor_type.static_shape).astype(np.int8) for param in params]
    np.testing.assert_array_equal(evaluate(after, *args), evaluate(before, *args))
    return after


def _count(module: IRModule, name: str) -> int:
    return sum(is_call_to(item, name) for item in post_order(module["main"]))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("outputs", "groups", "kernel", "more"),
    [
        (32, 1, (3, 3), {"padding": (1, 1, 1, 1)}),
        (20, 1, (1, 1), {"strides": (2, 2)}),
        (48, 2, (3, 2), {"padding": (0, 1, 1, 0), "strides": (1, 2)}),
        (24, 24, (3, 3), {"padding": (1, 1, 1, 1)}),
        (32, 8, (1, 3), {}),
    ],
)
def test_convolutions(
    outputs: int, groups: int, kernel: tuple[int, int], more: dict[str, object], residual: bool, blocks: Blocks
) -> None:
    x = Var("x", tensor_type((2, 24, 6, 7), "int8"))
    make = RandomLayers(outputs)
    plain = make.layer(x, outputs, 24 // groups, kernel, groups=groups, **more)
    params, body = [x], plain
    if residual:
        typed = infer_types(IRModule([Function("main", (x,), plain)]))["main"]
        assert isinstance(typed, Function)
        r = Var("r", tensor_type(typed.body.tensor_type.static_shape, "int8"))
        params, body = [x, r], RandomLayers(outputs).layer(x, outputs, 24 // groups, kernel, r, groups=groups, **more)
    after = _check(params, body, blocks)
    assert _count(after, "accel.conv2d") == 1 and _count(after, "qnn.fixed_point") == 0


@pytest.mark.parametrize("blocks", [BLOCKS[0], BLOCKS[2]])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", [(7, 32), (1, 20), (2, 3, 16)])
def test_products(shape: tuple[int, ...], residual: bool, blocks: Blocks) -> None:
    x, r = Var("x", tensor_type(shape, "int8")), Var("r", tensor_type((*shape[:-1], 24), "int8"))
    body = RandomLayers(1).layer(x, 24, shape[-1], (), r if residual else None)
    after = _check([x, r] if residual else [x], body, blocks)
    assert _count(after, "accel.conv2d") == 1


def test_layouts_cancel_between_layers() -> None:
    x = Var("x", tensor_type((1, 16, 6, 6), "int8"))
    make = RandomLayers(0)
    first = make.layer(x, 32, 16, (3, 3), padding=(1, 1, 1, 1))
    second = make.layer(first, 32, 32, (1, 1))
    third = make.layer(second, 16, 32, (3, 3), x, padding=(1, 1, 1, 1))
    after = _check([x], third, BLOCKS[0])
    assert _count(after, "accel.conv2d") == 3
    assert _count(after, "transpose") <= 2


def test_what_a_layer_becomes() -> None:
    weight = np.arange(-8, 8, dtype=np.int32).reshape(4, 4)
    numbers = [np.array(item, np.int32) for item in ([1, 2, 3, 4], 20000, 21)]
    sums = weight.sum(axis=1)
    parameters = np.array([[1, 2, 3, 4] - 5 * sums, [20000] * 4, [0] * 4, [21] * 4], np.int32)[None]
    assert_becomes(
        partial(accelerator_layers, blocks=BLOCKS[2]),
        """
        a = subtract(cast(x, dtype=int32), constant(5, "int32"))
        b = nn.conv2d(a, const[0], padding=(0, 1, 0, 1))
        return qnn.fixed_point(b, const[1], const[2], const[3], offset=7, low=0)
        """,
        """
        a = transpose(reshape(x, shape=(1, 1, 1, 4, 3, 3)), axes=(0, 2, 4, 5, 1, 3))
        b = accel.conv2d(a, const[4], const[5], padding=(0, 1, 0, 1), pad=5, offset=7, low=0)
        return reshape(transpose(b, axes=(0, 4, 1, 5, 2, 3)), shape=(1, 4, 3, 5))
        """,
        constants=[
            weight[:, :, None, None],
            *(item.reshape(-1, 1, 1) for item in numbers),
            weight.astype(np.int8)[None, None, None, None],
            parameters,
        ],
        x="int8[1, 4, 3, 3]",
    )


def test_layers_that_would_leave_the_array_idle_stay() -> None:
    x = Var("x", tensor_type((1, 3, 6, 6), "int8"))
    after = _check([x], RandomLayers(0).layer(x, 32, 3, (3, 3)), BLOCKS[0])
    assert _count(after, "accel.conv2d") == 0
