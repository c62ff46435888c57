"""The greatest elements in order: every element counts how many come before it.

The work grows with the square of the axis; each element's count is independent of the others, so that there is no
order among the steps. A few out of many are found in rounds: the best of each block are the candidates of the next.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.reduction import max_value, min_value
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


_LEAST_BLOCK = 64
_FEWER = 2
"""How many times fewer candidates a round must leave than it had."""


class Ranks:
    """The best elements along an axis, by counting in blocks."""

    def __init__(self, axis: int, largest: bool) -> None:
        self.axis = axis
        self.largest = largest

    def at(self, i: tuple[ExprLike, ...], place: ExprLike) -> tuple[ExprLike, ...]:
        """Indices with another place along the axis."""
        return (*i[: self.axis], place, *i[self.axis + 1 :])

    def best(self, x: Tensor, block: ExprLike, count: ExprLike, chosen: ExprLike) -> Tensor:
        """Where the best `count` of each block are, `chosen` of them in all; only the last block may have fewer.

        Equal elements stay in the order of their places, within a block and so from block to block.
        """
        other, item = reduce_axis((0, block), "j"), reduce_axis((0, block), "i")
        whole = block is x.shape[self.axis]

        def rank(*i: ExprLike) -> PrimExpr:
            place = build.as_expr(i[self.axis])
            source = other.as_prim_expr() if whole else place // block * block + other
            mine, theirs = x[i], x[self.at(i, source)]
            earlier = build.logical_and(_same(theirs, mine), build.lt(source, place))
            ahead = build.logical_or(_before(theirs, mine, self.largest), earlier)
            return reduction.sum(cast(ahead, INDEX), [other])

        ranks = compute(x.shape, rank, "topk_rank")

        def place(*i: ExprLike) -> PrimExpr:
            at = build.as_expr(i[self.axis])
            wanted = at if whole else at % count
            source = item.as_prim_expr() if whole else at // count * block + item
            here = build.eq(ranks[self.at(i, source)], wanted)
            return reduction.sum(build.select(here, source, const(0, INDEX)), [item])

        return compute(self.at(x.shape, chosen), place, "topk_place")

    def filled(self, x: Tensor, size: int, block: int) -> Tensor:
        """The elements with others after them that come last of all, up to whole blocks."""
        if size % block == 0:
            return x
        if self.largest:
            last = min_value(x.dtype)
        else:
            last = const(math.nan, x.dtype) if x.dtype.is_float else max_value(x.dtype)
        shape = self.at(x.shape, size + -size % block)
        return compute(shape, lambda *i: build.select(build.lt(i[self.axis], size), x[i], last), "topk_filled")

    def values(self, x: Tensor, places: Tensor) -> Tensor:
        """The elements at places."""
        last = x.shape[self.axis] - 1

        def value(*i: ExprLike) -> PrimExpr:
            # Places are within the data by construction; the bounds say so to whoever reads the program.
            return x[self.at(i, build.maximum(build.minimum(places[i], last), 0))]

        return compute(places.shape, value, "topk_value")


@compute_of("topk")
def _topk(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    (x,) = inputs
    ranks = Ranks(attributes.axis, attributes.largest)
    wanted = result_shape(result, 1)[attributes.axis]
    candidates, origin = x, None
    for size, block, chosen in rounds(const_value(x.shape[attributes.axis]), const_value(wanted)):
        places = ranks.best(ranks.filled(candidates, size, block), block, wanted, chosen)
        candidates = ranks.values(candidates, places)
        origin = places if origin is None else ranks.values(origin, places)
    places = ranks.best(candidates, candidates.shape[attributes.axis], wanted, wanted)
    return [ranks.values(candidates, places), places if origin is None else ranks.values(origin, places)]


def rounds(size: int | None, wanted: int | None) -> list[tuple[int, int, int]]:
    """Rounds before the last one, which compares all that are left: elements, their blocks, how many are left."""
    earlier: list[tuple[int, int, int]] = []
    if size is None or not wanted:
        return earlier
    block = _LEAST_BLOCK
    while block < _FEWER * wanted:
        block *= 2
    while True:
        whole, rest = divmod(size, block)
        left = whole * wanted + min(rest, wanted)
        if size <= 2 * block or left * _FEWER > size:
            return earlier
        earlier.append((size, block, left))
        size = left
