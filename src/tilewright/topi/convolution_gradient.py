"""The gradient of a convolution for its weights: for each tap a product of data and gradients over all pixels."""

from __future__ import annotations

from typing import Any

from tilewright.ir import build
from tilewright.ir.build import cast
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, LAYOUT, Anchor, Layout
from tilewright.topi.convolution import pad_spatial
from tilewright.topi.reduce import accumulator_type
from tilewright.topi.registry import compute_of, result_shape


@compute_of("nn.conv2d_weight_gradient")
def _weight_gradient(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Sums over images and pixels; groups are an axis of their own, so that neighbouring outputs share their data."""
    data, gradient = inputs
    layout, kernel, groups = attributes.data_layout, attributes.kernel_layout, attributes.groups
    shape = dict(zip(kernel, result_shape(result), strict=True))
    padded = pad_spatial(data, tuple(attributes.padding), layout)
    total = accumulator_type(data.dtype)
    n = reduce_axis((0, data.shape[0]), "n")
    y, x = (reduce_axis((0, gradient.shape[layout.index(axis)]), axis.lower()) for axis in "HW")
    (sh, sw), (dh, dw) = attributes.strides, attributes.dilation
    single = groups > 1 and const_value(shape["I"]) == 1
    outputs = shape["O"] // groups

    def term(at: dict[str, ExprLike], source: ExprLike, target: ExprLike) -> PrimExpr:
        """The sum for a tap (`at`: H, W) of a channel of the data and one of the gradient."""
        place = {"N": n, "C": source, "H": y * sh + build.mul(at["H"], dh), "W": x * sw + build.mul(at["W"], dw)}
        out: dict[str, ExprLike] = {"N": n, "C": target, "H": y, "W": x}
        value, factor = padded[tuple(place[c] for c in layout)], gradient[tuple(out[c] for c in layout)]
        return reduction.sum(cast(value, total) * cast(factor, total), [n, y, x])

    notes = ANCHOR.entry(Anchor.CONV2D_WEIGHT_GRADIENT) | LAYOUT.entry(Layout(layout))
    if groups == 1 or single:

        def element(*i: ExprLike) -> PrimExpr:
            at = dict(zip(kernel, i, strict=True))
            return term(at, build.as_expr(at["O"]) // outputs if single else at["I"], at["O"])

        sums = compute(result_shape(result), element, "conv2d_weight_gradient", notes)
        return sums if total is data.dtype else compute(sums.shape, lambda *i: cast(sums[i], data.dtype), "narrowed")

    def grouped(g: ExprLike, *i: ExprLike) -> PrimExpr:
        at = dict(zip(kernel, i, strict=True))
        source = build.add(build.mul(g, shape["I"]), at["I"])
        return term(at, source, build.add(build.mul(g, outputs), at["O"]))

    own = tuple(outputs if axis == "O" else shape[axis] for axis in kernel)
    apart = compute((groups, *own), grouped, "conv2d_weight_gradient", notes)

    def joined(*i: ExprLike) -> PrimExpr:
        channel = build.as_expr(i[kernel.index("O")])
        inside = tuple(channel % outputs if axis == "O" else item for axis, item in zip(kernel, i, strict=True))
        return cast(apart[(channel // outputs, *inside)], data.dtype)

    return compute(result_shape(result), joined, "groups_joined")
