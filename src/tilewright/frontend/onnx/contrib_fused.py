"""Converters of `com.microsoft`: products, convolutions and activations fused by onnxruntime, its normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, shape_of, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.onnx.activation import build_softsign
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.contract import gemm
from tilewright.frontend.onnx.convolution import build_conv
from tilewright.frontend.onnx.pooling import max_pool
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.dimensions import constants
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT32, UINT8
from tilewright.support.errors import UnsupportedError, UserError

DOMAIN = "com.microsoft"


@converter("Gelu", domain=DOMAIN)
def gelu(node: NodeContext) -> GraphExpr:
    """The erf form."""
    return node.call("nn.gelu", node.input(0), approximate=False)


@converter("BiasGelu", domain=DOMAIN)
def bias_gelu(node: NodeContext) -> GraphExpr:
    """The erf form of a sum."""
    return node.call("nn.gelu", node.call("add", node.input(0), node.input(1)), approximate=False)


@converter("FastGelu", domain=DOMAIN)
def fast_gelu(node: NodeContext) -> GraphExpr:
    """The tanh form, perhaps of a sum."""
    data = node.input(0)
    if node.has_input(1):
        data = node.call("add", data, node.input(1))
    return node.call("nn.gelu", data, approximate=True)


@converter("QuickGelu", domain=DOMAIN)
def quick_gelu(node: NodeContext) -> GraphExpr:
    """x * sigmoid(alpha * x)."""
    data, alpha = node.input(0), node.number("alpha", 1.702)
    inner = node.call("multiply", data, node.builder.constant_like(alpha, data))
    return node.call("multiply", data, node.call("sigmoid", inner))


@converter("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(node: NodeContext) -> GraphExpr:
    """alpha * a @ b, each perhaps transposed; `transBatch` moves the first dimension before the last one."""
    a, b = node.input(0), node.input(1)
    alpha = node.number("alpha", 1.0)
    transpose_a, transpose_b = node.flag("transA"), node.flag("transB")
    if node.flag("transBatchA"):
        a = _batch_inside(node, a)
    if node.flag("transBatchB"):
        b = _batch_inside(node, b)
    if rank_of(a) < 2 or rank_of(b) < 2:
        raise UnsupportedError(f"{node.node.op_type} of vectors")
    result = node.call("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return result if alpha == 1.0 else node.call("multiply", result, node.builder.constant_like(alpha, result))


def _batch_inside(node: NodeContext, value: GraphExpr) -> GraphExpr:
    """(b0, ..., m, k) -> (b1, ..., m, b0, k): what transBatch says of an operand."""
    rank = rank_of(value)
    return node.builder.transpose(value, (*range(1, rank - 1), 0, rank - 1))


def activate(node: NodeContext, value: GraphExpr, name: str, params: Sequence[float]) -> GraphExpr:
    """An activation that is an attribute of a fused operator."""
    given = list(params)

    def parameter(default: float) -> float:
        return given.pop(0) if given else default

    match name:
        case "":
            return value
        case "Relu":
            return node.call("nn.relu", value)
        case "LeakyRelu":
            return node.call("nn.leaky_relu", value, alpha=parameter(0.01))
        case "Sigmoid":
            return node.call("sigmoid", value)
        case "Tanh":
            return node.call("tanh", value)
        case "Softsign":
            return build_softsign(node, value)
        case "Clip":
            low, high = parameter(-float("inf")), parameter(float("inf"))
            return node.call("clip", value, minimum=low, maximum=high)
        case "HardSigmoid":
            alpha, beta = parameter(0.2), parameter(0.5)
            return node.call("nn.hard_sigmoid", value, alpha=alpha, beta=beta)
    raise UnsupportedError(f"{node.node.op_type} with the activation {name!r}")


@converter("FusedConv", domain=DOMAIN)
def fused_conv(node: NodeContext) -> GraphExpr:
    """A convolution, a sum and an activation."""
    result = build_conv(node, node.input(0), node.input(1), node.optional(2))
    if node.has_input(3):
        result = node.call("add", result, node.input(3))
    return activate(node, result, node.text("activation", ""), node.floats("activation_params", ()))


@converter("FusedGemm", domain=DOMAIN)
def fused_gemm(node: NodeContext) -> GraphExpr:
    """Gemm and an activation."""
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    params = [node.number(name) for name in names if node.has_attribute(name)]
    return activate(node, gemm(node), node.text("activation", ""), params)


@converter("NhwcMaxPool", domain=DOMAIN)
def nhwc_max_pool(node: NodeContext) -> GraphExpr:
    """MaxPool of data whose channels come last."""
    data = node.input(0)
    rank = rank_of(data)
    if rank < 3:
        raise UserError(f"NhwcMaxPool needs data of at least 3 dimensions, it has {rank}")
    node.inputs[0] = node.builder.transpose(data, (0, rank - 1, *range(1, rank - 1)))
    result = max_pool(node)[0]
    assert result is not None
    return node.builder.transpose(result, (0, *range(2, rank), 1))


# Normalisations


def root_mean_square(
    node: NodeContext, data: GraphExpr, scale: GraphExpr, axis: int, epsilon: float
) -> tuple[GraphExpr, GraphExpr]:
    """x / sqrt(mean of squares + epsilon) * scale over all axes from one on, and the inverse of the root."""
    wide = node.builder.cast(data, FLOAT32) if dtype_of(data).bits < 32 else data
    axes = tuple(range(axis, rank_of(data)))
    square = node.call("mean", node.call("multiply", wide, wide), axes=axes, keepdims=True)
    inverse = node.call("rsqrt", node.call("add", square, node.builder.constant_like(epsilon, square)))
    normal = node.builder.cast(node.call("multiply", wide, inverse), dtype_of(data))
    return node.call("multiply", normal, node.builder.cast(scale, dtype_of(data))), inverse


@converter("SimplifiedLayerNormalization")
@converter("SimplifiedLayerNormalization", domain=DOMAIN)
def simplified_layer_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """Division by the root of the mean square (onnxruntime has it in the standard domain)."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), rank_of(data))
    node.ignore("stash_type")
    result, inverse = root_mean_square(node, data, node.input(1), axis, node.number("epsilon", 1e-5))
    return [result, inverse]


def _summed(node: NodeContext, bias_at: int) -> GraphExpr:
    """input + skip (+ bias)."""
    total = node.call("add", node.input(0), node.input(1))
    return node.call("add", total, node.input(bias_at)) if node.has_input(bias_at) else total


@converter("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """A sum, divided by the root of its mean square; the sum is the fourth output."""
    total = _summed(node, 3)
    epsilon = node.number("epsilon", 1e-12)
    result, inverse = root_mean_square(node, total, node.input(2), rank_of(total) - 1, epsilon)
    return [result, None, inverse, total]


@converter("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """A sum, normalised along its last axis; the sum is the fourth output."""
    for index, what in ((1, "the mean"), (2, "the inverse deviation")):
        if node.wants_output(index):
            raise UnsupportedError(f"SkipLayerNormalization with {what} as an output")
    total = _summed(node, 4)
    return [_layer_norm(node, total, node.input(2), node.optional(3), node.number("epsilon", 1e-12)), None, None, total]


def _layer_norm(
    node: NodeContext, data: GraphExpr, gamma: GraphExpr, beta: GraphExpr | None, epsilon: float
) -> GraphExpr:
    if beta is None:
        beta = node.builder.filled(0, sizes_of(gamma), dtype_of(data))
    return node.call("nn.layer_norm", data, gamma, beta, axis=rank_of(data) - 1, epsilon=epsilon)


def _rows(node: NodeContext, table: GraphExpr, places: GraphExpr) -> GraphExpr:
    """Rows of a table."""
    inside = checked_index(node.builder, places, [sizes_of(table)[0]], [0], negative=False)
    return node.call("take", table, inside, axis=0)


@converter("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(node: NodeContext) -> list[GraphExpr | None]:
    """The sum of word, position and segment embeddings, normalised; how many words each mask keeps."""
    words, positions = node.input(2), node.input(3)
    ids = node.input(0)
    if rank_of(ids) != 2:
        raise UserError(f"EmbedLayerNormalization needs words of 2 dimensions, there are {rank_of(ids)}")
    batch, length = sizes_of(ids)
    total = _rows(node, words, ids)
    if node.has_input(8):
        total = node.call("add", total, _rows(node, positions, node.input(8)))
    else:
        total = node.call("add", total, node.builder.slice_axis(positions, 0, 0, length))
    if node.has_input(1) and node.has_input(4):
        total = node.call("add", total, _rows(node, node.input(4), node.input(1)))
    result = _layer_norm(node, total, node.input(5), node.input(6), node.number("epsilon", 1e-12))
    mask_kind = node.integer("mask_index_type", 0)
    index: GraphExpr | None = None
    if node.wants_output(1):
        if node.has_input(7):
            mask = node.builder.cast(node.input(7), INT32)
            index = mask if mask_kind == 2 else node.call("sum", mask, axes=(1,), keepdims=False)
        else:
            index = node.builder.filled(0, (batch,), INT32)
    return [result, index, total]


# Weights in few bits

_ROW_BITS = {2: 16, 3: 16, 4: 8}
"""Bits that each `accuracy_level` below float32 asks of the data: halves, bfloat16, bytes with a scale a block."""


@converter("MatMulNBits", domain=DOMAIN)
def matmul_few_bits(node: NodeContext) -> GraphExpr:
    """A product with a weight of 2, 4 or 8 bits in blocks, each with its scale and zero point."""
    data = node.input(0)
    depth, count = node.integer("K"), node.integer("N")
    bits, block = node.integer("bits", 4), node.integer("block_size")
    row_bits = _ROW_BITS.get(node.integer("accuracy_level", 0), 0)
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1) or depth < 1 or count < 1:
        raise UnsupportedError(f"MatMulNBits of {bits} bits in blocks of {block}")
    if node.has_input(4) or node.integer("weight_prepacked", 0):
        raise UnsupportedError("MatMulNBits with reordered or prepacked weights")
    blocks = -(-depth // block)
    builder = node.builder
    numbers = _unpacked(node, node.input(1), (count, blocks, block), bits)
    scales = builder.reshape(builder.cast(node.input(2), FLOAT32), (count, blocks, 1))
    zero: GraphExpr = builder.constant(1 << (bits - 1), "int16")
    if node.has_input(3):
        zeros = node.input(3)
        if dtype_of(zeros) is UINT8:
            per_byte = 8 // bits
            padded = -(-blocks // per_byte) * per_byte
            zeros = _unpacked(node, zeros, (count, padded), bits)
            zeros = builder.slice_axis(zeros, 1, 0, blocks)
        zero = builder.reshape(zeros, (count, blocks, 1))
    if dtype_of(zero).is_float:
        numbers, zero = builder.cast(numbers, FLOAT32), builder.cast(zero, FLOAT32)
    weight = _block_weight(node, node.call("subtract", numbers, zero), scales, depth)
    wide = builder.cast(data, FLOAT32)
    if rank_of(wide) < 2:
        raise UserError("MatMulNBits needs data of at least 2 dimensions")
    result = node.call("matmul", wide, weight, transpose_b=True, row_bits=row_bits)
    if node.has_input(5):
        result = node.call("add", result, builder.cast(node.input(5), FLOAT32))
    return builder.cast(result, dtype_of(data))


def _block_weight(node: NodeContext, shifted: GraphExpr, scales: GraphExpr, depth: int) -> GraphExpr:
    """The weight [outputs, inputs] of numbers [outputs, blocks, block] times the scales of blocks."""
    builder, span = node.builder, node.builder.span
    count, blocks, block = shape_of(shifted)
    integers, factors = evaluate(shifted), evaluate(scales)
    if integers is None or factors is None or not dtype_of(shifted).is_integer:
        weight = node.call("multiply", builder.cast(shifted, FLOAT32), scales)
        return builder.slice_axis(builder.reshape(weight, (count, blocks * block)), 1, 0, depth)
    # Integers with a scale (not folded here): a product may keep them in few bits.
    narrow = integers.astype(np.int16, copy=False)
    if blocks * block == depth:
        exact = make("cast", builder.constant(narrow, "int16"), dtype=FLOAT32, span=span)
        return make("reshape", make("multiply", exact, scales, span=span), shape=(count, depth), span=span)
    kept = np.ascontiguousarray(narrow.reshape(count, -1)[:, :depth])
    spread = np.ascontiguousarray(np.repeat(factors[:, :, 0], block, axis=1)[:, :depth])
    exact = make("cast", builder.constant(kept, "int16"), dtype=FLOAT32, span=span)
    return make("multiply", exact, builder.constant(spread, FLOAT32), span=span)


def _unpacked(node: NodeContext, packed: GraphExpr, shape: tuple[int, ...], bits: int) -> GraphExpr:
    """Bytes as the numbers they hold, the lowest bits first, as int16 of a shape."""
    builder = node.builder
    per_byte = 8 // bits
    total = math.prod(shape)
    found = constants(sizes_of(packed))
    if found is None or math.prod(found) * per_byte != total:
        raise UserError(f"packed numbers of shape {sizes_text(sizes_of(packed))} do not fill {shape}")
    column = builder.reshape(packed, (total // per_byte, 1))
    shifts = builder.constant(np.arange(per_byte, dtype=np.uint8) * bits, UINT8)
    shifted = node.call("right_shift", column, shifts)
    low = node.call("bitwise_and", shifted, builder.constant((1 << bits) - 1, UINT8))
    return builder.reshape(builder.cast(low, "int16"), shape)
