"""The operators of Winograd's algorithm: matrices, references against plain convolution, errors, messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.graph.ops.winograd import TILES, WinogradMatrices, plain_matrices, plain_weight, winograd_matrices
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


@pytest.mark.parametrize("tile", TILES)
def test_matrices_compute_a_correlation(tile: int) -> None:
    matrices = winograd_matrices(tile)
    values, taps = np.random.default_rng(0).standard_normal((2, tile + 2))
    result = matrices.output @ ((matrices.weight @ taps[:3]) * (matrices.input @ values))
    np.testing.assert_allclose(result, np.correlate(values, taps[:3], "valid"), atol=1e-12)


@pytest.mark.parametrize(("tile", "rest"), [(2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4), (6, 5)])
def test_matrices_for_plain_weights(tile: int, rest: int) -> None:
    """Some of a tile's results from some of its points: the transformed weights are the same for all."""
    matrices, whole = plain_matrices(tile, rest), plain_matrices(tile, tile)
    np.testing.assert_array_equal(matrices.weight, whole.weight)
    values, taps = np.random.default_rng(0).standard_normal((2, tile + 2))
    result = matrices.output @ ((matrices.weight @ _combined(taps[:3], tile)) * (matrices.input @ values))
    np.testing.assert_allclose(result[:rest], np.correlate(values, taps[:3], "valid")[:rest], atol=1e-12)
    assert not np.any(matrices.output[rest:]) and np.count_nonzero(matrices.input.any(axis=1)) == rest + 2
    np.testing.assert_array_equal(matrices.output.any(axis=0), matrices.input.any(axis=1))


def _combined(taps: np.ndarray, tile: int) -> np.ndarray:
    """Three weights combined as the rows of plain ones are: the first column of a window that has no others."""
    window = np.zeros((3, 3, 1, 1))
    window[:, 0, 0, 0] = taps
    return plain_weight(window, tile)[:, 0, 0, 0]


@pytest.mark.parametrize("tile", [2, 4, 6])
def test_plain_weights_are_those_of_a_convolution(tile: int) -> None:
    x, w = data(2, 7, 6, 3), data(3, 3, 3, 5)
    pads = (1, 0, 2, 1)
    expected = apply("nn.conv2d", x, w, padding=pads, **NHWC)
    plain = plain_weight(w, tile)
    assert plain.dtype == w.dtype and plain.shape == w.shape
    result = apply("nn.conv2d_winograd_plain", x, plain, tile=tile, padding=pads)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_plain_weights_are_transformed_in_few_steps() -> None:
    """Every number is exact, so that rounding is in the sums alone; docs/winograd.md counts these operations."""
    expected = [[1, 0, 0], [0, 1, 0], [-3, 1, 1], [0, 1, -0.5], [-3, 1, 1.5], [1, 0, -1]]
    np.testing.assert_array_equal(plain_matrices(4, 4).weight, expected)


def test_zeros_and_ones_are_exact() -> None:
    matrices = winograd_matrices(4)
    np.testing.assert_array_equal(matrices.input[0], [1, 0, -2.5, 0, 1, 0])
    np.testing.assert_array_equal(matrices.input[-1], [0, 1, 0, -2.5, 0, 1])
    np.testing.assert_array_equal(matrices.output[0], [1, 1, 1, 1, 1, 0])
    root = np.sqrt(2)
    np.testing.assert_allclose(matrices.input[1], [0, -root, -2, root / 2, 1, 0])


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3)])
def test_reference_is_a_convolution(tile: int, pads: tuple[int, ...]) -> None:
    x, w = data(2, 7, 6, 3), data(3, 3, 3, 5)
    expected = apply("nn.conv2d", x, w, padding=pads, **NHWC)
    transformed = apply("nn.winograd_weight", w, tile=tile)
    for weight in (transformed, w):
        result = apply("nn.conv2d_winograd", x, weight, tile=tile, padding=pads)
        np.testing.assert_allclose(result, expected, atol=5e-5)


@pytest.mark.parametrize(("tile", "bound"), [(2, 1e-6), (3, 2e-6), (4, 3e-6), (6, 3e-5)])
def test_rounding_errors_in_float32(tile: int, bound: float) -> None:
    """The bounds that docs/winograd.md states, with every step rounded to float32."""
    matrices = winograd_matrices(tile)

    def transformed(w: np.ndarray) -> np.ndarray:
        return (matrices.weight @ w.astype(np.float64) @ matrices.weight.T).astype(np.float32)

    assert _error(tile, matrices, transformed) < bound


@pytest.mark.parametrize(("tile", "bound"), [(2, 1e-6), (4, 3e-6)])
def test_rounding_errors_of_plain_weights(tile: int, bound: float) -> None:
    """They are rounded where they are combined and where they are transformed: the bounds stay."""
    matrices = plain_matrices(tile, tile)
    g = matrices.weight.astype(np.float32)

    def transformed(w: np.ndarray) -> np.ndarray:
        combined = plain_weight(w.transpose(1, 2, 0)[..., np.newaxis], tile)[..., 0].transpose(2, 0, 1)
        return g @ combined @ g.T

    assert _error(tile, matrices, transformed) < bound


def _error(tile: int, matrices: WinogradMatrices, transformed: Callable[[np.ndarray], np.ndarray]) -> float:
    """The largest error of the results of 64 channels, over the largest result."""
    rng = np.random.default_rng(1)
    a, b = (m.astype(np.float32) for m in (matrices.output, matrices.input))
    channels, windows = 64, 100
    x = rng.standard_normal((windows, channels, tile + 2, tile + 2)).astype(np.float32)
    w = (rng.standard_normal((channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    u = transformed(w)
    assert u.dtype == np.float32 and u.shape == (channels, tile + 2, tile + 2)
    result = a @ ((b @ x @ b.T) * u).sum(axis=1, dtype=np.float32) @ a.T
    wide = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    exact = np.einsum("ncyxuv,cuv->nyx", wide, w.astype(np.float64))
    return float(np.abs(result - exact).max() / np.abs(exact).max())


def test_messages() -> None:
    x, u = tensor_type((1, 8, 8, 4), "float32"), tensor_type((6, 6, 4, 8), "float32")
    with pytest.raises(UserError, match="no Winograd algorithm for tiles of 5"):
        infer("nn.conv2d_winograd", x, u, tile=5)
    with pytest.raises(UserError, match="no Winograd algorithm for tiles of 5"):
        infer("nn.winograd_weight", tensor_type((3, 3, 4, 8), "float32"), tile=5)
    with pytest.raises(UserError, match="weights for tiles of 2 are 4 x 4"):
        infer("nn.conv2d_winograd", x, u, tile=2)
    with pytest.raises(UserError, match="3 x 3 taps"):
        infer("nn.winograd_weight", tensor_type((5, 5, 4, 8), "float32"))
    with pytest.raises(UserError, match="float32 or float64"):
        infer("nn.winograd_weight", tensor_type((3, 3, 4, 8), "int8"))
    with pytest.raises(UserError, match="inputs of the weight"):
        infer("nn.conv2d_winograd", x, tensor_type((6, 6, 5, 8), "float32"))
    with pytest.raises(UserError, match="padding"):
        infer("nn.conv2d_winograd", x, u, padding=(1, 1, 1))
    with pytest.raises(UserError, match="3 x 3 taps"):
        infer("nn.conv2d_winograd_plain", x, u)
    with pytest.raises(UserError, match="no Winograd algorithm with plain weights for tiles of 3"):
        infer("nn.conv2d_winograd_plain", x, tensor_type((3, 3, 4, 8), "float32"), tile=3)


def test_unknown_shapes() -> None:
    x, u = tensor_type(None, "float32"), tensor_type((6, 6, 4, 8), "float32")
    assert infer("nn.conv2d_winograd", x, u) is tensor_type((None,) * 4, "float32")
    assert infer("nn.winograd_weight", x) is tensor_type((None,) * 4, "float32")
    known = tensor_type((None, 8, 9, 4), "float32")
    taps = tensor_type((3, 3, 4, 8), "float16")
    for weight in (u, taps):
        result = infer("nn.conv2d_winograd", known, weight, padding=(1, 1, 1, 1))
        assert result is tensor_type((None, 8, 9, 8), "float32")
