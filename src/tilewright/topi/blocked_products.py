"""Products of bytes in blocks of channels, for processors that multiply block by block, and their requantisation.

    data        [n, ci, h, w, r, k]            r rows of a tensor (batch), k channels of a block
    weight      [co, ci, kh, kw, c, k]         c output channels of a block
    parameters  [co, 4, c]                     words of `fixed_point.py`
    results     [n, co, y, x, r, c]

A matrix product is a convolution of one row of pixels; a batch of products has weights for each image, [n, co, ci, c, k].
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ExprLike, PrimExpr, is_const_int
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.fixed_point import Requantization, requantized


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows lie: steps down and across, padding (top, left, bottom, right) and the number that is there."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0


def blocked_conv2d(data: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """Sums of products over windows, in 32 bits."""
    n, ci, _, _, rows, depth = data.shape
    co, _, kh, kw, columns, _ = weight.shape
    (down, across), (top, left, bottom, right) = windows.strides, windows.padding
    height, width = data.shape[2] + top + bottom, data.shape[3] + left + right
    out_height, out_width = (height - kh) // down + 1, (width - kw) // across + 1
    # Rows between windows of a single row are never read, so they are not there.
    skip = down if is_const_int(kh, 1) else 1
    image = _staged(data, windows, skip, out_height if skip > 1 else height, width)
    i = reduce_axis((0, ci), "ci")
    u, v = reduce_axis((0, kh), "kh"), reduce_axis((0, kw), "kw")
    k = reduce_axis((0, depth), "k")

    def element(b: ExprLike, o: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, c: ExprLike) -> PrimExpr:
        row = build.as_expr(y) if skip > 1 else build.as_expr(y) * down + u
        value = image[b, i, row, build.as_expr(x) * across + v, r, k]
        return reduction.sum(cast(value, INT32) * cast(weight[o, i, u, v, c, k], INT32), [i, u, v, k])

    shape = (n, co, out_height, out_width, rows, columns)
    return compute(shape, element, "blocked_conv2d", ANCHOR.entry(Anchor.BLOCKED_PRODUCT))


def _staged(data: Tensor, windows: Windows, skip: int, height: PrimExpr, width: PrimExpr) -> Tensor:
    """The image with padding around it, and only the rows that are read."""
    top, left, bottom, right = windows.padding
    if not any(windows.padding) and skip == 1:
        return data
    fill = const(windows.pad_value, data.dtype)

    def element(b: ExprLike, c: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, k: ExprLike) -> PrimExpr:
        row, column = build.sub(build.mul(y, skip), top), build.sub(x, left)
        inside = [build.le(0, row)] if top else []
        inside += [build.lt(row, data.shape[2])] if bottom else []
        inside += [build.le(0, column)] if left else []
        inside += [build.lt(column, data.shape[3])] if right else []
        return build.select(build.all_of(inside), data[b, c, row, column, r, k], fill)

    shape = (*data.shape[:2], height, width, *data.shape[4:])
    return compute(shape, element, "pad_blocks")


def blocked_matmul(data: Tensor, weight: Tensor) -> Tensor:
    """A batch of matrix products: data [n, ci, 1, m, r, k], a weight [n, co, ci, c, k] for each."""
    n, ci, _, width, rows, depth = data.shape
    _, co, _, columns, _ = weight.shape
    i, k = reduce_axis((0, ci), "ci"), reduce_axis((0, depth), "k")

    def element(b: ExprLike, o: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, c: ExprLike) -> PrimExpr:
        return reduction.sum(cast(data[b, i, y, x, r, k], INT32) * cast(weight[b, o, i, c, k], INT32), [i, k])

    shape = (n, co, const(1), width, rows, columns)
    return compute(shape, element, "blocked_matmul", ANCHOR.entry(Anchor.BLOCKED_PRODUCT))


def blocked_requantize(sums: Tensor, parameters: Tensor, residual: Tensor | None, form: Requantization) -> Tensor:
    """Bytes of 32-bit sums, by the parameters of their channels."""

    def element(b: ExprLike, o: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, c: ExprLike) -> PrimExpr:
        words = [parameters[o, word, c] for word in range(4)]
        other = None if residual is None else residual[b, o, y, x, r, c]
        return requantized(sums[b, o, y, x, r, c], words, other, form)

    return compute(sums.shape, element, "blocked_requantize")
