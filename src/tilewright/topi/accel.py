"""Layers of a tensor processor: products of bytes in blocks of channels, and their requantisation.

data        [n, ci, h, w, r, k]            r rows of a tensor (batch), k channels of a block
weight      [co, ci, kh, kw, c, k]         c output channels of a block
parameters  [co, 4, c]                     words of `fixed_point.py`
results     [n, co, y, x, r, c]

Accumulators are made of bytes by products alone: weights with ones on the diagonal do no more than that.
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
    kernel: tuple[int, int] = (0, 0)
    """The size of windows whose weights are the same at every tap; (0, 0): the weights say it."""
    shared: bool = False
    """Whether all groups have the same weights."""


def conv2d(
    data: Tensor,
    weight: Tensor,
    parameters: Tensor | None,
    residual: Tensor | None,
    windows: Windows,
    form: Requantization,
) -> Tensor:
    """A convolution in blocks of channels, requantised in fixed point; without parameters its sums."""
    sums = _sums(data, weight, windows)
    return sums if parameters is None else _requantize(sums, parameters, residual, form)


@compute_of("accel.conv2d")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, parameters, residual = [*inputs, None, None][:4]
    assert data is not None and weight is not None
    windows = Windows(
        attributes.strides,
        attributes.padding,
        attributes.pad,
        attributes.groups,
        attributes.kernel,
        attributes.shared,
    )
    form = Requantization(residual is not None, attributes.offset, attributes.low, attributes.high)
    return conv2d(data, weight, parameters, residual, windows, form)


def max_pool2d(data: Tensor, weight: Tensor, parameters: Tensor, windows: Windows, form: Requantization) -> Tensor:
    """The greatest of each window: bytes become accumulators, rows of them and then columns are compared."""
    plain = Windows((1, 1), windows.padding, windows.pad, windows.groups, shared=True)
    best = _sums(data, weight, plain, "accel_wide", Anchor.BLOCKED_POOL)
    for axis, (size, step) in (
        (3, (windows.kernel[1], windows.strides[1])),
        (2, (windows.kernel[0], windows.strides[0])),
    ):
        best = _greatest(best, axis, size, step)
    return _requantize(best, parameters, None, form)


@compute_of("accel.max_pool2d")
def _max_pool2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight, parameters = inputs
    windows = Windows(
        attributes.strides, attributes.padding, attributes.pad, attributes.groups, attributes.kernel, True
    )
    form = Requantization(False, attributes.offset, attributes.low, attributes.high)
    return max_pool2d(data, weight, parameters, windows, form)


def _greatest(values: Tensor, axis: int, size: int, step: int) -> Tensor:
    """The greatest of neighbours along an axis."""
    if size == step == 1:
        return values

    def element(*place: ExprLike) -> PrimExpr:
        taps = []
        for tap in range(size):
            index = [build.as_expr(item) for item in place]
            index[axis] = index[axis] * step + tap
            taps.append(values[tuple(index)])
        best: PrimExpr = taps[0]
        for other in taps[1:]:
            best = build.maximum(best, other)
        return best

    shape = list(values.shape)
    shape[axis] = (shape[axis] - size) // step + 1
    return compute(tuple(shape), element, "accel_greatest")


@compute_of("accel.spread")
def _spread(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (data,) = inputs
    return spread(data, attributes.strides, attributes.size, attributes.before, attributes.phases)


def spread(
    data: Tensor, strides: tuple[int, int], size: tuple[int, int], before: tuple[int, int], phases: bool
) -> Tensor:
    """Each element of an image as several: the same ones, or those of as many channels."""
    (down, across), (top, left) = strides, before
    blocks = data.shape[1] // (down * across) if phases else data.shape[1]

    def element(b: ExprLike, c: ExprLike, y: ExprLike, x: ExprLike, r: ExprLike, k: ExprLike) -> PrimExpr:
        row, column = build.as_expr(y) + top, build.as_expr(x) + left
        block = build.as_expr(c)
        if phases:
            block = (row % down * across + column % across) * blocks + block
        return data[b, block, row // down, column // across, r, k]

    shape: list[ExprLike] = [data.shape[0], blocks, *size, *data.shape[4:]]
    return compute(shape, element, "accel_spread", ANCHOR.entry(Anchor.BLOCKED_COPY))


def _sums(
    data: Tensor,
    weight: Tensor,
    windows: Windows,
    name: str = "accel_sums",
    anchor: Anchor = Anchor.BLOCKED_PRODUCT,
) -> Tensor:
    """Sums of products over windows, in 32 bits."""
    n, _, _, _, rows, depth = data.shape
    own, ci, kh, kw, columns, _ = weight.shape
    co = own * windows.groups if windows.shared else own
    same_taps = any(windows.kernel)
    if same_taps:
        kh, kw = (build.as_expr(size) for size in windows.kernel)
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
        output = build.as_expr(o) % own if windows.shared else o
        factor = weight[output, i, 0, 0, c, k] if same_taps else weight[output, i, u, v, c, k]
        return reduction.sum(cast(value, INT32) * cast(factor, INT32), [i, u, v, k])

    shape = (n, co, out_height, out_width, rows, columns)
    return compute(shape, element, name, ANCHOR.entry(anchor))


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
