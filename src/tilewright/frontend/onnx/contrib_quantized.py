"""Converters of `com.microsoft`: operators on 8-bit numbers with scales, spelled out in ordinary arithmetic."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.contract import build_matmul
from tilewright.frontend.onnx.contrib_fused import DOMAIN
from tilewright.frontend.onnx.pooling import average_pool
from tilewright.frontend.onnx.quantize import dequantize_linear, qlinear_conv, quantize_linear, quantized, shifted
from tilewright.frontend.onnx.recurrent import lstm
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.ir.dtype import FLOAT32, INT32, UINT8, DataType
from tilewright.support.errors import UnsupportedError, UserError

converter("QuantizeLinear", domain=DOMAIN)(quantize_linear)
converter("DequantizeLinear", domain=DOMAIN)(dequantize_linear)


def _scalar(node: NodeContext, value: GraphExpr) -> GraphExpr:
    """A scale or zero point of one element as a scalar; a list stays as it is."""
    return node.builder.reshape(value, ()) if sizes_of(value) == (1,) else value


def _real(node: NodeContext, first: int) -> GraphExpr:
    """The numbers that an input stands for; its scale and (perhaps) zero point follow it."""
    zero = node.optional(first + 2)
    value = shifted(node, node.input(first), None if zero is None else _scalar(node, zero))
    return node.call("multiply", node.builder.cast(value, FLOAT32), _scalar(node, node.input(first + 1)))


def _stored(node: NodeContext, value: GraphExpr, scale: int, like: DataType) -> GraphExpr:
    """Numbers in 8 bits again, by a scale and (perhaps) a zero point among the inputs."""
    zero = node.optional(scale + 1)
    to = like if zero is None else dtype_of(zero)
    return quantized(node, value, _scalar(node, node.input(scale)), None if zero is None else _scalar(node, zero), to)


@converter("QLinearAdd", "QLinearMul", domain=DOMAIN)
def qlinear_binary(node: NodeContext) -> GraphExpr:
    """A sum or a product."""
    name = "add" if node.node.op_type == "QLinearAdd" else "multiply"
    return _stored(node, node.call(name, _real(node, 0), _real(node, 3)), 6, dtype_of(node.input(0)))


@converter("QLinearSigmoid", domain=DOMAIN)
def qlinear_sigmoid(node: NodeContext) -> GraphExpr:
    """The logistic function."""
    return _stored(node, node.call("sigmoid", _real(node, 0)), 3, dtype_of(node.input(0)))


@converter("QLinearLeakyRelu", domain=DOMAIN)
def qlinear_leaky_relu(node: NodeContext) -> GraphExpr:
    """A slope on the negative side."""
    result = node.call("nn.leaky_relu", _real(node, 0), alpha=node.number("alpha", 0.01))
    return _stored(node, result, 3, dtype_of(node.input(0)))


@converter("QLinearSoftmax", domain=DOMAIN)
def qlinear_softmax(node: NodeContext) -> GraphExpr:
    """Softmax along an axis; before opset 13, over all axes from one on."""
    data = _real(node, 0)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    if node.integer("opset") >= 13 or axis == rank_of(data) - 1:
        result = node.call("nn.softmax", data, axis=axis)
    else:
        raise UnsupportedError("QLinearSoftmax of opset 12 and before over several axes")
    return _stored(node, result, 3, dtype_of(node.input(0)))


@converter("QLinearWhere", domain=DOMAIN)
def qlinear_where(node: NodeContext) -> GraphExpr:
    """One number or another, by a condition."""
    return _stored(node, node.call("where", node.input(0), _real(node, 1), _real(node, 4)), 7, dtype_of(node.input(1)))


@converter("QLinearConcat", domain=DOMAIN)
def qlinear_concat(node: NodeContext) -> GraphExpr:
    """Tensors of different scales one after the other."""
    count = len(node.inputs) - 2
    if count < 3 or count % 3:
        raise UserError(f"QLinearConcat takes a scale, a zero point and triples, it has {len(node.inputs)} inputs")
    parts = [_real(node, first) for first in range(2, len(node.inputs), 3)]
    axis = node.axis(node.integer("axis"), rank_of(parts[0]))
    return _stored(node, node.builder.concatenate(parts, axis), 0, dtype_of(node.input(2)))


def _channels_first(node: NodeContext, value: GraphExpr) -> GraphExpr:
    rank = rank_of(value)
    return node.builder.transpose(value, (0, rank - 1, *range(1, rank - 1)))


def _channels_last(node: NodeContext, value: GraphExpr) -> GraphExpr:
    rank = rank_of(value)
    return node.builder.transpose(value, (0, *range(2, rank), 1))


@converter("QLinearGlobalAveragePool", domain=DOMAIN)
def qlinear_global_average_pool(node: NodeContext) -> GraphExpr:
    """The mean over all spatial dimensions."""
    data = _real(node, 0)
    rank = rank_of(data)
    if rank < 3:
        raise UserError(f"QLinearGlobalAveragePool needs data of at least 3 dimensions, it has {rank}")
    axes = tuple(range(1, rank - 1)) if node.flag("channels_last") else tuple(range(2, rank))
    return _stored(node, node.call("mean", data, axes=axes, keepdims=True), 3, dtype_of(node.input(0)))


@converter("QLinearAveragePool", domain=DOMAIN)
def qlinear_average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window."""
    like, last = dtype_of(node.input(0)), node.flag("channels_last")
    data = _real(node, 0)
    node.inputs[0] = _channels_first(node, data) if last else data
    result = average_pool(node)
    return _stored(node, _channels_last(node, result) if last else result, 3, like)


@converter("QLinearConv", domain=DOMAIN)
def contrib_qlinear_conv(node: NodeContext) -> GraphExpr:
    """The standard operator, with channels last on demand."""
    if not node.flag("channels_last"):
        return qlinear_conv(node)
    node.inputs[0] = _channels_first(node, node.input(0))
    return _channels_last(node, qlinear_conv(node))


@converter("QGemm", domain=DOMAIN)
def qgemm(node: NodeContext) -> GraphExpr:
    """alpha * a @ b + c on 8-bit numbers; in 8 bits again if the result has a scale, else in float32."""
    transpose_a, transpose_b = node.flag("transA"), node.flag("transB")
    a = shifted(node, node.input(0), node.input(2))
    b = shifted(node, node.input(3), node.input(5), -2 if transpose_b else -1)
    product = node.call("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if node.has_input(6):
        product = node.call("add", product, node.builder.cast(node.input(6), INT32))
    scale = node.call("multiply", _scalar(node, node.input(1)), _scalar(node, node.input(4)))
    alpha = node.number("alpha", 1.0)
    if alpha != 1.0:
        scale = node.call("multiply", scale, node.builder.constant(alpha, FLOAT32))
    value = node.call("multiply", node.builder.cast(product, FLOAT32), scale)
    return _stored(node, value, 7, dtype_of(node.input(0))) if node.has_input(7) else value


@converter("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(node: NodeContext) -> GraphExpr:
    """A product of 8-bit numbers as float32, perhaps with a bias."""
    a = shifted(node, node.input(0), node.optional(4), -2)
    b = shifted(node, node.input(1), node.optional(5), -1)
    return _scaled_product(node, a, b, _scalar(node, node.input(2)), _scalar(node, node.input(3)), node.optional(6))


def _scaled_product(
    node: NodeContext, a: GraphExpr, b: GraphExpr, scale_a: GraphExpr, scale_b: GraphExpr, bias: GraphExpr | None
) -> GraphExpr:
    value = node.builder.cast(build_matmul(node, a, b), FLOAT32)
    value = node.call("multiply", value, node.call("multiply", scale_a, scale_b))
    return value if bias is None else node.call("add", value, bias)


@converter("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(node: NodeContext) -> GraphExpr:
    """A product with 8-bit weights, of data that is brought to 8 bits by its own range."""
    data = node.input(0)
    scale, zero = dynamic_range(node, data)
    stored = quantized(node, data, scale, zero, UINT8)
    a = shifted(node, stored, zero)
    b = shifted(node, node.input(1), node.optional(3), -1)
    return _scaled_product(node, a, b, scale, _scalar(node, node.input(2)), node.optional(4))


def dynamic_range(node: NodeContext, data: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """The scale and zero point that bring all of the data, and 0, to unsigned bytes."""
    axes = tuple(range(rank_of(data)))
    nothing = node.builder.constant(0.0, FLOAT32)
    low = node.call("minimum", node.call("min", data, axes=axes, keepdims=False), nothing)
    high = node.call("maximum", node.call("max", data, axes=axes, keepdims=False), nothing)
    span = node.call("subtract", high, low)
    scale = node.call("divide", span, node.builder.constant(255.0, FLOAT32))
    # Data of zeros alone has no range; any scale serves.
    flat = node.call("equal", span, nothing)
    scale = node.call("where", flat, node.builder.constant(1.0, FLOAT32), scale)
    zero = node.call("round", node.call("divide", node.call("negative", low), scale))
    return scale, node.builder.cast(node.call("clip", zero, minimum=0.0, maximum=255.0), UINT8)


@converter("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(node: NodeContext) -> list[GraphExpr | None]:
    """An LSTM of 8-bit weights; its input is brought to 8 bits by its own range, its state stays exact."""
    for place, (scale, what) in {1: (8, "W"), 2: (10, "R")}.items():
        weight = node.builder.transpose(_weights(node, place, scale, what), (0, 2, 1))
        node.inputs[place] = weight
    data = node.input(0)
    step, zero = dynamic_range(node, data)
    levels = node.builder.cast(shifted(node, quantized(node, data, step, zero, UINT8), zero), FLOAT32)
    node.inputs[0] = node.call("multiply", levels, step)
    return lstm(node)


def _weights(node: NodeContext, place: int, scale: int, what: str) -> GraphExpr:
    """The weights (directions, inputs, gates) that bytes stand for: a scale a direction, or one a column of it."""
    value, factors, zeros = node.input(place), node.input(scale), node.optional(scale + 1)
    if rank_of(value) != 3 or rank_of(factors) not in (1, 2):
        raise UserError(f"the weights {what} need 3 dimensions and scales of 1 or 2, they have {rank_of(value)}")
    result = node.builder.cast(value, INT32)
    spread = (1, 2) if rank_of(factors) == 1 else (1,)
    if zeros is not None:
        lifted = node.builder.expand_dims(node.builder.cast(zeros, INT32), spread)
        result = node.call("subtract", result, lifted)
    # Integers with a scale (not folded here): products may be those of integers.
    span = node.builder.span
    return make(
        "multiply", make("cast", result, dtype=FLOAT32, span=span), node.builder.expand_dims(factors, spread), span=span
    )
