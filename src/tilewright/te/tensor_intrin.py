"""Declaring tensor intrinsics: what an instruction computes, as a tensor expression, and how it is called.

w, x = te.placeholder((8, 8)), te.placeholder((8, 8))
k = te.reduce_axis((0, 8))
y = te.compute((8, 8), lambda i, j: te.sum(w[i, k] * x[j, k], axis=k))

def gemm_intrin_lower(inputs, outputs):
    ww_ptr, xx_ptr = inputs[0].access_ptr("r"), inputs[1].access_ptr("r")
    zz_ptr = outputs[0].access_ptr("w")
    compute = te.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
    reset = te.hardware_intrin("fill_zero", zz_ptr)
    update = te.hardware_intrin("fuse_gemm8x8_add", ww_ptr, xx_ptr, zz_ptr)
    return compute, reset, update

gemm8x8 = te.decl_tensor_intrin(y.op, gemm_intrin_lower)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.structural import structural_equal
from tilewright.support.errors import UserError
from tilewright.te.program import create_prim_func
from tilewright.te.tensor import ComputeOp, Operation, Tensor
from tilewright.tir.tensor_intrin import (
    LowerRule,
    TensorIntrin,
    declare,
    find_intrinsic,
    hardware_intrin,
    implement_intrin,
    is_declared,
)

__all__ = ["decl_tensor_intrin", "hardware_intrin", "implement_intrin"]


def decl_tensor_intrin(
    op: Operation,
    lower_rule: LowerRule,
    name: str | None = None,
    strides: Mapping[Tensor, Sequence[int | None]] | None = None,
) -> TensorIntrin:
    """Declare an intrinsic: `op` says what it computes, `lower_rule(inputs, outputs)` how it is called.

    The rule gives the computation of a whole tile; for a reduction it may give (compute, reset, update), so that the
    reduction can go on outside the tile. It gives statements on the operands (`inputs[0][i, k]`, `outputs[0].store`) or
    instructions on their addresses (`access_ptr`, `hardware_intrin`). Instructions called by address rely on packed
    tiles, unless `strides` says otherwise for a tensor: None leaves a stride open, and the rule passes
    `inputs[n].strides` along.

    The name (the rule's own by default) is what traces record and `tensorize(loop, "name")` finds.
    """
    if not isinstance(op, ComputeOp):
        raise UserError(f"decl_tensor_intrin: {op!r} is not a computation", hint="pass y.op of a te.compute tensor y")
    if len(op.outputs) != 1:
        raise UserError(f"decl_tensor_intrin: {op.name} computes {len(op.outputs)} tensors at once, not one")
    (output,) = op.outputs
    if any(not isinstance(tensor, Tensor) or tensor.op.inputs for tensor in op.inputs):
        raise UserError(f"decl_tensor_intrin: {op.name} must compute from placeholders alone")
    description = create_prim_func([*op.inputs, output], "description")
    for buffer in description.buffers:
        if buffer.static_shape is None:
            raise UserError(f"decl_tensor_intrin: the shape of {buffer.name} must be constant")
    layout = {
        buffer.name: tuple((strides or {})[tensor])
        for buffer, tensor in zip(description.buffers, (*op.inputs, output), strict=True)
        if tensor in (strides or {})
    }
    chosen: str = name or str(getattr(lower_rule, "__name__", op.name))
    if name is None:
        base, number = chosen, 1
        while is_declared(chosen) and not structural_equal(find_intrinsic(chosen).description, description):
            chosen, number = f"{base}_{number}", number + 1
    return declare(TensorIntrin(chosen, description, lower_rule, layout))
