"""Bit-serial products: operators, loop programs, schedules on every kind of processor and compiled code agree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tests.topi.differential import check as check_operator
from tests.topi.scheduling import schedule_cpu
from tests.topi.test_narrow_products import check
from tests.topi.test_schedule_cpu import kernel
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.graph.ops.bitserial import bit_planes, plane_bytes
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.packing import CONSTANTS, packing_of

TARGETS = {
    "vpopcntdq": ("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server", "llvm.ctpop.v16i32"),
    "vnni": ("llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake", "vpdpbusd.512"),
    "avxvnni": ("llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake", "vpdpbusd.256"),
    "avx2": ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", "llvm.ctpop.v8i32"),
    "dotprod": ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", "llvm.ctpop.v4i32"),
    "neon": ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a53", "llvm.ctpop.v4i32"),
}
PAIRS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 3)]
RANDOM = np.random.default_rng(5)


def weight_planes(levels: np.ndarray, bits: int) -> np.ndarray:
    """Levels (..., depth, columns) as planes (..., bits, bytes, columns)."""
    packed = bit_planes(np.moveaxis(levels, -2, -1).astype(np.uint8), bits)
    return np.ascontiguousarray(np.moveaxis(packed, -3, -1))


def dense(rows: int, columns: int, size: int, bits: tuple[int, int], **attributes: object) -> PrimFunc:
    a, b = (
        Var("a", tensor_type((rows, bits[0], size), "uint8")),
        Var("b", tensor_type((bits[1], size, columns), "uint8")),
    )
    body: GraphExpr = call("nn.bitserial_dense", a, b, **attributes)
    return kernel([a, b], call("maximum", body, call("negative", body)))


def convolution(
    size: int, planes: int, outputs: int, bits: tuple[int, int], stride: int = 1, **attributes: object
) -> PrimFunc:
    data = Var("data", tensor_type((1, size, size, bits[0], planes), "uint8"))
    weight = Var("weight", tensor_type((3, 3, bits[1], planes, outputs), "uint8"))
    return kernel(
        [data, weight],
        call("nn.bitserial_conv2d", data, weight, strides=(stride, stride), padding=(1, 1, 1, 1), **attributes),
    )


@pytest.mark.parametrize("name", TARGETS)
def test_all_stages_of_lowering_agree(name: str) -> None:
    text, instruction = TARGETS[name]
    target = Target(text).replace(cores=1)
    check(dense(3, 16, 8, (1, 1), mode="xor"), target, instruction)
    check(dense(3, 16, 4, (2, 2), signed=True), target, instruction)
    if name in ("vpopcntdq", "dotprod"):
        check(convolution(3, 4, 16, (2, 1), stride=2, mode="xor", border=3, channels=27), target, instruction)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("func", "name"),
    [
        (dense(37, 64, 36, (2, 2), signed=True), "products with a smaller tile of rows at the end"),
        (dense(1, 32, 128, (1, 1), mode="xor"), "one row"),
        (convolution(9, 12, 48, (2, 1), mode="xor"), "lines that tiles do not divide"),
        (convolution(7, 8, 32, (1, 1), stride=2), "steps of two pixels"),
    ],
)
def test_on_this_machine(func: PrimFunc, name: str, cores: int) -> None:
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), HOST.replace(cores=cores))
    assert "popcount_" in str(made), name
    a, b = (RANDOM.integers(0, 256, item.static_shape or ()).astype(np.uint8) for item in func.buffers[:2])
    result = np.zeros(func.buffers[2].static_shape or (), np.int32)
    expected = run(func, a, b, result.copy(), target=HOST)[-1]
    packed = np.ascontiguousarray(packing_of(made)[1].rearrange(b))
    np.testing.assert_array_equal(run(made, a, packed, result, target=HOST)[-1], expected)


@pytest.mark.parametrize(("channels", "bits"), [(1, 1), (31, 2), (33, 3), (70, 8)])
def test_planes_have_a_bit_for_each_channel(channels: int, bits: int) -> None:
    levels = RANDOM.integers(0, 1 << bits, (2, 3, channels)).astype(np.uint8)
    planes = bit_planes(levels, bits)
    size = plane_bytes(channels)
    assert planes.shape == (2, 3, bits, size) and size % 4 == 0
    for channel, bit in itertools.product(range(channels), range(bits)):
        stored = planes[..., bit, channel % size] >> (channel // size) & 1
        np.testing.assert_array_equal(stored, levels[..., channel] >> bit & 1)
    assert np.unpackbits(planes).sum() == np.unpackbits(levels).sum(), "the rest is zeros"
    check_operator("nn.bitpack", levels, bits=bits)


@pytest.mark.parametrize("bits", PAIRS)
def test_operators_compute_products_of_integers(bits: tuple[int, int]) -> None:
    """Unsigned activations with unsigned and signed weights, for numbers of channels that fill no word."""
    for channels in (5, 40):
        a = RANDOM.integers(0, 1 << bits[0], (3, channels)).astype(np.uint8)
        w = RANDOM.integers(0, 1 << bits[1], (channels, 6))
        planes, weights = bit_planes(a, bits[0]), weight_planes(w, bits[1])
        for signed in (False, True):
            values = w - ((w >> (bits[1] - 1)) << bits[1]) if signed else w
            got = evaluate(_module("nn.bitserial_dense", planes, weights, signed=signed), planes)
            np.testing.assert_array_equal(got, a.astype(np.int64) @ values)
            check_operator("nn.bitserial_dense", planes, weights, signed=signed)


@pytest.mark.parametrize("border", [0, 1])
def test_bipolar_convolution(border: int) -> None:
    """-1 and 1 as bits 0 and 1: depth - 2 * popcount(a ^ w), with a border of -1 or of 1."""
    channels, outputs = 21, 5
    a, w = RANDOM.integers(0, 2, (2, 6, 5, channels)), RANDOM.integers(0, 2, (3, 2, channels, outputs))
    attributes = {"mode": "xor", "strides": (2, 1), "padding": (1, 1, 0, 2), "border": border, "channels": channels}
    planes, weights = bit_planes(a.astype(np.uint8), 1), weight_planes(w, 1)
    counts = evaluate(_module("nn.bitserial_conv2d", planes, weights, **attributes), planes)
    padded = np.pad(2 * a - 1, ((0, 0), (1, 0), (1, 2), (0, 0)), constant_values=2 * border - 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(1, 2))[:, ::2]
    expected = np.einsum("nyxchw,hwco->nyxo", windows, 2 * w - 1)
    np.testing.assert_array_equal(3 * 2 * channels - 2 * counts, expected)
    check_operator("nn.bitserial_conv2d", planes, weights, **attributes)


@pytest.mark.parametrize("mode", ["and", "xor"])
def test_random_convolutions(mode: str) -> None:
    """Windows, steps, spacing, borders and batches: the loop program against the reference."""
    for number in range(6):
        random = np.random.default_rng(number)
        left, right = (int(random.integers(1, 4)) for _ in range(2))
        channels, outputs = int(random.integers(1, 50)), int(random.integers(1, 4))
        data = random.integers(0, 1 << left, (int(random.integers(1, 3)), 5, 6, channels)).astype(np.uint8)
        taps = (*(int(size) for size in random.integers(1, 4, 2)), channels, outputs)
        check_operator(
            "nn.bitserial_conv2d",
            bit_planes(data, left),
            weight_planes(random.integers(0, 1 << right, taps), right),
            mode=mode,
            signed=bool(number % 2),
            strides=tuple(int(step) for step in random.integers(1, 3, 2)),
            padding=tuple(int(pad) for pad in random.integers(0, 3, 4)),
            dilation=tuple(int(step) for step in random.integers(1, 3, 2)),
            border=int(random.integers(0, 1 << left)),
            channels=channels,
        )


def _module(name: str, data: np.ndarray, weight: np.ndarray, **attributes: object) -> IRModule:
    x = Var("x", tensor_type(data.shape, "uint8"))
    return IRModule([Function("main", (x,), call(name, x, constant(weight), **attributes))])


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        ("nn.bitpack", [(3, 4)], {"bits": 9}, "1 to 8 bits"),
        ("nn.bitpack", [()], {}, "no dimension"),
        ("nn.bitserial_dense", [(3, 1, 8), (1, 4, 2)], {}, "bytes of planes"),
        ("nn.bitserial_dense", [(3, 1, 6), (1, 6, 2)], {}, "whole words"),
        ("nn.bitserial_dense", [(4,), (1, 4, 2)], {}, "at least 2 dimensions"),
        ("nn.bitserial_dense", [(3, 9, 4), (1, 4, 2)], {}, "9 bit planes"),
        ("nn.bitserial_dense", [(3, 1, 4), (1, 4, 2)], {"mode": "or"}, "do not meet by 'or'"),
        ("nn.bitserial_conv2d", [(1, 5, 5, 1, 4), (1, 1, 1, 4, 2)], {"border": 2}, "1 bits do not hold"),
        ("nn.bitserial_conv2d", [(1, 5, 5, 1, 4), (1, 1, 1, 4, 2)], {"channels": 33}, "have 8 bytes, not 4"),
    ],
)
def test_errors(name: str, shapes: list[tuple[int, ...]], attributes: dict[str, object], message: str) -> None:
    params = tuple(Var(f"x{n}", tensor_type(shape, "uint8")) for n, shape in enumerate(shapes))
    with pytest.raises(UserError, match=message):
        infer_types(Function("main", params, call(name, *params, **attributes)))


def test_planes_are_of_unsigned_bytes() -> None:
    x = Var("x", tensor_type((3, 4), "int8"))
    with pytest.raises(UserError, match="bit planes are of uint8"):
        infer_types(Function("main", (x,), call("nn.bitpack", x)))
    planes, weight = Var("p", tensor_type((3, 1, 4), "int8")), Var("w", tensor_type((1, 4, 2), "uint8"))
    with pytest.raises(UserError, match="must be bit planes of uint8"):
        infer_types(Function("main", (planes, weight), call("nn.bitserial_dense", planes, weight)))
