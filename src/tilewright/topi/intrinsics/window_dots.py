"""Tensor intrinsics of depthwise convolutions by dot products: pixels of a channel side by side, and their products."""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import Broadcast, PrimExpr, Ramp
from tilewright.te import reduction
from tilewright.tir.machine import machine_call
from tilewright.tir.stmt import Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin

VECTORS = (16, 8)
"""How many channels' pixels are put side by side at once: bytes of a vector, or of half a one."""
LANES = 4
"""Sums of a vector."""
GROUP = 4
"""Pixels that an instruction multiplies at once."""


@cache
def interleave(channels: int) -> TensorIntrin:
    """runs[c, k] = pixels[k, c]: vectors of channels of four pixels, as four pixels of each channel."""
    name = f"arm.interleave4.{channels}"
    pixels = te.placeholder((GROUP, channels), "int8", name="pixels")
    runs = te.compute((channels, GROUP), lambda c, k: pixels[k, c], name="runs")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        rows = [inputs[0][k, Ramp(const(0), const(1), channels)] for k in range(GROUP)]
        return outputs[0].store_vector(machine_call(name, *rows))

    return te.decl_tensor_intrin(runs.op, rule, name=name)


@cache
def dots_of_lanes() -> TensorIntrin:
    """sums[j] += a[j, 0] * b[j, 0] + ... + a[j, 3] * b[j, 3]."""
    a, b = (te.placeholder((LANES, GROUP), "int8", name=name) for name in ("a", "b"))
    k = te.reduce_axis((0, GROUP), name="k")
    c = te.compute((LANES,), lambda j: reduction.sum(cast(a[j, k], INT32) * cast(b[j, k], INT32), [k]), name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        total, zero = outputs[0], Broadcast(const(0, INT32), LANES)

        def product(start: PrimExpr) -> Stmt:
            factors = (item.vector() for item in inputs)
            return total.store_vector(machine_call("arm.sdot.lanes", start, *factors))

        return product(zero), total.store_vector(zero), product(total.vector())

    return te.decl_tensor_intrin(c.op, rule, name="arm.sdot.lanes")
