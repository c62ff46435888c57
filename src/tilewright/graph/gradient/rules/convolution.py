"""Convolutions: the gradient of the data is the transposed convolution, that of the weights an operator of its own.

All three are linear in each of their inputs, and each is what the gradients of the others are made of.
"""

from __future__ import annotations

from tilewright.graph.gradient.expressions import sizes_of, slice_axis, transpose, with_type
from tilewright.graph.gradient.registry import Cotangents, reverse_rule
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, constants
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.convolution_gradient import Conv2dWeightGradientAttributes
from tilewright.support.errors import UserError



@reverse_rule("nn.conv2d")
def conv2d(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The transposed convolution of the cotangent, and the gradient for the weights."""
    attributes = call.attributes
    assert isinstance(attributes, Conv2dAttributes)
    data, weight = call.args
    return [
        lambda: _data_gradient(data, weight, cotangent, attributes),
        lambda: _weight_gradient(data, cotangent, weight, attributes, attributes.padding),
    ]


@reverse_rule("nn.conv2d_weight_gradient")
def conv2d_weight_gradient(call: Call, cotangent: GraphExpr) -> Cotangents:
    """With the cotangent as weights: the data gets a transposed convolution, the gradient a convolution."""
    attributes = call.attributes
    assert isinstance(attributes, Conv2dWeightGradientAttributes)
    data, gradient = call.args
    keywords = {name: getattr(attributes, name) for name in Conv2dAttributes.fields}
    return [
        lambda: _data_gradient(data, cotangent, gradient, attributes),
        lambda: with_type(make("nn.conv2d", data, cotangent, **keywords), gradient.type),
    ]


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
    padding: tuple[int, int, int, int],
) -> GraphExpr:
    """The gradient for the weights, from the larger images and the smaller ones."""
    last = attributes.data_layout == "NHWC"
    sizes = sizes_of(weight)
    kernel = constants(sizes[:2] if last else sizes[2:])
    if kernel is None:
        raise UserError("the gradient of a convolution whose kernel has no known size", hint="give its shape")
    found = make(
        "nn.conv2d_weight_gradient",
        data,
        cotangent,
        kernel=kernel,
        strides=attributes.strides,
        padding=padding,
        dilation=attributes.dilation,
        groups=attributes.groups,
        data_layout=attributes.data_layout,
        kernel_layout="HWIO" if last else "OIHW",
    )
    return with_type(found, weight.type)


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
        given, padding = cotangent, list(attributes.padding)
        for place, (extra, stride) in enumerate(zip(attributes.output_padding, attributes.strides, strict=True)):
            # What no tap reaches would be windows of its own.
            unread = extra - extra % stride
            cut = max(unread - padding[2 + place], 0)
            padding[2 + place] -= unread - cut
            if cut:
                size = dimensions.subtract(sizes_of(given)[first + place], cut)
                given = slice_axis(given, first + place, 0, size)
        # Weights of a transposed convolution are those of the convolution that it is the transpose of.
        turned = transpose(weight, (0, 1, 3, 2)) if last else weight
        sides = (padding[0], padding[1], padding[2], padding[3])
        found = _weight_gradient(given, data, turned, attributes, sides)
        return transpose(found, (0, 1, 3, 2)) if last else found

    return [of_data, of_weight]
