"""Converters of reductions and of positions of extremes."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import Multiplier, as_steps, finished, rescaled, rounded_away
from tilewright.frontend.tflite.pooling import divided_away
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import add, floor_divide, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_REDUCTIONS = {
    "MEAN": "mean",
    "SUM": "sum",
    "REDUCE_PROD": "prod",
    "REDUCE_MAX": "max",
    "REDUCE_MIN": "min",
    "REDUCE_ANY": "any",
    "REDUCE_ALL": "all",
}


def _axes(node: NodeContext) -> tuple[int, ...]:
    rank = rank_of(node.input(0))
    return tuple(sorted({node.axis(item, rank) for item in node.constant_ints(1, "the axes")}))


@converter(*_REDUCTIONS)
def reduction(node: NodeContext) -> GraphExpr:
    """Over axes that are an input."""
    data, name, axes, keepdims = node.input(0), node.node.name, _axes(node), node.flag("keep_dims")
    if not axes:
        return data
    if node.is_quantized() and name in ("MEAN", "SUM"):
        return _quantized(node, axes, keepdims)
    if node.is_quantized() and name == "REDUCE_PROD":
        raise UnsupportedError("REDUCE_PROD of quantised tensors")
    if name == "MEAN" and not dtype_of(data).is_float:
        # Whole numbers are added in 64 bits, and divided toward zero.
        total = node.call("sum", node.builder.cast(data, INT64), axes=axes, keepdims=keepdims)
        count = node.builder.reshape(node.builder.shape_tensor([product([sizes_of(data)[at] for at in axes])]), ())
        return node.builder.cast(node.call("divide", total, count), dtype_of(data))
    return node.call(_REDUCTIONS[name], data, axes=axes, keepdims=keepdims)


def _quantized(node: NodeContext, axes: tuple[int, ...], keepdims: bool) -> GraphExpr:
    """Sums and means of quantised numbers."""
    builder, call, to = node.builder, node.call, node.output_dtype()
    data, levels, result = node.input(0), node.levels(0), node.output_levels()
    number = product([sizes_of(data)[at] for at in axes])
    wide = builder.reshape(builder.shape_tensor([number]), ())
    count = builder.constant(number, INT32) if isinstance(number, int) else builder.cast(wide, INT32)
    bounds = (to.min_value(), to.max_value())
    is_mean = node.node.name == "MEAN"
    scale = np.float64(levels.scales[0]) / np.float64(result.scales[0])
    if is_mean and rank_of(data) == 4 and axes == (1, 2) and keepdims:
        sums = call("sum", as_steps(builder, data, levels.zero), axes=axes, keepdims=keepdims)
        value = rescaled(builder, sums, Multiplier.of(scale))
        return finished(builder, divided_away(node, value, count), result.zero, bounds, to)
    if levels.scale == result.scale and levels.zero == result.zero and is_mean:
        sums = call("sum", builder.cast(data, INT32), axes=axes, keepdims=keepdims)
        return finished(builder, divided_away(node, sums, count), 0, bounds, to)
    if is_mean:
        sums = call("sum", as_steps(builder, data, levels.zero), axes=axes, keepdims=keepdims)
        by = Multiplier.of(scale)
        value = (
            rescaled(builder, sums, _divided(by, number))
            if isinstance(number, int)
            else _rescaled_share(node, sums, by, wide)
        )
        return finished(builder, value, result.zero, bounds, to)
    sums = builder.cast(call("sum", builder.cast(data, INT32), axes=axes, keepdims=keepdims), FLOAT32)
    step = np.float32(levels.scales[0]) / np.float32(result.scales[0])
    offset = call("multiply", builder.constant(-np.float32(levels.zero) * step, FLOAT32), builder.cast(count, FLOAT32))
    value = call("add", call("multiply", sums, builder.constant(step, FLOAT32)), offset)
    return finished(builder, rounded_away(builder, value), result.zero, bounds, to)


def _divided(by: Multiplier, count: int) -> Multiplier:
    """A multiplier over a number of elements, with as many digits as the kernels keep."""
    places = min(count.bit_length() - 1, 32, 31 + int(by.shift))
    return Multiplier((by.multiplier << places) // count, by.shift - places)


def _rescaled_share(node: NodeContext, sums: GraphExpr, by: Multiplier, count: GraphExpr) -> GraphExpr:
    """Sums times a multiplier over a number of elements that a call decides: what `_divided` does, in operators."""
    call, builder = node.call, node.builder

    def number(value: int) -> GraphExpr:
        return builder.constant(value, INT64)

    powers = builder.constant(np.int64(1) << np.arange(1, 33), INT64)
    digits = call("sum", builder.cast(call("greater_equal", count, powers), INT64), axes=(0,), keepdims=False)
    places = call("minimum", digits, number(31 + int(by.shift)))
    multiplier = call("divide", call("left_shift", number(int(by.multiplier)), places), count)
    shift = call("subtract", number(int(by.shift)), places)
    left = builder.cast(call("maximum", shift, number(0)), INT32)
    right = builder.cast(call("minimum", shift, number(0)), INT32)
    high = call("qnn.high_product", call("left_shift", sums, left), builder.cast(multiplier, INT32))
    # As in `rescaled`: the sign takes one off a negative number where there is a shift.
    moved = builder.cast(call("less", right, builder.constant(0, INT32)), INT32)
    sign = call("multiply", call("right_shift", high, builder.constant(31, INT32)), moved)
    return call("qnn.rounded_shift", call("add", high, sign), right)


@converter("ARG_MAX", "ARG_MIN")
def arg_extreme(node: NodeContext) -> GraphExpr:
    """The position of the greatest or the least along an axis that is an input; the first of equal ones."""
    data = node.input(0)
    axis = node.axis(node.constant_int(1, "the axis"), rank_of(data))
    name = "argmax" if node.node.name == "ARG_MAX" else "argmin"
    return node.builder.cast(node.call(name, data, axis=axis), node.output_dtype())


@converter("TOPK_V2")
def topk(node: NodeContext) -> list[GraphExpr]:
    """The k greatest along the last axis, and where they are."""
    data = node.input(0)
    axis = rank_of(data) - 1
    found = node.sizes(1, "k")
    if found is None:
        count = node.symbol("k")
        both = node.call("host.topk", data, node.input(1), dims=(count,), axis=axis, dtype=dtype_of(data))
    else:
        both = node.call("topk", data, axis=axis, k=found[0])
    values, places = node.builder.item(both, 0), node.builder.item(both, 1)
    return [values, node.builder.cast(places, node.output_dtype(1))]


_WINDOWS = ("", "add", "multiply", "minimum", "maximum", "logical_and", "logical_or")
"""How REDUCE_WINDOW combines elements, by number."""
_MOST_TAPS = 1024
"""Elements of a window that are combined one by one, at most."""


@converter("REDUCE_WINDOW")
def reduce_window(node: NodeContext) -> GraphExpr:
    """Elements of windows combined, beginning with an initial value; sizes, steps and gaps are inputs."""
    builder, data = node.builder, node.input(0)
    windows, strides, gaps = (
        node.constant_ints(at, what) for at, what in ((2, "windows"), (3, "strides"), (4, "gaps"))
    )
    number, sizes = node.integer("reduce_function"), sizes_of(data)
    if not 0 < number < len(_WINDOWS) or not len(windows) == len(strides) == len(gaps) == len(sizes):
        raise UserError(f"REDUCE_WINDOW by the function {number} over windows {windows}")
    if math.prod(windows) > _MOST_TAPS or min((*windows, *strides, *gaps), default=1) < 1:
        raise UnsupportedError(f"REDUCE_WINDOW over windows of {windows}")
    counts = [
        add(floor_divide(subtract(size, (taps - 1) * gap + 1), stride), 1)
        for size, taps, stride, gap in zip(sizes, windows, strides, gaps, strict=True)
    ]
    result: GraphExpr = builder.reshape(node.input(1), ())
    for place in np.ndindex(*windows):
        begin = tuple(at * gap for at, gap in zip(place, gaps, strict=True))
        end = tuple(
            add(first, add(multiply(subtract(count, 1), stride), 1))
            for first, count, stride in zip(begin, counts, strides, strict=True)
        )
        part = node.call("slice", data, begin=begin, end=end, strides=strides)
        result = node.call(_WINDOWS[number], result, part)
    return result
