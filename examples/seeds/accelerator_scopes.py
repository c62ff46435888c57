"""Cache data in the special buffers of an accelerator: memory scopes are names that the schedule chooses.

This program runs on the CPU, where every scope is ordinary memory; mapping the inner loops to the accelerator's
instructions is the work of its back end.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te


class vdla:
    """The memory scopes of the accelerator."""

    acc_buffer = "vdla.acc_buffer"
    inp_buffer = "vdla.inp_buffer"


SIZE = 64
A = te.placeholder((SIZE, SIZE), name="A")
B = te.placeholder((SIZE, SIZE), name="B")
k = te.reduce_axis((0, SIZE), name="k")
C = te.compute((SIZE, SIZE), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")

s = te.create_schedule(C.op)
# + Cache Data on Accelerator Special Buffer
CL = s.cache_write(C, vdla.acc_buffer)
AL = s.cache_read(A, vdla.inp_buffer)
BL = s.cache_read(B, vdla.inp_buffer)
# + Loop Tiling
yo, xo, yi, xi = s[C].tile(*C.op.axis, 8, 8)
s[CL].compute_at(s[C], xo)
ko, ki = s[CL].split(s[CL].op.reduce_axis[0], factor=8)
s[CL].reorder(ko, *s[CL].op.axis, ki)
s[AL].compute_at(s[CL], ko)
s[BL].compute_at(s[CL], ko)

text = str(s)
print(text)
assert text.count('scope="vdla.inp_buffer"') == 2
assert text.count('scope="vdla.acc_buffer"') == 1

f = tw.build(s, [A, B, C], target="native", name="gemm")
rng = np.random.default_rng(0)
a, b = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
c = np.empty((SIZE, SIZE), np.float32)
f(a, b, c)
np.testing.assert_allclose(c, a.T @ b, rtol=1e-5)
