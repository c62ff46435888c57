"""Grouped and transposed convolutions of bytes: the integers of the convolution, whatever groups, phases and zeros."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.passes.test_integer_products import AMX, BARE, NEON, PLAIN, VNNI, check, weights, wide
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.grouped_products import join_groups_of_bytes
from tilewright.graph.passes.integer_operands import Operands
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

TARGETS = pytest.mark.parametrize("target", [VNNI, AMX, NEON], ids=["vnni", "amx", "dotprod"])


@TARGETS
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 127), ("int8", 3)])
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(32, 64, 2), (64, 64, 16), (48, 32, 2)])
def test_groups_that_fill_vectors(
    target: Target, dtype: str, zero: int, channels: int, outputs: int, groups: int
) -> None:
    x = Var("x", tensor_type((2, channels, 6, 5), dtype))
    values = weights((outputs, channels // groups, 3, 2))
    shifted = wide(x, constant(np.int32(zero)))
    body = call("nn.conv2d", shifted, values, groups=groups, padding=(1, 0, 2, 1), strides=(2, 1), dilation=(1, 2))
    check([x], body, target, "qnn.grouped_conv2d")


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "wanted"),
    # Four channels are read by lines.
    [(6, 10, 2, "qnn.conv2d"), (9, 6, 3, "qnn.conv2d"), (4, 2, 2, "qnn.line_conv2d")],
)
def test_groups_of_odd_channels_are_one(channels: int, outputs: int, groups: int, wanted: str) -> None:
    x = Var("x", tensor_type((1, channels, 5, 5), "uint8"))
    values = weights((outputs, channels // groups, 3, 3))
    body = call("nn.conv2d", wide(x, constant(np.int32(9))), values, groups=groups, padding=(1, 1, 1, 1))
    check([x], body, NEON, wanted)
    check([x], body, VNNI, wanted)


@pytest.mark.parametrize("stride", [1, 2])
def test_weights_of_unsigned_bytes_meet_the_sums_of_their_group(stride: int) -> None:
    x = Var("x", tensor_type((2, 16, 7, 6), "uint8"))
    values = weights((32, 4, 3, 2), -100, 156)
    shifted = wide(x, constant(np.int32(7)))
    body = call("nn.conv2d", shifted, values, groups=4, padding=(1, 0, 1, 2), strides=(stride, 1))
    check([x], body, NEON, "qnn.grouped_conv2d")


def test_a_zero_point_that_is_computed() -> None:
    x, zero = Var("x", tensor_type((1, 16, 5, 5), "uint8")), Var("zero", tensor_type((), "uint8"))
    body = call("nn.conv2d", wide(x, wide(zero)), weights((16, 4, 3, 3)), groups=4, padding=(1, 1, 1, 1))
    check([x, zero], body, NEON, "qnn.grouped_conv2d")


@pytest.mark.parametrize("target", [PLAIN, BARE], ids=["pairs", "plain"])
def test_integers_of_16_bits_where_bytes_are_not_multiplied(target: Target) -> None:
    x, zero = Var("x", tensor_type((1, 12, 5, 5), "uint8")), Var("zero", tensor_type((), "uint8"))
    shifted = wide(x, wide(zero))
    grouped = call("nn.conv2d", shifted, weights((8, 3, 3, 3), -255, 256), groups=4, padding=(1, 1, 1, 1))
    check([x, zero], grouped, target, "qnn.grouped_conv2d" if target is BARE else "qnn.conv2d")
    transposed = call("nn.conv2d_transpose", shifted, weights((12, 5, 3, 3), -255, 256), strides=(2, 2))
    check([x, zero], transposed, target, "qnn.conv2d_transpose")


def test_joined_groups_are_kept_apart_by_zeros() -> None:
    values = np.arange(1, 2 * 8 + 1, dtype=np.int32).reshape(1, 1, 2, 8)
    joined = join_groups_of_bytes(values, 4, Operands.of(NEON))
    assert joined.groups == 2
    np.testing.assert_array_equal(
        joined.values[0, 0],
        [
            [1, 2, 0, 0, 5, 6, 0, 0],
            [9, 10, 0, 0, 13, 14, 0, 0],
            [0, 0, 3, 4, 0, 0, 7, 8],
            [0, 0, 11, 12, 0, 0, 15, 16],
        ],
    )


@TARGETS
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 255), ("int8", -128), ("int8", 0)])
@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "extra"),
    [
        ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
        ((2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((3, 2), (3, 1), (0, 1, 2, 0), (1, 0)),
        ((3, 3), (1, 1), (2, 2, 2, 2), (0, 0)),
        ((2, 5), (4, 3), (0, 3, 1, 2), (2, 0)),
    ],
)
def test_transposed_convolutions(
    target: Target,
    dtype: str,
    zero: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    extra: tuple[int, int],
) -> None:
    x = Var("x", tensor_type((2, 7, 4, 5), dtype))
    shifted = wide(x, constant(np.int32(zero)))
    body = call(
        "nn.conv2d_transpose",
        shifted,
        weights((7, 12, *kernel)),
        strides=strides,
        padding=padding,
        output_padding=extra,
    )
    check([x], body, target, "qnn.conv2d_transpose")


@pytest.mark.parametrize(("channels", "width", "groups"), [(8, 1, 8), (8, 4, 2), (6, 5, 3)])
def test_transposed_convolutions_of_groups(channels: int, width: int, groups: int) -> None:
    x = Var("x", tensor_type((1, channels, 4, 3), "uint8"))
    body = call(
        "nn.conv2d_transpose",
        wide(x, constant(np.int32(4))),
        weights((channels, width, 3, 3)),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        groups=groups,
        dilation=(2, 1),
    )
    check([x], body, NEON, "qnn.conv2d_transpose")


def test_what_does_not_fit_stays_as_it_is() -> None:
    x = Var("x", tensor_type((1, 8, 4, 3), "uint8"))
    transposed = call("nn.conv2d_transpose", wide(x), weights((8, 4, 3, 3), -300, 300))
    check([x], transposed, NEON, None)
    planar = IRModule([Function("main", (x,), call("nn.conv2d_transpose", wide(x), weights((8, 4, 3, 3))))])
    array = np.random.default_rng(0).integers(0, 200, (1, 8, 4, 3)).astype(np.uint8)
    made = optimize(planar, GraphOptions(target=NEON, fuse=False))
    np.testing.assert_array_equal(evaluate(made, array), evaluate(planar, array))
