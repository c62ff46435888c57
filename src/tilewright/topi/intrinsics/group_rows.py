"""Products of warp groups (Hopper) whose rows' operand is in registers, complete when the instruction is.

    c[i, j] += sum over k of wide(a[i, k]) * wide(b[k, j])         64 rows, up to 256 columns, 16 steps and more

`a` and `c` lie as fragments of four warps do (`tensor_core.py`), so that sums of one product are operands of the next
one; warps are `threadIdx.y`. `b` is in shared memory, in swizzled rows of 128 bytes: a row for each column (`turned`,
64 steps), or panels of 64 columns, `[j // 64, k, j % 64]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright import te
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import FLOAT32, INDEX, DataType
from tilewright.ir.expr import ZERO, ExprLike, PrimExpr, Var
from tilewright.te import reduction
from tilewright.tir.machine import machine_call
from tilewright.tir.row_instructions import held_product
from tilewright.tir.stmt import Evaluate, For, LoopKind, Stmt
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.topi.intrinsics.tensor_core import WarpProduct, declared, each_lane, pointer

ROWS = 64
WARPS = 4
PANEL = 64
"""Elements of 16 bits of a swizzled row."""


@dataclass(frozen=True, slots=True)
class HeldProduct:
    """A product of a warp group: 64 rows, `columns` columns, `steps` steps."""

    dtype: DataType
    columns: int
    steps: int
    turned: bool
    fresh: bool = False
    """Whether all steps of the sums are in one product, which they begin with."""

    @property
    def instruction(self) -> str:
        """The name of the instruction."""
        return held_product(self.dtype.name, self.turned, self.columns, self.steps, self.fresh)

    def columns_layout(self, *index: PrimExpr) -> tuple[PrimExpr, ...]:
        """The second operand, `[..., j, k]` if it is turned and else `[..., k, j]`, in swizzled rows."""
        *outer, first, second = index
        return (*outer, second // PANEL, first, second % PANEL)

    @property
    def multiply(self) -> TensorIntrin:
        """The intrinsic that adds a product."""
        return _multiply(self)


@cache
def _multiply(item: HeldProduct) -> TensorIntrin:
    warp_product = WarpProduct(item.dtype, item.dtype)
    a = te.placeholder((ROWS, item.steps), str(item.dtype), name="a")
    shape = (item.columns, item.steps) if item.turned else (item.steps, item.columns)
    b = te.placeholder(shape, str(item.dtype), name="b")
    k = te.reduce_axis((0, item.steps), name="k")

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        right = b[j, k] if item.turned else b[k, j]
        return reduction.sum(cast(a[i, k], FLOAT32) * cast(right, FLOAT32), [k])

    c = te.compute((ROWS, item.columns), element, name="c")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right, total = (*inputs, outputs[0])
        warp = Var("warp", INDEX)

        def product(lane: Var) -> Stmt:
            mode = "w" if item.fresh else "rw"
            arguments = [_registers(total, mode, warp, lane), _registers(left, "r", warp, lane)]
            last = [const(dim - 1) for dim in right.shape]
            arguments.append(pointer(right, "r", (0,) * len(last), tuple(last)))
            if not item.turned:
                arguments.append(right.strides[0] * item.dtype.itemsize)
            return Evaluate(machine_call(item.instruction, *arguments))

        body = For(warp, ZERO, const(WARPS), LoopKind.THREAD, each_lane(product), "threadIdx.y")
        return (body, None, None) if item.fresh else (None, None, body)

    def rows(i: PrimExpr, k: PrimExpr) -> tuple[PrimExpr, ...]:
        return warp_product.rows_layout(i, k)

    def sums(i: PrimExpr, j: PrimExpr) -> tuple[PrimExpr, ...]:
        return warp_product.sums_layout(i, j)

    def columns(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        return item.columns_layout(*index)[1:] if item.turned else item.columns_layout(*index)

    return declared(c, rule, item.instruction, [("a", rows), ("b", columns), ("c", sums)])


def _registers(operand: Operand, mode: str, warp: Var, lane: Var) -> PrimExpr:
    """The registers of a thread: warps are counted by the first dimension of a fragment, threads by the third."""
    first: list[ExprLike] = [0] * len(operand.shape)
    last: list[ExprLike] = [dim - 1 for dim in operand.shape]
    first[0] = last[0] = warp
    first[2] = last[2] = lane
    return pointer(operand, mode, tuple(first), tuple(last))
