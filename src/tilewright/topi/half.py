"""Matrix products and convolutions that add up blocks of products in half precision."""

from __future__ import annotations

from typing import Any

from tilewright.ir.build import as_expr, cast
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.topi.convolution import pad_spatial
from tilewright.topi.registry import compute_of, result_shape


@compute_of("half.matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = inputs
    shape, size = result_shape(result), attributes.block
    blocks = a.shape[-1] // size
    k, step = reduce_axis((0, size), "k"), reduce_axis((0, blocks), "block")

    pairs = _doubled(a)

    def partial(n: ExprLike, *i: ExprLike) -> PrimExpr:
        *rows, column = i
        place = n * size + k
        return reduction.sum(pairs[(*rows, place * 2 + as_expr(column) % 2)] * b[place, column], [k])

    sums = compute((blocks, *shape), partial, "half_sums", {"anchor": "half"})
    total = compute(
        shape, lambda *i: reduction.sum(cast(sums[(step, *i)], FLOAT32), [step]), "half_total", {"anchor": "half_total"}
    )
    return compute(shape, lambda *i: cast(total[i], a.dtype), "half_matmul")


@compute_of("half.conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    shape, size = result_shape(result), attributes.block
    height, width, channels = weight.shape[:3]
    padded = pad_spatial(data, tuple(attributes.padding), "NHWC")
    pairs = _doubled(padded)
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    # Blocks are of some channels of a tap, or of a row of taps.
    whole_rows = const_value(channels) is not None and size > (const_value(channels) or 0)
    k = reduce_axis((0, channels if whole_rows else size), "k")
    across = reduce_axis((0, width), "kw")
    counts = (height,) if whole_rows else (height, width, channels // size)
    steps = [reduce_axis((0, count), name) for count, name in zip(counts, ("kh", "kw", "block"), strict=False)]

    def partial(*i: ExprLike) -> PrimExpr:
        *block, n, y, x, column = i
        kh = as_expr(block[0])
        kw, channel = (across, k) if whole_rows else (as_expr(block[1]), as_expr(block[2]) * size + k)
        row, place = as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw
        value = pairs[n, row, place, channel * 2 + as_expr(column) % 2]
        return reduction.sum(value * weight[kh, kw, channel, column], [across, k] if whole_rows else [k])

    sums = compute((*counts, *shape), partial, "half_sums", {"anchor": "half"})
    notes: dict[str, object] = {"anchor": "half_total"}
    total = compute(shape, lambda *i: reduction.sum(cast(sums[(*steps, *i)], FLOAT32), steps), "half_total", notes)
    return compute(shape, lambda *i: cast(total[i], data.dtype), "half_conv2d")


def _doubled(values: Tensor) -> Tensor:
    """Each value twice, side by side: processors fill vectors with 32 bits from memory at no cost, with 16 not."""
    return compute(
        (*values.shape[:-1], values.shape[-1] * 2),
        lambda *i: values[(*i[:-1], as_expr(i[-1]) // 2)],
        "half_pairs",
        {"kept": True},
    )
