"""Operators on integers of 8 bits: their numbers, what these compute, and integers again.

An operator `Int8X` computes what `X` computes with the numbers that integers stand for, and rounds its result to the
scale and zero that it says itself. Results are those of Caffe2 but for the last step where they lie at a half.
"""

from __future__ import annotations

from tilewright.frontend.caffe2.node import Levels, Node, converter
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, UINT8
from tilewright.support.errors import UnsupportedError, UserError

KINDS = {
    "Int8Conv": "Conv",
    "Int8ConvRelu": "ConvRelu",
    "Int8ConvTranspose": "ConvTranspose",
    "Int8FC": "FC",
    "Int8AveragePool": "AveragePool",
    "Int8MaxPool": "MaxPool",
    "Int8Relu": "Relu",
    "Int8LeakyRelu": "LeakyRelu",
    "Int8Sigmoid": "Sigmoid",
    "Int8Softmax": "Softmax",
    "Int8Add": "Sum",
    "Int8Sum": "Sum",
    "Int8AddRelu": "SumRelu",
    "Int8SumRelu": "SumRelu",
    "Int8Concat": "Concat",
    "Int8Slice": "Slice",
    "Int8Reshape": "Reshape",
    "Int8Flatten": "Flatten",
    "Int8Transpose": "Transpose",
    "Int8ChannelShuffle": "ChannelShuffle",
    "Int8ResizeNearest": "ResizeNearest",
}
"""What operators on integers compute in numbers."""


def numbers(b: ArithmeticBuilder, value: GraphExpr, levels: Levels | None) -> GraphExpr:
    """The numbers that integers stand for."""
    if levels is None:
        return value
    scale, zero = levels
    return b.multiply(b.subtract(b.cast(value, FLOAT32), float(zero)), scale)


def own_levels(node: Node) -> Levels:
    """The scale and zero that an operator gives its result; operators that only move data keep those of their input."""
    if node.has("Y_scale"):
        scale = node.number("Y_scale", 1.0)
        if not scale > 0:
            raise UserError(f"the scale {scale}")
        return scale, node.integer("Y_zero_point", 0)
    known = next((item for item in node.levels if item is not None), None)
    if known is None:
        raise UnsupportedError(f"{node.op.type} says no scale, and neither does its input")
    return known


def integers(node: Node, value: GraphExpr, levels: Levels) -> GraphExpr:
    """Numbers as the nearest integers of a scale."""
    scale, zero = node.b.constant(levels[0], FLOAT32), node.b.constant(levels[1], "uint8")
    return node.call("qnn.quantize", value, scale, zero, dtype=UINT8, bits=8)


@converter("Int8Quantize")
def quantize(node: Node) -> GraphExpr:
    """Numbers as integers."""
    return integers(node, node.input(0), own_levels(node))


@converter("Int8Dequantize")
def dequantize(node: Node) -> GraphExpr:
    """Integers as numbers."""
    if not node.levels or node.levels[0] is None:
        raise UserError("Int8Dequantize of a blob without a scale")
    return numbers(node.b, node.input(0), node.levels[0])
