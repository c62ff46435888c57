"""Products of warp groups (Hopper): four warps multiply tiles that lie in shared memory, and go on meanwhile.

    c[i, j] += sum over k of wide(a[i, k]) * wide(b[k, j])         64 rows, up to 256 columns, 64 steps

Both operands are read from shared memory in rows of 128 bytes, swizzled (`storage_swizzle`): `a` in rows of steps, `b`
in panels of 64 columns, `[j // 64, k, j % 64]`. The sums are fragments, as those of `tensor_core.py`. Products are not
done when `multiply` is: those of one call may go on during the next, and `finish` waits for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INDEX, DataType
from tilewright.ir.expr import ZERO, ExprLike, PrimExpr, Var
from tilewright.target import Target
from tilewright.te import reduction
from tilewright.tir.machine import find_instruction, machine_call
from tilewright.tir.stmt import Evaluate, For, LoopKind, Stmt, seq
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.tir.warp_instructions import GROUP, GROUP_PRODUCTS
from tilewright.topi.intrinsics.tensor_core import declared, own_registers, pointer

ROWS = 64
STEPS = 64
PANEL = 64
_DEPTH = 16
"""Steps of one instruction."""


@dataclass(frozen=True, slots=True)
class GroupProduct:
    """A product of a warp group: 64 rows, `columns` columns, 64 steps."""

    dtype: DataType
    columns: int

    def columns_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """The second operand [..., k, j] in panels."""
        *outer, k, j = index
        return (*outer, j // PANEL, k, j % PANEL)

    def sums_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Sums [..., i, j] as [..., tile, tile, thread, eight columns, half of the rows, element]."""
        *outer, i, j = index
        thread = i % ROWS // 16 * 32 + i % 8 * 4 + j % 8 // 2
        return (*outer, i // ROWS, j // self.columns, thread, j % self.columns // 8, i % 16 // 8, j % 2)

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds a product of tiles; the products of the call before are done then."""
        return _multiply(self)

    @property
    def finish(self) -> TensorIntrin:
        """The intrinsic that copies sums when they are complete."""
        return _finish(self)


def group_product(target: Target, dtype: DataType, columns: int) -> GroupProduct | None:
    """The product that a GPU has, of so many columns."""
    name = GROUP_PRODUCTS.get(dtype.name)
    if name is None or not find_instruction(f"{name}.n{columns}").is_on(target):
        return None
    return GroupProduct(dtype, columns)


def _each_thread(body: list[Stmt], thread: Var) -> Stmt:
    return For(thread, ZERO, const(GROUP), LoopKind.THREAD, seq(*body), "threadIdx.x")


@cache
def _multiply(item: GroupProduct) -> TensorIntrin:
    a = te.placeholder((ROWS, STEPS), str(item.dtype), name="a")
    b = te.placeholder((STEPS, item.columns), str(item.dtype), name="b")
    k = te.reduce_axis((0, STEPS), name="k")
    c = te.compute(
        (ROWS, item.columns),
        lambda i, j: reduction.sum(cast(a[i, k], FLOAT32) * cast(b[k, j], FLOAT32), [k]),
        name="c",
    )
    name = f"{GROUP_PRODUCTS[item.dtype.name]}.n{item.columns}"

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right, total = (*inputs, outputs[0])
        thread = Var("thread", INDEX)
        steps: list[Stmt] = [Evaluate(machine_call("cuda.wgmma.fence"))]
        last = item.columns // PANEL - 1
        distance = right.strides[0] * item.dtype.itemsize
        for start in range(0, STEPS, _DEPTH):
            end = start + _DEPTH - 1
            steps.append(
                Evaluate(
                    machine_call(
                        name,
                        own_registers(total, "rw", thread, 0),
                        pointer(left, "r", (0, start), (ROWS - 1, end)),
                        pointer(right, "r", (0, start, 0), (last, end, PANEL - 1)),
                        distance,
                    )
                )
            )
        steps += [Evaluate(machine_call("cuda.wgmma.commit")), Evaluate(machine_call("cuda.wgmma.wait.1"))]
        return None, _zeros(total, item), _each_thread(steps, thread)

    layouts = [("b", item.columns_layout), ("c", lambda i, j: item.sums_layout(i, j)[2:])]
    return declared(c, rule, name, layouts)


def _registers(item: GroupProduct) -> tuple[list[Var], list[int]]:
    return [Var(name, INDEX) for name in ("eight", "half", "part")], [item.columns // 8, 2, 2]


def _zeros(total: Operand, item: GroupProduct) -> Stmt:
    thread = Var("thread", INDEX)
    places, extents = _registers(item)
    body: Stmt = total.store((thread, *places), const(0.0, FLOAT32))
    for var, extent in reversed(list(zip(places, extents, strict=True))):
        body = For(var, ZERO, const(extent), LoopKind.UNROLLED, body)
    return _each_thread([body], thread)


@cache
def _finish(item: GroupProduct) -> TensorIntrin:
    shape = (ROWS, item.columns)
    sums = te.placeholder(shape, "float32", name="sums")
    done = te.compute(shape, lambda i, j: sums[i, j], name="done")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        thread = Var("thread", INDEX)
        places, extents = _registers(item)
        place: tuple[ExprLike, ...] = (thread, *places)
        body: Stmt = outputs[0].store(place, inputs[0][place])
        for var, extent in reversed(list(zip(places, extents, strict=True))):
            body = For(var, ZERO, const(extent), LoopKind.UNROLLED, body)
        return _each_thread([Evaluate(machine_call("cuda.wgmma.wait.0")), body], thread)

    def layout(i: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return item.sums_layout(i, j)[2:]

    return declared(done, rule, f"cuda.wgmma.finish.n{item.columns}", [("sums", layout), ("done", layout)])
