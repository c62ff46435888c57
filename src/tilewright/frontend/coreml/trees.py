"""Core ML's ensembles of decision trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.core.tree_join import Tree, join_trees
from tilewright.frontend.core.tree_tables import EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, NOT_EQUAL
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_MODES = (LESS_EQUAL, LESS, GREATER_EQUAL, GREATER, EQUAL, NOT_EQUAL)
_LEAF = 6
_MOST_DIMENSIONS = 1 << 20


def tree_scores(builder: Builder, parameters: Any, data: GraphExpr) -> GraphExpr:
    """What the leaves that rows come to add up to, a column for each dimension."""
    count = int(parameters.numPredictionDimensions) or 1
    if count > _MOST_DIMENSIONS:
        raise UserError(f"trees that predict {count} numbers make no sense")
    base = np.array(parameters.basePredictionValue, np.float64)
    if base.size not in (0, count):
        raise UserError(f"{base.size} base values for {count} predictions")
    groups: dict[int, list[Any]] = {}
    for node in parameters.nodes:
        groups.setdefault(int(node.treeId), []).append(node)
    trees = [_tree(nodes, count, number) for number, nodes in sorted(groups.items())]
    return evaluate_forest(builder, data, join_trees(trees, base if base.size else np.zeros(count)))


def _tree(nodes: list[Any], count: int, number: int) -> Tree:
    """One tree, its root first."""
    below = {
        int(child)
        for node in nodes
        if node.nodeBehavior != _LEAF
        for child in (node.trueChildNodeId, node.falseChildNodeId)
    }
    roots = [node for node in nodes if int(node.nodeId) not in below]
    if len(roots) != 1:
        raise UserError(f"tree {number} has {len(roots)} roots")
    ordered = [roots[0], *(node for node in nodes if node is not roots[0])]
    places = {int(node.nodeId): place for place, node in enumerate(ordered)}
    if len(places) != len(ordered):
        raise UserError(f"tree {number} has two nodes of one number")
    size = len(ordered)
    features, fails, holds, modes = (np.zeros(size, np.int64) for _ in range(4))
    thresholds, missing, weights = np.zeros(size), np.zeros(size, bool), np.zeros((size, count))
    for place, node in enumerate(ordered):
        behavior = int(node.nodeBehavior)
        if behavior == _LEAF:
            fails[place] = holds[place] = place
            for item in node.evaluationInfo:
                if item.evaluationIndex >= count:
                    raise UserError(f"a leaf of tree {number} adds to prediction {item.evaluationIndex} of {count}")
                weights[place, item.evaluationIndex] += item.evaluationValue
            continue
        if not 0 <= behavior < len(_MODES) or node.branchFeatureIndex > 1 << 31:
            raise UserError(f"node {node.nodeId} of tree {number} is damaged")
        children = [places.get(int(child)) for child in (node.trueChildNodeId, node.falseChildNodeId)]
        if children[0] is None or children[1] is None:
            raise UserError(f"tree {number} refers to a node that is not there")
        holds[place], fails[place] = children[0], children[1]
        features[place], thresholds[place] = node.branchFeatureIndex, node.branchFeatureValue
        modes[place], missing[place] = _MODES[behavior], node.missingValueTracksTrueChild
    return Tree(features, thresholds, modes, fails, holds, missing, weights)
