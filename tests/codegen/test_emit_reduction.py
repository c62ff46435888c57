"""Short reduction loops over neighbouring elements become vector reductions, and give what the loops give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tilewright import te
from tilewright.backends.host import host_source
from tilewright.backends.llvm.emit_reduction import as_vector_reduction
from tilewright.ir.visit import find_all
from tilewright.te.language import compute, placeholder, reduce_axis
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.stmt import For

REDUCERS = {"sum": (te.sum, np.sum), "max": (te.max, np.max), "min": (te.min, np.min), "prod": (te.prod, np.prod)}


def reduction(kind: str, size: int, dtype: str, stride: int = 1) -> PrimFunc:
    """Rows of a matrix reduced, each by one loop."""
    a = placeholder((3, size * stride), dtype, "A")
    k = reduce_axis((0, size), "k")
    c = compute((3,), lambda i: REDUCERS[kind][0](a[i, k * stride], axis=[k]), "C")
    return te.create_prim_func([a, c])


def vector_loops(func: PrimFunc) -> list[For]:
    flat = flatten_buffers(lower_blocks(func))
    return [loop for loop in find_all(flat.body, For) if as_vector_reduction(loop) is not None]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("kind", REDUCERS)
def test_lanes_are_combined(kind: str, dtype: str) -> None:
    func = reduction(kind, 16, dtype)
    assert len(vector_loops(func)) == 1
    assert "llvm.vector.reduce" in host_source([func], HOST)
    data = np.random.default_rng(0).integers(1, 4, (3, 16)).astype(dtype)
    expected = REDUCERS[kind][1](data, axis=1, dtype=dtype) if kind in ("sum", "prod") else REDUCERS[kind][1](data, 1)
    np.testing.assert_array_equal(run(func, data, np.zeros(3, dtype))[1], expected)


@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_nan_and_infinity_stay(kind: str) -> None:
    data = np.zeros((3, 16), np.float32)
    data[0, 5], data[1, 15], data[2, 3] = np.nan, np.inf, -np.inf
    out = run(reduction(kind, 16, "float32"), data, np.zeros(3, np.float32))[1]
    np.testing.assert_array_equal(out, REDUCERS[kind][1](data, axis=1))


def test_other_loops_stay_loops() -> None:
    assert not vector_loops(reduction("sum", 17, "float32"))
    assert not vector_loops(reduction("sum", 16, "float32", stride=2))
    data = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    out = run(reduction("sum", 16, "float32", stride=2), data, np.zeros(3, np.float32))[1]
    np.testing.assert_allclose(out, data[:, ::2].sum(1), rtol=1e-5)
