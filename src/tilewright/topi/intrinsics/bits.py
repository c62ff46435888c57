"""Counting the bits that meet: one word of a row, broadcast, against a vector of words of columns.

    c[j] += popcount(a[0] & b[j, 0]) + ... + popcount(a[3] & b[j, 3])        (j: the lanes of a register, bytes)

LLVM has the best instructions for a count of 32-bit lanes that is added to a sum: `cnt` and `udot` on ARM (`cnt` and
pairwise sums without dot products), `vpopcntd` on x86. Where x86 has no vector count, bytes are counted by looking up
nibbles, and a dot product with ones adds them up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tilewright import te
from tilewright.ir.build import bitwise_and, bitwise_xor, cast, const
from tilewright.ir.dtype import INT8, INT32, UINT8
from tilewright.ir.expr import Broadcast, PrimExpr, Var
from tilewright.ir.intrinsics import popcount, reinterpret
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.machine import machine_call
from tilewright.tir.stmt import LetStmt, Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.topi.intrinsics.dot import dot_instruction

GROUP = 4
"""Bytes of a word."""


def popcount_dot(target: Target, mode: str) -> TensorIntrin:
    """The intrinsic of a target for words that meet by "and" or "xor"."""
    looked_up = target.arch == "x86_64" and not target.has_feature("avx512vpopcntdq")
    adding = dot_instruction(target, UINT8, INT8) if looked_up else None
    return _declared(target.lanes(32), mode, None if adding is None else adding.name)


@cache
def _declared(lanes: int, mode: str, adding: str | None) -> TensorIntrin:
    a = te.placeholder((GROUP,), "uint8", name="a")
    b = te.placeholder((lanes, GROUP), "uint8", name="b")
    k = te.reduce_axis((0, GROUP), name="k")
    meet = bitwise_and if mode == "and" else bitwise_xor
    c = te.compute((lanes,), lambda j: reduction.sum(cast(popcount(meet(a[k], b[j, k])), INT32), [k]), name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        row, columns = (item.vector() for item in inputs)
        total = outputs[0]
        word = reinterpret(row, INT32)
        spread = word if lanes == 1 else Broadcast(word, lanes)
        zero: PrimExpr = const(0, INT32) if lanes == 1 else Broadcast(const(0, INT32), lanes)

        def counted(start: PrimExpr) -> Stmt:
            if adding is not None:
                return _counted_bytes(total, start, spread, columns, meet, adding)
            return total.store_vector(start + popcount(meet(spread, reinterpret(columns, spread.dtype))))

        return counted(zero), total.store_vector(zero), counted(total.vector())

    return te.decl_tensor_intrin(c.op, rule, name=f"popcount_{mode}_{lanes}{'_dot' if adding else ''}")


def _counted_bytes(
    total: Operand,
    start: PrimExpr,
    spread: PrimExpr,
    columns: PrimExpr,
    meet: Callable[[PrimExpr, PrimExpr], PrimExpr],
    adding: str,
) -> Stmt:
    """Counts of bytes, and a dot product with ones that adds four of them to each lane."""
    rows, ones = Var("rows", columns.dtype), Var("ones", columns.dtype)
    unit = Broadcast(const(1, UINT8), GROUP)
    added = machine_call(adding, start, unit, cast(ones, INT8.with_lanes(columns.dtype.lanes)))
    counts = LetStmt(ones, popcount(meet(rows, columns)), total.store_vector(added))
    return LetStmt(rows, reinterpret(spread, columns.dtype), counts)
