"""Grouped and transposed convolutions of bytes: products of their own weights for each group of channels, and phase.

A group whose outputs fill no whole vector is joined with its neighbours; zeros in the weights keep them apart. A
transposed convolution of stride s has s * s phases: results whose places have the same remainder are an ordinary
convolution with every s-th tap of the kernel, and one kernel computes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, GraphExpr, constant
from tilewright.graph.ir.rewrite import known_sizes, make, static_shape
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.passes.integer_operands import (
    Operands,
    ShiftedBytes,
    border_byte,
    corrected,
    first_columns,
    pad_depth,
    window_sums,
)
from tilewright.graph.passes.quantized_products import has_integer_form

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Weights (..., inputs of a group, groups * outputs of a group)."""

    values: Array
    groups: int


def join_groups_of_bytes(weights: Array, groups: int, operands: Operands) -> GroupedWeights:
    """Weights (..., inputs of a group, all outputs) with as many groups joined as is quickest."""
    depth, width = weights.shape[-2], weights.shape[-1] // groups
    count = _groups_to_join(groups, depth, width, operands)
    rest = weights.shape[:-2]
    apart = weights.reshape(*rest, depth, groups // count, count, width)
    wide = np.zeros((*rest, count, depth, groups // count, count, width), weights.dtype)
    for member in range(count):
        wide[..., member, :, :, member, :] = apart[..., member, :]
    return GroupedWeights(wide.reshape(*rest, count * depth, groups * width), groups // count)


def _groups_to_join(groups: int, depth: int, width: int, operands: Operands) -> int:
    """How many groups to join, so that vectors are whole (or all groups are one) and the products take least time."""

    def cost(count: int) -> float:
        steps, vectors = -(-depth * count // operands.group), -(-width * count // operands.lanes)
        # A row is loaded for all vectors of a tile, and a vector for all its rows: narrow tiles wait for loads.
        return groups // count * steps * (vectors + 1)

    able = [count for count in range(1, groups + 1) if groups % count == 0]
    return min((count for count in able if width * count % operands.lanes == 0 or count == groups), key=cost)


def grouped_conv2d(call: Call, data: ShiftedBytes, weights: GroupedWeights, operands: Operands) -> GraphExpr | None:
    """A channels-last convolution of groups that fill whole vectors; None where sizes or weights do not fit."""
    attributes, sizes, result = call.attributes, known_sizes(data.data), known_sizes(call)
    assert isinstance(attributes, Conv2dAttributes)
    kernel = operands.weights(weights.values)
    if kernel is None or sizes is None or result is None:
        return None
    groups = weights.groups
    height, width, depth, outputs = kernel.values.shape
    missing = -depth % operands.group
    values = kernel.values.reshape(height, width, depth, groups, outputs // groups).transpose(3, 0, 1, 2, 4)
    product: GraphExpr = make(
        "qnn.grouped_conv2d",
        pad_depth(make("reshape", data.data, shape=(*sizes[:3], groups, depth), span=call.span), missing),
        operands.stored(_deeper(values, missing)),
        border_byte(data),
        strides=attributes.strides,
        padding=attributes.padding,
        dilation=attributes.dilation,
        span=call.span,
    )
    if kernel.offset:
        sums = window_sums(call, height, width, groups)
        product = make("add", product, make("multiply", sums, constant(np.int32(kernel.offset))))
    flat = make("reshape", product, shape=result, span=call.span)
    return corrected(flat, data.zero, values.sum(axis=(1, 2, 3), dtype=np.int64).reshape(-1))


def transposed_conv2d(call: Call, data: ShiftedBytes, weights: Array, operands: Operands) -> GraphExpr | None:
    """A channels-last transposed convolution, phase by phase; None where sizes or weights do not fit."""
    attributes, result = call.attributes, static_shape(call)
    assert isinstance(attributes, Conv2dTransposeAttributes)
    if not has_integer_form(call, weights) or result is None:
        return None
    groups, strides = attributes.groups, (attributes.strides[0], attributes.strides[1])
    spread = _spread_taps(weights, attributes.dilation)
    height, width, inputs, outputs = spread.shape
    # (height, width, inputs of a group, all outputs)
    apart = spread.reshape(height, width, groups, inputs // groups, outputs).swapaxes(2, 3)
    joined = join_groups_of_bytes(apart.reshape(height, width, inputs // groups, -1), groups, operands)
    kernel = operands.weights(joined.values)
    if kernel is None or kernel.offset:
        return None
    groups, depth = joined.groups, joined.values.shape[2]
    missing = -depth % operands.group
    phases = _phases(kernel.values.reshape(height, width, depth, groups, -1), strides, attributes.padding)
    columns = phases.shape[-1]
    filled = np.pad(_deeper(phases, missing), [(0, 0)] * 6 + [(0, -columns % operands.lanes)])
    batch, rows, across, channels = result
    steps = (-(-rows // strides[0]), -(-across // strides[1]))
    sizes = known_sizes(data.data)
    assert sizes is not None
    product: GraphExpr = make(
        "qnn.conv2d_transpose",
        pad_depth(make("reshape", data.data, shape=(*sizes[:3], groups, depth), span=call.span), missing),
        operands.stored(filled),
        border_byte(data),
        steps=steps,
        padding=attributes.padding[:2],
        span=call.span,
    )
    # What is outside of the image is the zero point too, so all taps of a phase count.
    sums = phases.sum(axis=(3, 4, 5), dtype=np.int64).transpose(1, 2, 0, 3)[:, np.newaxis]
    product = corrected(first_columns(product, columns), data.zero, sums)
    whole = (batch, steps[0] * strides[0], steps[1] * strides[1], channels)
    flat: GraphExpr = make("reshape", product, shape=whole, span=call.span)
    if whole == result:
        return flat
    return make("slice", flat, begin=(0,) * 4, end=result, strides=(1,) * 4, span=call.span)


def _spread_taps(weights: Array, dilation: tuple[int, int]) -> Array:
    """Weights (height, width, ...) with zeros between taps that are apart."""
    sizes = [(weights.shape[axis] - 1) * dilation[axis] + 1 for axis in range(2)]
    result = np.zeros((*sizes, *weights.shape[2:]), weights.dtype)
    result[:: dilation[0], :: dilation[1]] = weights
    return result


def _phases(weights: Array, strides: tuple[int, int], padding: tuple[int, ...]) -> Array:
    """Weights (group, phase, phase, tap, tap, input, output) from (height, width, input, group, output).

    Taps of a phase are `stride` apart in the kernel, the last one first: they meet inputs in order. Those that the
    kernel does not have are zero.
    """
    height, width, depth, groups, outputs = weights.shape
    taps = [-(-size // stride) for size, stride in zip((height, width), strides, strict=True)]
    result = np.zeros((groups, *strides, *taps, depth, outputs), weights.dtype)
    for p, q, down, across in np.ndindex(*strides, *taps):
        row = (p + padding[0]) % strides[0] + (taps[0] - 1 - down) * strides[0]
        column = (q + padding[1]) % strides[1] + (taps[1] - 1 - across) * strides[1]
        if row < height and column < width:
            result[:, p, q, down, across] = weights[row, column].swapaxes(0, 1)
    return result


def _deeper(weights: Array, extra: int) -> Array:
    """Weights (..., inputs, outputs) with more inputs, which are zeros."""
    return np.pad(weights, [(0, 0)] * (weights.ndim - 2) + [(0, extra), (0, 0)])
