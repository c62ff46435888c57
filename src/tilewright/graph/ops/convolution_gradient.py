"""The gradient of a convolution for its weights; that for its data is `nn.conv2d_transpose`."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.dimensions import as_dim
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import (
    agree,
    constant_dim,
    floor_divide,
    require_float,
    require_length,
    require_positive,
    require_rank,
    same_dtype,
    tensors,
    window_dim,
)
from tilewright.graph.ops.contract import accumulation_type
from tilewright.graph.ops.convolution import LAYOUTS, Conv2dAttributes, check_common, divisible, windows
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

_NAMES = ("data", "gradient")


@node()
class Conv2dWeightGradientAttributes(Conv2dAttributes):
    """Those of the convolution, and the height and width of its kernel."""

    kernel: tuple[int, int] = (1, 1)


def _weight_gradient(args: list[Array], attributes: Conv2dWeightGradientAttributes) -> Array:
    data, gradient = (array.astype(accumulation_type(array.dtype), copy=False) for array in args)
    if attributes.data_layout == "NHWC":
        data, gradient = data.transpose(0, 3, 1, 2), gradient.transpose(0, 3, 1, 2)
    top, left, bottom, right = attributes.padding
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    groups, (height, width) = attributes.groups, attributes.kernel
    n, outputs, rows, columns = gradient.shape
    inputs = data.shape[1] // groups
    view = windows(padded, (height, width), attributes.strides, attributes.dilation)
    apart = view.reshape(n, groups, inputs, rows, columns, height, width)
    spread = gradient.reshape(n, groups, outputs // groups, rows, columns)
    with np.errstate(all="ignore"):
        result = np.einsum("ngiyxhw,ngoyx->goihw", apart, spread, optimize=True)
    result = result.reshape(outputs, inputs, height, width)
    last = attributes.kernel_layout == "HWIO"
    return np.ascontiguousarray(result.transpose(2, 3, 1, 0) if last else result, args[0].dtype)


@operator(
    "nn.conv2d_weight_gradient",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_weight_gradient,
    attributes=Conv2dWeightGradientAttributes,
)
def conv2d_weight_gradient(types: Types, attributes: Conv2dWeightGradientAttributes) -> Type:
    """The gradient for the weights of a convolution, from its data and the gradient for its result.

    `weight[o, i, h, w]` is the sum over all images and pixels of `gradient[n, o, y, x]` times the data that this tap of
    the kernel meets there. Layouts are those of the convolution: OIHW for NCHW, HWIO for NHWC.
    """
    data, gradient = tensors(types, _NAMES)
    dtype = same_dtype([data, gradient], _NAMES)
    require_float(dtype, "the inputs")
    check_common(attributes)
    require_length(attributes.kernel, 2, "kernel")
    require_positive(attributes.kernel, "kernel")
    if (attributes.data_layout, attributes.kernel_layout) not in LAYOUTS:
        raise UserError(
            f"no weight gradient for data in {attributes.data_layout} with a kernel in {attributes.kernel_layout}",
            hint="NCHW with OIHW, or NHWC with HWIO",
        )
    if data.shape is None or gradient.shape is None:
        return TensorType((None,) * 4, dtype)
    require_rank(data.shape, 4, "data")
    require_rank(gradient.shape, 4, "gradient")
    order = (0, 3, 1, 2) if attributes.data_layout == "NHWC" else (0, 1, 2, 3)
    batch, channels, height, width = (data.shape[n] for n in order)
    images, outputs, rows, columns = (gradient.shape[n] for n in order)
    agree(batch, images, "images of the data, and of the gradient")
    divisible(channels, attributes.groups, "input channels")
    divisible(outputs, attributes.groups, "output channels")
    top, left, bottom, right = attributes.padding
    (step_h, step_w), (space_h, space_w) = attributes.strides, attributes.dilation
    kernel_h, kernel_w = attributes.kernel
    agree(rows, window_dim(height, kernel_h, step_h, top, bottom, space_h, "height"), "rows of the gradient")
    agree(columns, window_dim(width, kernel_w, step_w, left, right, space_w, "width"), "columns of the gradient")
    known = constant_dim(channels) is not None or attributes.groups == 1
    inputs = floor_divide(channels, attributes.groups) if known else None
    kernel = (as_dim(kernel_h), as_dim(kernel_w))
    if attributes.kernel_layout == "HWIO":
        return TensorType((*kernel, inputs, outputs), dtype)
    return TensorType((outputs, inputs, *kernel), dtype)
