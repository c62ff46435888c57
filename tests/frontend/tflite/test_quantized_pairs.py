"""Sums and products of quantised tensors: all pairs of bytes, in one rounding where that gives the same."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench.tflite_writer import Graph, Tensor, write
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import graph_functions, post_order
from tilewright.ir.function import IRModule

Levels = tuple[float, int]


def model(name: str, levels: tuple[Levels, Levels, Levels], dtype: str, activation: int = 0) -> IRModule:
    """An operator of all pairs of two lists."""
    graph = Graph()
    shapes = ((256, 1), (1, 256), (256, 256))
    tensors = [Tensor(f"t{n}", shapes[n], dtype, float(np.float32(item[0])), item[1]) for n, item in enumerate(levels)]
    inputs = [graph.tensor(item) for item in tensors[:2]]
    graph.inputs.extend(inputs)
    options = {"fused_activation_function": activation}
    return from_tflite(write([graph.output(graph.add(name, inputs, tensors[2:], options))]))


def codes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(256) + np.iinfo(dtype).min
    return every.astype(dtype)[:, None], every.astype(dtype)[None]


def rescaled(x: np.ndarray, factor: float) -> np.ndarray:
    """The kernels' product with a multiplier of 31 digits and a shift."""
    fraction, shift = np.frexp(factor)
    multiplier = int(np.floor(float(fraction) * (1 << 31) + 0.5))
    if multiplier == 1 << 31:
        multiplier, shift = multiplier // 2, shift + 1
    high = ((x.astype(np.int64) << max(int(shift), 0)) * multiplier + (1 << 30)) >> 31
    places = max(-int(shift), 0)
    rest, half = high & ((1 << places) - 1), ((1 << places) - 1 >> 1) + (high < 0)
    return (high >> places) + (rest > half)


def expected(name: str, levels: tuple[Levels, Levels, Levels], dtype: str) -> np.ndarray:
    (a, za), (b, zb), (out, zero) = ((np.float32(scale), point) for scale, point in levels)
    x, y = (item.astype(np.int64) - point for item, point in zip(codes(dtype), (za, zb), strict=True))
    if name == "MUL":
        value = rescaled(x * y, float(a * b / out))
    else:
        twice = 2 * max(float(a), float(b))
        x, y = rescaled(x << 20, float(a) / twice), rescaled(y << 20, float(b) / twice)
        value = rescaled(x - y if name == "SUB" else x + y, twice / ((1 << 20) * float(out)))
    limits = np.iinfo(dtype)
    return np.clip(value + zero, limits.min, limits.max).astype(dtype)


def count(module: IRModule, name: str) -> int:
    return sum(is_call_to(item, name) for item in post_order(graph_functions(module)["main"]))


def high_products(module: IRModule) -> int:
    """The products of a sum that is rounded once."""
    assert not count(module, "qnn.rounded_shift")
    return count(module, "qnn.high_product")


def agrees(name: str, levels: tuple[Levels, Levels, Levels], dtype: str = "int8") -> IRModule:
    module = model(name, levels, dtype)
    np.testing.assert_array_equal(evaluate(module, *codes(dtype)), expected(name, levels, dtype))
    return module


def random_levels(dtype: str, seed: int) -> tuple[Levels, Levels, Levels]:
    rng = np.random.default_rng(seed)
    a, b = 10 ** rng.uniform(-2, -0.5, 2)
    first, second, zero = (int(item) + np.iinfo(dtype).min for item in rng.integers(0, 256, 3))
    return (a, first), (b, second), ((a + b) * rng.uniform(0.3, 1.2), zero)


@pytest.mark.parametrize("name", ["ADD", "SUB"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_all_pairs(name: str, dtype: str) -> None:
    """Nearly all sums are rounded once."""
    made = [agrees(name, random_levels(dtype, seed), dtype) for seed in range(6)]
    assert sum(not count(module, "qnn.rounded_shift") for module in made) >= 5


def test_a_sum_of_which_factors_are_moved() -> None:
    """The quotients of scales themselves give two of the pairs another result, whatever the offset."""
    levels = ((0.6430659897073933, 5), (1.1096891485332805, -5), (1.0, 12))
    assert high_products(agrees("ADD", levels)) == 2


def test_one_input_of_the_steps_of_the_result() -> None:
    """It is moved up, and not multiplied."""
    assert high_products(agrees("ADD", ((0.0604780016, -63), (0.1, -4), (0.1, -4)))) == 1


@pytest.mark.parametrize("scales", [(0.1, 0.1, 0.2), (0.1, 0.05, 0.1), (0.25, 0.25, 1.0)])
def test_halves_on_both_sides_of_zero_are_rounded_away_from_it(scales: tuple[float, float, float]) -> None:
    """No one rounding does that: the sums are those of the kernels, step by step."""
    a, b, out = scales
    assert count(agrees("ADD", ((a, 0), (b, 0), (out, 0))), "qnn.rounded_shift")


@pytest.mark.parametrize("scales", [(1e-4, 0.1, 0.1), (0.1, 0.1, 1e-3), (0.1, 0.1, 50.0), (0.02, 1e-6, 1e-2)])
def test_scales_far_apart(scales: tuple[float, float, float]) -> None:
    agrees("ADD", ((scales[0], 3), (scales[1], -7), (scales[2], 11)))


@pytest.mark.parametrize("activation", [1, 3])
def test_bounds_of_activations(activation: int) -> None:
    levels = ((0.05, 3), (0.02, -5), (0.031, 1))
    plain, bounded = model("ADD", levels, "int8"), model("ADD", levels, "int8", activation)
    high = 127 if activation == 1 else min(127, 1 + round(6 / 0.031))
    np.testing.assert_array_equal(evaluate(bounded, *codes("int8")), np.clip(evaluate(plain, *codes("int8")), 1, high))


@pytest.mark.parametrize("points", [(-128, -128), (-128, 5), (-30, -128), (-30, 5)])
def test_products_of_all_pairs(points: tuple[int, int]) -> None:
    """Where nothing is below zero, no sign is asked for."""
    module = agrees("MUL", ((0.02, points[0]), (0.0039, points[1]), (0.021, -20)))
    assert count(module, "right_shift") == (points != (-128, -128))


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_compiled(name: str, dtype: str) -> None:
    middle = np.iinfo(dtype).min + 100
    levels = ((0.05, middle), (0.021, middle + 20), (0.04 if name != "MUL" else 0.01, middle - 10))
    found = tw.compile(model(name, levels, dtype))(*codes(dtype))
    np.testing.assert_array_equal(found, expected(name, levels, dtype))
