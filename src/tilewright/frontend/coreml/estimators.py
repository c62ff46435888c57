"""Core ML's models that predict from rows of features: trees, linear models, support vectors, nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.kernel_machines import (
    class_pairs,
    inverse_distance_mean,
    kernel_values,
    pair_scores,
    pair_votes,
    squared_distances,
)
from tilewright.frontend.coreml.trees import tree_scores
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64, INT64, STRING
from tilewright.support.errors import UnsupportedError, UserError

_NO_TRANSFORM, _SOFTMAX, _LOGISTIC, _SOFTMAX_WITH_ZERO = range(4)
_LOGIT, _PROBIT = 0, 1
_MOST_ELEMENTS = 1 << 28

Classified = tuple[GraphExpr, GraphExpr]
"""The labels of rows, and the probabilities of classes, a column each."""


def labels_of(model: Any) -> list[str] | list[int]:
    """The labels of a classifier's classes."""
    if model.HasField("stringClassLabels"):
        return list(model.stringClassLabels.vector)
    return [int(item) for item in model.int64ClassLabels.vector]


def labels_at(b: ArithmeticBuilder, labels: Sequence[str] | Sequence[int], places: GraphExpr) -> GraphExpr:
    """The labels at places."""
    if all(isinstance(item, int) for item in labels):
        return b.call("take", b.constant(np.array(labels, np.int64), INT64), places, axis=0)
    return b.call("text.take", b.constant(np.array(labels, dtype=object), STRING), places, axis=0)


def best_label(b: ArithmeticBuilder, labels: Sequence[str] | Sequence[int], scores: GraphExpr) -> GraphExpr:
    """The label of the greatest score of each row."""
    if size_at(scores, 1) != len(labels) or not labels:
        raise UserError(f"there are {len(labels)} labels for {size_at(scores, 1)} classes")
    return labels_at(b, labels, b.call("argmax", scores, axis=1))


def _with_complement(b: ArithmeticBuilder, chance: GraphExpr) -> GraphExpr:
    """The chances of two classes from that of the second."""
    return b.concatenate([b.subtract(1.0, chance), chance], 1)


def _with_zero(b: ArithmeticBuilder, scores: GraphExpr) -> GraphExpr:
    """Scores with a first one that is always 0."""
    return b.concatenate([b.filled(0, (sizes_of(scores)[0], 1), FLOAT64), scores], 1)


def _normal(b: ArithmeticBuilder, value: GraphExpr) -> GraphExpr:
    """The distribution function of the normal distribution."""
    return b.multiply(b.add(b.call("erf", b.multiply(value, 0.5**0.5)), 1.0), 0.5)


# Trees


def tree_classifier(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> Classified:
    """Scores of classes by trees, made into probabilities."""
    scores, labels = tree_scores(b, model.treeEnsemble, data), labels_of(model)
    transform = int(model.postEvaluationTransform)
    if transform == _SOFTMAX:
        chances = b.call("nn.softmax", scores, axis=1)
    elif transform == _SOFTMAX_WITH_ZERO:
        chances = b.call("nn.softmax", _with_zero(b, scores), axis=1)
    elif transform == _LOGISTIC:
        chances = b.call("sigmoid", scores)
    elif transform == _NO_TRANSFORM:
        chances = scores
    else:
        raise UserError(f"the transform {transform} of trees is not known")
    if size_at(chances, 1) == 1 and len(labels) == 2:
        chances = _with_complement(b, chances)
    return best_label(b, labels, chances), chances


def tree_regressor(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> GraphExpr:
    """Predictions of trees."""
    scores = tree_scores(b, model.treeEnsemble, data)
    if model.postEvaluationTransform not in (_NO_TRANSFORM, _LOGISTIC):
        raise UserError(f"the transform {model.postEvaluationTransform} of trees that predict numbers")
    return b.call("sigmoid", scores) if model.postEvaluationTransform == _LOGISTIC else scores


# Linear models


def _linear(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> GraphExpr:
    rows = [list(row.vector) for row in model.weights]
    offset = np.array(model.offset, np.float64)
    if not rows or len({len(row) for row in rows}) != 1 or len(rows[0]) != size_at(data, 1):
        raise UserError(f"the weights of a linear model do not fit {size_at(data, 1)} features")
    if offset.size not in (0, len(rows)):
        raise UserError(f"{offset.size} offsets for {len(rows)} rows of weights")
    product = b.call("matmul", data, b.constant(np.array(rows, np.float64).T, FLOAT64))
    return b.call("add", product, b.constant(offset, FLOAT64)) if offset.size else product


def linear_classifier(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> Classified:
    """Logistic or probit regression against the first class, or each class against the others."""
    scores, labels = _linear(b, model, data), labels_of(model)
    probit = model.postEvaluationTransform == _PROBIT
    count = size_at(scores, 1)
    if model.classEncoding == 0 or (count == 1 and len(labels) == 2):
        if count == 1:
            chances = _with_complement(b, _normal(b, scores) if probit else b.call("sigmoid", scores))
        elif probit:
            raise UserError("probit regression of more than two classes")
        else:
            chances = b.call("nn.softmax", _with_zero(b, scores), axis=1)
    else:
        each = _normal(b, scores) if probit else b.call("sigmoid", scores)
        chances = b.call("divide", each, b.reduce("sum", each, (1,), True))
    return best_label(b, labels, chances), chances


def linear_regressor(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> GraphExpr:
    """A linear function, or a logistic or probit one."""
    values = _linear(b, model, data)
    transforms: dict[int, Callable[[GraphExpr], GraphExpr]] = {
        0: lambda value: value,
        1: lambda value: b.call("sigmoid", value),
        2: lambda value: _normal(b, value),
    }
    if model.postEvaluationTransform not in transforms:
        raise UserError(f"the transform {model.postEvaluationTransform} of a linear model is not known")
    return transforms[model.postEvaluationTransform](values)


# Support vectors


def _vectors(model: Any, features: int) -> Array:
    """Support vectors, a row each."""
    if model.HasField("denseSupportVectors"):
        rows = [list(item.vector) for item in model.denseSupportVectors.vectors]
        if any(len(row) != features for row in rows):
            raise UserError(f"support vectors do not have {features} features")
        return np.array(rows, np.float64).reshape(len(rows), features)
    sparse = model.sparseSupportVectors.vectors
    if len(sparse) * features > _MOST_ELEMENTS:
        raise UserError("there are too many support vectors")
    table = np.zeros((len(sparse), features))
    for row, vector in enumerate(sparse):
        for node in vector.nodes:
            if not 1 <= node.index <= features:
                raise UserError(f"a support vector has feature {node.index} of {features}")
            table[row, node.index - 1] = node.value
    return table


def _kernels(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> GraphExpr:
    kernel, vectors = model.kernel, _vectors(model, size_at(data, 1))
    if not len(vectors):
        raise UserError("a support vector machine without vectors")
    if kernel.HasField("rbfKernel"):
        return kernel_values(b, "rbf", data, vectors, kernel.rbfKernel.gamma, 0.0, 0.0)
    if kernel.HasField("polyKernel"):
        own = kernel.polyKernel
        return kernel_values(b, "poly", data, vectors, own.gamma, own.c, float(own.degree))
    if kernel.HasField("sigmoidKernel"):
        own = kernel.sigmoidKernel
        return kernel_values(b, "sigmoid", data, vectors, own.gamma, own.c, 0.0)
    return kernel_values(b, "linear", data, vectors, 0.0, 0.0, 0.0)


def vector_regressor(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> GraphExpr:
    """A weighted sum of kernels, less rho."""
    kernels = _kernels(b, model, data)
    weights = np.array(model.coefficients.alpha, np.float64)
    if len(weights) != size_at(kernels, 1):
        raise UserError(f"{len(weights)} coefficients for {size_at(kernels, 1)} support vectors")
    values = b.call("matmul", kernels, b.constant(weights.reshape(-1, 1), FLOAT64))
    return b.subtract(values, float(model.rho))


def vector_classifier(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> Classified:
    """Each pair of classes votes; probabilities are coupled from those of pairs, or one for who wins."""
    kernels, labels = _kernels(b, model, data), labels_of(model)
    counts = np.array(model.numberOfSupportVectorsPerClass, np.int64)
    rows = [list(item.alpha) for item in model.coefficients]
    pairs = len(class_pairs(len(counts)))
    total = size_at(kernels, 1)
    fits = len(counts) == len(labels) >= 2 and len(rows) == len(counts) - 1 and len(model.rho) == pairs
    if not fits or int(counts.sum()) != total or min(counts) < 0 or any(len(row) != total for row in rows):
        raise UserError(f"coefficients and rho do not fit {len(labels)} classes of {counts.tolist()} vectors")
    scores = pair_scores(b, kernels, np.array(rows, np.float64), -np.array(model.rho, np.float64), counts)
    if not model.probA:
        votes = pair_votes(b, scores, len(counts))
        best = b.call("argmax", votes, axis=1)
        wins = b.call("equal", b.expand_dims(best, (1,)), b.constant(np.arange(len(counts)), INT64))
        return labels_at(b, labels, best), b.cast(wins, FLOAT64)
    if len(model.probA) != pairs or len(model.probB) != pairs:
        raise UserError(f"{len(model.probA)} probA and {len(model.probB)} probB for {pairs} pairs of classes")
    line = b.call("multiply", scores, b.constant(np.array(model.probA, np.float64), FLOAT64))
    line = b.call("add", line, b.constant(np.array(model.probB, np.float64), FLOAT64))
    chances = b.cast(b.call("sigmoid", b.call("negative", line)), "float32")
    coupled = b.cast(b.call("host.couple", chances, classes=len(counts)), FLOAT64)
    return best_label(b, labels, coupled), coupled


# Neighbours


def nearest_neighbors(b: ArithmeticBuilder, model: Any, data: GraphExpr) -> tuple[Classified, list[str] | list[int]]:
    """The class that most of the nearest samples have, weighted alike or by the inverse of their distance."""
    index, labels = model.nearestNeighborsIndex, labels_of(model)
    rows = [list(item.vector) for item in index.floatSamples]
    count = int(model.numberOfNeighbors.defaultValue)
    if not rows or len(labels) != len(rows) or any(len(row) != size_at(data, 1) for row in rows):
        raise UserError(f"{len(rows)} samples and {len(labels)} labels do not fit {size_at(data, 1)} features")
    if not 1 <= count <= len(rows):
        raise UserError(f"{count} neighbours among {len(rows)} samples")
    classes: list[Any] = list(dict.fromkeys(labels))
    distances = squared_distances(b, data, np.array(rows, np.float64))
    nearest = b.call("topk", distances, k=count, axis=1, largest=False)
    table = np.eye(len(classes))[[classes.index(label) for label in labels]]
    values = b.call("take", b.constant(table, FLOAT64), b.item(nearest, 1), axis=0)
    if model.HasField("inverseDistanceWeighting"):
        chances = inverse_distance_mean(b, values, b.call("sqrt", b.item(nearest, 0)))
    else:
        chances = b.call("mean", values, axes=(1,), keepdims=False)
    return (best_label(b, classes, chances), chances), classes


def as_rows(b: ArithmeticBuilder, values: Sequence[GraphExpr]) -> GraphExpr:
    """Features side by side, a row for each sample."""
    columns: list[GraphExpr] = []
    for value in values:
        if rank_of(value) > 2:
            raise UnsupportedError(f"features of {rank_of(value) - 1} dimensions in a row of features")
        wide = b.expand_dims(value, (1,)) if rank_of(value) == 1 else value
        columns.append(b.cast(wide, FLOAT64))
    if not columns:
        raise UserError("the model has no inputs")
    return b.concatenate(columns, 1)
