"""Layers of a tensor processor: products of bytes in blocks of channels, and their requantisation.

data        [n, ci, h, w, r, k]            r rows of a tensor (batch), k channels of a block
weight      [co, ci, kh, kw, c, k]         c output channels of a block
parameters  [co, 4, c]                     words of `fixed_point.py`
results     [n, co, y, x, r, c]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import ExprLike, PrimExpr, is_const_int
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.fixed_point import Requantization, requantized
from tilewright.topi.registry import compute_of


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows lie: steps down and across, padding (top, left, bottom, right) and the number that is there."""

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad: int = 0
    groups: int = 1
    """Groups of blocks of channels that have nothing to do with each other."""


def conv2d(
    data: Tensor, weight: Tensor, parameters: Tensor, residual: Tensor | None, windows: Windows, form: Requantization
) -> Tensor:
    """A convolution in blocks of channels, requantised in fixed point."""
    return _requantize(_sums(data, weight, windows), parameters, residual, form)


@compute_of("accel.conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, parameters, *residual = inputs
    windows = Windows(attributes.strides, attributes.padding, attributes.pad, attributes.groups)
    form = Requantization(bool(residual), attributes.offset, attributes.low, attributes.high)
    return conv2d(data, weight, parameters, residual[0] if residual else None, windows, form)


def _sums(data: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """Sums of products over windows, in 32 bits."""
    n, _, _, _, rows, depth = data.shape
    co, ci, kh, kw, columns, _ = weight.shape
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
        block: ExprLike = i
        if windows.groups > 1:
            block = build.as_expr(o) // (co // windows.groups) * ci + i
        value = image[b, block, row, build.as_expr(x) * across + v, r, k]
        return reduction.sum(cast(value, INT32) * cast(weight[o, i, u, v, c, k], INT32), [i, u, v, k])

    shape = (n, co, out_height, out_width, rows, columns)
    return compute(shape, element, "accel_sums", ANCHOR.entry(Anchor.BLOCKED_PRODUCT))


def _staged(data: Tensor, windows: Windows, skip: int, height: PrimExpr, width: PrimExpr) -> Tensor:
    """The image with padding around it, and only the rows that are read."""
    top, left, bottom, right = windows.padding
    if not any(windows.padding) and skip == 1:
        return data
    fill = const(windows.pad, data.dtype)

    def element(b: ExprLike, c: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, k: ExprLike) -> PrimExpr:
        row, column = build.sub(build.mul(y, skip), top), build.sub(x, left)
        inside = [build.le(0, row)] if top else []
        inside += [build.lt(row, data.shape[2])] if bottom else []
        inside += [build.le(0, column)] if left else []
        inside += [build.lt(column, data.shape[3])] if right else []
        return build.select(build.all_of(inside), data[b, c, row, column, r, k], fill)

    shape = (*data.shape[:2], height, width, *data.shape[4:])
    return compute(shape, element, "pad_blocks")


def _requantize(sums: Tensor, parameters: Tensor, residual: Tensor | None, form: Requantization) -> Tensor:
    """Bytes of 32-bit sums, by the parameters of their channels."""

    def element(b: ExprLike, o: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, c: ExprLike) -> PrimExpr:
        words = [parameters[o, word, c] for word in range(4)]
        other = None if residual is None else residual[b, o, y, x, r, c]
        return requantized(sums[b, o, y, x, r, c], words, other, form)

    return compute(sums.shape, element, "accel_results")
