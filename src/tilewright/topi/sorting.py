"""The greatest elements in order: every element counts how many come before it.

The work grows with the square of the axis; each element's count is independent of the others, so that there is no
order among the steps.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.topi.registry import compute_of, result_shape


def _before(a: PrimExpr, b: PrimExpr, largest: bool) -> PrimExpr:
    """Whether a comes before b by value; NaN is greater than all numbers."""
    plain = build.lt(b, a) if largest else build.lt(a, b)
    if not a.dtype.is_float:
        return plain
    odd, other = (a, b) if largest else (b, a)
    return build.logical_or(plain, build.logical_and(intrinsics.isnan(odd), build.logical_not(intrinsics.isnan(other))))


def _same(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if not a.dtype.is_float:
        return build.eq(a, b)
    return build.logical_or(build.eq(a, b), build.logical_and(intrinsics.isnan(a), intrinsics.isnan(b)))


@compute_of("topk")
def _topk(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    (x,) = inputs
    axis = attributes.axis
    size = x.shape[axis]
    other = reduce_axis((0, size), "j")

    def rank(*i: ExprLike) -> PrimExpr:
        mine, theirs = x[i], x[(*i[:axis], other, *i[axis + 1 :])]
        earlier = build.logical_and(_same(theirs, mine), build.lt(other.as_prim_expr(), i[axis]))
        ahead = build.logical_or(_before(theirs, mine, attributes.largest), earlier)
        return reduction.sum(cast(ahead, INDEX), [other])

    ranks = compute(x.shape, rank, "topk_rank")
    shape = result_shape(result, 1)
    item = reduce_axis((0, size), "i")

    def place(*i: ExprLike) -> PrimExpr:
        here = build.eq(ranks[(*i[:axis], item, *i[axis + 1 :])], i[axis])
        return reduction.sum(build.select(here, item.as_prim_expr(), const(0, INDEX)), [item])

    places = compute(shape, place, "topk_place")

    def value(*i: ExprLike) -> PrimExpr:
        # Places are within the data by construction; the bounds say so to whoever reads the program.
        at = build.maximum(build.minimum(places[i], size - 1), 0)
        return x[(*i[:axis], at, *i[axis + 1 :])]

    return [compute(shape, value, "topk_value"), places]
