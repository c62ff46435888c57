"""Say what to compute, not how: a matrix product as a tensor expression, built and run as it is."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te

m, n, h = te.var("m"), te.var("n"), te.var("h")
A = te.placeholder((m, h), name="A")
B = te.placeholder((n, h), name="B")
k = te.reduce_axis((0, h), name="k")
C = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), name="C")

s = te.create_schedule(C.op)
matmul = tw.build(s, [A, B, C], target="native", name="matmul")

rng = np.random.default_rng(0)
for rows, columns, depth in ((4, 5, 6), (32, 17, 9)):
    a = rng.random((rows, depth), dtype=np.float32)
    b = rng.random((columns, depth), dtype=np.float32)
    c = np.empty((rows, columns), np.float32)
    matmul(a, b, c)
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-5)

print(s)
print("one function for every size: correct")
