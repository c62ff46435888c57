"""Trees of an ensemble, each with nodes of its own, joined to one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.frontend.core.tree_tables import MEMBER, Forest
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError


@dataclass(frozen=True)
class Tree:
    """The nodes of one tree, the first of which is its root."""

    features: Array
    thresholds: Array
    modes: Array
    fails: Array
    """For every node, where it goes if its test fails; a leaf goes to itself."""
    holds: Array
    missing: Array
    """Whether the test counts as true where the feature is NaN."""
    weights: Array
    """For every node and target, what a leaf adds."""
    members: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """The sets of the nodes that test membership."""


def join_trees(trees: Sequence[Tree], base: Array, aggregate: str = "SUM") -> Forest:
    """The forest of trees; `base` is added to each target."""
    if not trees:
        raise UserError("the model has no trees")
    for number, tree in enumerate(trees):
        _check(tree, len(base), number)
    starts = np.cumsum([0, *(len(tree.modes) for tree in trees)])
    branches = [
        np.stack([tree.fails, tree.holds], axis=1).astype(np.int64) + start
        for tree, start in zip(trees, starts, strict=False)
    ]
    weights = np.concatenate([tree.weights for tree in trees]).astype(np.float64)
    joined = np.concatenate(branches)
    leaves = (joined == np.arange(len(joined))[:, None]).all(axis=1)
    return Forest(
        np.concatenate([tree.features for tree in trees]).astype(np.int64),
        np.concatenate([tree.thresholds for tree in trees]).astype(np.float64),
        np.concatenate([tree.modes for tree in trees]).astype(np.int64),
        joined,
        np.concatenate([tree.missing for tree in trees]).astype(bool),
        _members(trees, starts),
        starts[:-1].astype(np.int64),
        weights,
        np.repeat(leaves[:, None], weights.shape[1], axis=1),
        np.asarray(base, np.float64),
        aggregate,
    )


def _check(tree: Tree, targets: int, number: int) -> None:
    """Refuse what is no tree: tables of different lengths, nodes that are not there, two ways to a node."""
    count = len(tree.modes)
    columns: list[Any] = [tree.features, tree.thresholds, tree.fails, tree.holds, tree.missing, tree.weights]
    if not count or any(len(column) != count for column in columns) or tree.weights.shape != (count, targets):
        raise UserError(f"tree {number} is damaged: its tables have different lengths")
    own = np.arange(count)
    leaf = (tree.fails == own) & (tree.holds == own)
    below = np.concatenate([tree.fails[~leaf], tree.holds[~leaf]]).astype(np.int64)
    if below.size and (below.min() < 0 or below.max() >= count):
        raise UserError(f"tree {number} is damaged: it refers to a node that is not there")
    if np.bincount(below, minlength=count).max(initial=0) > 1 or (below == 0).any():
        raise UserError(f"tree {number} is damaged: several ways lead to one node")


def _members(trees: Sequence[Tree], starts: Array) -> Array | None:
    widest = max((len(values) for tree in trees for values in tree.members.values()), default=0)
    if not any((tree.modes == MEMBER).any() for tree in trees):
        return None
    table = np.full((int(starts[-1]), max(widest, 1)), np.nan)
    for tree, start in zip(trees, starts, strict=False):
        for node, values in tree.members.items():
            table[start + node, : len(values)] = list(values)
    return table
