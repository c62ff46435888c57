"""Convolutions: the gradient of the data is the transposed convolution, that of the weights a convolution over images.

    weight'[o, i, u, v] = sum over n, y, x of result'[n, o, y, x] * data[n, i, y * stride + u * dilation, ...]

which is a convolution of the data with the cotangent as the kernel, where images take the place of channels, and
strides and dilation change places.
"""

from __future__ import annotations

from tilewright.graph.gradient.expressions import reshape, sizes_of, slice_axis, transpose, with_type
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, constants
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes

_TO_PLANES = (0, 3, 1, 2)


@reverse_rule("nn.conv2d")
def conv2d(call: Call, cotangent: GraphExpr) -> Cotangents:
    """See above; images with channels last have their order changed for the gradient of the weights."""
    attributes = call.attributes
    assert isinstance(attributes, Conv2dAttributes)
    data, weight = call.args
    last = attributes.data_layout == "NHWC"

    def of_weight() -> GraphExpr:
        if not last:
            return _weight_gradient(data, cotangent, weight, attributes)
        planes = _weight_gradient(
            transpose(data, _TO_PLANES), transpose(cotangent, _TO_PLANES), transpose(weight, (3, 2, 0, 1)), attributes
        )
        return transpose(planes, (2, 3, 1, 0))

    return [lambda: _data_gradient(data, weight, cotangent, attributes), of_weight]


def _data_gradient(data: GraphExpr, weight: GraphExpr, cotangent: GraphExpr, attributes: Conv2dAttributes) -> GraphExpr:
    last = attributes.data_layout == "NHWC"
    first = 1 if last else 2
    top, left, bottom, right = attributes.padding
    images, results, kernel = (sizes_of(item) for item in (data, cotangent, weight))
    windows = kernel[:2] if last else kernel[2:]
    extra: list[Size] = []
    for place, ends in enumerate((top + bottom, left + right)):
        reach = dimensions.add(dimensions.multiply(dimensions.subtract(windows[place], 1), attributes.dilation[place]), 1)
        covered = dimensions.add(
            dimensions.multiply(dimensions.subtract(results[first + place], 1), attributes.strides[place]), reach
        )
        extra.append(dimensions.subtract(dimensions.add(images[first + place], ends), covered))
    known = constants(extra)
    spread = make(
        "nn.conv2d_transpose",
        cotangent,
        transpose(weight, (0, 1, 3, 2)) if last else weight,
        strides=attributes.strides,
        # Where the size is open, one row too many is computed and cut off.
        padding=attributes.padding if known is not None else (top, left, 0, 0),
        output_padding=known if known is not None else tuple(stride - 1 for stride in attributes.strides),
        dilation=attributes.dilation,
        groups=attributes.groups,
        data_layout=attributes.data_layout,
        kernel_layout="HWIO" if last else "IOHW",
    )
    if known is None:
        for place in range(2):
            spread = slice_axis(spread, first + place, 0, images[first + place])
    return with_type(spread, data.type)


def _weight_gradient(
    data: GraphExpr,
    cotangent: GraphExpr,
    weight: GraphExpr,
    attributes: Conv2dAttributes | Conv2dTransposeAttributes,
) -> GraphExpr:
    """The gradient of weights OIHW from images NCHW."""
    groups = attributes.groups
    count, channels, height, width = sizes_of(data)
    inner = dimensions.floor_divide(channels, groups)
    apart = reshape(data, (count, groups, inner, height, width))
    images = reshape(
        transpose(apart, (2, 1, 0, 3, 4)), (inner, dimensions.multiply(groups, count), height, width)
    )
    sums = make(
        "nn.conv2d",
        images,
        transpose(cotangent, (1, 0, 2, 3)),
        strides=attributes.dilation,
        dilation=attributes.strides,
        padding=attributes.padding,
        groups=groups,
    )
    kernel = sizes_of(weight)
    for axis in (2, 3):
        if sizes_of(sums)[axis] != kernel[axis]:
            sums = slice_axis(sums, axis, 0, kernel[axis])
    return with_type(transpose(sums, (1, 0, 2, 3)), weight.type)


@reverse_rule("nn.conv2d_transpose")
def conv2d_transpose(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The convolution that it is the transpose of, and the gradient of its weights with the roles exchanged."""
    attributes = call.attributes
    assert isinstance(attributes, Conv2dTransposeAttributes)
    data, weight = call.args
    last = attributes.data_layout == "NHWC"
    first = 1 if last else 2

    def of_data() -> GraphExpr:
        found = make(
            "nn.conv2d",
            cotangent,
            transpose(weight, (0, 1, 3, 2)) if last else weight,
            strides=attributes.strides,
            padding=attributes.padding,
            dilation=attributes.dilation,
            groups=attributes.groups,
            data_layout=attributes.data_layout,
            kernel_layout="HWIO" if last else "OIHW",
        )
        for axis in (first, first + 1):
            if sizes_of(found)[axis] != sizes_of(data)[axis]:
                found = slice_axis(found, axis, 0, sizes_of(data)[axis])
        return with_type(found, data.type)

    def of_weight() -> GraphExpr:
        if not last:
            return _weight_gradient(cotangent, data, weight, attributes)
        planes = _weight_gradient(
            transpose(cotangent, _TO_PLANES), transpose(data, _TO_PLANES), transpose(weight, (2, 3, 0, 1)), attributes
        )
        return transpose(planes, (2, 3, 0, 1))

    return [of_data, of_weight]
