"""Special buffers of an accelerator, on the accelerator: tiles in its memories, and two virtual threads.

`examples/seeds/accelerator_scopes.py` names scopes that a CPU takes for ordinary memory. Here they are the memories of
the tensor processor: a larger tile in them is loaded less often, and tiles of two virtual threads are computed in turn,
so that one is loaded while the other is multiplied.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.accel.config import AccelConfig
from tilewright.accel.kernel import from_text
from tilewright.topi.intrinsics import accel
from tilewright.tune.accel_cycles import cycles


class vdla:
    """The memory scopes of the accelerator, and its product of tensors."""

    acc_buffer = "accel.acc"
    inp_buffer = "accel.inp"
    wgt_buffer = "accel.wgt"
    config = AccelConfig(batch=8, block_in=8, block_out=8)
    gemm8x8 = accel.product(config)


SIZE = 8
"""Of the matrices, in blocks of 8 x 8."""
A = te.placeholder((SIZE, SIZE, 8, 8), "int8", name="A")
B = te.placeholder((SIZE, SIZE, 8, 8), "int8", name="B")
ko, ki = te.reduce_axis((0, SIZE), name="ko"), te.reduce_axis((0, 8), name="ki")


def product(y, x, i, j):
    return te.sum(A[y, ko, i, ki].astype("int32") * B[x, ko, j, ki].astype("int32"), axis=[ko, ki])


C = te.compute((SIZE, SIZE, 8, 8), product, name="C")


def scheduled(tile: int, threads: int) -> te.Schedule:
    """Tiles of so many blocks, of one or two virtual threads."""
    s = te.create_schedule(C.op)
    # + Cache Data on Accelerator Special Buffer
    CL = s.cache_write(C, vdla.acc_buffer)
    AL = s.cache_read(A, vdla.inp_buffer)
    BL = s.cache_read(B, vdla.wgt_buffer)
    # + Loop Tiling
    y, x, i, j = C.op.axis
    yo, xo, yi, xi = s[C].tile(y, x, tile, tile)
    if threads > 1:
        xo, thread = s[C].split(xo, factor=threads)
        s[C].reorder(yo, xo, thread, yi, xi)
        s[C].bind(thread, te.thread_axis("vthread"))
        xo = thread
    s[CL].compute_at(s[C], xo)
    y, x, i, j = s[CL].op.axis
    ko, ki = s[CL].op.reduce_axis
    s[CL].reorder(ko, y, x, i, j, ki)
    s[AL].compute_at(s[CL], ko)
    s[BL].compute_at(s[CL], ko)
    # + Map to Accelerator Tensor Instructions
    s[CL].tensorize(i, vdla.gemm8x8)
    return s


rng = np.random.default_rng(0)
a, b = (rng.integers(-128, 128, (SIZE, SIZE, 8, 8)).astype(np.int8) for _ in range(2))
expected = np.einsum("mkab,nkcb->mnac", a.astype(np.int32), b.astype(np.int32))
places, micro_ops = [1 << 20, 2 << 20, 3 << 20], 0
taken = {}
for tile, threads in ((1, 1), (4, 1), (4, 2)):
    s = scheduled(tile, threads)
    f = tw.build(s, [A, B, C], target=f"accel -config={vdla.config.to_text()}", name="gemm")
    c = np.empty((SIZE, SIZE, 8, 8), np.int32)
    f(a, b, c)
    np.testing.assert_array_equal(c, expected)
    (kernel,) = from_text(f.source)
    data = kernel.micro_op_bytes()
    read = lambda start, size, data=data: data[start : start + size].ljust(size, b"\0")  # noqa: E731
    taken[tile, threads] = cycles(kernel.at(places, micro_ops), kernel.config, read).total
    print(f"tiles of {tile} x {tile} blocks, {threads} threads: {taken[tile, threads]} cycles")

assert taken[4, 2] < taken[4, 1] < taken[1, 1]
print(s)
