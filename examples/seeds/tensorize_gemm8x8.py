"""Use a tensor instruction: declare what it computes and how it is called, tile for it, and let it do the work.

The hardware here is imaginary, so its three instructions are given in software; a real accelerator leaves that out.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te as t
from tilewright.tir.interpreter import interpret

# What the instruction computes.
w, x = t.placeholder((8, 8), name="w"), t.placeholder((8, 8), name="x")
k = t.reduce_axis((0, 8), name="k")
y = t.compute((8, 8), lambda i, j: t.sum(w[i, k] * x[j, k], axis=k), name="y")


# How it is called.
def gemm_intrin_lower(inputs, outputs):
    ww_ptr = inputs[0].access_ptr("r")
    xx_ptr = inputs[1].access_ptr("r")
    zz_ptr = outputs[0].access_ptr("w")
    compute = t.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
    reset = t.hardware_intrin("fill_zero", zz_ptr)
    update = t.hardware_intrin("fuse_gemm8x8_add", ww_ptr, xx_ptr, zz_ptr)
    return compute, reset, update


gemm8x8 = t.decl_tensor_intrin(y.op, gemm_intrin_lower)


# The instructions in software: any loop program will do, scheduled or not.
@tw.script
def fill_zero(z: Buffer[(8, 8), float32]):  # noqa: F821
    for i, j in grid(8, 8):  # noqa: F821
        z[i, j] = 0.0


@tw.script
def fuse_gemm8x8_add(w: Buffer[(8, 8), float32], x: Buffer[(8, 8), float32], z: Buffer[(8, 8), float32]):  # noqa: F821
    for i, j, k in grid(8, 8, 8):  # noqa: F821
        z[i, j] = z[i, j] + w[i, k] * x[j, k]


t.implement_intrin("fill_zero", fill_zero)
t.implement_intrin("fuse_gemm8x8_add", fuse_gemm8x8_add)
t.implement_intrin("gemm8x8", t.create_prim_func([w, x, y]))

# A matrix product of 64 x 48 x 32, tiled for it.
M, N, K = 64, 48, 32
W, X = t.placeholder((M, K), name="W"), t.placeholder((N, K), name="X")
r = t.reduce_axis((0, K), name="r")
Y = t.compute((M, N), lambda i, j: t.sum(W[i, r] * X[j, r], axis=r), name="Y")

s = t.create_schedule(Y.op)
yo, xo, yi, xi = s[Y].tile(Y.op.axis[0], Y.op.axis[1], 8, 8)
ro, ri = s[Y].split(Y.op.reduce_axis[0], 8)
s[Y].reorder(yo, xo, ro, yi, xi, ri)
s[Y].tensorize(yi, gemm8x8)
s[Y].parallel(yo)
print(s)

rng = np.random.default_rng(0)
a, b = rng.random((M, K), dtype=np.float32), rng.random((N, K), dtype=np.float32)
c, meaning = np.empty((M, N), np.float32), np.empty((M, N), np.float32)
tw.build(s, [W, X, Y], target="native", name="tensorized")(a, b, c)
np.testing.assert_allclose(c, a @ b.T, rtol=1e-5)
interpret(t.lower(s, [W, X, Y]), a, b, meaning)
np.testing.assert_allclose(meaning, c, rtol=1e-5)
print("the tensorized product is right")
