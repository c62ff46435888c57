"""Converters of quantisation: a scale is the greatest magnitude, which the greatest integer stands for."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT8
from tilewright.support.errors import UnsupportedError


def _step(node: NodeContext, scale: GraphExpr) -> GraphExpr:
    """What an integer of 1 stands for."""
    bits = node.integer("bit_length", default=8)
    if bits != 8:
        raise UnsupportedError(f"quantisation to {bits} bits")
    return node.builder.divide(node.builder.cast(scale, FLOAT32), 127.0)


def _axis(node: NodeContext, x: GraphExpr) -> int | None:
    axis = node.integer("quant_axis", default=-1)
    return None if axis < 0 else node.axis(axis, rank_of(x))


@converter("quantize_linear", inputs="X Scale ZeroPoint", outputs="Y")
def quantize_linear(node: NodeContext) -> GraphExpr:
    """Numbers to integers."""
    x, step = node.input(0), _step(node, node.input(1))
    return node.onnx("QuantizeLinear", x, step, _zero(node, step), axis=_axis(node, x))


def _zero(node: NodeContext, step: GraphExpr) -> GraphExpr:
    return node.builder.broadcast_to(node.builder.scalar(0, INT8), sizes_of(step))


@converter("dequantize_linear", inputs="X Scale ZeroPoint", outputs="Y")
def dequantize_linear(node: NodeContext) -> GraphExpr:
    """Integers to numbers; weights of floats hold integers as well."""
    b, x, step = node.builder, node.input(0), _step(node, node.input(1))
    if not dtype_of(x).is_float:
        return node.onnx("DequantizeLinear", x, step, axis=_axis(node, x))
    return b.multiply(x, _spread(node, step, x, _axis(node, x)))


def _spread(node: NodeContext, step: GraphExpr, x: GraphExpr, axis: int | None) -> GraphExpr:
    shape: list[Size] = [1] * rank_of(x)
    if axis is None:
        return node.builder.reshape(step, ())
    shape[axis] = sizes_of(x)[axis]
    return node.builder.reshape(step, shape)


@converter("fake_quantize_dequantize_moving_average_abs_max", "fake_quantize_dequantize_abs_max",
           "fake_channel_wise_quantize_dequantize_abs_max", inputs="X InScale")  # fmt: skip
def fake_quantize(node: NodeContext) -> GraphExpr:
    """Numbers as they are after quantisation; without a scale it is that of the data."""
    b, x = node.builder, node.input(0)
    axis = _axis(node, x)
    if node.has_input(1):
        scale = node.input(1)
    else:
        axes = tuple(at for at in range(rank_of(x)) if at != axis)
        scale = b.reduce("max", b.call("abs", x), axes)
    step = _step(node, scale)
    levels = node.onnx("QuantizeLinear", x, step, _zero(node, step), axis=axis)
    return node.onnx("DequantizeLinear", levels, step, axis=axis)
