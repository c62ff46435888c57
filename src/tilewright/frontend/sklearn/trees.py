"""scikit-learn's trees as tables, and ensembles of them.

Features are rounded to float32 before they are compared, as scikit-learn does it; thresholds and sums are of float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.core.tree_join import Tree, join_trees
from tilewright.frontend.core.tree_tables import LESS_EQUAL
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, FLOAT64
from tilewright.support.errors import UnsupportedError


def rounded(build: Builder, data: GraphExpr) -> GraphExpr:
    """Features as trees see them."""
    return build.cast(build.cast(data, FLOAT32), FLOAT64)


def tree_of(own: Any, weights: Array) -> Tree:
    """A fitted tree (`estimator.tree_`) whose nodes say so much."""
    left, right = (np.asarray(side, np.int64) for side in (own.children_left, own.children_right))
    leaf = left == -1
    places = np.arange(len(left))
    missing = np.asarray(getattr(own, "missing_go_to_left", np.zeros(len(left))), bool)
    return Tree(
        np.where(leaf, 0, np.asarray(own.feature, np.int64)),
        np.where(leaf, 0.0, np.asarray(own.threshold, np.float64)),
        np.full(len(left), LESS_EQUAL),
        np.where(leaf, places, right),
        np.where(leaf, places, left),
        missing & ~leaf,
        np.where(leaf[:, None], weights, 0.0),
    )


def values_of(own: Any, classifier: bool) -> Array:
    """What the nodes of a fitted tree say: chances of classes, or numbers of targets."""
    values = np.asarray(own.value, np.float64)
    if classifier:
        if values.shape[1] != 1:
            raise UnsupportedError("trees that classify several outputs at once")
        chances: Array = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
        return chances
    return values[:, :, 0]


def mean_of_trees(build: Builder, data: GraphExpr, trees: list[Any], classifier: bool) -> GraphExpr:
    """The mean of what trees say."""
    tables = [tree_of(item.tree_, values_of(item.tree_, classifier)) for item in trees]
    forest = join_trees(tables, np.zeros(tables[0].weights.shape[1]))
    total = evaluate_forest(build, rounded(build, data), forest)
    return total if len(trees) == 1 else build.call("divide", total, build.constant_like(len(trees), total))


def boosted(build: Builder, data: GraphExpr, own: Any, base: Array) -> GraphExpr:
    """The scores of GradientBoosting: trees of each target, scaled, after a base score."""
    stages = np.asarray(own.estimators_, object)
    tables = [_single(base)]
    for stage in stages:
        for target, item in enumerate(stage):
            weights = np.zeros((len(np.asarray(item.tree_.feature)), len(base)))
            weights[:, target] = np.asarray(item.tree_.value, np.float64)[:, 0, 0] * own.learning_rate
            tables.append(tree_of(item.tree_, weights))
    return evaluate_forest(build, rounded(build, data), join_trees(tables, np.zeros(len(base))))


def _single(weights: Array) -> Tree:
    zero = np.zeros(1, np.int64)
    return Tree(zero, np.zeros(1), zero, zero, zero, np.zeros(1, bool), np.asarray(weights, np.float64)[None])


def histogram_boosted(build: Builder, data: GraphExpr, own: Any) -> GraphExpr:
    """The scores of HistGradientBoosting: nodes in one table a tree, features of float64."""
    base = np.asarray(own._baseline_prediction, np.float64).reshape(-1)
    tables = [_single(base)]
    for stage in own._predictors:
        for target, predictor in enumerate(stage):
            nodes = predictor.nodes
            leaf = np.asarray(nodes["is_leaf"], bool)
            if np.asarray(nodes["is_categorical"], bool)[~leaf].any():
                raise UnsupportedError("HistGradientBoosting with features of categories")
            places = np.arange(len(leaf))
            weights = np.zeros((len(leaf), len(base)))
            weights[leaf, target] = np.asarray(nodes["value"], np.float64)[leaf]
            tables.append(
                Tree(
                    np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
                    np.where(leaf, 0.0, nodes["num_threshold"]),
                    np.full(len(leaf), LESS_EQUAL),
                    np.where(leaf, places, nodes["right"]).astype(np.int64),
                    np.where(leaf, places, nodes["left"]).astype(np.int64),
                    np.asarray(nodes["missing_go_to_left"], bool) & ~leaf,
                    weights,
                )
            )
    return evaluate_forest(build, data, join_trees(tables, np.zeros(len(base))))
