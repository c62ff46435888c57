"""Say how to compute it: tile, reorder, vectorize, parallelize, step by step; each step computes the same."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.te.schedule import Schedule

SIZE = 256
A = te.placeholder((SIZE, SIZE), name="A")
B = te.placeholder((SIZE, SIZE), name="B")
k = te.reduce_axis((0, SIZE), name="k")
C = te.compute((SIZE, SIZE), lambda y, x: te.sum(A[y, k] * B[k, x], axis=k), name="C")


def plain() -> Schedule:
    return te.create_schedule(C.op)


def tiled() -> Schedule:
    s = te.create_schedule(C.op)
    y, x = s[C].op.axis
    (k,) = s[C].op.reduce_axis
    yo, xo, yi, xi = s[C].tile(y, x, 8, 32)
    ko, ki = s[C].split(k, factor=4)
    s[C].reorder(yo, xo, ko, ki, yi, xi)
    return s


def vectorized() -> Schedule:
    s = te.create_schedule(C.op)
    y, x = s[C].op.axis
    (k,) = s[C].op.reduce_axis
    yo, xo, yi, xi = s[C].tile(y, x, 8, 32)
    s[C].reorder(yo, xo, k, yi, xi)
    s[C].unroll(yi)
    s[C].vectorize(xi)
    s[C].parallel(yo)
    return s


def in_registers() -> Schedule:
    """Accumulate a tile of C in registers, 8 rows of 2 vectors, and write it out when it is finished."""
    s = te.create_schedule(C.op)
    CL = s.cache_write(C, "local")
    yo, xo, yi, xi = s[C].tile(*C.op.axis, 8, 2 * tw.Target("native").lanes(32))
    s[CL].compute_at(s[C], xo)
    y, x = s[CL].op.axis
    (k,) = s[CL].op.reduce_axis
    s[CL].reorder(k, y, x)
    s[CL].unroll(y)
    s[CL].vectorize(x)
    s[C].unroll(yi)
    s[C].vectorize(xi)
    s[C].parallel(yo)
    return s


rng = np.random.default_rng(0)
a, b = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
for make in (plain, tiled, vectorized, in_registers):
    s = make()
    f = tw.build(s, [A, B, C], target="native", name="matmul")
    c = np.empty((SIZE, SIZE), np.float32)
    f(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)
    seconds = f.time_evaluator("matmul", number=1, repeat=3)(a, b, c).min
    print(f"{make.__name__:>13}: {2 * SIZE**3 / seconds / 1e9:6.2f} GFLOP/s")
