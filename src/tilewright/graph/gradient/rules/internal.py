"""Operators that have no derivative: decision trees, integers of few bits, and what passes make of others.

Gradients are taken of a program as it was imported, before the compiler's passes: a form that only these make never
meets the transform.
"""

from __future__ import annotations

from tilewright.graph.gradient.expressions import cast, multiply, subtract, sum_to
from tilewright.graph.gradient.registry import Cotangents, blocks_gradient, refuses_gradient, reverse_rule
from tilewright.graph.ir.expr import Call, GraphExpr


@reverse_rule("qnn.dequantize")
def dequantize(call: Call, cotangent: GraphExpr) -> Cotangents:
    """(data - zero) * scale: the scale gets the integers."""
    data, scale = call.args[:2]
    dtype = scale.tensor_type.dtype

    def of_scale() -> GraphExpr:
        levels = cast(data, dtype)
        if len(call.args) > 2:
            levels = subtract(levels, cast(call.args[2], dtype))
        return sum_to(multiply(cotangent, levels), scale)

    return [None, of_scale, *([None] * (len(call.args) - 2))]


blocks_gradient("the result is not a float", "qnn.quantize", "nn.bitpack", "nn.bitserial_dense", "nn.bitserial_conv2d")
blocks_gradient("piecewise constant", "trees.forest")
blocks_gradient(
    "the result is not a float",
    *("qnn.matmul", "qnn.conv2d", "qnn.conv2d_transpose", "qnn.depthwise_conv2d", "qnn.grouped_conv2d"),
    *("qnn.line_conv2d", "qnn.window_dots", "qnn.word_conv2d", "qnn.word_matmul", "qnn.words"),
    *("qnn.fixed_point", "qnn.high_product", "qnn.rounded_shift", "accel.conv2d", "accel.max_pool2d", "accel.spread"),
)
refuses_gradient(
    "passes of the compiler make it, behind gradients",
    *("nn.conv2d_by_filters", "nn.conv2d_winograd", "nn.conv2d_winograd_plain", "nn.winograd_weight"),
    *("half.conv2d", "half.matmul"),
    *("packed.dequantize", "packed.digit_matmul", "packed.digits", "packed.matmul", "nn.lstm_step"),
    *("qnn.lstm", "qnn.gru", "qnn.rnn", "qnn.scaled_matmul"),
)
