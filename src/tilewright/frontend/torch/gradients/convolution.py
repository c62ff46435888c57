"""Converter of the gradients of convolutions in one, two and three dimensions, and of their transposes.

The gradient for the data of a convolution is its transpose, and the other way round. That for the weights is the same
sum over pixels for both: what is the data of the one is the gradient of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.convolution import (
    as_plane,
    convolved,
    depth_slices,
    each,
    from_plane,
    transposed_convolution,
    two,
)
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

Gradients = list[GraphExpr | None]


@converter("convolution_backward")
def convolution_gradients(
    b: TorchBuilder,
    grad_output: GraphExpr,
    input: GraphExpr,
    weight: GraphExpr,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """The gradients for the data, the weights and the bias, those that are asked for."""
    rank = rank_of(input) - 2
    if not 1 <= rank <= 3:
        raise UnsupportedError(f"the gradient of a convolution in {rank} dimensions")
    steps, pads, spread = (each(item, rank) for item in (stride, padding, dilation))
    if 0 in (*sizes_of(grad_output), *sizes_of(input), *sizes_of(weight)):
        wanted = (sizes_of(input), sizes_of(weight), (sizes_of(grad_output)[1],))
        return [
            _zeros(b, shape, grad_output) if flag else None for shape, flag in zip(wanted, output_mask, strict=True)
        ]
    result: Gradients = [None, None, None]
    if output_mask[0] and transposed:
        data = convolved(b, grad_output, weight, steps, pads, spread, groups)
        result[0] = _cropped(b, data, input)
    elif output_mask[0]:
        extra = _unreached(input, grad_output, shape_of(weight)[2:], steps, pads, spread)
        data = transposed_convolution(b, grad_output, weight, steps, pads, spread, extra, groups)
        result[0] = _cropped(b, data, input)
    if output_mask[1]:
        data, gradient = (grad_output, input) if transposed else (input, grad_output)
        kernel = shape_of(weight)[2:]
        result[1] = _weight_gradient(b, data, gradient, kernel, steps, pads, spread, groups)
    if output_mask[2]:
        result[2] = b.reduce("sum", grad_output, (0, *range(2, rank + 2)))
    return result


def _zeros(b: TorchBuilder, shape: Sequence[Size], like: GraphExpr) -> GraphExpr:
    dtype = dtype_of(like)
    return b.empty(shape, dtype) if 0 in shape else b.filled(0, shape, dtype)


def _unreached(
    data: GraphExpr,
    gradient: GraphExpr,
    kernel: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
) -> list[int]:
    """How many rows, columns ... at the end of the data no window reaches; where sizes vary, the most that can be."""
    extra: list[int] = []
    for axis, (taps, step, pad, space) in enumerate(zip(kernel, steps, pads, spread, strict=True), start=2):
        size, count = sizes_of(data)[axis], sizes_of(gradient)[axis]
        if isinstance(size, int) and isinstance(count, int):
            extra.append(size + 2 * pad - (count - 1) * step - (taps - 1) * space - 1)
        else:
            extra.append(step - 1)
    return extra


def _cropped(b: TorchBuilder, value: GraphExpr, like: GraphExpr) -> GraphExpr:
    """As many rows, columns ... as another value has."""
    for axis, (mine, wanted) in enumerate(zip(sizes_of(value), sizes_of(like), strict=True)):
        if axis >= 2 and not dimensions.same(mine, wanted):
            value = b.slice_axis(value, axis, 0, wanted)
    return value


def _weight_gradient(
    b: TorchBuilder,
    data: GraphExpr,
    gradient: GraphExpr,
    kernel: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
    groups: int,
) -> GraphExpr:
    if len(kernel) == 3:
        batch, outputs, count, *size = sizes_of(gradient)
        flat = (dimensions.multiply(batch, count), outputs, *size)
        images = b.reshape(b.transpose(gradient, (0, 2, 1, 3, 4)), flat)
        taps = [
            _weight_gradient(b, part, images, kernel[1:], steps[1:], pads[1:], spread[1:], groups)
            for part in depth_slices(b, data, kernel[0], steps[0], pads[0], spread[0], count)
        ]
        return b.stack(taps, 2)
    low = two(pads, 0)
    result = b.call(
        "nn.conv2d_weight_gradient",
        as_plane(b, _reached(b, data, gradient, kernel, steps, pads, spread)),
        as_plane(b, gradient),
        kernel=two(kernel, 1),
        strides=two(steps, 1),
        padding=(*low, *low),
        dilation=two(spread, 1),
        groups=groups,
    )
    return from_plane(b, result, len(kernel))


def _reached(
    b: TorchBuilder,
    data: GraphExpr,
    gradient: GraphExpr,
    kernel: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    spread: Sequence[int],
) -> GraphExpr:
    """The data without rows past the last window, if there are so many that another window would fit."""
    for axis, (taps, step, pad, space) in enumerate(zip(kernel, steps, pads, spread, strict=True), start=2):
        size, count = sizes_of(data)[axis], sizes_of(gradient)[axis]
        if not isinstance(size, int) or not isinstance(count, int):
            continue
        if (size + 2 * pad - (taps - 1) * space - 1) // step + 1 > count:
            data = b.slice_axis(data, axis, 0, (count - 1) * step + (taps - 1) * space + 1 - 2 * pad)
    return data
