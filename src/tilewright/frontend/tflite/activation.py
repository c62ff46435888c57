"""Converters of activations; those of quantised tensors are tables."""

from __future__ import annotations

from math import erfc

import numpy as np

from tilewright.frontend.core.activations import activated
from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.quantized_activation import (
    quantized_hard_swish,
    quantized_leaky_relu,
    quantized_log_softmax,
    quantized_logistic,
    quantized_prelu,
    quantized_relu,
    quantized_softmax,
    quantized_tanh,
)
from tilewright.frontend.tflite.registry import converter
from tilewright.frontend.tflite.tables import by_function
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError


@converter("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def bounded(node: NodeContext) -> GraphExpr:
    """Kept within bounds."""
    if node.is_quantized():
        return quantized_relu(node, node.node.name)
    return activated(node.builder, node.input(0), node.node.name)


@converter("LOGISTIC")
def logistic(node: NodeContext) -> GraphExpr:
    """1 / (1 + exp(-x))."""
    return quantized_logistic(node) if node.is_quantized() else node.call("sigmoid", node.input(0))


@converter("TANH")
def tanh(node: NodeContext) -> GraphExpr:
    """The hyperbolic tangent."""
    return quantized_tanh(node) if node.is_quantized() else node.call("tanh", node.input(0))


@converter("HARD_SWISH")
def hard_swish(node: NodeContext) -> GraphExpr:
    """x * relu6(x + 3) / 6."""
    if node.is_quantized():
        return quantized_hard_swish(node)
    data, builder = node.input(0), node.builder
    moved = node.call("clip", node.call("add", data, builder.constant_like(3, data)), minimum=0.0, maximum=6.0)
    return node.call("multiply", node.call("multiply", data, moved), builder.constant_like(1 / 6, data))


@converter("LEAKY_RELU")
def leaky_relu(node: NodeContext) -> GraphExpr:
    """x, or alpha * x where x is negative."""
    if node.is_quantized():
        return quantized_leaky_relu(node)
    data = node.input(0)
    # Alpha may be above 1 or below 0: the operator chooses by the sign.
    return node.call("nn.leaky_relu", data, alpha=node.number("alpha"))


@converter("PRELU")
def prelu(node: NodeContext) -> GraphExpr:
    """x, or slope * x where x is negative; the slope broadcasts."""
    if node.is_quantized():
        return quantized_prelu(node)
    data, slope = node.input(0), node.input(1)
    scaled = node.call("multiply", data, slope)
    return node.call("where", node.call("greater_equal", data, node.builder.constant_like(0, data)), data, scaled)


@converter("ELU")
def elu(node: NodeContext) -> GraphExpr:
    """x, or exp(x) - 1 where x is negative."""
    if node.is_quantized():
        return by_function(node.builder, node.input(0), node.levels(0), node.output_levels(), node.output_dtype(), _elu)
    return node.call("nn.elu", node.input(0), alpha=1.0)


def _elu(x: Array) -> Array:
    return np.where(x < 0, np.expm1(x), x)


@converter("GELU")
def gelu(node: NodeContext) -> GraphExpr:
    """x times the normal distribution function, exact or in its tanh form."""
    approximate = node.flag("approximate")
    if node.is_quantized():
        function = _gelu_tanh if approximate else _gelu
        return by_function(
            node.builder, node.input(0), node.levels(0), node.output_levels(), node.output_dtype(), function
        )
    return node.call("nn.gelu", node.input(0), approximate=approximate)


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)))


def _gelu(x: Array) -> Array:
    return np.array([0.5 * item * erfc(-item * 0.7071067811865476) for item in x.tolist()], np.float32)


@converter("SOFTMAX")
def softmax(node: NodeContext) -> GraphExpr:
    """exp(beta * x) divided by its sum along the last axis."""
    if node.is_quantized():
        return quantized_softmax(node)
    data = node.input(0)
    if not rank_of(data):
        raise UserError("SOFTMAX needs data of at least one dimension")
    beta = node.number("beta")
    if beta != 1.0:
        data = node.call("multiply", data, node.builder.constant(beta, dtype_of(data)))
    return node.call("nn.softmax", data, axis=rank_of(data) - 1)


@converter("LOG_SOFTMAX")
def log_softmax(node: NodeContext) -> GraphExpr:
    """The logarithm of the softmax along the last axis."""
    if node.is_quantized():
        return quantized_log_softmax(node)
    return node.call("nn.log_softmax", node.input(0), axis=rank_of(node.input(0)) - 1)
