"""Sums, products and comparisons of quantised tensors, in the integers of the reference kernels."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import Multiplier, as_steps, bounds_of, finished, rescaled
from tilewright.frontend.tflite.single_rounding import sum_rounded_once
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32
from tilewright.support.errors import UnsupportedError

_ROOM = {8: 20, 16: 15}
"""Places by which inputs of so many bits move up before they are scaled to a common step."""

_HALF = 0.5


def quantized_sum(node: NodeContext) -> GraphExpr:
    """a + b or a - b: both in steps of twice the larger scale, moved up, then in steps of the result."""
    builder, to = node.builder, node.output_dtype()
    levels, result = (node.levels(0), node.levels(1)), node.output_levels()
    if to.name == "int16" and node.flag("pot_scale_int16", True) and _are_powers(node):
        return _sum_of_powers(node)
    room, name = _ROOM[to.bits], "subtract" if node.node.name == "SUB" else "add"
    scales = [np.float64(item.scales[0]) for item in levels]
    twice, bounds = 2 * max(scales), bounds_of(node.activation, result, to)
    back = Multiplier.of(twice / ((1 << room) * np.float64(result.scales[0])))

    def part(value: GraphExpr, zero: int, scale: np.float64) -> GraphExpr:
        steps = as_steps(builder, value, zero)
        if scale / twice == _HALF:
            # Half of what was moved up by a place more: exact, and no product.
            return builder.call("left_shift", steps, builder.constant(room - 1, INT32))
        moved = builder.call("left_shift", steps, builder.constant(room, INT32))
        return rescaled(builder, moved, Multiplier.of(scale / twice))

    def kernel(a: GraphExpr, b: GraphExpr) -> GraphExpr:
        parts = (part(value, item.zero, scale) for value, item, scale in zip((a, b), levels, scales, strict=True))
        value = rescaled(builder, builder.call(name, *parts), back)
        return finished(builder, value, result.zero, bounds, to)

    inputs = (node.input(0), node.input(1))
    first, second = (float(scale / np.float64(result.scales[0])) for scale in scales)
    factors = (first, -second if name == "subtract" else second)
    found = sum_rounded_once(builder, inputs, kernel, factors, bounds)
    return kernel(*inputs) if found is None else found


def _are_powers(node: NodeContext) -> bool:
    levels = [node.levels(0), node.levels(1), node.output_levels()]
    return all(np.frexp(item.scales[0])[0] == 0.5 and not item.zero for item in levels)


def _sum_of_powers(node: NodeContext) -> GraphExpr:
    raise UnsupportedError(
        f"{node.node.name} of 16-bit integers whose scales are powers of two",
        hint="convert the model again: converters of the last years write other scales",
    )


def quantized_product(node: NodeContext) -> GraphExpr:
    """a * b: the product of both less their zero points, rescaled."""
    builder, to = node.builder, node.output_dtype()
    first, second, result = node.levels(0), node.levels(1), node.output_levels()
    parts = [as_steps(builder, node.input(index), item.zero) for index, item in enumerate((first, second))]
    scale = np.float32(first.scales[0]) * np.float32(second.scales[0]) / np.float32(result.scales[0])
    negative = any(dtype_of(node.input(index)).min_value() < item.zero for index, item in enumerate((first, second)))
    value = rescaled(builder, builder.call("multiply", *parts), Multiplier.of(scale), negative)
    return finished(builder, value, result.zero, bounds_of(node.activation, result, to), to)


def quantized_abs(node: NodeContext) -> GraphExpr:
    """|x|, rescaled."""
    builder, to, levels, result = node.builder, node.output_dtype(), node.levels(0), node.output_levels()
    size = builder.call("abs", as_steps(builder, node.input(0), levels.zero))
    if levels.scale != result.scale:
        size = rescaled(builder, size, Multiplier.of(np.float32(levels.scales[0]) / np.float32(result.scales[0])))
    return finished(builder, size, result.zero, _whole(to), to)


def compared(node: NodeContext, name: str) -> GraphExpr:
    """A comparison: both inputs in steps of a common scale."""
    builder = node.builder
    parts: list[GraphExpr] = []
    levels = [node.levels(0), node.levels(1)]
    for index, item in enumerate(levels):
        steps = as_steps(builder, node.input(index), item.zero)
        moved = builder.call("left_shift", steps, builder.constant(8, INT32))
        parts.append(rescaled(builder, moved, Multiplier.of(np.float64(item.scales[0]))))
    return builder.call(name, *parts)


def squared_difference(node: NodeContext) -> GraphExpr:
    """(a - b)^2: inputs in steps of twice the larger scale, moved up by 7 places."""
    builder, to, room = node.builder, node.output_dtype(), 7
    first, second, result = node.levels(0), node.levels(1), node.output_levels()
    scales = [np.float64(item.scales[0]) for item in (first, second)]
    twice = 2 * max(scales)
    parts: list[GraphExpr] = []
    for index, (levels, scale) in enumerate(zip((first, second), scales, strict=True)):
        moved = builder.call(
            "left_shift", as_steps(builder, node.input(index), levels.zero), builder.constant(room, INT32)
        )
        parts.append(rescaled(builder, moved, Multiplier.of(scale / twice)))
    difference = builder.call("subtract", *parts)
    square = builder.call("multiply", difference, difference)
    back = Multiplier.of(twice * twice / ((1 << (2 * room)) * np.float64(result.scales[0])))
    return finished(builder, rescaled(builder, square, back), result.zero, _whole(to), to)


def _whole(dtype: object) -> tuple[int, int]:
    assert hasattr(dtype, "min_value") and hasattr(dtype, "max_value")
    return dtype.min_value(), dtype.max_value()


def requantized(node: NodeContext, value: GraphExpr, index: int) -> GraphExpr:
    """Integers of an input as those of the output, where the two have levels of their own."""
    builder, to = node.builder, node.output_dtype()
    levels, result = node.levels(index), node.output_levels()
    if levels.scale == result.scale and levels.zero == result.zero and dtype_of(value) is to:
        return value
    by = Multiplier.of(np.float64(levels.scales[0]) / np.float64(result.scales[0]))
    return finished(builder, rescaled(builder, as_steps(builder, value, levels.zero), by), result.zero, _whole(to), to)
