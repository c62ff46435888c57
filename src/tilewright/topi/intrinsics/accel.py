"""The tensor processor's instructions as tensor intrinsics: products of tensors, and accumulators to results."""

from __future__ import annotations

from functools import cache

from tilewright import te
from tilewright.accel.config import AccelConfig
from tilewright.ir.build import cast, const, maximum
from tilewright.ir.dtype import HANDLE, INT32
from tilewright.ir.expr import Call, PrimExpr, StringImm
from tilewright.support.errors import UserError
from tilewright.te import reduction
from tilewright.tir import accel_instructions as accel
from tilewright.tir.stmt import Evaluate, Stmt, seq
from tilewright.tir.tensor_intrin import Operand, TensorIntrin
from tilewright.topi.fixed_point import PARAMETERS, Requantization, requantized


@cache
def product(config: AccelConfig) -> TensorIntrin:
    """`acc[row, column] += sum over k of inp[row, k] * wgt[column, k]`, of one tensor each."""
    rows, columns, depth = config.batch, config.block_out, config.block_in
    inp = te.placeholder((rows, depth), "int8", name="inp")
    wgt = te.placeholder((columns, depth), "int8", name="wgt")
    k = te.reduce_axis((0, depth), name="k")
    acc = te.compute(
        (rows, columns),
        lambda i, j: reduction.sum(cast(inp[i, k], INT32) * cast(wgt[j, k], INT32), [k]),
        name="acc",
    )

    def rule(inputs: list[Operand], outputs: list[Operand]) -> tuple[Stmt | None, ...]:
        left, right = (item.access_ptr("r").expression() for item in inputs)
        sizes = [const(size) for size in (rows, columns, depth)]
        total = outputs[0]
        update = Evaluate(accel.accel_call(accel.GEMM, total.access_ptr("rw").expression(), left, right, *sizes))
        reset = Evaluate(accel.accel_call(accel.RESET, total.access_ptr("w").expression(), const(rows * columns)))
        return seq(reset, update), reset, update

    return te.decl_tensor_intrin(acc.op, rule, name=f"accel.gemm.{rows}x{columns}x{depth}")


@cache
def greatest(config: AccelConfig, count: int) -> TensorIntrin:
    """The greatest of some tensors of accumulators, lane by lane."""
    rows, columns = config.batch, config.block_out
    taps = [te.placeholder((rows, columns), "int32", name=f"tap{number}") for number in range(count)]

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        best: PrimExpr = taps[0][i, j]
        for tap in taps[1:]:
            best = maximum(best, tap[i, j])
        return best

    out = te.compute((rows, columns), element, name="best")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        lanes, given = const(rows * columns), {item.name: item for item in inputs}
        target = outputs[0].access_ptr("rw").expression()
        # A copy is a sum with nothing; the others are compared with it.
        calls = [accel.accel_call(accel.RESET, outputs[0].access_ptr("w").expression(), lanes)]
        for number in range(count):
            source = given[f"tap{number}"].access_ptr("r").expression()
            calls.append(accel.accel_call(accel.ALU, StringImm("max" if number else "add"), target, source, lanes))
        return seq(*[Evaluate(call) for call in calls])

    return te.decl_tensor_intrin(out.op, rule, name=f"accel.greatest.{rows}x{columns}.{count}")


@cache
def epilogue(config: AccelConfig, form: Requantization) -> TensorIntrin:
    """One tensor of accumulators to results, as `topi/fixed_point.py` says."""
    rows, columns = config.batch, config.block_out
    acc = te.placeholder((rows, columns), "int32", name="acc")
    res = te.placeholder((rows, columns), "int8", name="res")
    words = [te.placeholder((columns,), "int32", name=name) for name in PARAMETERS]

    def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        return requantized(acc[i, j], [word[j] for word in words], res[i, j] if form.residual else None, form)

    out = te.compute((rows, columns), element, name="out")

    def rule(inputs: list[Operand], outputs: list[Operand]) -> Stmt:
        given = {item.name: item for item in inputs}
        numbers = [const(item) for item in (columns, rows, 1, form.offset, form.low, form.high)]
        pointers = [given[name].access_ptr("r").expression() for name in ("res", "acc") if name in given]
        # The words of a tensor of parameters are one after another, from the first to the last.
        first, last = given[PARAMETERS[0]][0], given[PARAMETERS[-1]][columns - 1]
        if first.buffer is not last.buffer:
            raise UserError("the parameters of a requantisation are not one tensor")
        pointers.append(Call("access_ptr", (StringImm("r"), first, last), HANDLE))
        name = accel.EPI_RESIDUAL if form.residual else accel.EPI
        return Evaluate(accel.accel_call(name, outputs[0].access_ptr("w").expression(), *pointers, *numbers))

    label = "residual" if form.residual else "plain"
    return te.decl_tensor_intrin(
        out.op, rule, name=f"accel.epi.{rows}x{columns}.{label}.{form.offset}.{form.low}.{form.high}"
    )
