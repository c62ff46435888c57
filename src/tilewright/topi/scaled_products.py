"""Products of 8-bit floats with scales of blocks: the sums of each block, and the sum of those, each with its scale."""

from __future__ import annotations

from typing import Any

from tilewright.graph.ops.scaled_products import ScaledMatmulAttributes
from tilewright.ir.build import as_expr, cast, lt
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.registry import compute_of, result_shape


@compute_of("qnn.scaled_matmul")
def _scaled_matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    assert isinstance(attributes, ScaledMatmulAttributes)
    a, b, scale_a, scale_b = inputs
    shape, depth = result_shape(result), a.shape[1]
    is_whole = all(const_value(scale.shape[1]) == 1 for scale in (scale_a, scale_b))
    block = depth if is_whole else attributes.block_depth
    blocks = (depth + (block - 1)) // block
    k, number = reduce_axis((0, block), "k"), reduce_axis((0, blocks), "block")
    has_part = const_value(depth % block) != 0

    def sum_of_block(t: ExprLike, i: ExprLike, j: ExprLike) -> PrimExpr:
        place = as_expr(t) * block + k
        value = cast(a[i, place], FLOAT32) * cast(b[j, place], FLOAT32)
        return reduction.sum(value, [k], lt(place, depth)) if has_part else reduction.sum(value, [k])

    sums = compute((blocks, *shape), sum_of_block, "scaled_sums", ANCHOR.entry(Anchor.SCALED))
    across = 1 if const_value(scale_b.shape[0] - shape[1]) == 0 else attributes.block_columns

    def total(i: ExprLike, j: ExprLike) -> PrimExpr:
        scale = _scale_at(scale_a, i, number) * _scale_at(scale_b, as_expr(j) // across, number)
        return reduction.sum(sums[number, i, j] * scale, [number])

    return compute(shape, total, "scaled_matmul", ANCHOR.entry(Anchor.SCALED_TOTAL))


def _scale_at(scale: Tensor, *index: ExprLike) -> PrimExpr:
    """The scale at a place; one for a whole axis where there is one."""
    return scale[tuple(0 if const_value(size) == 1 else i for size, i in zip(scale.shape, index, strict=True))]
