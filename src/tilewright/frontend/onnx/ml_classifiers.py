"""Converters of `ai.onnx.ml`: linear classifiers, support vector machines, classifiers by trees."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.ml_scores import (
    DOMAIN,
    Labels,
    above,
    matrix,
    pair,
    pair_of_one,
    read_transform,
    transformed,
)
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.trees import read_classifier
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, FLOAT64
from tilewright.support.errors import UnsupportedError, UserError


def rows_of_features(node: NodeContext) -> GraphExpr:
    """The first input as a matrix of floats, one sample a row."""
    data = node.input(0)
    if rank_of(data) == 1:
        data = node.builder.reshape(data, (1, *sizes_of(data)))
    if rank_of(data) != 2:
        raise UserError(f"{node.node.op_type} needs data of 2 dimensions, it has {rank_of(data)}")
    return node.builder.cast(data, FLOAT32)


@converter("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: NodeContext) -> list[GraphExpr | None]:
    """A matrix product; one row of coefficients serves two classes."""
    data = rows_of_features(node)
    transform, labels = read_transform(node), Labels(node, "classlabels_ints", "classlabels_strings")
    node.ignore("multi_class")
    weights = node.floats("coefficients")
    features = size_at(data, 1)
    rows = len(weights) // features if features else 0
    table = matrix(node, weights, rows, features, data)
    scores = node.call("matmul", data, table, transpose_b=True)
    intercepts = node.floats("intercepts", ())
    if intercepts:
        if len(intercepts) != rows:
            raise UserError(f"{len(intercepts)} intercepts for {rows} rows of coefficients")
        scores = node.call("add", scores, node.builder.constant(np.array(intercepts), FLOAT32))
    if rows == 1 and len(labels) == 2:
        found = labels.second_if(above(node, scores, 0.0))
        return [found, pair_of_one(node, scores, transform, opposite=False)]
    if rows != len(labels):
        raise UserError(f"{rows} rows of coefficients for {len(labels)} labels")
    return [labels.best(scores), transformed(node, scores, transform)]


@converter("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(node: NodeContext) -> list[GraphExpr | None]:
    """Trees whose leaves add to the scores of classes; leaves of one class alone serve two."""
    data = node.input(0)
    if rank_of(data) != 2:
        raise UserError(f"trees need data of 2 dimensions, it has {rank_of(data)}")
    if dtype_of(data) not in (FLOAT32, FLOAT64):
        data = node.builder.cast(data, FLOAT32)
    labels = Labels(node, "classlabels_int64s", "classlabels_strings")
    transform = read_transform(node)
    used = sorted(set(node.ints("class_ids")))
    bases = len(node.floats("base_values", ())) if not node.has_attribute("base_values_as_tensor") else -1
    single = len(labels) == 2 and len(used) == 1
    if single and bases not in (0, 1):
        raise UnsupportedError("TreeEnsembleClassifier of two classes by one score, with several base values")
    forest, positive = read_classifier(node, 1 if single else len(labels), used[0] if single else 0)
    scores = node.builder.cast(evaluate_forest(node.builder, data, forest), FLOAT32)
    if not single:
        return [labels.best(scores), transformed(node, scores, transform)]
    found = labels.second_if(above(node, scores, 0.5 if positive else 0.0))
    if used[0] == 0:
        return [found, pair_of_one(node, scores, transform, opposite=not positive)]
    nothing = node.builder.filled(0, sizes_of(scores), FLOAT32)
    return [found, transformed(node, pair(node, nothing, scores), transform)]


def _kernel(node: NodeContext, data: GraphExpr, vectors: GraphExpr) -> GraphExpr:
    """The kernel of every sample with every vector."""
    params = node.floats("kernel_params", ())
    kind = node.text("kernel_type", "LINEAR")
    gamma, shift, degree = params if len(params) == 3 else (0.0, 0.0, 0.0)

    def number(value: float) -> GraphExpr:
        return node.builder.constant(value, FLOAT32)

    products = node.call("matmul", data, vectors, transpose_b=True)
    if kind == "LINEAR":
        return products
    if kind == "RBF":
        wide = node.call("subtract", node.builder.expand_dims(data, (1,)), vectors)
        distance = node.call("sum", node.call("multiply", wide, wide), axes=(2,), keepdims=False)
        return node.call("exp", node.call("multiply", distance, number(-gamma)))
    line = node.call("add", node.call("multiply", products, number(gamma)), number(shift))
    if kind == "POLY":
        return node.call("power", line, number(degree))
    if kind == "SIGMOID":
        return node.call("tanh", line)
    raise UserError(f"unknown kernel_type {kind!r}", hint="one of LINEAR, POLY, RBF, SIGMOID")


@converter("SVMRegressor", domain=DOMAIN)
def svm_regressor(node: NodeContext) -> GraphExpr:
    """A weighted sum of kernels with support vectors, or a linear function."""
    data = rows_of_features(node)
    if read_transform(node) != "NONE":
        raise UnsupportedError("SVMRegressor with a post_transform")
    weights, rho = node.floats("coefficients"), node.floats("rho")
    count, features = node.integer("n_supports", 0), size_at(data, 1)
    node.ignore("n_targets")
    if len(rho) < 1:
        raise UserError("SVMRegressor needs rho")
    if count > 0:
        vectors = matrix(node, node.floats("support_vectors"), count, features, data)
        values = node.call("matmul", _kernel(node, data, vectors), matrix(node, weights, count, 1, data))
    else:
        node.ignore("kernel_type", "kernel_params", "support_vectors")
        values = node.call("matmul", data, matrix(node, weights, features, 1, data))
    values = node.call("add", values, node.builder.constant(rho[0], FLOAT32))
    if not node.flag("one_class"):
        return values
    one = node.builder.constant(1.0, FLOAT32)
    return node.call("where", above(node, values, 0.0), one, node.builder.constant(-1.0, FLOAT32))


@converter("SVMClassifier", domain=DOMAIN)
def svm_classifier(node: NodeContext) -> list[GraphExpr | None]:
    """Each pair of classes votes; the scores are those of the pairs, or probabilities coupled from them."""
    data = rows_of_features(node)
    transform, labels = read_transform(node), Labels(node, "classlabels_ints", "classlabels_strings")
    sizes = node.ints("vectors_per_class", ())
    weights, rho = node.floats("coefficients"), node.floats("rho")
    count = len(labels)
    if not sizes or count < 2:
        raise UnsupportedError("SVMClassifier without support vectors, or of one class")
    total, features = sum(sizes), size_at(data, 1)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if len(sizes) != count or min(sizes) < 1 or len(rho) != len(pairs) or len(weights) != (count - 1) * total:
        raise UserError(f"{len(weights)} coefficients and {len(rho)} rho do not fit {count} classes of {sizes} vectors")
    vectors = matrix(node, node.floats("support_vectors"), total, features, data)
    votes = np.zeros((total, len(pairs)))
    table = np.array(weights).reshape(count - 1, total)
    starts = np.cumsum([0, *sizes])
    for at, (i, j) in enumerate(pairs):
        votes[starts[i] : starts[i + 1], at] = table[j - 1, starts[i] : starts[i + 1]]
        votes[starts[j] : starts[j + 1], at] = table[i, starts[j] : starts[j + 1]]
    scores = node.call("matmul", _kernel(node, data, vectors), node.builder.constant(votes, FLOAT32))
    scores = node.call("add", scores, node.builder.constant(np.array(rho), FLOAT32))
    wins = np.zeros((len(pairs), count)), np.zeros((len(pairs), count))
    for at, (i, j) in enumerate(pairs):
        wins[0][at, i] = wins[1][at, j] = 1
    won = node.builder.cast(above(node, scores, 0.0), FLOAT32)
    lost = node.call("subtract", node.builder.constant(1.0, FLOAT32), won)
    first, second = (
        node.call("matmul", side, node.builder.constant(table, FLOAT32))
        for side, table in zip((won, lost), wins, strict=True)
    )
    found = labels.best(node.call("add", first, second))
    slopes, shifts = node.floats("prob_a", ()), node.floats("prob_b", ())
    if slopes:
        if len(slopes) != len(pairs) or len(shifts) != len(pairs):
            raise UserError(f"{len(slopes)} prob_a and {len(shifts)} prob_b for {len(pairs)} pairs of classes")
        line = node.call("multiply", scores, node.builder.constant(np.array(slopes), FLOAT32))
        line = node.call("add", line, node.builder.constant(np.array(shifts), FLOAT32))
        chances = node.call("sigmoid", node.call("negative", line))
        return [found, transformed(node, node.call("host.couple", chances, classes=count), transform)]
    if len(pairs) == 1:
        return [found, pair_of_one(node, scores, transform, opposite=transform == "NONE")]
    return [found, transformed(node, scores, transform)]
