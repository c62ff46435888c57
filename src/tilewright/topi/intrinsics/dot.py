"""Dot products of bytes, of 16-bit integers and of bfloat16: one row value broadcast against a vector of columns.

    c[j] += a[0] * b[j, 0] + a[1] * b[j, 1] + a[2] * b[j, 2] + a[3] * b[j, 3]        (j: the lanes of a register)

The column operand lies as `b[j, k]` in one run of memory: weights are arranged so when the model is assembled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Broadcast, PrimExpr
from tilewright.ir.intrinsics import dot4, word
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.machine import DOT4, find_instruction, machine_call
from tilewright.tir.stmt import Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin

_FACTORS = 2


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """A dot-product instruction as schedules see it: `group` neighbours of the reduction into each of `lanes` sums."""

    name: str
    row: DataType
    column: DataType
    total: DataType
    lanes: int
    group: int
    steps: int = 1
    """Groups of a row that one load gives: an instruction takes any of them as it is, without spreading it first."""

    @property
    def adds(self) -> bool:
        """Whether the instruction adds to a sum by itself; products take a register of their own otherwise."""
        return len(find_instruction(self.name).arguments) > _FACTORS

    @property
    def intrinsic(self) -> TensorIntrin:
        """The declared tensor intrinsic."""
        return _declared(self)


def _dot(name: str, row: str, column: str, total: str, lanes: int, group: int, steps: int = 1) -> DotInstruction:
    return DotInstruction(name, DataType.of(row), DataType.of(column), DataType.of(total), lanes, group, steps)


INSTRUCTIONS = (
    _dot("x86.vpdpbusd.512", "uint8", "int8", "int32", 16, 4),
    _dot("x86.vpdpbusd.256", "uint8", "int8", "int32", 8, 4),
    _dot("x86.vpdpbusd.columns.512", "int8", "uint8", "int32", 16, 4),
    _dot("x86.vpdpbusd.columns.256", "int8", "uint8", "int32", 8, 4),
    _dot("arm.usdot", "uint8", "int8", "int32", 4, 4, 4),
    _dot("arm.sdot", "int8", "int8", "int32", 4, 4, 4),
    _dot("arm.udot", "uint8", "uint8", "int32", 4, 4, 4),
    _dot(DOT4, "int8", "int8", "int32", 1, 4),
    _dot("x86.pmaddwd.512", "int16", "int16", "int32", 16, 2),
    _dot("x86.pmaddwd.256", "int16", "int16", "int32", 8, 2),
    _dot("x86.pmaddwd.128", "int16", "int16", "int32", 4, 2),
    _dot("x86.vdpbf16ps.512", "bfloat16", "bfloat16", "float32", 16, 2),
)
"""Widest first."""


def dot_instructions(target: Target) -> list[DotInstruction]:
    """The dot products a processor has, no wider than its vectors, widest first."""
    return [
        item for item in INSTRUCTIONS if item.lanes * item.total.bits <= target.vector_bits and _is_on(item, target)
    ]


def _is_on(item: DotInstruction, target: Target) -> bool:
    """Whether a processor has an instruction; products of words have many names, and targets say if they have one."""
    return target.has_dot4 if item.name == DOT4 else find_instruction(item.name).is_on(target)


def dot_instruction(target: Target, row: DataType, column: DataType) -> DotInstruction | None:
    """The widest dot product of two types of operands."""
    found = (item for item in dot_instructions(target) if item.row is row and item.column is column)
    return next(found, None)


def _word_of(column: Operand, group: int) -> PrimExpr:
    return word(*(column[0, n] for n in range(group)))


@cache
def _declared(item: DotInstruction) -> TensorIntrin:
    a = te.placeholder((item.group,), str(item.row), name="a")
    b = te.placeholder((item.lanes, item.group), str(item.column), name="b")
    k = te.reduce_axis((0, item.group), name="k")
    c = te.compute(
        (item.lanes,), lambda j: reduction.sum(cast(a[k], item.total) * cast(b[j, k], item.total), [k]), name="c"
    )

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        row, column = inputs
        total = outputs[0]
        if item.lanes == 1:
            product_of_words = dot4(word(*(row[n] for n in range(item.group))), _word_of(column, item.group))
            return (
                total.store(0, product_of_words),
                total.store(0, const(0, item.total)),
                total.store(0, total[0] + product_of_words),
            )
        zero = Broadcast(const(0, item.total), item.lanes)

        def product(start: PrimExpr) -> Stmt:
            first, second = row.vector(), column.vector()
            if not item.adds:
                return total.store_vector(start + machine_call(item.name, first, second))
            if find_instruction(item.name).arguments[1] is not first.dtype:
                first, second = second, first
            return total.store_vector(machine_call(item.name, start, first, second))

        return product(zero), total.store_vector(zero), product(total.vector())

    return te.decl_tensor_intrin(c.op, rule, name=item.name)
