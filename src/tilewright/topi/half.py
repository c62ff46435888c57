"""Matrix products that add up blocks of products in half precision."""

from __future__ import annotations

from typing import Any

from tilewright.ir.build import as_expr, cast
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.topi.registry import compute_of, result_shape


@compute_of("half.matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = inputs
    shape, size = result_shape(result), attributes.block
    blocks = a.shape[-1] // size
    k, step = reduce_axis((0, size), "k"), reduce_axis((0, blocks), "block")

    # Each value twice, side by side: processors fill vectors with 32 bits from memory at no cost, with 16 they do not.
    pairs = compute(
        (*a.shape[:-1], a.shape[-1] * 2),
        lambda *i: a[(*i[:-1], as_expr(i[-1]) // 2)],
        "half_pairs",
        {"kept": True},
    )

    def partial(n: ExprLike, *i: ExprLike) -> PrimExpr:
        *rows, column = i
        place = n * size + k
        return reduction.sum(pairs[(*rows, place * 2 + as_expr(column) % 2)] * b[place, column], [k])

    sums = compute((blocks, *shape), partial, "half_sums", {"anchor": "half"})
    total = compute(
        shape, lambda *i: reduction.sum(cast(sums[(step, *i)], FLOAT32), [step]), "half_total", {"anchor": "half_total"}
    )
    return compute(shape, lambda *i: cast(total[i], a.dtype), "half_matmul")
