"""Products of float32 with weights of 8 bits: rows of the data are rounded to bytes when the model runs.

Symmetric: q = round(x * (127 / max|x|)), halves away from zero. Asymmetric (an option of some operators): the range
of a row, with zero in it, is spread over all bytes. Sums are exact; results are sums times the two scales.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import rounded_away
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT32


def rounded_rows(node: NodeContext, data: GraphExpr, axes: tuple[int, ...]) -> tuple[GraphExpr, GraphExpr]:
    """Rows (over axes) as whole numbers from -127 to 127 in int32, and what one stands for."""
    builder, call = node.builder, node.call
    largest = call("max", call("abs", data), axes=axes, keepdims=True)
    empty = call("equal", largest, builder.constant(0.0, FLOAT32))
    safe = call("where", empty, builder.constant(1.0, FLOAT32), largest)
    inverse = call("divide", builder.constant(127.0, FLOAT32), safe)
    steps = call("clip", rounded_away(builder, call("multiply", data, inverse)), minimum=-127.0, maximum=127.0)
    scale = call("where", empty, builder.constant(1.0, FLOAT32), call("divide", safe, builder.constant(127.0, FLOAT32)))
    return builder.cast(builder.cast(steps, "int8"), INT32), scale


def rounded_ranges(node: NodeContext, data: GraphExpr, axes: tuple[int, ...]) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Rows (over axes) as bytes in int32, what one stands for, and the zero point."""
    builder, call = node.builder, node.call
    zero = builder.constant(0.0, FLOAT32)
    low = builder.cast(call("minimum", call("min", data, axes=axes, keepdims=True), zero), FLOAT64)
    high = builder.cast(call("maximum", call("max", data, axes=axes, keepdims=True), zero), FLOAT64)
    none = builder.constant(0.0, FLOAT64)
    empty = call("equal", low, high)
    least, most = builder.constant(-128.0, FLOAT64), builder.constant(127.0, FLOAT64)
    spread = call("where", empty, builder.constant(255.0, FLOAT64), call("subtract", high, low))
    scale = call("divide", spread, builder.constant(255.0, FLOAT64))
    from_low = call("subtract", least, call("divide", low, scale))
    from_high = call("subtract", most, call("divide", high, scale))
    low_error = call("add", builder.constant(128.0, FLOAT64), call("abs", call("divide", low, scale)))
    high_error = call("add", builder.constant(127.0, FLOAT64), call("abs", call("divide", high, scale)))
    chosen = call("where", call("less", low_error, high_error), from_low, from_high)
    nudged = call("clip", rounded_away(builder, chosen), minimum=-128.0, maximum=127.0)
    nudged = call("where", empty, none, nudged)
    narrow = builder.cast(scale, FLOAT32)
    inverse = call("divide", builder.constant(1.0, FLOAT32), narrow)
    moved = call("add", builder.cast(nudged, FLOAT32), call("multiply", data, inverse))
    steps = call("clip", rounded_away(builder, moved), minimum=-128.0, maximum=127.0)
    steps = call("where", empty, zero, steps)
    return builder.cast(builder.cast(steps, "int8"), INT32), narrow, builder.cast(nudged, INT32)


def hybrid_product(
    node: NodeContext, data: GraphExpr, weight: GraphExpr, transpose_a: bool = False, transpose_b: bool = True
) -> GraphExpr:
    """Rows of floats times a matrix of bytes."""
    builder, call = node.builder, node.call
    if transpose_a:
        order = (*range(rank_of(data) - 2), rank_of(data) - 1, rank_of(data) - 2)
        data = builder.transpose(data, order)
    last = rank_of(data) - 1
    levels = node.levels(1)
    wide = builder.cast(weight, INT32)
    if node.flag("asymmetric_quantize_inputs"):
        steps, scale, zero = rounded_ranges(node, data, (last,))
        steps = call("subtract", steps, zero)
    else:
        steps, scale = rounded_rows(node, data, (last,))
    total = call("matmul", steps, wide, transpose_b=transpose_b)
    scales = builder.constant(np.asarray(levels.scales, np.float32), dtype_of(scale))
    factor = call("multiply", scale, builder.reshape(scales, ()) if levels.by_tensor else scales)
    return call("multiply", builder.cast(total, FLOAT32), factor)
