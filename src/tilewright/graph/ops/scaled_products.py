"""Products of 8-bit floats with scales: one for a tensor, one a row or column, or one for each block of both operands.

Models in 8-bit floats have a scale for 128 neighbours of an activation's row and for 128 x 128 elements of a weight.
The pass `scaled_products` spells these out for processors that have no better form.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import agree, constant_dim, require_positive, require_rank, tensors
from tilewright.graph.ops.quantize import product_type
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("a", "b", "scale_a", "scale_b")


@node()
class ScaledMatmulAttributes(Attributes):
    """Rows of `b`, and steps of the reduction, that share a scale, where there is more than one."""

    block_columns: int = 128
    block_depth: int = 128


def spread_scales(scale: Array, block: int, count: int, axis: int) -> Array:
    """Scales along an axis for each of `count` elements: of one, of each, or of each block."""
    if scale.shape[axis] == count:
        return scale
    spread = np.repeat(scale, count if scale.shape[axis] == 1 else block, axis=axis)
    return spread[(slice(None),) * axis + (slice(count),)]


def _scaled_matmul(args: list[Array], attributes: ScaledMatmulAttributes) -> Array:
    a, b, scale_a, scale_b = args
    depth = a.shape[1]
    block = max(1, depth) if max(scale_a.shape[1], scale_b.shape[1]) == 1 else attributes.block_depth
    count = -(-depth // block)
    rows = spread_scales(spread_scales(scale_a, 1, len(a), 0), 1, count, 1)
    columns = spread_scales(spread_scales(scale_b, attributes.block_columns, len(b), 0), 1, count, 1)
    total = np.zeros((len(a), len(b)), np.float32)
    with np.errstate(all="ignore"):
        for number in range(count):
            part = slice(number * block, (number + 1) * block)
            sums = (a[:, part].astype(np.float64) @ b[:, part].astype(np.float64).T).astype(np.float32)
            total += sums * (rows[:, number, np.newaxis] * columns[np.newaxis, :, number])
    return total


@operator(
    "qnn.scaled_matmul",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_scaled_matmul,
    attributes=ScaledMatmulAttributes,
)
def scaled_matmul(types: Types, attributes: ScaledMatmulAttributes) -> Type:
    """The product of 8-bit floats `a` (rows, depth) and `b` (columns, depth), scaled, in float32.

    `scale_a` is (rows or 1, blocks of the depth or 1), `scale_b` (columns, their blocks or 1, blocks of the depth or
    1); the last block of an axis may be a part. The products of a block are added up in float32, scaled by `scale_a *
    scale_b`, and added to those of other blocks.
    """
    a, b, scale_a, scale_b = tensors(types, _NAMES)
    if product_type(a.dtype, b.dtype) is not FLOAT32:
        raise UserError(f"the operands must be 8-bit floats, they are {a.dtype} and {b.dtype}")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype is not FLOAT32:
            raise UserError(f"{name} must be float32, it is {scale.dtype}")
        if scale.shape is not None:
            require_rank(scale.shape, 2, name)
    require_positive((attributes.block_columns, attributes.block_depth), "the blocks")
    if a.shape is None or b.shape is None:
        return TensorType((None, None), FLOAT32)
    require_rank(a.shape, 2, "a")
    require_rank(b.shape, 2, "b")
    agree(a.shape[1], b.shape[1], "the inner dimensions of a and b")
    _check_scale(scale_a, 0, a, None, "scale_a")
    _check_scale(scale_a, 1, a, attributes.block_depth, "scale_a")
    _check_scale(scale_b, 0, b, attributes.block_columns, "scale_b")
    _check_scale(scale_b, 1, b, attributes.block_depth, "scale_b")
    return TensorType((a.shape[0], b.shape[0]), FLOAT32)


def _check_scale(scale: TensorType, axis: int, operand: TensorType, block: int | None, name: str) -> None:
    """Require one scale, one for each element, or one for each block, along an axis."""
    if scale.shape is None or operand.shape is None:
        return
    given, size = constant_dim(scale.shape[axis]), constant_dim(operand.shape[axis])
    if given is None or size is None or given == 1:
        return
    wanted = [-(-size // block)] if block is not None else []
    wanted += [size] if axis == 0 else []
    if given not in wanted:
        raise UserError(
            f"{name} has {given} scales along dimension {axis}, of {size} elements",
            hint=f"give 1 or {' or '.join(map(str, wanted))}",
        )
