"""Tensor cores: products of small matrices by the threads of a warp, and how their operands lie in registers.

    c[i, j] += sum over k of wide(a[i, k]) * wide(b[k, j])        16 rows, 8 columns, 32 bytes of steps

Each operand is a *fragment*: every thread of the warp holds a few elements. A fragment is a buffer with a dimension for
the threads; the `layout` functions say where an element goes, and schedules arrange their buffers by them
(`transform_layout`). As every thread then keeps to its own part, lowering makes registers of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import HANDLE, INDEX, DataType
from tilewright.ir.expr import ZERO, Call, ExprLike, PrimExpr, StringImm, Var
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.machine import find_instruction, machine_call
from tilewright.tir.schedule.handles import BlockHandle
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import Evaluate, For, LoopKind, Stmt
from tilewright.tir.tensor_intrin import LowerRule, Operand, TensorIntrin, declare
from tilewright.tir.warp_instructions import PRODUCTS, WARP

ROWS = 16
COLUMNS = 8
_STEP_BYTES = 32
Layout = Callable[..., tuple[PrimExpr, ...]]
"""From the indices of a matrix (and of what is around it, first) to those of the fragment."""


@dataclass(frozen=True, slots=True)
class WarpProduct:
    """A product of fragments: 16 rows by 8 columns."""

    row: DataType
    column: DataType
    steps_last: bool = False
    """Whether the columns' operand has a row of steps for each column in shared memory, as the rows' operand has."""

    @property
    def total(self) -> DataType:
        """The type of the sums."""
        return DataType.of("float32" if self.row.is_float else "int32")

    @property
    def group(self) -> int:
        """Elements that lie side by side in a register."""
        return 32 // self.row.bits

    @property
    def depth(self) -> int:
        """Steps of the reduction."""
        return _STEP_BYTES // self.row.itemsize

    @property
    def lanes(self) -> int:
        """Elements of 16 bytes, which one thread copies at once."""
        return 16 // self.row.itemsize

    def rows_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """A rows' operand [..., i, k] as [..., tile, tile, thread, half of the steps, half of the rows, element]."""
        *outer, i, k = index
        half = self.depth // 2
        thread = i % 8 * 4 + k % half // self.group
        return (*outer, i // ROWS, k // self.depth, thread, k % self.depth // half, i % ROWS // 8, k % self.group)

    def columns_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """A columns' operand [..., k, j] as [..., tile of steps, of columns, thread, half of the steps, element]."""
        *outer, k, j = index
        half = self.depth // 2
        thread = j % COLUMNS * 4 + k % half // self.group
        return (*outer, k // self.depth, j // COLUMNS, thread, k % self.depth // half, k % self.group)

    def steps_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """A columns' operand [..., j, k], a row of steps for each column, as `columns_layout` has it."""
        *outer, j, k = index
        return self.columns_layout(*outer, k, j)

    def sums_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Sums [..., i, j] as [..., tile, tile, thread, half of the rows, element]."""
        *outer, i, j = index
        thread = i % 8 * 4 + j % COLUMNS // 2
        return (*outer, i // ROWS, j // COLUMNS, thread, i % ROWS // 8, j % 2)

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds the product of two fragments to a fragment of sums."""
        return _multiply(self)

    @property
    def load_rows(self) -> TensorIntrin:
        """The intrinsic that fills a fragment of 16 rows from shared memory."""
        return _load(self, transposed=False)

    @property
    def load_columns(self) -> TensorIntrin | None:
        """The intrinsic that fills the fragments of 16 columns from shared memory.

        There is one for rows of steps, and for 16-bit types for rows of columns too.
        """
        if self.steps_last:
            return _load_steps(self)
        return _load(self, transposed=True) if self.row.bits == 16 else None


def warp_product(
    target: Target, row: DataType, column: DataType, steps_last: bool = False
) -> WarpProduct | None:
    """The product that a GPU has for two types of operands; float32 means tf32, which the caller must have allowed."""
    name = PRODUCTS.get((row.name, column.name))
    return WarpProduct(row, column, steps_last) if name is not None and find_instruction(name).is_on(target) else None


def _arranged(description: PrimFunc, layouts: Sequence[tuple[str, Layout]]) -> PrimFunc:
    """A description whose buffers lie as fragments do; the dimensions of tiles, all of extent 1, are left out."""
    sch = Schedule(description)
    block: BlockHandle = sch.blocks()[0]
    for name, layout in layouts:
        buffer = next(item for item in description.buffers if item.name == name)
        sch.transform_layout(block, name, IndexMap.of(layout, buffer.ndim))
    return sch.func


def each_lane(body: Callable[[Var], Stmt]) -> Stmt:
    """What each thread of the warp does."""
    lane = Var("lane", INDEX)
    return For(lane, ZERO, const(WARP), LoopKind.THREAD, body(lane), "threadIdx.x")


def pointer(operand: Operand, mode: str, first: tuple[ExprLike, ...], last: tuple[ExprLike, ...]) -> PrimExpr:
    """The address of a part of an operand, from its first to its last element."""
    return Call("access_ptr", (StringImm(mode), operand[first], operand[last]), HANDLE)


def own_registers(operand: Operand, mode: str, lane: Var, axis: int) -> PrimExpr:
    """The registers of a thread: all of the operand with the thread's number at an axis."""
    first: list[ExprLike] = [0] * len(operand.shape)
    last: list[ExprLike] = [dim - 1 for dim in operand.shape]
    first[axis] = last[axis] = lane
    return pointer(operand, mode, tuple(first), tuple(last))


@cache
def _multiply(item: WarpProduct) -> TensorIntrin:
    a = te.placeholder((ROWS, item.depth), str(item.row), name="a")
    b = te.placeholder((item.depth, COLUMNS), str(item.column), name="b")
    k = te.reduce_axis((0, item.depth), name="k")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        left, right = (x if x.dtype is item.total else cast(x, item.total) for x in (a[i, k], b[k, j]))
        return reduction.sum(left * right, [k])

    c = te.compute((ROWS, COLUMNS), element, name="c")
    name = PRODUCTS[item.row.name, item.column.name]

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right, total = (*inputs, outputs[0])

        def product(lane: Var) -> Stmt:
            pointers = [
                own_registers(total, "rw", lane, 0),
                own_registers(left, "r", lane, 0),
                own_registers(right, "r", lane, 0),
            ]
            return Evaluate(machine_call(name, *pointers))

        def zero(lane: Var) -> Stmt:
            half, part = Var("half", INDEX), Var("part", INDEX)
            store = total.store((lane, half, part), const(0, item.total))
            inner = For(part, ZERO, const(2), LoopKind.UNROLLED, store)
            return For(half, ZERO, const(2), LoopKind.UNROLLED, inner)

        return None, each_lane(zero), each_lane(product)

    layouts = [
        ("a", lambda i, k: item.rows_layout(i, k)[2:]),
        ("b", lambda k, j: item.columns_layout(k, j)[2:]),
        ("c", lambda i, j: item.sums_layout(i, j)[2:]),
    ]
    return declared(c, rule, f"{name}.{item.row}", layouts)


@cache
def _load(item: WarpProduct, transposed: bool) -> TensorIntrin:
    """Four matrices of 8 rows of 16 bytes; thread t points out row t % 16 of the half t // 16."""
    shape = (item.depth, ROWS) if transposed else (ROWS, item.depth)
    memory = te.placeholder(shape, str(item.row), name="memory")
    fragment = te.compute(shape, lambda i, j: memory[i, j], name="fragment")
    name = "cuda.ldmatrix.x4.trans" if transposed else "cuda.ldmatrix.x4"

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def load(lane: Var) -> Stmt:
            start = lane // 16 * item.lanes
            source = pointer(inputs[0], "r", (lane % 16, start), (lane % 16, start + (item.lanes - 1)))
            return Evaluate(machine_call(name, own_registers(outputs[0], "w", lane, 1 if transposed else 0), source))

        return each_lane(load)

    def layout(i: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return item.columns_layout(i, j)[1:] if transposed else item.rows_layout(i, j)[2:]

    return declared(fragment, rule, f"{name}.{item.row}", [("fragment", layout)])


@cache
def _load_steps(item: WarpProduct) -> TensorIntrin:
    """Four matrices of 8 columns, 16 bytes of steps of each; thread t points out column t % 8 of matrix t // 8."""
    memory = te.placeholder((2 * COLUMNS, item.depth), str(item.column), name="memory")
    fragment = te.compute((2 * COLUMNS, item.depth), lambda j, k: memory[j, k], name="fragment")
    name = "cuda.ldmatrix.x4"

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def load(lane: Var) -> Stmt:
            column, start = lane // 16 * COLUMNS + lane % 8, lane // 8 % 2 * item.lanes
            source = pointer(inputs[0], "r", (column, start), (column, start + (item.lanes - 1)))
            return Evaluate(machine_call(name, own_registers(outputs[0], "w", lane, 1), source))

        return each_lane(load)

    layout = ("fragment", lambda j, k: item.steps_layout(j, k)[1:])
    return declared(fragment, rule, f"{name}.steps.{item.column}", [layout])


def declared(result: te.Tensor, rule: LowerRule, name: str, layouts: Sequence[tuple[str, Layout]]) -> TensorIntrin:
    """An intrinsic that computes a tensor from operands (by name) that lie as layouts say."""
    plain = te.create_prim_func([*result.op.inputs, result], "description")
    return declare(TensorIntrin(name, _arranged(plain, layouts), rule))
