"""Copies that turn a matrix in squares: rows are loaded, their elements exchanged in registers, and columns stored."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.backends.host import host_source
from tilewright.target import Target

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu={}"


def turned(rows: int, columns: int, width: int, steps: int, dtype: str) -> tuple[te.Schedule, te.Tensor, te.Tensor]:
    """`b[j, i] = a[i, j]`: vectors of `width` rows, for so many neighbouring columns one after the other."""
    a = te.placeholder((rows, columns), dtype, name="a")
    b = te.compute((columns, rows), lambda j, i: a[i, j], name="b")
    s = te.create_schedule(b.op)
    j, i = s[b].op.axis
    step, inner = s[b].split(j, factor=steps)
    panel, lane = s[b].split(i, factor=width)
    s[b].reorder(step, panel, inner, lane)
    s[b].unroll(inner)
    s[b].vectorize(lane)
    return s, a, b


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("rows", "columns", "width", "steps"),
    [
        (32, 48, 16, 16),
        (48, 32, 48, 16),
        (16, 32, 8, 16),
        (24, 40, 8, 8),
        (8, 12, 4, 4),
        (32, 40, 16, 20),
        (36, 36, 12, 9),
    ],
)
def test_turned(rows: int, columns: int, width: int, steps: int, dtype: str) -> None:
    s, a, b = turned(rows, columns, width, steps, dtype)
    given = np.arange(rows * columns).reshape(rows, columns).astype(dtype)
    found = np.zeros((columns, rows), dtype)
    tw.build(s, [a, b], name="turn")(given, found)
    np.testing.assert_array_equal(found, given.T)


@pytest.mark.parametrize(
    ("cpu", "width", "steps", "loaded"),
    [
        ("skylake-avx512", 16, 16, "load <16 x float>"),
        ("skylake-avx512", 8, 16, "load <8 x float>"),
        ("haswell", 16, 8, "load <8 x float>"),
        ("skylake-avx512", 16, 8, None),
        ("x86-64", 16, 16, None),
    ],
)
def test_rows_are_loaded_once(cpu: str, width: int, steps: int, loaded: str | None) -> None:
    """A square's side is what a vector holds; fewer steps than that are no square, and old processors make none."""
    s, a, b = turned(32, 32, width, steps, "float32")
    text = host_source([s.func([a, b], "turn")], Target(X86.format(cpu)))
    if loaded is None:
        assert "gather" in text or "insertelement" in text
    else:
        assert loaded in text and "gather" not in text
