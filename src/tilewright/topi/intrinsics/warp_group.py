"""Products of warp groups (Hopper): four warps multiply tiles that lie in shared memory, and go on meanwhile.

    c[i, j] += sum over k of wide(a[i, k]) * wide(b[k, j])         64 rows, up to 256 columns, 128 bytes of steps

Both operands are read from shared memory in rows of 128 bytes, swizzled (`storage_swizzle`): in rows of steps, one for
each row of `a` and each column of `b`. Types of 16 bits may lie across instead, in panels of 64 rows or 64 columns:
`a` as `[i // 64, k, i % 64]`, `b` as `[j // 64, k, j % 64]`, for operands whose steps are no neighbours. Sums of
bytes are int32, and exact; those of 8-bit floats lose digits inside the instruction (it keeps some 14 bits). The sums
are fragments, as those of `tensor_core.py`. Products are not done when `multiply` is: those of one call may go on
during the next, and `finish` waits for all. float32 means tf32: the low bits of operands are
ignored, so that operands must have been rounded (`graph/passes/round_operands.py`).

Where each column has a row, the rows are in an order that gives every thread 4, 8 or 16 neighbouring columns, so
that it reads and writes vectors in epilogues: the instruction gives it the columns 2 q, 2 q + 1 of each eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INDEX, INT32, DataType
from tilewright.ir.expr import ZERO, ExprLike, PrimExpr, Var
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.machine import find_instruction, machine_call
from tilewright.tir.stmt import Evaluate, For, LoopKind, Stmt, seq
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.tir.warp_instructions import GROUP, GROUP_COLUMNS, GROUP_PANELS, GROUP_PRODUCTS, IN_PANELS, PACKED
from tilewright.topi.intrinsics.tensor_core import declared, own_registers, pointer

ROWS = 64
PANEL = 64
_ROW_BYTES = 128
_STEP_BYTES = 32
"""Bytes of steps of one instruction."""


@dataclass(frozen=True, slots=True)
class GroupProduct:
    """A product of a warp group: 64 rows, `columns` columns, 128 bytes of steps."""

    dtype: DataType
    """The type of the first operand."""
    columns: int
    panels: bool = False
    """Whether the second operand lies in panels of columns, not in rows of steps."""
    column: DataType | None = None
    """The type of the second operand, if it is another one."""
    across: bool = False
    """Whether the first operand lies in panels of rows, not in rows of steps."""
    neighbours: int = 4
    """Neighbouring columns that a thread has of four times as many, where each has a row: 4, 8 or 16."""
    packed: bool = False
    """Whether rows of the second operand are not swizzled but in pieces: eight of them, 16 bytes of each."""

    @property
    def total(self) -> DataType:
        """The type of the sums."""
        return FLOAT32 if self.dtype.is_float else INT32

    @property
    def second(self) -> DataType:
        """The type of the second operand."""
        return self.column or self.dtype

    @property
    def steps(self) -> int:
        """Steps of the reduction."""
        return _ROW_BYTES // self.dtype.itemsize

    @property
    def lanes(self) -> int:
        """Elements of 16 bytes, which one thread copies at once."""
        return 16 // self.dtype.itemsize

    @property
    def vector(self) -> int:
        """Neighbouring columns that a thread has."""
        return 2 if self.panels else self.neighbours

    @property
    def eights(self) -> int:
        """Groups of eight columns whose order gives a thread its neighbours: it has two of each."""
        return self.vector // 2

    @property
    def instruction(self) -> str:
        """The name of the instruction."""
        name = _instruction(self.dtype, self.second, self.columns, self.panels, self.across)
        return name.replace(f".n{self.columns}", f"{PACKED}.n{self.columns}") if self.packed else name

    @property
    def sums(self) -> str:
        """What the names of instructions on sums end with."""
        return f"{'' if self.total is FLOAT32 else 's32.'}n{self.columns}"

    def rows_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """The first operand [..., i, k] in panels, or as it is: in rows of steps."""
        *outer, i, k = index
        return (*outer, i // ROWS, k, i % ROWS) if self.across else index

    def columns_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """The second operand [..., k, j] in panels, or in rows of steps."""
        *outer, k, j = index
        if self.panels:
            return (*outer, j // PANEL, k, j % PANEL)
        span, vector = 8 * self.eights, self.vector
        if self.packed:
            piece = (j // span, j % vector // 2, k % self.steps // self.lanes)
            return (*outer, k // self.steps, *piece, j % span // vector, j % 2, k % self.lanes)
        return (*outer, j // span, j % vector // 2, j % span // vector, j % 2, k)

    def sums_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Sums [..., i, j] as [..., tile, tile, thread, eight columns, half of the rows, element]."""
        *outer, i, j = index
        place = j % self.columns
        span, vector = 8 * self.eights, self.vector
        quarter, eight = j % span // vector, place // span * self.eights + j % vector // 2
        thread = i % ROWS // 16 * 32 + i % 8 * 4 + quarter
        return (*outer, i // ROWS, j // self.columns, thread, eight, i % 16 // 8, j % 2)

    def vectors_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """What belongs to sums [..., i, j] as [..., tile, tile, thread, vector, half of the rows, neighbour]."""
        *outer, i, j = index
        span = 4 * self.vector
        thread = i % ROWS // 16 * 32 + i % 8 * 4 + j % span // self.vector
        vector = j % self.columns // span
        return (*outer, i // ROWS, j // self.columns, thread, vector, i % 16 // 8, j % self.vector)

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds a product of tiles; the products of the call before are done then."""
        return _multiply(self)

    @property
    def finish(self) -> TensorIntrin:
        """The intrinsic that copies sums when they are complete."""
        return _finish(self)


def _instruction(row: DataType, column: DataType, columns: int, panels: bool, across: bool) -> str:
    order = f"{'across.' if across else ''}{'panels.' if panels else ''}"
    return f"{GROUP_PRODUCTS[row.name, column.name]}.{order}n{columns}"


def group_product(
    target: Target, row: DataType, column: DataType, columns: int, panels: bool = False, across: bool = False
) -> GroupProduct | None:
    """The product that a GPU has, of so many columns; float32 means tf32, which the caller must have allowed."""
    if (row.name, column.name) not in GROUP_PRODUCTS or columns not in (GROUP_PANELS if panels else GROUP_COLUMNS):
        return None
    if (panels or across) and row.name not in IN_PANELS:
        return None
    instruction = find_instruction(_instruction(row, column, columns, panels, across))
    return GroupProduct(row, columns, panels, column, across) if instruction.is_on(target) else None


def _each_thread(body: list[Stmt], thread: Var) -> Stmt:
    return For(thread, ZERO, const(GROUP), LoopKind.THREAD, seq(*body), "threadIdx.x")


@cache
def _multiply(item: GroupProduct) -> TensorIntrin:
    steps = item.steps
    a = te.placeholder((ROWS, steps), str(item.dtype), name="a")
    b = te.placeholder((steps, item.columns), str(item.second), name="b")
    k = te.reduce_axis((0, steps), name="k")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        left, right = (x if x.dtype is item.total else cast(x, item.total) for x in (a[i, k], b[k, j]))
        return reduction.sum(left * right, [k])

    c = te.compute((ROWS, item.columns), element, name="c")
    depth = _STEP_BYTES // item.dtype.itemsize

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right, total = (*inputs, outputs[0])
        thread = Var("thread", INDEX)
        sums = own_registers(total, "rw", thread, 0)
        body: list[Stmt] = [Evaluate(machine_call(f"cuda.wgmma.fence.{item.sums}", sums))]
        for start in range(0, steps, depth):
            end = start + depth - 1
            ends = ((start, 0), (end, ROWS - 1)) if item.across else ((0, start), (ROWS - 1, end))
            arguments = [sums, pointer(left, "r", *ends)]
            if item.panels:
                last = item.columns // PANEL - 1
                distance = right.strides[0] * item.dtype.itemsize
                arguments += [pointer(right, "r", (0, start, 0), (last, end, PANEL - 1)), distance]
            else:
                arguments.append(_rows_pointer(item, right, start, end))
            body.append(Evaluate(machine_call(item.instruction, *arguments)))
        body += [Evaluate(machine_call("cuda.wgmma.commit")), Evaluate(machine_call("cuda.wgmma.wait.1"))]
        return None, _zeros(total, item), _each_thread(body, thread)

    layouts = [
        ("a", lambda i, k: item.rows_layout(i, k)[-2:]),
        ("b", lambda k, j: item.columns_layout(k, j)[1 if item.packed else 0 :]),
        ("c", lambda i, j: item.sums_layout(i, j)[2:]),
    ]
    return declared(c, rule, f"{item.instruction}.x{item.vector}", layouts)


def _rows_pointer(item: GroupProduct, right: Operand, start: int, end: int) -> PrimExpr:
    """The steps from `start` to `end` of the second operand, in rows."""
    last, eights = item.columns // (8 * item.eights) - 1, item.eights - 1
    if item.packed:
        places = (0, 0, start // item.lanes, 0, 0, 0), (last, eights, end // item.lanes, 3, 1, item.lanes - 1)
        return pointer(right, "r", *places)
    return pointer(right, "r", (0, 0, 0, 0, start), (last, eights, 3, 1, end))


def _registers(item: GroupProduct) -> tuple[list[Var], list[int]]:
    return [Var(name, INDEX) for name in ("eight", "half", "part")], [item.columns // 8, 2, 2]


def _zeros(total: Operand, item: GroupProduct) -> Stmt:
    thread = Var("thread", INDEX)
    places, extents = _registers(item)
    body: Stmt = total.store((thread, *places), const(0, item.total))
    for var, extent in reversed(list(zip(places, extents, strict=True))):
        body = For(var, ZERO, const(extent), LoopKind.UNROLLED, body)
    return _each_thread([body], thread)


@cache
def _finish(item: GroupProduct) -> TensorIntrin:
    shape = (ROWS, item.columns)
    sums = te.placeholder(shape, str(item.total), name="sums")
    done = te.compute(shape, lambda i, j: sums[i, j], name="done")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        thread = Var("thread", INDEX)
        places, extents = _registers(item)
        place: tuple[ExprLike, ...] = (thread, *places)
        body: Stmt = outputs[0].store(place, inputs[0][place])
        for var, extent in reversed(list(zip(places, extents, strict=True))):
            body = For(var, ZERO, const(extent), LoopKind.UNROLLED, body)
        wait = machine_call(f"cuda.wgmma.finish.{item.sums}", own_registers(inputs[0], "rw", thread, 0))
        return _each_thread([Evaluate(wait), body], thread)

    def layout(i: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return item.sums_layout(i, j)[2:]

    name = f"cuda.wgmma.finish.x{item.vector}.{item.sums}"
    return declared(done, rule, name, [("sums", layout), ("done", layout)])
