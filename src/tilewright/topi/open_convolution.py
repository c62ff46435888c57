"""Convolutions over images of open height or width, as tensor expressions: products of rows that are windows.

    windows     the taps of each pixel of the result, zeros past the image; pixels are counted line by line
    conv2d      a matrix product: windows x weights
    pixels      its rows at their pixels

A register tile of a line of open length is seldom full; tiles of all pixels of an image are, but for the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build
from tilewright.ir.build import const
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, KEPT, LAYOUT, Anchor, Layout
from tilewright.topi.registry import result_shape

_LEAST_CHANNELS = 16
"""Windows are copied in vectors of channels."""
_LEAST_OUTPUTS = 64
"""Each element that is copied is in so many products, or the copy would show beside them."""


def has_open_pixels(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> bool:
    """Whether a convolution is computed so: of several taps, over an image of open size, with many products a tap."""
    sizes = [const_value(size) for size in weight.shape]
    if attributes.groups != 1 or (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return False
    if data.dtype.name != "float32" or None in sizes or all(const_value(dim) for dim in result_shape(result)[1:3]):
        return False
    height, width, channels, outputs = (size or 0 for size in sizes)
    return height * width > 1 and channels % _LEAST_CHANNELS == 0 and channels > 0 and outputs >= _LEAST_OUTPUTS


def open_convolution(data: Tensor, weight: Tensor, attributes: Any, shape: Sequence[PrimExpr]) -> Tensor:
    """A convolution of images (batch, height, width, channels) whose results have a shape, as such a product."""
    images, height, width, outputs = shape
    kh, kw, ic = (reduce_axis((0, size), name) for size, name in zip(weight.shape, ("kh", "kw", "ic"), strict=False))
    (down, across), (rows_apart, columns_apart) = attributes.strides, attributes.dilation
    top, left = attributes.padding[:2]
    pixels = Analyzer().simplify(height * width)  # as schedules write the extents of the loops that they make

    def element(n: PrimExpr, p: PrimExpr, i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        y = p // width * down + i * rows_apart - top
        x = p % width * across + j * columns_apart - left
        inside = build.all_of([build.le(0, y), build.lt(y, data.shape[1]), build.le(0, x), build.lt(x, data.shape[2])])
        return build.select(inside, data[n, y, x, c], const(0.0, data.dtype))

    windows = compute((images, pixels, *weight.shape[:3]), element, "windows", KEPT.entry(True))
    product = compute(
        (images, pixels, outputs),
        lambda n, p, o: reduction.sum(windows[n, p, kh, kw, ic] * weight[kh, kw, ic, o], [kh, kw, ic]),
        "conv2d",
        ANCHOR.entry(Anchor.CONV2D) | LAYOUT.entry(Layout.NHWC),
    )

    def at_pixel(n: ExprLike, y: PrimExpr, x: ExprLike, o: ExprLike) -> PrimExpr:
        return product[n, y * width + x, o]

    return compute(tuple(shape), at_pixel, "pixels")
