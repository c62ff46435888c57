"""Matrix products and convolutions that add up blocks of products in half precision.

Each sum has two halves, one of the even steps and one of the odd: processors fill vectors from 32 bits of memory at no
cost, and from 16 bits not, so that two steps of a row are multiplied with a vector of two steps of the columns.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.build import as_expr, cast, const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Axis, Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.convolution import pad_spatial
from tilewright.topi.registry import compute_of, result_shape


@compute_of("half.matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    a, b = inputs
    shape, size = result_shape(result), attributes.block
    blocks = a.shape[-1] // size
    k, step = reduce_axis((0, size // 2), "k"), reduce_axis((0, blocks), "block")

    def partial(n: ExprLike, *i: ExprLike) -> PrimExpr:
        *rows, column, half = i
        place = n * size + k * 2 + half
        return reduction.sum(a[(*rows, place)] * b[place, column], [k])

    sums = compute((blocks, *shape, 2), partial, "half_sums", ANCHOR.entry(Anchor.HALF))
    return _joined(sums, shape, [step], "half_matmul")


@compute_of("half.conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    shape, size = result_shape(result), attributes.block
    height, width, channels = weight.shape[:3]
    padded = pad_spatial(data, tuple(attributes.padding), "NHWC")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    # Blocks are of some channels of a tap, or of all taps of a row.
    several = const_value(channels % size) != 0
    part = size // width if several else size
    k, across = reduce_axis((0, part // 2), "k"), reduce_axis((0, width), "kw")
    counts = (height, channels // part) if several else (height, width, channels // part)
    names = ("kh", "block") if several else ("kh", "kw", "block")
    steps = [reduce_axis((0, count), name) for count, name in zip(counts, names, strict=True)]

    def partial(*i: ExprLike) -> PrimExpr:
        *block, n, y, x, column, half = i
        kh, kw = as_expr(block[0]), across if several else as_expr(block[1])
        row, place = as_expr(y) * sh + kh * dh, as_expr(x) * sw + kw * dw
        channel = as_expr(block[-1]) * part + k * 2 + half
        value = padded[n, row, place, channel]
        return reduction.sum(value * weight[kh, kw, channel, column], [across, k] if several else [k])

    sums = compute((*counts, *shape, 2), partial, "half_sums", ANCHOR.entry(Anchor.HALF))
    return _joined(sums, shape, steps, "half_conv2d")


def _add(left: object, right: object) -> PrimExpr:
    assert isinstance(left, PrimExpr) and isinstance(right, PrimExpr)
    return left + right


_add_up = reduction.comm_reducer(_add, lambda dtype: const(-0.0, dtype), "add")
"""A sum that starts with what changes nothing at all; to store zeros LLVM would call a function of the C library."""


def _joined(sums: Tensor, shape: tuple[PrimExpr, ...], steps: list[Axis], name: str) -> Tensor:
    """The blocks of both halves of each sum added up in float32; the halves of a single block are added as they are."""
    if all(const_value(dim) == 1 for dim in sums.shape[: len(steps)]):
        first = [0] * len(steps)
        return compute(shape, lambda *i: sums[(*first, *i, 0)] + sums[(*first, *i, 1)], name)

    def total(*i: ExprLike) -> PrimExpr:
        result = _add_up(cast(sums[(*steps, *i)], FLOAT32), steps)
        assert isinstance(result, PrimExpr)
        return result

    totals = compute((*shape, 2), total, "half_total", ANCHOR.entry(Anchor.HALF_TOTAL))
    return compute(shape, lambda *i: cast(totals[(*i, 0)] + totals[(*i, 1)], sums.dtype), name)
