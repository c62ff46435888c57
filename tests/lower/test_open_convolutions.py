"""Convolutions of open batch, height and width: right at every size, and shared where only names of symbols differ."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, random
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import FloorDiv, FloorMod, const_value
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.cpu.strategy import schedule_cpu
from tilewright.topi.schedule.packing import packing_of

SIZES = ((1, 1, 1), (1, 2, 3), (2, 7, 5), (1, 9, 16), (1, 17, 8), (3, 6, 25), (0, 4, 4), (1, 0, 6))


def images(kind: str, names: tuple[str, str, str] = ("n", "h", "w")) -> IRModule:
    """A convolution with a function in its epilogue, of images whose sizes have these names."""
    n, h, w = map(Symbol, names)
    x = Var("x", tensor_type((n, h, w, 8), "float32"))
    taps = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    if kind == "depthwise":
        convolved = op("nn.conv2d", x, constant(random(1, 5, 5, 1, 8)), padding=(2, 2, 2, 2), groups=8, **taps)
    elif kind.startswith("transposed"):
        weights = constant(random(2, 4, 4, 8, 1 if kind.endswith("to one") else 6) / 4)
        padding = (2, 2, 2, 2) if kind.endswith("cut") else (1, 1, 1, 1)
        convolved = op("nn.conv2d_transpose", x, weights, padding=padding, strides=(2, 2), **taps)
    elif kind == "planes":
        x = Var("x", tensor_type((n, 3, h, w), "float32"))
        image, weights = op("transpose", x, axes=(0, 2, 3, 1)), constant(random(2, 3, 3, 3, 16))
        convolved = op("nn.conv2d", image, weights, padding=(1, 1, 1, 1), strides=(2, 2), **taps)
    elif kind == "strided":
        weights = constant(random(2, 3, 3, 8, 16) / 4)
        convolved = op("nn.conv2d", x, weights, padding=(1, 1, 1, 1), strides=(2, 2), **taps)
    else:
        convolved = op("nn.conv2d", x, constant(random(3, 1, 1, 8, 16) / 4), padding=(0, 0, 0, 0), **taps)
    return IRModule([function([x], op("sigmoid", convolved))])


@pytest.mark.parametrize(
    "kind", ["depthwise", "strided", "planes", "pointwise", "transposed", "transposed, cut", "transposed to one"]
)
def test_one_compilation_is_right_at_all_sizes(kind: str) -> None:
    module = images(kind)
    executable = tw.compile(module, threads=1)
    for number, (n, h, w) in enumerate(SIZES):
        if kind == "transposed, cut" and 0 in (h, w):
            continue  # less than nothing would be left
        x = random(number, n, 3, h, w) if kind == "planes" else random(number, n, h, w, 8)
        expected = evaluate(module, x)
        np.testing.assert_allclose(executable(x), expected, rtol=1e-4, atol=1e-5)


def test_planes_of_any_size_are_read_where_they_are() -> None:
    """The change to channels last of an image of few channels is part of the convolution, as of one of known size."""
    (kernel,) = Compilation(images("planes"), threads=1).kernels
    assert "transpose_nn_conv2d" in kernel.symbol


def windows(channels: int, outputs: int, end: str = "own", **attributes: object) -> IRModule:
    """A convolution with many channels of images of open sizes, that may end with a residual."""
    n, h, w = map(Symbol, "nhw")
    x = Var("x", tensor_type((n, h, w, channels), "float32"))
    weights = constant(random(1, 3, 3, channels, outputs) / (3 * channels**0.5))
    convolved = op("nn.conv2d", x, weights, data_layout="NHWC", kernel_layout="HWIO", **attributes)
    value = op("nn.relu", op("add", convolved, constant(random(2, outputs))))
    if end == "residual":
        return IRModule([function([x], op("add", value, op("sigmoid", op("multiply", value, value))))])
    return IRModule([function([x], value)])


WINDOWS = {
    "strided": windows(16, 64, strides=(2, 2), padding=(1, 1, 1, 1)),
    "one side": windows(32, 64, "residual", strides=(2, 1), padding=(0, 1, 2, 0)),
    "dilated": windows(16, 72, dilation=(2, 3), padding=(2, 3, 2, 3)),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_pixels_of_an_image_are_tiled_line_after_line(kind: str) -> None:
    """All lines of an image are one row of pixels: 12, 13 and 14 of them are a tile less one, a tile, and one more."""
    compilation = Compilation(WINDOWS[kind], threads=1)
    (kernel,) = compilation.kernels
    assert "windows" in str(compilation.scheduled(kernel))
    executable = compilation.executable()
    pixels = [(6, 8), (2, 26), (4, 13), (1, 27), (3, 3), (19, 23), (21, 21)]
    for number, (n, h, w) in enumerate([*SIZES, *((1, *size) for size in pixels)]):
        if kind in ("one side", "dilated") and min(h, w) < 3:
            continue  # less than nothing would be left
        x = random(number, n, h, w, 32 if kind == "one side" else 16)
        np.testing.assert_allclose(executable(x), evaluate(WINDOWS[kind], x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("end", ["own", "moved", "computed weights"])
@pytest.mark.parametrize(("cpu", "cores"), [("skylake-avx512", 1), ("haswell", 4)])
def test_windows_are_right_as_they_are_interpreted(cpu: str, cores: int, end: str) -> None:
    n, h, w = map(Symbol, "nhw")
    x, k = Var("x", tensor_type((n, h, w, 16), "float32")), Var("k", tensor_type((3, 3, 16, 64), "float32"))
    taps = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    value = op("nn.relu", op("nn.conv2d", x, k, strides=(2, 2), padding=(1, 1, 1, 1), **taps))
    value = op("transpose", value, axes=(0, 3, 1, 2)) if end == "moved" else value
    func = infer_types(function([x, k], value))
    assert isinstance(func, Function)
    target = Target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}").replace(cores=cores)
    result = schedule_cpu(lower_primitive(func, "k", () if end == "computed weights" else (1,), on_cpu=True), target)
    (choice,) = result.templates
    assert choice.name == "open-windows" and not choice.failures
    weights = random(1, 3, 3, 16, 64)
    packing = packing_of(result.func)
    packed = np.ascontiguousarray(packing[1].rearrange(weights)) if packing else weights
    for height, width in ((1, 1), (5, 3), (7, 8)):
        data = random(height, 2, height, width, 16)
        expected = evaluate(IRModule([func]), data, weights)
        out = np.full(np.shape(expected), np.nan, np.float32)
        interpret(result.func, data, packed, out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_names_of_symbols_make_no_kernels() -> None:
    one, other = (Compilation(images("strided", names), threads=1) for names in (("n", "h", "w"), ("b", "rows", "w")))
    assert [kernel.symbol for kernel in one.kernels] == [kernel.symbol for kernel in other.kernels]


def moved(kind: str) -> IRModule:
    """Images of open sizes whose channels change places: rows of pixels, or pixels beside their channels."""
    n, h, w = map(Symbol, ("n", "h", "w"))
    if kind == "rows":
        x = Var("x", tensor_type((n, h, w, 5), "float32"))
        value = op("reshape", op("transpose", x, axes=(0, 3, 1, 2)), shape=(n, 5, h * w))
    else:
        x = Var("x", tensor_type((n, 3, h, w), "float32"))
        value = op("transpose", x, axes=(0, 2, 3, 1))
    return IRModule([function([x], value)])


@pytest.mark.parametrize("kind", ["rows", "pixels"])
def test_channels_change_places_without_divisions_and_in_vectors(kind: str) -> None:
    module = moved(kind)
    compilation = Compilation(module, threads=1)
    (kernel,) = compilation.kernels
    lowered = compilation.lowered_kernel(kernel)
    divisions = [*find_all(lowered.body, FloorDiv), *find_all(lowered.body, FloorMod)]
    assert not [item for item in divisions if const_value(item.b) is None]
    stores = [store.indices[0].dtype.lanes for store in find_all(lowered.body, BufferStore)]
    assert max(stores) > 3
    executable = tw.compile(module, threads=1)
    for number, (n, h, w) in enumerate(SIZES):
        x = random(number, n, h, w, 5) if kind == "rows" else random(number, n, 3, h, w)
        np.testing.assert_array_equal(executable(x), evaluate(module, x))
