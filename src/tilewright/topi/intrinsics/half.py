"""Multiply-adds in half precision: two steps of a row against two steps of a vector of columns."""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.ir.build import const
from tilewright.ir.dtype import FLOAT16, INT32
from tilewright.ir.expr import Broadcast, PrimExpr
from tilewright.ir.intrinsics import reinterpret
from tilewright.te import reduction
from tilewright.tir.stmt import Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin


@cache
def half_multiply_add(lanes: int) -> TensorIntrin:
    """c[j, h] += a[h] * b[j, h] for the lanes of a register: the pair a is spread over it as 32 bits."""
    a = te.placeholder((2,), "float16", name="a")
    b = te.placeholder((lanes // 2, 2), "float16", name="b")
    k = te.reduce_axis((0, 1), name="k")
    c = te.compute((lanes // 2, 2), lambda j, h: reduction.sum(a[h + k * 2] * b[j + k, h], [k]), name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        pair, columns = inputs
        total = outputs[0]
        spread = reinterpret(Broadcast(reinterpret(pair.vector(), INT32), lanes // 2), FLOAT16.with_lanes(lanes))
        product: PrimExpr = spread * columns.vector()
        zero = Broadcast(const(0.0, FLOAT16), lanes)
        return total.store_vector(product), total.store_vector(zero), total.store_vector(total.vector() + product)

    return te.decl_tensor_intrin(c.op, rule, name=f"half_multiply_add_{lanes}")
