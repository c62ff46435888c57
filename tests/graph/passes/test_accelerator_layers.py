"""Layers of the tensor processor: the same integers as the layers they replace, in every layout and grouping."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.graph.fixed_layers import RandomLayers
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.accelerator_layers import accelerator_layers
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.channel_blocks import Blocks
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.ir.dtype import FLOAT32, INT32
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


def _wide(data: GraphExpr, zero: int = 5) -> GraphExpr:
    return call("subtract", call("cast", data, dtype=INT32), constant(np.int32(zero)))


def _ones(channels: int, *kernel: int) -> GraphExpr:
    return constant(np.ones((channels, 1, *kernel), np.int32))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("kind", ["sum", "scale", "mean", "average"])
def test_layers_without_weights(kind: str, blocks: Blocks) -> None:
    x, r = (Var(name, tensor_type((2, 32, 6, 4), "int8")) for name in "xr")
    make = RandomLayers(3)
    if kind == "sum":
        body = make.in_fixed_point(_wide(x), 32, (1, 1), r)
    elif kind == "scale":
        body = make.in_fixed_point(_wide(x), 32, (1, 1))
    elif kind == "mean":
        body = make.in_fixed_point(call("sum", _wide(x), axes=(2, 3), keepdims=True), 32, (1, 1))
    else:
        sums = call("nn.conv2d", _wide(x), _ones(32, 2, 2), groups=32, strides=(2, 2))
        body = make.in_fixed_point(sums, 32, (1, 1))
    after = _check([x, r] if kind == "sum" else [x], body, blocks)
    (layer,) = (item for item in post_order(after["main"]) if is_call_to(item, "accel.conv2d"))
    # All groups have the same weights, and so have all taps: a tensor for each block is left of them.
    assert layer.attributes.shared and layer.args[1].tensor_type.static_shape[2:4] == (1, 1)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_maxima_and_nearest_images(blocks: Blocks) -> None:
    """Two takes are one copy; between it and the maximum images stay in blocks."""
    x = Var("x", tensor_type((2, 24, 5, 4), "int8"))
    pooled = call("nn.max_pool2d", x, kernel=(3, 2), strides=(2, 1), padding=(1, 0, 1, 1))
    rows = call("take", pooled, constant(np.arange(6) // 2), axis=2)
    after = _check([x], call("take", rows, constant(np.arange(12) // 3), axis=3), blocks)
    assert _count(after, "accel.max_pool2d") == 1 and _count(after, "accel.spread") == 1
    assert _count(after, "transpose") <= 2 + (blocks.inputs != blocks.outputs) * 2


@pytest.mark.parametrize("indices", [[0, 1, 1, 2, 2, 2], [0, 1, 2], [2, 2, 1, 1, 0, 0]])
def test_other_takes_stay(indices: list[int]) -> None:
    x = Var("x", tensor_type((2, 16, 3, 4), "int8"))
    after = _check([x], call("take", x, constant(np.array(indices)), axis=2), BLOCKS[0])
    assert _count(after, "accel.spread") == (indices == [0, 1, 2])


@pytest.mark.parametrize("blocks", [BLOCKS[0], BLOCKS[2]])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "more", "size", "outputs"),
    [
        (4, 2, (1, 1, 1, 1), (0, 0), (4, 5), 32),
        (3, 2, (1, 1, 1, 1), (1, 1), (4, 4), 16),
        (3, 2, (1, 1, 1, 1), (0, 0), (4, 4), 16),
        (4, 1, (0, 0, 0, 0), (0, 0), (1, 1), 16),
        (5, 3, (4, 1, 0, 2), (0, 1), (3, 4), 16),
        (3, 1, (1, 1, 1, 1), (0, 0), (4, 4), 16),
        (4, 2, (1, 1, 1, 1), (0, 0), (4, 5), 6),
        (2, 3, (0, 0, 0, 0), (0, 0), (3, 3), 16),
        (3, 2, (5, 0, 0, 0), (1, 0), (4, 1), 16),
    ],
)
def test_transposed_convolutions(
    kernel: int,
    stride: int,
    padding: tuple[int, int, int, int],
    more: tuple[int, int],
    size: tuple[int, int],
    outputs: int,
    floats: bool,
    blocks: Blocks,
) -> None:
    """By phases, in channels of their own; sums of floats as they are."""
    x = Var("x", tensor_type((2, 16, *size), "int8"))
    make = RandomLayers(kernel)
    weight = make.integers(-127, 128, 16, outputs, kernel, kernel)
    sums = call(
        "nn.conv2d_transpose",
        _wide(x),
        weight,
        strides=(stride, stride),
        padding=padding,
        output_padding=more,
    )
    body = call("cast", sums, dtype=FLOAT32) if floats else make.in_fixed_point(sums, outputs, (1, 1))
    after = _check([x], body, blocks)
    assert _count(after, "accel.conv2d") == 1 and _count(after, "nn.conv2d_transpose") == 0


@pytest.mark.parametrize("blocks", [BLOCKS[0], BLOCKS[2]])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_activations(transposed: bool, floats: bool, blocks: Blocks) -> None:
    a = Var("a", tensor_type((2, 3, 7, 20), "int8"))
    b = Var("b", tensor_type((2, 3, 9, 20) if transposed else (2, 3, 20, 9), "int8"))
    wide = [call("cast", item, dtype=INT32) for item in (a, b)]
    sums = call("matmul", *wide, transpose_b=transposed)
    body = call("cast", sums, dtype=FLOAT32) if floats else RandomLayers(0).in_fixed_point(sums, 9, ())
    after = _check([a, b], body, blocks)
    (layer,) = (item for item in post_order(after["main"]) if is_call_to(item, "accel.conv2d"))
    assert layer.attributes.groups == 6


@pytest.mark.parametrize("kind", ["zero point", "other batches", "few channels", "dilation", "rows of a batch"])
def test_what_the_processor_has_not_stays(kind: str) -> None:
    x = Var("x", tensor_type((1, 3 if kind == "few channels" else 16, 6, 6), "int8"))
    params, make = [x], RandomLayers(0)
    if kind in ("zero point", "other batches"):
        y = Var("y", tensor_type((1, 16, 6, 6) if kind == "zero point" else (6, 6), "int8"))
        params.append(y)
        left = _wide(x) if kind == "zero point" else call("cast", x, dtype=INT32)
        body = make.in_fixed_point(call("matmul", left, call("cast", y, dtype=INT32)), 6, ())
    elif kind == "dilation":
        body = call("nn.max_pool2d", x, kernel=(2, 2), dilation=(2, 2))
    else:
        body = call("nn.max_pool2d", x, kernel=(2, 2))
    after = _check(params, body, BLOCKS[1 if kind == "rows of a batch" else 0])
    assert not any(_count(after, name) for name in ("accel.conv2d", "accel.max_pool2d", "accel.spread"))


def test_what_a_maximum_becomes() -> None:
    parameters = np.array([[0] * 4, [1] * 4, [0] * 4, [0] * 4], np.int32)[None]
    assert_becomes(
        partial(accelerator_layers, blocks=BLOCKS[2]),
        """
        return nn.max_pool2d(x, kernel=(2, 2))
        """,
        """
        a = transpose(reshape(x, shape=(1, 1, 1, 4, 3, 3)), axes=(0, 2, 4, 5, 1, 3))
        b = accel.max_pool2d(a, const[0], const[1], kernel=(2, 2))
        return reshape(transpose(b, axes=(0, 4, 1, 5, 2, 3)), shape=(1, 4, 2, 2))
        """,
        constants=[np.eye(4, dtype=np.int8)[None, None, None, None], parameters],
        x="int8[1, 4, 3, 3]",
    )


@pytest.mark.parametrize("blocks", [Blocks(1, 16, 8), Blocks(1, 8, 16)])
@pytest.mark.parametrize("channels", [8, 24, 32])
def test_tensors_of_other_inputs_than_outputs(channels: int, blocks: Blocks) -> None:
    """A maximum has as many blocks as are whole inputs and outputs: layers and residuals may want fewer."""
    x = Var("x", tensor_type((1, channels, 6, 6), "int8"))
    pooled = call("nn.max_pool2d", x, kernel=(3, 3), padding=(1, 1, 1, 1))
    make = RandomLayers(0)
    body = make.layer(pooled, channels, channels, (3, 3), pooled, padding=(1, 1, 1, 1))
    after = _check([x], call("nn.max_pool2d", make.layer(body, channels, channels, (1, 1)), kernel=(2, 2)), blocks)
    assert _count(after, "accel.conv2d") == 2 and _count(after, "accel.max_pool2d") == 2
