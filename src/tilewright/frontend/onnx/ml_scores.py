"""What classifiers of `ai.onnx.ml` share: scores made into probabilities, places made into labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, STRING
from tilewright.support.errors import UnsupportedError, UserError

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def read_transform(node: NodeContext) -> str:
    """The attribute `post_transform`."""
    name = node.text("post_transform", "NONE")
    if name not in TRANSFORMS:
        raise UserError(f"unknown post_transform {name!r}", hint=f"one of {', '.join(TRANSFORMS)}")
    return name


def transformed(node: NodeContext, scores: GraphExpr, transform: str) -> GraphExpr:
    """Scores of several classes (along the last axis) after `post_transform`."""
    axis = rank_of(scores) - 1
    match transform:
        case "NONE":
            return scores
        case "LOGISTIC":
            return node.call("sigmoid", scores)
        case "SOFTMAX":
            return node.call("nn.softmax", scores, axis=axis)
        case "SOFTMAX_ZERO":
            return _softmax_of_nonzero(node, scores)
    return _probit(node, scores)


def _softmax_of_nonzero(node: NodeContext, scores: GraphExpr) -> GraphExpr:
    """Softmax where scores of 0 stay 0."""
    axes = (rank_of(scores) - 1,)
    zero = node.builder.constant_like(0, scores)
    powers = node.call("exp", node.call("subtract", scores, node.call("max", scores, axes=axes, keepdims=True)))
    silent = node.call("less", node.call("abs", scores), node.builder.constant_like(1e-7, scores))
    powers = node.call("where", silent, zero, powers)
    total = node.call("sum", powers, axes=axes, keepdims=True)
    half = node.builder.constant_like(0.5, scores)
    return node.call("where", node.call("equal", total, zero), half, node.call("divide", powers, total))


def _probit(node: NodeContext, scores: GraphExpr) -> GraphExpr:
    """sqrt(2) * erfinv(2 * x - 1), by Winitzki's approximation, which onnxruntime uses too."""

    def number(value: float) -> GraphExpr:
        return node.builder.constant_like(value, scores)

    call = node.call
    place = call("subtract", call("multiply", scores, number(2.0)), number(1.0))
    inner = call("log", call("multiply", call("subtract", number(1.0), place), call("add", number(1.0), place)))
    half = call("add", number(2 / (math.pi * 0.147)), call("multiply", inner, number(0.5)))
    square = call("subtract", call("multiply", half, half), call("divide", inner, number(0.147)))
    size = call("sqrt", call("subtract", call("sqrt", square), half))
    return call("multiply", call("multiply", call("sign", place), size), number(math.sqrt(2)))


def pair(node: NodeContext, first: GraphExpr, second: GraphExpr) -> GraphExpr:
    """Two columns side by side."""
    return node.builder.concatenate([first, second], 1)


def pair_of_one(node: NodeContext, score: GraphExpr, transform: str, *, opposite: bool) -> GraphExpr:
    """Scores of two classes from that of the second: its opposite, or what is missing to 1."""
    if transform == "LOGISTIC":
        return pair(node, node.call("sigmoid", node.call("negative", score)), node.call("sigmoid", score))
    if transform == "PROBIT":
        raise UnsupportedError(f"{node.node.op_type} of two classes by one score, with post_transform PROBIT")
    if opposite:
        return pair(node, node.call("negative", score), score)
    return pair(node, node.call("subtract", node.builder.constant_like(1, score), score), score)


class Labels:
    """The labels of a classifier: whole numbers or texts."""

    def __init__(self, node: NodeContext, numbers: str, texts: str) -> None:
        self.node = node
        self.texts = node.texts(texts, ())
        self.numbers = node.ints(numbers, ())
        if bool(self.texts) == bool(self.numbers):
            raise UserError(f"{node.node.op_type} needs labels, either {numbers} or {texts}")

    def __len__(self) -> int:
        return len(self.texts or self.numbers)

    def at(self, places: GraphExpr) -> GraphExpr:
        """The labels at places (of one dimension)."""
        node = self.node
        if self.numbers:
            return node.call("take", node.builder.constant(np.array(self.numbers), INT64), places, axis=0)
        table = node.builder.constant(np.array(self.texts, dtype=object), STRING)
        return node.call("text.take", table, places, axis=0)

    def best(self, scores: GraphExpr) -> GraphExpr:
        """The label of the highest score of each row."""
        return self.at(self.node.call("argmax", scores, axis=1, keepdims=False))

    def second_if(self, condition: GraphExpr) -> GraphExpr:
        """The second label where a condition (one column) holds, else the first."""
        flat = self.node.builder.reshape(condition, sizes_of(condition)[:1])
        return self.at(self.node.builder.cast(flat, INT64))


def above(node: NodeContext, score: GraphExpr, threshold: float) -> GraphExpr:
    """Whether a score is above a threshold."""
    return node.call("greater", score, node.builder.constant_like(threshold, score))


def matrix(node: NodeContext, values: Sequence[float], rows: int, columns: int, like: GraphExpr) -> GraphExpr:
    """Numbers of an attribute as a matrix."""
    if rows < 1 or columns < 1 or len(values) != rows * columns:
        raise UserError(f"{len(values)} numbers of {node.node.op_type} do not make a matrix of {rows} x {columns}")
    return node.builder.constant(np.array(values, np.float64).reshape(rows, columns), dtype_of(like))
