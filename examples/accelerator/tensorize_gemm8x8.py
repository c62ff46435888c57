"""A tensor instruction of real hardware: declared, tensorized, and run on the tensor processor down to its signals.

`examples/seeds/tensorize_gemm8x8.py` has an imaginary instruction in software. Here it is the GEMM of a processor whose
array multiplies 8 x 8 by 8 x 8, whose copies become its LOADs and STOREs, and whose stream is proved before it runs.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te as t
from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Gemm, Load, Store
from tilewright.accel.kernel import from_text

CONFIG = AccelConfig(batch=8, block_in=8, block_out=8)

# What the instruction computes.
w, x = t.placeholder((8, 8), "int8", name="w"), t.placeholder((8, 8), "int8", name="x")
k = t.reduce_axis((0, 8), name="k")
y = t.compute((8, 8), lambda i, j: t.sum(w[i, k].astype("int32") * x[j, k].astype("int32"), axis=k), name="y")


# How it is called: products are added to what accumulators hold, so the processor has no third form.
def gemm_intrin_lower(inputs, outputs):
    ww_ptr = inputs[0].access_ptr("r")
    xx_ptr = inputs[1].access_ptr("r")
    zz_ptr = outputs[0].access_ptr("rw")
    reset = t.hardware_intrin("accel.reset", outputs[0].access_ptr("w"), 64)
    update = t.hardware_intrin("accel.gemm", zz_ptr, ww_ptr, xx_ptr, 8, 8, 8)
    return None, reset, update


gemm8x8 = t.decl_tensor_intrin(y.op, gemm_intrin_lower, name="accel_gemm8x8")

# A matrix product of 64 x 48 x 32, in blocks of 8 x 8.
M, N, K = 8, 6, 4
W, X = t.placeholder((M, K, 8, 8), "int8", name="W"), t.placeholder((N, K, 8, 8), "int8", name="X")
ko, ki = t.reduce_axis((0, K), name="ko"), t.reduce_axis((0, 8), name="ki")


def product(yo, xo, yi, xi):
    return t.sum(W[yo, ko, yi, ki].astype("int32") * X[xo, ko, xi, ki].astype("int32"), axis=[ko, ki])


Y = t.compute((M, N, 8, 8), product, name="Y")

s = t.create_schedule(Y.op)
YL, WL, XL = s.cache_write(Y, "accel.acc"), s.cache_read(W, "accel.inp"), s.cache_read(X, "accel.wgt")
s[YL].compute_at(s[Y], Y.op.axis[1])
yo, xo, yi, xi = s[YL].op.axis
ro, ri = s[YL].op.reduce_axis
s[YL].reorder(ro, yo, xo, yi, xi, ri)
s[WL].compute_at(s[YL], ro)
s[XL].compute_at(s[YL], ro)
s[YL].tensorize(yi, gemm8x8)
print(s)

f = tw.build(s, [W, X, Y], target=f"accel -config={CONFIG.to_text()}", name="gemm")
(kernel,) = from_text(f.source)
print(f.source)
for kind, count in ((Gemm, M * N * K), (Load, 2 * M * N * K + 1), (Store, M * N)):
    assert sum(isinstance(item, kind) for item in kernel.instructions) == count

rng = np.random.default_rng(0)
a, b = rng.integers(-128, 128, (M, K, 8, 8)).astype(np.int8), rng.integers(-128, 128, (N, K, 8, 8)).astype(np.int8)
c = np.empty((M, N, 8, 8), np.int32)
f(a, b, c)
np.testing.assert_array_equal(c, np.einsum("mkab,nkcb->mnac", a.astype(np.int32), b.astype(np.int32)))
print("the tensorized product is right")
