"""Converters of quantisation: integers and scales spelled out in ordinary arithmetic."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.contract import build_matmul
from tilewright.frontend.onnx.convolution import build_conv
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.small import converted
from tilewright.graph.ir.dimensions import different
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.common import size_text, sizes_text
from tilewright.ir.dtype import FLOAT32, INT32, UINT8, DataType
from tilewright.support.errors import UnsupportedError, UserError


def _spread(node: NodeContext, value: GraphExpr, data: GraphExpr, axis: int, block: int) -> GraphExpr:
    """A scale or zero point for the whole tensor, for each place along an axis, or for blocks along it."""
    shape, sizes = sizes_of(value), sizes_of(data)
    if not shape or (shape == (1,) and (not sizes or sizes[axis] != 1)):
        return node.builder.reshape(value, ())
    if not sizes:
        raise UserError(f"scales of shape {sizes_text(shape)} do not fit a single number")
    if len(shape) == 1 and not block:
        if different(shape[0], sizes[axis]):
            raise UserError(f"{size_text(shape[0])} scales do not fit dimension {axis} of {sizes_text(sizes)}")
        return node.builder.reshape(value, (shape[0], *(1,) * (len(sizes) - axis - 1)))
    shape, dims = shape_of(value), shape_of(data)
    if len(shape) != len(dims) or block < 1 or shape[axis] != -(-dims[axis] // block):
        raise UserError(f"scales of shape {shape} in blocks of {block} do not fit data of shape {dims}")
    wide = node.builder.reshape(value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = node.builder.broadcast_to(wide, (*shape[: axis + 1], block, *shape[axis + 1 :]))
    flat = node.builder.reshape(wide, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    return node.builder.slice_axis(flat, axis, 0, dims[axis])


def _numbers(node: NodeContext, index: int) -> GraphExpr:
    """An input; one of small floats, as float32."""
    value = node.input(index)
    return node.builder.cast(value, FLOAT32) if dtype_of(value).is_small_float else value


def _axis(node: NodeContext, data: GraphExpr) -> int:
    value = node.integer("axis", 1)
    rank = rank_of(data)
    return node.axis(value, rank) if rank and (node.has_attribute("axis") or rank > value) else 0


def _limits(dtype: DataType) -> tuple[int, int]:
    if not dtype.is_integer:
        raise UnsupportedError(f"quantisation to {dtype}")
    return dtype.min_value(), dtype.max_value()


def quantized(node: NodeContext, value: GraphExpr, scale: GraphExpr, zero: GraphExpr | None, to: DataType) -> GraphExpr:
    """round(x / scale) + zero, kept within the integer type."""
    low, high = _limits(to)
    result = node.call("round", node.call("divide", value, scale))
    if zero is not None:
        result = node.call("add", result, node.builder.cast(zero, dtype_of(result)))
    return node.builder.cast(node.call("clip", result, minimum=float(low), maximum=float(high)), to)


@converter("QuantizeLinear")
def quantize_linear(node: NodeContext) -> GraphExpr:
    """To integers or small types, by tensor, by axis or by block."""
    data, scale = _numbers(node, 0), _numbers(node, 1)
    zero = _numbers(node, 2) if node.has_input(2) else None
    axis, block = _axis(node, data), node.integer("block_size", 0)
    node.ignore("precision")
    to = UINT8
    if zero is not None:
        to = dtype_of(node.input(2))
    elif node.has_attribute("output_dtype") and node.integer("output_dtype"):
        to = data_type(node.integer("output_dtype"), "the result of QuantizeLinear")
    node.ignore("output_dtype")
    saturate = node.flag("saturate", True)
    if dtype_of(data) is not dtype_of(scale):
        data = node.builder.cast(data, dtype_of(scale))
    scale = _spread(node, scale, data, axis, block)
    zero = None if zero is None else _spread(node, zero, data, axis, block)
    if not to.is_small_float:
        return quantized(node, data, scale, zero, to)
    result = node.call("divide", data, scale)
    if zero is not None:
        result = node.call("add", result, node.builder.cast(zero, dtype_of(result)))
    return converted(node.builder, result, to, saturate)


@converter("DequantizeLinear")
def dequantize_linear(node: NodeContext) -> GraphExpr:
    """From integers or small types, by tensor, by axis or by block."""
    data, scale = _numbers(node, 0), _numbers(node, 1)
    axis, block = _axis(node, data), node.integer("block_size", 0)
    to = dtype_of(scale)
    if node.has_attribute("output_dtype") and node.integer("output_dtype"):
        to = data_type(node.integer("output_dtype"), "the result of DequantizeLinear")
    exact = FLOAT32 if dtype_of(data).is_float else INT32
    value = node.builder.cast(data, exact)
    if node.has_input(2):
        shift = _spread(node, _numbers(node, 2), data, axis, block)
        value = node.call("subtract", value, node.builder.cast(shift, exact))
    factor = _spread(node, scale, data, axis, block)
    if isinstance(value, Constant) and rank_of(value) > 1 and to is dtype_of(scale):
        # Weights stay integers with a scale (not folded here): the product they go into may be one of integers.
        return make("multiply", make("cast", value, dtype=to, span=node.builder.span), factor, span=node.builder.span)
    value = node.builder.cast(value, dtype_of(scale))
    return node.builder.cast(node.call("multiply", value, factor), to)


def shifted(node: NodeContext, value: GraphExpr, zero: GraphExpr | None, axis: int | None = None) -> GraphExpr:
    """x - zero in 32 bits; a zero point of one dimension lies along an axis (counted from the end)."""
    wide = node.builder.cast(value, INT32)
    if zero is None:
        return wide
    zero = node.builder.cast(zero, INT32)
    if rank_of(zero) == 1 and axis is not None and sizes_of(zero) != (1,):
        zero = node.builder.reshape(zero, (sizes_of(zero)[0], *(1,) * (-axis - 1)))
    elif sizes_of(zero) == (1,):
        zero = node.builder.reshape(zero, ())
    return node.call("subtract", wide, zero)


@converter("MatMulInteger")
def matmul_integer(node: NodeContext) -> GraphExpr:
    """A product of 8-bit integers in 32 bits."""
    a = shifted(node, node.input(0), node.optional(2), -2)
    b = shifted(node, node.input(1), node.optional(3), -1)
    return build_matmul(node, a, b)


@converter("ConvInteger")
def conv_integer(node: NodeContext) -> GraphExpr:
    """A convolution of 8-bit integers in 32 bits."""
    data = shifted(node, node.input(0), node.optional(2))
    weight = shifted(node, node.input(1), node.optional(3), -rank_of(node.input(1)))
    return build_conv(node, data, weight, None)


@converter("QLinearMatMul")
def qlinear_matmul(node: NodeContext) -> GraphExpr:
    """A product of 8-bit integers, scaled back to 8 bits."""
    a = shifted(node, node.input(0), node.input(2), -2)
    b = shifted(node, node.input(3), node.input(5), -1)
    product = node.builder.cast(build_matmul(node, a, b), FLOAT32)
    scale_a, scale_b = node.builder.cast(node.input(1), FLOAT32), node.builder.cast(node.input(4), FLOAT32)
    if rank_of(scale_a) == 1 and sizes_of(scale_a) != (1,):
        scale_a = node.builder.reshape(scale_a, (*sizes_of(scale_a), 1))
    value = node.call("multiply", node.call("multiply", product, scale_a), scale_b)
    zero, scale = node.input(7), node.builder.cast(node.input(6), FLOAT32)
    result = quantized(node, value, scale, zero, dtype_of(zero))
    return node.builder.reshape(result, sizes_of(product))


@converter("QLinearConv")
def qlinear_conv(node: NodeContext) -> GraphExpr:
    """A convolution of 8-bit integers, scaled back to 8 bits; weights may have a scale a channel."""
    data = shifted(node, node.input(0), node.input(2))
    weight = shifted(node, node.input(3), node.input(5), -rank_of(node.input(3)))
    product = node.builder.cast(build_conv(node, data, weight, node.optional(8)), FLOAT32)
    scale = node.call("multiply", node.input(1), node.input(4))
    if sizes_of(scale) not in ((), (1,)):
        scale = node.builder.reshape(scale, (sizes_of(scale)[0], *(1,) * (rank_of(product) - 2)))
    value = node.call("multiply", product, scale)
    zero = node.input(7)
    return node.builder.reshape(quantized(node, value, node.input(6), zero, dtype_of(zero)), sizes_of(product))
