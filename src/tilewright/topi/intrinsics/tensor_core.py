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
from tilewright.tir.stmt import Evaluate, For, LoopKind, Stmt, seq
from tilewright.tir.tensor_intrin import LowerRule, Operand, TensorIntrin, declare
from tilewright.tir.warp_instructions import PRODUCTS, ROUNDED, WARP

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
    vector: int = 2
    """Neighbouring columns that a thread has: two of each eight as the instruction has it, or 4, 8 or 16 of so many
    instructions together where the columns' operand has a row of steps for each column (in shared memory, as the
    rows' operand has): the rows then are in an order that makes neighbours of them."""
    across: bool = False
    """Whether the rows' operand has a row of its rows for each step in shared memory, as gradients of weights have it
    (words only: there is no instruction that fills fragments of them)."""
    rounded: bool = False
    """Whether operands of words were rounded to tf32 before; the product rounds them itself otherwise."""

    @property
    def steps_last(self) -> bool:
        """Whether the columns' operand has rows of steps in shared memory."""
        return self.vector > 2

    @property
    def columns(self) -> int:
        """Columns of `multiply`: of one instruction, or of several."""
        return 4 * self.vector

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
        """A columns' operand [..., k, j] as [..., tile of steps, of columns, thread, half of the steps, element].

        The eight columns that are one instruction's are counted after the thread, where they are of several.
        """
        *outer, k, j = index
        half = self.depth // 2
        eight = [j % self.vector // 2] if self.steps_last else []
        thread = self._place(j) * 4 + k % half // self.group
        return (*outer, k // self.depth, j // self.columns, thread, *eight, k % self.depth // half, k % self.group)

    def _place(self, j: PrimExpr) -> PrimExpr:
        """Which of its instruction's eight columns a column is."""
        return j % self.columns // self.vector * 2 + j % 2 if self.steps_last else j % COLUMNS

    def shared_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """A columns' operand [..., k, j] in rows of steps, those of an instruction one after the other."""
        *outer, k, j = index
        vector = self.vector
        return (*outer, j // self.columns, j % vector // 2, j % self.columns // vector, j % 2, k)

    def sums_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Sums [..., i, j] as [..., tile, tile, thread, half of the rows, element]; the eight columns as above."""
        *outer, i, j = index
        eight = [j % self.vector // 2] if self.steps_last else []
        thread = i % 8 * 4 + j % self.columns // self.vector
        return (*outer, i // ROWS, j // self.columns, thread, *eight, i % ROWS // 8, j % 2)

    def vectors_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """What belongs to sums [..., i, j] as [..., tile, tile, thread, half of the rows, neighbour]."""
        *outer, i, j = index
        thread = i % 8 * 4 + j % self.columns // self.vector
        return (*outer, i // ROWS, j // self.columns, thread, i % ROWS // 8, j % self.vector)

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds the product of two fragments to a fragment of sums."""
        return _multiply(self)

    @staticmethod
    def across_layout(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        """A rows' operand [..., i, k] in shared memory, in rows of rows."""
        *outer, i, k = index
        return (*outer, k, i)

    @property
    def load_rows(self) -> TensorIntrin | None:
        """The intrinsic that fills a fragment of 16 rows from shared memory; there is one for rows of steps."""
        return None if self.across else _load(self, transposed=False)

    @property
    def load_columns(self) -> TensorIntrin | None:
        """The intrinsic that fills the fragments of 16 columns from shared memory.

        There is one for rows of steps, and for 16-bit types for rows of columns too.
        """
        if self.steps_last:
            return _load_steps(self)
        return _load(self, transposed=True) if self.row.bits == 16 else None


def warp_product(
    target: Target, row: DataType, column: DataType, vector: int = 2, across: bool = False
) -> WarpProduct | None:
    """The product that a GPU has for two types of operands; float32 means tf32, which the caller must have allowed."""
    name = PRODUCTS.get((row.name, column.name))
    if name is None or not find_instruction(name).is_on(target) or (across and row.bits != 32):
        return None
    return WarpProduct(row, column, vector, across)


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
    b = te.placeholder((item.depth, item.columns), str(item.column), name="b")
    k = te.reduce_axis((0, item.depth), name="k")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        left, right = (x if x.dtype is item.total else cast(x, item.total) for x in (a[i, k], b[k, j]))
        return reduction.sum(left * right, [k])

    c = te.compute((ROWS, item.columns), element, name="c")
    name = PRODUCTS[item.row.name, item.column.name] + (ROUNDED if item.rounded else "")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right, total = (*inputs, outputs[0])

        def product(lane: Var) -> Stmt:
            rows = own_registers(left, "r", lane, 0)
            sums, columns = (_registers_of_eights(x, mode, lane, item) for x, mode in ((total, "rw"), (right, "r")))
            calls = [machine_call(name, c, rows, b) for c, b in zip(sums, columns, strict=True)]
            return seq(*map(Evaluate, calls))

        def zero(lane: Var) -> Stmt:
            places = [Var(text, INDEX) for text in ("eight", "half", "part")[-len(total.shape) + 1 :]]
            body: Stmt = total.store((lane, *places), const(0, item.total))
            for place, extent in reversed(list(zip(places, total.shape[1:], strict=True))):
                body = For(place, ZERO, const(extent), LoopKind.UNROLLED, body)
            return body

        return None, each_lane(zero), each_lane(product)

    layouts = [
        ("a", lambda i, k: item.rows_layout(i, k)[2:]),
        ("b", lambda k, j: item.columns_layout(k, j)[2:]),
        ("c", lambda i, j: item.sums_layout(i, j)[2:]),
    ]
    several = f".x{item.vector // 2}" if item.steps_last else ""
    return declared(c, rule, f"{name}.{item.row}{several}", layouts)


def _registers_of_eights(operand: Operand, mode: str, lane: Var, item: WarpProduct) -> list[PrimExpr]:
    """The registers of a thread that each instruction of a product has."""
    if not item.steps_last:
        return [own_registers(operand, mode, lane, 0)]
    *_, halves, elements = operand.shape
    ends = [(lane, eight, halves - 1, elements - 1) for eight in range(item.vector // 2)]
    return [pointer(operand, mode, (*end[:2], 0, 0), end) for end in ends]


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
    """Four matrices of 8 columns, 16 bytes of steps of each, at a time; thread t points out column t % 8 of t // 8."""
    shape = (item.depth, item.columns)
    memory = te.placeholder(shape, str(item.column), name="memory")
    fragment = te.compute(shape, lambda k, j: memory[k, j], name="fragment")
    name = "cuda.ldmatrix.x4"

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        def load(lane: Var) -> Stmt:
            start, calls = lane // 8 % 2 * item.lanes, []
            for eight in range(0, item.vector // 2, 2):
                row = (0, lane // 16 + eight, lane % 8 // 2, lane % 2)
                source = pointer(inputs[0], "r", (*row, start), (*row, start + (item.lanes - 1)))
                end = (lane, eight + 1, 1, item.group - 1)
                registers = pointer(outputs[0], "w", (lane, eight, 0, 0), end)
                calls.append(Evaluate(machine_call(name, registers, source)))
            return seq(*calls)

        return each_lane(load)

    layouts = [("memory", item.shared_layout), ("fragment", lambda k, j: item.columns_layout(k, j)[2:])]
    return declared(fragment, rule, f"{name}.steps.{item.column}.{item.vector}", layouts)


def declared(result: te.Tensor, rule: LowerRule, name: str, layouts: Sequence[tuple[str, Layout]]) -> TensorIntrin:
    """An intrinsic that computes a tensor from operands (by name) that lie as layouts say."""
    plain = te.create_prim_func([*result.op.inputs, result], "description")
    return declare(TensorIntrin(name, _arranged(plain, layouts), rule))
