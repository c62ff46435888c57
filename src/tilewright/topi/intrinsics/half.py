"""Multiply-adds in half precision: a value that lies in memory twice, side by side, against a vector of columns."""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.ir.build import bitwise_or, cast, const, shift_left
from tilewright.ir.dtype import FLOAT16, INT32, DataType
from tilewright.ir.expr import Broadcast, PrimExpr
from tilewright.ir.intrinsics import reinterpret
from tilewright.te import reduction
from tilewright.tir.stmt import Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin


@cache
def half_multiply_add(lanes: int) -> TensorIntrin:
    """c[j] += a[j % 2] * b[j] for the lanes of a register: the pair is spread over it as 32 bits."""
    a = te.placeholder((2,), "float16", name="a")
    b = te.placeholder((lanes,), "float16", name="b")
    k = te.reduce_axis((0, 1), name="k")
    c = te.compute((lanes,), lambda j: reduction.sum(a[j % 2 + k * 2] * b[j + k], [k]), name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        pair, columns = inputs
        total = outputs[0]
        spread = reinterpret(Broadcast(reinterpret(pair.vector(), INT32), lanes // 2), FLOAT16.with_lanes(lanes))
        product: PrimExpr = spread * columns.vector()
        zero = Broadcast(const(0.0, FLOAT16), lanes)
        return total.store_vector(product), total.store_vector(zero), total.store_vector(total.vector() + product)

    return te.decl_tensor_intrin(c.op, rule, name=f"half_multiply_add_{lanes}")


@cache
def half_double(lanes: int) -> TensorIntrin:
    """c[j] = a[j // 2] for the lanes of a register: each value to both halves of 32 bits."""
    a = te.placeholder((lanes // 2,), "float16", name="a")
    c = te.compute((lanes,), lambda j: a[j // 2], name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        bits = cast(reinterpret(inputs[0].vector(), f"uint16x{lanes // 2}"), DataType.of(f"uint32x{lanes // 2}"))
        high = shift_left(bits, Broadcast(const(16, DataType.of("uint32")), lanes // 2))
        return outputs[0].store_vector(reinterpret(bitwise_or(bits, high), FLOAT16.with_lanes(lanes)))

    return te.decl_tensor_intrin(c.op, rule, name=f"half_double_{lanes}")
