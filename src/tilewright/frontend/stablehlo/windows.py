"""Converters of reductions over windows: running sums, pooling, and any region.

A window of n elements is two windows of half as many next to each other, so that the work grows with the logarithm of
its length; along several dimensions one comes after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part, shape_of_tensor
from tilewright.frontend.stablehlo.program import Block, Operation
from tilewright.frontend.stablehlo.reduce import combine, is_neutral, monoid_of, reduction_of
from tilewright.frontend.stablehlo.registry import converter
from tilewright.frontend.stablehlo.shapes import padded
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr


@dataclass(frozen=True, slots=True)
class _Window:
    """How windows lie; one entry a dimension."""

    sizes: list[int]
    strides: list[int]
    low: list[int]
    high: list[int]
    base: list[int]
    dilation: list[int]


@converter("reduce_window", of_complex="taken")
def reduce_window(b: StableBuilder, operation: Operation, *operands: Any) -> Any:
    """Elements of windows combined by a region, from a start."""
    count = len(operands) // 2
    inputs, starts = list(operands[:count]), list(operands[count:])
    rank = len(shape_of_tensor(inputs[0]))
    pads = b.list_of("padding", [0] * 2 * rank)
    window = _Window(
        b.list_of("window_dimensions"),
        b.list_of("window_strides", [1] * rank),
        pads[::2],
        pads[1::2],
        b.list_of("base_dilations", [1] * rank),
        b.list_of("window_dilations", [1] * rank),
    )
    region = operation.regions[0]
    name = monoid_of(region)
    if count == 1 and isinstance(inputs[0], GraphExpr) and name is not None:
        special = _special(b, name, inputs[0], starts[0], window)
        if special is not None:
            return special
    return _general(b, region, name, inputs, starts, window)


def _special(b: StableBuilder, name: str, x: GraphExpr, start: GraphExpr, window: _Window) -> GraphExpr | None:
    """Running sums and products, and pooling: operators of their own."""
    reduction = reduction_of(name, dtype_of(x))
    shape = sizes_of(x)
    if reduction is None or 0 in shape or not is_neutral(b, start, reduction):
        return None
    long = [axis for axis, size in enumerate(window.sizes) if size != 1]
    plain = all(step == 1 for step in (*window.strides, *window.base, *window.dilation))
    if reduction in ("sum", "prod") and plain and len(long) == 1:
        axis = long[0]
        others = sum(window.low) + sum(window.high) - window.low[axis] - window.high[axis]
        if not others and window.sizes[axis] == shape[axis]:
            ends = window.low[axis], window.high[axis]
            operator = "cumsum" if reduction == "sum" else "cumprod"
            if ends == (window.sizes[axis] - 1, 0):
                return b.call(operator, x, axis=axis)
            if ends == (0, window.sizes[axis] - 1):
                return b.call(operator, x, axis=axis, reverse=True)
    return _pooled(b, reduction, x, window)


def _pooled(b: StableBuilder, reduction: str, x: GraphExpr, window: _Window) -> GraphExpr | None:
    """Maxima of images."""
    axes = [(axis, layout) for axis, layout in (((2, 3), "NCHW"), ((1, 2), "NHWC"))]
    if reduction != "max" or len(window.sizes) != 4 or not dtype_of(x).is_float or any(s != 1 for s in window.base):
        return None
    for space, layout in axes:
        others = [axis for axis in range(4) if axis not in space]
        flat = all(
            window.sizes[axis] == window.strides[axis] == 1 and window.low[axis] == window.high[axis] == 0
            for axis in others
        )
        pads = [side[axis] for side in (window.low, window.high) for axis in space]
        if not flat or any(amount < 0 for amount in pads):
            continue
        if any(pads[at] >= window.sizes[axis] or pads[2 + at] >= window.sizes[axis] for at, axis in enumerate(space)):
            continue
        return b.call(
            "nn.max_pool2d",
            x,
            kernel=tuple(window.sizes[axis] for axis in space),
            strides=tuple(window.strides[axis] for axis in space),
            padding=tuple(pads),
            dilation=tuple(window.dilation[axis] for axis in space),
            layout=layout,
        )
    return None


def _general(
    b: StableBuilder,
    region: Block,
    name: str | None,
    inputs: list[Any],
    starts: list[Any],
    window: _Window,
) -> list[Any]:
    interior = [step - 1 for step in window.base]
    values = [
        _each(value, start, lambda x, s: padded(b, x, s, window.low, window.high, interior))
        for value, start in zip(inputs, starts, strict=True)
    ]
    if 0 in shape_of_tensor(values[0]):
        return values

    def join(first: list[Any], second: list[Any]) -> list[Any]:
        if name is not None and isinstance(first[0], GraphExpr):
            reduction = reduction_of(name, dtype_of(first[0]))
            if reduction is not None:
                return [combine(b, reduction, first[0], second[0])]
        return b.run_wide(region, [*first, *second])

    for axis, size in enumerate(window.sizes):
        values = _along(b, values, axis, size, window.strides[axis], window.dilation[axis], join)
    return join(starts, values)


def _each(value: Tensor, start: Tensor, function: Any) -> Tensor:
    parts = [function(x, s) for x, s in zip(each_part(value), each_part(start), strict=True)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _along(
    b: StableBuilder, values: list[Any], axis: int, size: int, stride: int, dilation: int, join: Any
) -> list[Any]:
    """Windows along one axis."""
    length = shape_of_tensor(values[0])[axis]
    reach = (size - 1) * dilation
    count = dimensions.add(dimensions.floor_divide(dimensions.subtract(length, reach + 1), stride), 1)
    if size == 1 and stride == 1:
        return values
    if size <= 4 or stride >= size:
        total: list[Any] | None = None
        for tap in range(size):
            part = [_stepped(b, value, axis, tap * dilation, count, stride) for value in values]
            total = part if total is None else join(total, part)
        assert total is not None
        return total
    # Windows of 1, 2, 4 ... elements at every place; those that a size is made of lie one behind the other.
    found: list[Any] | None = None
    done, width, powers = 0, 1, values
    for bit in range(math.floor(math.log2(size)) + 1):
        if size >> bit & 1:
            rest = dimensions.subtract(length, reach)
            part = [_stepped(b, value, axis, (size - done - width) * dilation, rest, 1) for value in powers]
            found = part if found is None else join(part, found)
            done += width
        if done < size:
            extent = shape_of_tensor(powers[0])[axis]
            rest = dimensions.subtract(extent, width * dilation)
            first = [_stepped(b, value, axis, 0, rest, 1) for value in powers]
            second = [_stepped(b, value, axis, width * dilation, rest, 1) for value in powers]
            powers, width = join(first, second), 2 * width
    assert found is not None
    return [_stepped(b, value, axis, 0, count, stride) for value in found]


def _stepped(b: StableBuilder, value: Tensor, axis: int, start: int, count: Size, stride: int) -> Tensor:
    """So many elements along an axis from a place on."""
    end = dimensions.add(start, dimensions.add(dimensions.multiply(dimensions.subtract(count, 1), stride), 1))
    parts = [b.slice(part, axis, start, end, stride) for part in each_part(value)]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]
