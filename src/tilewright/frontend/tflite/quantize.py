"""Converters between numbers and quantised integers."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import Multiplier, as_steps, finished, rescaled, rounded_away
from tilewright.frontend.tflite.model import Quantization
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT32


def _spread(levels: Quantization, values: Array, rank: int) -> Array:
    """Scales or zero points in a shape that broadcasts to the data."""
    if levels.by_tensor:
        return values.reshape(())
    return values.reshape([-1 if at == levels.axis else 1 for at in range(rank)])


@converter("QUANTIZE")
def quantize(node: NodeContext) -> GraphExpr:
    """Numbers, or integers of other levels, to the levels of the result."""
    builder, data, to, result = node.builder, node.input(0), node.output_dtype(), node.output_levels()
    bounds = (to.min_value(), to.max_value())
    if dtype_of(data).is_float:
        scales = builder.constant(_spread(result, np.asarray(result.scales, np.float32), rank_of(data)), FLOAT32)
        steps = rounded_away(builder, node.call("divide", builder.cast(data, FLOAT32), scales))
        zeros = _spread(result, result.zeros, rank_of(data))
        if zeros.any():
            steps = node.call("add", steps, builder.constant(zeros, FLOAT32))
        return finished(builder, steps, 0, bounds, to)
    levels = _levels(node)
    if levels.scale == result.scale and levels.zero == result.zero and dtype_of(data) is to:
        return data
    by = Multiplier.of(np.float64(levels.scales[0]) / np.float64(result.scales[0]))
    return finished(builder, rescaled(builder, as_steps(builder, data, levels.zero), by), result.zero, bounds, to)


def _levels(node: NodeContext) -> Quantization:
    tensor = node.input_tensor(0)
    return tensor.quantization if tensor.kind == "int32" and tensor.quantization is not None else node.levels(0)


@converter("DEQUANTIZE")
def dequantize(node: NodeContext) -> GraphExpr:
    """What integers stand for; halves become float32."""
    builder, data = node.builder, node.input(0)
    if dtype_of(data).is_float:
        return builder.cast(data, node.output_dtype())
    tensor = node.input_tensor(0)
    levels = tensor.quantization if tensor.kind == "int32" and tensor.quantization is not None else node.levels(0)
    steps = builder.cast(data, INT32)
    zeros = _spread(levels, levels.zeros, rank_of(data))
    if zeros.any():
        steps = node.call("subtract", steps, builder.constant(zeros, INT32))
    scales = builder.constant(_spread(levels, np.asarray(levels.scales, np.float32), rank_of(data)), FLOAT32)
    return node.call("multiply", builder.cast(steps, FLOAT32), scales)
