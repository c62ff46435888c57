"""Rows of fragments of sums: what the four threads that share a row combine, and operands that lie turned in memory.

A thread of a warp has two neighbouring columns of every eight of a row (`WarpProduct.sums_layout`). What belongs to a
row as a whole (its maximum, its sum) is therefore held four times, once by each thread: a value `[..., i, part]` with
four parts lies as `row_layout` says.
"""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.te import reduction
from tilewright.tir.machine import machine_call
from tilewright.tir.row_instructions import FIRST_PRODUCTS, ROUND_PAIR, ROW_MAX, ROW_SUM
from tilewright.tir.stmt import Evaluate, Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.tir.warp_instructions import WARP
from tilewright.topi.intrinsics.tensor_core import (
    COLUMNS,
    ROWS,
    Layout,
    WarpProduct,
    declared,
    each_lane,
    own_registers,
    pointer,
)

PARTS = 4
"""Threads that share a row."""


def row_layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
    """What the threads of a row hold [..., i, part] as [..., tile, thread, half of the rows]."""
    *outer, i, part = index
    return (*outer, i // ROWS, i % 8 * PARTS + part, i % ROWS // 8)


@cache
def combine_row(largest: bool, parts: int = PARTS) -> TensorIntrin:
    """The maximum, or the sum, of what the threads of each row of a warp hold: all of them get it."""
    shape = (WARP // parts, parts)
    held = te.placeholder(shape, str(FLOAT32), name="held")
    other = te.reduce_axis((0, parts), name="other")
    combine = reduction.max if largest else reduction.sum
    result = te.compute(shape, lambda i, part: combine(held[i, other], [other]), name="result")
    name = ROW_MAX[parts] if largest else ROW_SUM[parts]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def exchange(lane: Var) -> Stmt:
            places = own_registers(outputs[0], "w", lane, 0), own_registers(inputs[0], "r", lane, 0)
            return Evaluate(machine_call(name, *places))

        return each_lane(exchange)

    def layout(i: PrimExpr, part: PrimExpr) -> tuple[PrimExpr, ...]:
        return (i * parts + part,)

    return declared(result, rule, name, [("held", layout), ("result", layout)])


@cache
def begin_product(item: WarpProduct) -> TensorIntrin:
    """The intrinsic that makes sums of the product of two fragments: `WarpProduct.multiply` to zeros."""
    a = te.placeholder((ROWS, item.depth), str(item.row), name="a")
    b = te.placeholder((COLUMNS, item.depth), str(item.column), name="b")
    k = te.reduce_axis((0, item.depth), name="k")
    c = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: reduction.sum(cast(a[i, k], FLOAT32) * cast(b[j, k], FLOAT32), [k]),
        name="c",
    )
    name = FIRST_PRODUCTS[item.row.name]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def product(lane: Var) -> Stmt:
            operands = [own_registers(operand, "r", lane, 0) for operand in inputs]
            return Evaluate(machine_call(name, own_registers(outputs[0], "w", lane, 0), *operands))

        return each_lane(product)

    layouts: list[tuple[str, Layout]] = [
        ("a", lambda i, k: item.rows_layout(i, k)[2:]),
        ("b", lambda j, k: turned_layout(item, j, k)[2:]),
        ("c", lambda i, j: item.sums_layout(i, j)[2:]),
    ]
    return declared(c, rule, name, layouts)


@cache
def round_pairs(dtype: DataType) -> TensorIntrin:
    """Sums of eight rows and columns rounded to a type of 16 bits, two neighbours at a time."""
    wide = te.placeholder((8, COLUMNS), str(FLOAT32), name="wide")
    narrow = te.compute((8, COLUMNS), lambda i, j: cast(wide[i, j], dtype), name="narrow")
    name = ROUND_PAIR[dtype.name]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def both(lane: Var) -> Stmt:
            places = own_registers(outputs[0], "w", lane, 0), own_registers(inputs[0], "r", lane, 0)
            return Evaluate(machine_call(name, *places))

        return each_lane(both)

    def layout(i: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return i * PARTS + j // 2, j % 2

    return declared(narrow, rule, name, [("wide", layout), ("narrow", layout)])


def turned_layout(item: WarpProduct, *index: PrimExpr) -> tuple[PrimExpr, ...]:
    """A columns' operand that is indexed [..., j, k], as `WarpProduct.columns_layout` places it."""
    *outer, j, k = index
    return item.columns_layout(*outer, k, j)


@cache
def load_turned(item: WarpProduct) -> TensorIntrin:
    """The intrinsic that fills the fragments of 16 columns from shared memory that has a row for each column.

    Of four matrices of 8 rows of 16 bytes, two are halves of the steps of the same columns; thread t points out row
    t % 8 of matrix t // 8.
    """
    shape = (2 * COLUMNS, item.depth)
    memory = te.placeholder(shape, str(item.row), name="memory")
    fragment = te.compute(shape, lambda j, k: memory[j, k], name="fragment")
    name = "cuda.ldmatrix.x4"

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def load(lane: Var) -> Stmt:
            row, start = lane // 16 * COLUMNS + lane % 8, lane % 16 // 8 * item.lanes
            source = pointer(inputs[0], "r", (row, start), (row, start + (item.lanes - 1)))
            return Evaluate(machine_call(name, own_registers(outputs[0], "w", lane, 1), source))

        return each_lane(load)

    def layout(j: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        return turned_layout(item, j, k)[1:]

    return declared(fragment, rule, f"{name}.turned.{item.row}", [("fragment", layout)])
