"""Sums over rows: all columns of a few rows at a time."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

CASES = [
    ((64, 48), (0,), 1),
    ((37, 130), (0,), 2),
    ((3, 40, 33), (1,), 2),
    ((2, 9, 40, 32), (0, 1, 2), 2),
    ((4096, 40), (0,), 2),
    ((2049, 36), (0,), 2),
]


def program(shape: tuple[int, ...], axes: tuple[int, ...], threads: int) -> tw.Compilation:
    x, y = (Var(name, tensor_type(shape, "float32")) for name in "xy")
    body = call("sum", call("multiply", x, y), axes=axes)
    return tw.Compilation(IRModule([Function("main", (x, y), body)]), options=tw.CompileOptions(threads=threads))


@pytest.mark.parametrize(("shape", "axes", "threads"), CASES)
def test_sums_over_rows(shape: tuple[int, ...], axes: tuple[int, ...], threads: int) -> None:
    rng = np.random.default_rng(sum(shape))
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    expected = (x.astype(np.float64) * y).sum(axes)
    found = program(shape, axes, threads).executable()(x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "threads"), [((8, 28, 28, 128), 1), ((8, 14, 14, 96), 2), ((8, 23, 23, 100), 1), ((8, 56, 56, 18), 2)]
)
def test_means_of_channels_by_lines(shape: tuple[int, ...], threads: int) -> None:
    """Sums of lines, and then of these, for channels that a vector divides, and others."""
    x = Var("x", tensor_type(shape, "float32"))
    module = IRModule([Function("main", (x,), call("mean", x, axes=(0, 1, 2)))])
    compilation = tw.Compilation(module, options=tw.CompileOptions(threads=threads))
    given = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 1
    np.testing.assert_allclose(compilation.executable()(given), given.mean((0, 1, 2), np.float64), rtol=1e-5)
    text = str(compilation.scheduled(compilation.kernels[0]))
    assert "mean_line" in text
    if shape[-1] == 128:
        # All columns of a few rows: no loop over columns stands outside of that over images and their lines.
        assert text.index("grid(8, 28") < text.index("vectorized(")


def test_rows_are_read_in_their_order() -> None:
    """The loop over columns is inside the one over rows; many rows are shared among threads, each with its sums."""
    compilation = program((4096, 64), (0,), 2)
    text = str(compilation.scheduled(compilation.kernels[0]))
    assert "parallel(2)" in text and "sum_rf[" in text
    rows = re.search(r"grid\(1024, \d+\)", text)
    assert rows is not None
    assert rows.start() < text.index("unroll(2)")
