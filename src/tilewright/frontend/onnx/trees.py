"""Ensembles of decision trees as ONNX models say them."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.tree_tables import MEMBER, MODES, Forest
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def read_ensemble(node: NodeContext) -> Forest:
    """The attributes of TreeEnsemble: inner nodes and leaves in tables of their own."""
    node.ignore("nodes_hitrates")
    if node.integer("post_transform", 0):
        raise UnsupportedError(f"TreeEnsemble with post_transform {node.integer('post_transform')}")
    thresholds = node.tensor("nodes_splits").array.astype(np.float64).ravel()
    modes = node.tensor("nodes_modes").array.astype(np.int64).ravel()
    inner = len(modes)
    features = np.array(node.ints("nodes_featureids"), np.int64)
    targets = np.array(node.ints("leaf_targetids"), np.int64)
    weights = node.tensor("leaf_weights").array.astype(np.float64).ravel()
    _check_lengths(len(weights), targets)
    sides = []
    for side in ("false", "true"):
        place = np.array(node.ints(f"nodes_{side}nodeids"), np.int64)
        leaf = np.array(node.ints(f"nodes_{side}leafs"), np.int64)
        _check_lengths(inner, thresholds, features, place, leaf)
        sides.append(place + inner * (leaf != 0))
    missing = np.array(node.ints("nodes_missing_value_tracks_true", (0,) * inner), np.int64)
    members = None
    if (modes == MEMBER).any():
        members = _sets(node.tensor("membership_values").array.ravel(), modes, inner + len(weights))
    node.ignore("membership_values")
    count = node.integer("n_targets", 1)
    aggregate = node.integer("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        raise UserError(f"unknown aggregate_function {aggregate}")
    return _forest(
        features, thresholds, modes, np.stack(sides, axis=1), missing, members,
        np.array(node.ints("tree_roots"), np.int64),
        [(inner + leaf, int(target), float(weight)) for leaf, (target, weight) in
         enumerate(zip(targets, weights, strict=True))],
        len(weights), count, np.zeros(count), _AGGREGATES[aggregate],
    )  # fmt: skip


def _check_lengths(count: int, *columns: Array | tuple[int, ...]) -> None:
    for column in columns:
        if len(column) != count:
            raise UserError(f"a table of a tree has {len(column)} entries instead of {count}")


def _sets(values: Array, modes: Array, total: int) -> Array:
    """Sets of values, which NaN separates, for the nodes that test membership."""
    sets: list[list[float]] = [[]]
    for value in values.astype(np.float64):
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(float(value))
    sets = [item for item in sets if item]
    nodes = np.flatnonzero(modes == MEMBER)
    if len(sets) != len(nodes):
        raise UserError(f"{len(sets)} sets of values for {len(nodes)} nodes that test membership")
    table = np.full((total, max(len(item) for item in sets)), np.nan)
    for place, item in zip(nodes, sets, strict=True):
        table[place, : len(item)] = item
    return table


def read_regressor(node: NodeContext) -> Forest:
    """The attributes of TreeEnsembleRegressor: one table, leaves marked by their mode."""
    if node.text("post_transform", "NONE") != "NONE":
        raise UnsupportedError(f"TreeEnsembleRegressor with post_transform {node.text('post_transform')}")
    aggregate = node.text("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        raise UserError(f"unknown aggregate_function {aggregate!r}")
    targets = node.integer("n_targets", 1)
    weights = _leaf_weights(node, "target")
    return _read_nodes(node, weights, targets, _numbers(node, "base_values", targets), aggregate)


def read_classifier(node: NodeContext, targets: int, only: int) -> tuple[Forest, bool]:
    """The attributes of TreeEnsembleClassifier, and whether no weight is negative.

    With one target all weights belong to the class `only`, and a base value is that of the first class.
    """
    weights = _leaf_weights(node, "class")
    base = np.zeros(targets)
    if node.has_attribute("base_values") or node.has_attribute("base_values_as_tensor"):
        given = _numbers(node, "base_values")
        base = given if targets > 1 or not only else base
    if targets == 1:
        weights = [(tree, at, target - only, weight) for tree, at, target, weight in weights]
    forest = _read_nodes(node, weights, targets, base, "SUM")
    return forest, all(weight >= 0 for *_, weight in weights)


def _leaf_weights(node: NodeContext, prefix: str) -> list[tuple[int, int, int, float]]:
    """What leaves add: (tree, node, target, weight)."""
    columns = [node.ints(f"{prefix}_{name}") for name in ("treeids", "nodeids", "ids")]
    weights = _numbers(node, f"{prefix}_weights")
    _check_lengths(len(weights), *columns)
    trees, numbers, targets = columns
    return [
        (tree, at, target, float(weight))
        for tree, at, target, weight in zip(trees, numbers, targets, weights, strict=True)
    ]


def _read_nodes(
    node: NodeContext, weights: list[tuple[int, int, int, float]], targets: int, base: Array, aggregate: str
) -> Forest:
    """The nodes of trees in the older form, joined with what their leaves add."""
    node.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    names = node.texts("nodes_modes")
    count = len(names)
    trees, numbers = node.ints("nodes_treeids"), node.ints("nodes_nodeids")
    _check_lengths(count, trees, numbers)
    keys = list(zip(trees, numbers, strict=True))
    place = {key: index for index, key in enumerate(keys)}
    unknown = set(names) - set(MODES[:MEMBER]) - {"LEAF"}
    if unknown or len(place) != count:
        raise UserError(f"the nodes of the trees make no sense: modes {sorted(set(names))}, {len(keys)} nodes")
    leaf = np.array([name == "LEAF" for name in names])
    modes = np.array([0 if name == "LEAF" else MODES.index(name) for name in names], np.int64)
    sides = []
    for side in ("false", "true"):
        target = node.ints(f"nodes_{side}nodeids")
        _check_lengths(count, target)
        at = [index if leaf[index] else place.get((keys[index][0], target[index]), -1) for index in range(count)]
        sides.append(np.array(at, np.int64))
    roots = _roots(keys, leaf, sides)
    leaves = [(place[(tree, at)], target, weight) for tree, at, target, weight in weights if (tree, at) in place]
    if len(leaves) != len(weights):
        raise UserError("a weight belongs to a node that is not there")
    missing = np.array(node.ints("nodes_missing_value_tracks_true", (0,) * count), np.int64)
    return _forest(
        np.array(node.ints("nodes_featureids"), np.int64), _numbers(node, "nodes_values"), modes,
        np.stack(sides, axis=1), missing, None, roots, leaves, 0, targets, base, aggregate,
    )  # fmt: skip


def _roots(keys: list[tuple[int, int]], leaf: Array, sides: list[Array]) -> Array:
    """The nodes that nothing leads to, one a tree."""
    own = np.arange(len(keys))
    reached = set(np.concatenate([side[~leaf] for side in sides]).tolist()) if not leaf.all() else set()
    if -1 in reached:
        raise UserError("a tree refers to a node that is not there")
    roots = np.array([at for at in own if at not in reached], np.int64)
    below = set(roots.tolist())
    level = roots
    while len(level):
        following = set(np.concatenate([side[level] for side in sides]).tolist()) - below
        below |= following
        level = np.array(sorted(following), np.int64)
    if sorted(keys[at][0] for at in roots) != sorted({tree for tree, _ in keys}) or len(below) != len(keys):
        raise UserError("a tree has no root, or several: does it lead back to itself?")
    return roots


def _numbers(node: NodeContext, name: str, zeros: int = 0) -> Array:
    """An attribute that is a list of numbers or (in double precision) a tensor."""
    if node.has_attribute(f"{name}_as_tensor"):
        return node.tensor(f"{name}_as_tensor").array.astype(np.float64).ravel()
    if zeros and not node.has_attribute(name):
        return np.zeros(zeros)
    return np.array(node.floats(name), np.float64)


def _forest(
    features: Array,
    thresholds: Array,
    modes: Array,
    branches: Array,
    missing: Array,
    members: Array | None,
    roots: Array,
    leaves: list[tuple[int, int, float]],
    extra: int,
    targets: int,
    base: Array,
    aggregate: str,
) -> Forest:
    """The tables with rows for `extra` leaves that are kept apart from the nodes."""
    count = len(modes)
    _check_lengths(count, features, thresholds, missing)
    total = count + extra
    if extra:
        own = np.arange(count, total)
        branches = np.concatenate([branches, np.stack([own, own], axis=1)])
        zeros = np.zeros(extra, np.int64)
        features, modes, missing = (np.concatenate([item, zeros]) for item in (features, modes, missing))
        thresholds = np.concatenate([thresholds, np.zeros(extra)])
    everything = np.concatenate([branches.ravel(), roots, np.array([at for at, _, _ in leaves], np.int64)])
    if not len(roots) or everything.min() < 0 or everything.max() >= total:
        raise UserError("a tree refers to a node that is not there")
    if len(base) != targets or any(not 0 <= target < targets for _, target, _ in leaves):
        raise UserError(f"a tree refers to a target beyond the {targets} there are")
    weights, used = np.zeros((total, targets)), np.zeros((total, targets), bool)
    for at, target, weight in leaves:
        weights[at, target] += weight
        used[at, target] = True
    return Forest(
        features, thresholds, modes, branches, missing.astype(bool), members, roots, weights, used, base, aggregate
    )
