"""Two-dimensional convolution (plain, grouped, depthwise; NCHW and NHWC) and transposed convolution."""

from __future__ import annotations

from typing import Any

from tilewright.graph.ir.dimensions import as_dim, divide_exactly, floor_divide, subtract
from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, PHASES, Anchor, Layout
from tilewright.topi.open_convolution import has_open_pixels, open_convolution
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape
from tilewright.topi.shape import pad_constant


def pad_spatial(x: Tensor, padding: tuple[int, int, int, int], layout: str) -> Tensor:
    """An image tensor with zeros around it, at (top, left, bottom, right); itself if there is nothing to pad."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    h, w = layout.index("H"), layout.index("W")
    before = [0] * x.ndim
    after = [0] * x.ndim
    before[h], before[w], after[h], after[w] = top, left, bottom, right
    shape = tuple(dim + low + high for dim, low, high in zip(x.shape, before, after, strict=True))
    return pad_constant(x, tuple(before), tuple(after), shape, 0.0, "pad_data")


@compute_of("nn.conv2d", "nn.conv2d_by_filters")
def _conv2d(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    return _convolution(inputs, attributes, result, in_image=False)


@compute_on_cpus("nn.conv2d")
def _conv2d_on_cpus(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    """Windows of single channels are short sums: the taps that lie in the image are all that is added up."""
    data, weight = inputs
    if has_open_pixels(data, weight, attributes, result):
        return open_convolution(data, weight, attributes, result_shape(result))
    in_per_group = const_value(weight.shape[attributes.kernel_layout.index("I")])
    if attributes.groups == 1 or in_per_group != 1 or attributes.data_layout != "NHWC":
        return None
    return _convolution(inputs, attributes, result, in_image=True)


def _convolution(inputs: list[Tensor], attributes: Any, result: Type, in_image: bool) -> Tensor:
    """Sums over windows, of zeros where these reach past the image; `in_image` leaves those out instead."""
    data, weight = inputs
    if attributes.data_layout not in ("NCHW", "NHWC") or attributes.kernel_layout not in ("OIHW", "HWIO", "OHWI"):
        raise UnsupportedError(f"conv2d in layout {attributes.data_layout} / {attributes.kernel_layout}")
    layout, kernel = attributes.data_layout, attributes.kernel_layout
    channels_axis = layout.index("C")
    groups = attributes.groups
    padding = tuple(attributes.padding)
    padded = data if in_image else pad_spatial(data, padding, layout)
    kh = reduce_axis((0, weight.shape[kernel.index("H")]), "kh")
    kw = reduce_axis((0, weight.shape[kernel.index("W")]), "kw")
    in_per_group = weight.shape[kernel.index("I")]
    ic = reduce_axis((0, in_per_group), "ic")
    shape = result_shape(result)
    out_per_group = shape[channels_axis] // groups
    total = accumulator_type(data.dtype)
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    depthwise = groups > 1 and const_value(in_per_group) == 1
    axes = [kh, kw] if depthwise else [kh, kw, ic]

    def element(*i: ExprLike) -> PrimExpr:
        at = dict(zip(layout, i, strict=True))
        oc = build.as_expr(at["C"])
        inner: ExprLike = 0 if depthwise else ic
        if groups > 1:
            channel: ExprLike = oc // out_per_group * in_per_group + inner
        else:
            channel = inner
        place = {"H": build.as_expr(at["H"]) * sh + kh * dh, "W": build.as_expr(at["W"]) * sw + kw * dw}
        inside: list[PrimExpr] = []
        if in_image:
            for axis, before, after in zip("HW", padding[:2], padding[2:], strict=True):
                place[axis] = place[axis] - before
                inside += [build.le(0, place[axis])] if before > 0 else []
                inside += [build.lt(place[axis], data.shape[layout.index(axis)])] if after > 0 else []
        source = {"N": at["N"], "C": channel, **place}
        taps = {"O": oc, "I": inner, "H": kh, "W": kw}
        value = padded[tuple(source[c] for c in layout)]
        factor = weight[tuple(taps[c] for c in kernel)]
        return reduction.sum(cast(value, total) * cast(factor, total), axes, build.all_of(inside))

    anchor = Anchor.DEPTHWISE_CONV2D if depthwise else Anchor.CONV2D
    product = compute(shape, element, anchor.value, ANCHOR.entry(anchor) | LAYOUT.entry(Layout(layout)))
    if total is data.dtype:
        return product
    return compute(shape, lambda *i: cast(product[i], data.dtype), "conv2d_out")


@compute_of("nn.conv2d_transpose")
def _conv2d_transpose(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    data, weight = inputs
    layouts = (attributes.data_layout, attributes.kernel_layout)
    if layouts not in (("NCHW", "IOHW"), ("NHWC", "HWIO")):
        raise UnsupportedError(f"conv2d_transpose in layout {layouts[0]} / {layouts[1]}")
    if _has_phases(data, weight, attributes, result):
        product = _by_phases(data, weight, attributes, result)
    else:
        product = _by_gathering(data, weight, attributes, result)
    if product.dtype is data.dtype:
        return product
    return compute(product.shape, lambda *i: cast(product[i], data.dtype), "conv2d_transpose_out")


def _has_phases(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> bool:
    """Whether the output splits evenly into stride x stride phases, each an ordinary convolution."""
    if attributes.data_layout != "NHWC" or attributes.groups != 1 or tuple(attributes.dilation) != (1, 1):
        return False
    shape = result_shape(result)
    if const_value(shape[3]) == 1 and any(const_value(size) is None for size in shape[1:3]):
        # A phase of one channel has no vectors of columns, and no template makes them of pixels of an open number.
        return False
    return all(
        const_value(weight.shape[axis]) is not None
        and const_value(weight.shape[axis] % stride) == 0
        and _more_rows(data.shape[axis + 1], shape[axis + 1], stride) is not None
        for axis, stride in enumerate(attributes.strides)
    )


def _more_rows(size: PrimExpr, out: PrimExpr, stride: int) -> int | None:
    """How many rows a phase has more than the input, where that is the same for all sizes and all phases."""
    rows = divide_exactly(out, stride)
    difference = None if rows is None else subtract(rows, size)
    return difference if isinstance(difference, int) else None


def _by_phases(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> Tensor:
    """Sub-pixel form: output row y * stride + p takes kernel rows (p + pad) % stride + r * stride from input row
    y + (p + pad) // stride - r, so for a fixed phase p the taps are constants and the rows are neighbours.

    The anchor has the axes (n, y, phase_y, x, phase_x, c); the result picks from it. The input is padded once.
    """
    n, height, width, channels = result_shape(result)
    (sh, sw), pads = attributes.strides, attributes.padding
    total = accumulator_type(data.dtype)
    steps = [const_value(weight.shape[axis]) or 0 for axis in range(2)]
    steps = [kernel // stride for kernel, stride in zip(steps, (sh, sw), strict=True)]
    before, after = [], []
    for axis, stride in enumerate((sh, sw)):
        first = pads[axis] // stride - (steps[axis] - 1)
        more = _more_rows(data.shape[axis + 1], (height, width)[axis], stride)
        assert more is not None
        before.append(max(0, -first))
        after.append(max(0, more + (stride - 1 + pads[axis]) // stride))
    padded = pad_spatial(data, (before[0], before[1], after[0], after[1]), "NHWC")
    rh, rw = reduce_axis((0, steps[0]), "kh"), reduce_axis((0, steps[1]), "kw")
    ic = reduce_axis((0, data.shape[3]), "ic")

    def element(b: ExprLike, y: ExprLike, p: ExprLike, x: ExprLike, q: ExprLike, c: ExprLike) -> PrimExpr:
        shifted_y, shifted_x = build.add(p, pads[0]), build.add(q, pads[1])
        row = build.add(y, shifted_y // sh) - rh + before[0]
        column = build.add(x, shifted_x // sw) - rw + before[1]
        value = padded[b, row, column, ic]
        factor = weight[shifted_y % sh + rh * sh, shifted_x % sw + rw * sw, ic, c]
        return reduction.sum(cast(value, total) * cast(factor, total), [rh, rw, ic])

    phases = compute(
        (n, as_dim(floor_divide(height, sh)), sh, as_dim(floor_divide(width, sw)), sw, channels),
        element,
        "conv2d_transpose",
        ANCHOR.entry(Anchor.CONV2D_TRANSPOSE) | LAYOUT.entry(Layout.NHWC) | PHASES.entry((sh, sw)),
    )
    return compute(
        (n, height, width, channels),
        lambda b, y, x, c: phases[b, y // sh, y % sh, x // sw, x % sw, c],
        "interleave",
    )


def _by_gathering(data: Tensor, weight: Tensor, attributes: Any, result: Type) -> Tensor:
    """Gather form: each output element sums the kernel taps whose stride phase meets an input element."""
    layout = attributes.data_layout
    kernel = attributes.kernel_layout
    groups = attributes.groups
    kernel_h = weight.shape[kernel.index("H")]
    kernel_w = weight.shape[kernel.index("W")]
    shape = result_shape(result)
    channels = layout.index("C")
    in_per_group = data.shape[channels] // groups
    out_per_group = weight.shape[kernel.index("O")]
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    top, left = attributes.padding[0], attributes.padding[1]
    height, width = data.shape[layout.index("H")], data.shape[layout.index("W")]
    total = accumulator_type(data.dtype)
    phased = (dh, dw) == (1, 1)
    steps_h = (kernel_h + (sh - 1)) // sh if phased else kernel_h
    steps_w = (kernel_w + (sw - 1)) // sw if phased else kernel_w
    rh, rw, ic = reduce_axis((0, steps_h), "kh"), reduce_axis((0, steps_w), "kw"), reduce_axis((0, in_per_group), "ic")

    def tap(position: PrimExpr, step: PrimExpr, stride: int, dilation: int) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """(kernel index, input index, whether the input index is exact)."""
        if phased:
            k = position % stride + step * stride
            return k, (position - k) // stride, const(True)
        offset = position - step * dilation
        return step, offset // stride, build.eq(offset % stride, 0)

    def element(*i: ExprLike) -> PrimExpr:
        at = dict(zip(layout, i, strict=True))
        oc = build.as_expr(at["C"])
        ky, y, fits_y = tap(build.as_expr(at["H"]) + top, rh.as_prim_expr(), sh, dh)
        kx, x, fits_x = tap(build.as_expr(at["W"]) + left, rw.as_prim_expr(), sw, dw)
        group = oc // out_per_group if groups > 1 else const(0)
        channel = group * in_per_group + ic
        inside = build.all_of(
            [
                build.lt(ky, kernel_h),
                build.lt(kx, kernel_w),
                build.le(0, y),
                build.lt(y, height),
                build.le(0, x),
                build.lt(x, width),
                fits_y,
                fits_x,
            ]
        )
        source: dict[str, ExprLike] = {"N": at["N"], "C": channel, "H": y, "W": x}
        taps: dict[str, ExprLike] = {"I": channel, "O": oc % out_per_group if groups > 1 else oc, "H": ky, "W": kx}
        value = data[tuple(source[c] for c in layout)]
        factor = weight[tuple(taps[c] for c in kernel)]
        product = cast(value, total) * cast(factor, total)
        return reduction.sum(build.select(inside, product, const(0, total)), [rh, rw, ic])

    return compute(
        shape, element, "conv2d_transpose", ANCHOR.entry(Anchor.CONV2D_TRANSPOSE) | LAYOUT.entry(Layout(layout))
    )
