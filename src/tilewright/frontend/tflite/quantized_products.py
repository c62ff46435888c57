"""Products and convolutions of quantised tensors: exact sums, a bias, and one rescaling to the levels of the result."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import (
    Multiplier,
    as_steps,
    bounds_of,
    finished,
    rescaled,
    rescaled_wide,
)
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT32, INT64
from tilewright.support.errors import UserError


def operands(node: NodeContext, data: GraphExpr, weight: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """Data and weights less their zero points: in 32 bits, or 64 where the data has 16."""
    builder = node.builder
    zeros = node.levels(1).zeros
    if len(set(zeros.tolist())) > 1:
        raise UserError("weights have several zero points")
    steps, kernel = as_steps(builder, data, node.levels(0).zero), as_steps(builder, weight, int(zeros[0]))
    if dtype_of(data).name == "int16":
        return builder.cast(steps, INT64), builder.cast(kernel, INT64)
    return steps, kernel


def rescaled_sums(node: NodeContext, sums: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """Sums plus a bias as integers of the result; channels are the last axis."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    scales = _product_scales(node)
    numbers = scales / np.float64(result.scales[0])
    by = Multiplier.of(numbers[0] if numbers.size == 1 else numbers)
    if bias is not None:
        sums = builder.call(
            "add", sums, builder.cast(builder.reshape(bias, (size_at(sums, rank_of(sums) - 1),)), dtype_of(sums))
        )
    bounds = bounds_of(node.activation, result, to)
    # Rectified results are zero wherever they are negative, however they were rounded.
    negative = bounds[0] < result.zero
    value = rescaled_wide(builder, sums, by) if dtype_of(sums) is INT64 else rescaled(builder, sums, by, negative)
    return finished(builder, value, result.zero, bounds, to)


def _product_scales(node: NodeContext) -> Array:
    """What a sum's steps stand for: kernels with a scale a channel multiply in float64, others in float32."""
    data, weights = node.levels(0), node.levels(1)
    if (node.node.name.endswith("CONV_2D") and dtype_of(node.input(0)).name != "uint8") or not weights.by_tensor:
        return np.asarray(weights.scales, np.float64) * np.float64(data.scales[0])
    return (np.asarray(weights.scales, np.float32) * np.float32(data.scales[0])).astype(np.float64)


def quantized_dense(node: NodeContext, rows: GraphExpr, weight: GraphExpr, bias: GraphExpr | None) -> GraphExpr:
    """Rows times the transposed weights."""
    steps, kernel = operands(node, rows, weight)
    sums = node.call("matmul", steps, kernel, transpose_b=True)
    if dtype_of(sums) is INT64 and bias is not None:
        sums, bias = node.call("add", sums, node.builder.cast(bias, INT64)), None
    # Unlike convolutions, products of 16-bit data are rescaled in 32 bits.
    return rescaled_sums(node, node.builder.cast(sums, INT32), bias)


def quantized_matmul(
    node: NodeContext, a: GraphExpr, b: GraphExpr, transpose_a: bool = False, transpose_b: bool = False
) -> GraphExpr:
    """Products of two quantised tensors."""
    first, second = as_steps(node.builder, a, node.levels(0).zero), as_steps(node.builder, b, node.levels(1).zero)
    if dtype_of(a).name == "int16":
        first, second = node.builder.cast(first, INT64), node.builder.cast(second, INT64)
    sums = node.call("matmul", first, second, transpose_a=transpose_a, transpose_b=transpose_b)
    return rescaled_sums(node, sums, None)
