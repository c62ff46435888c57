"""Decision trees in one form: every node asks whether its feature is at most a threshold.

    x < t     x <= the number before t
    x >= t    not x < t: the branches are exchanged
    x == t    x <= t, and then not x < t
    x in set  a search among the ends of the gaps between the set's values

A feature that is NaN is at most nothing, and goes on as if the test failed, unless the node says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LESS_EQUAL, LESS, GREATER_EQUAL, GREATER, EQUAL, NOT_EQUAL, MEMBER = range(len(MODES))


@dataclass(frozen=True, slots=True)
class Forest:
    """Nodes of all trees in one table, leaves among them."""

    features: Array
    thresholds: Array
    modes: Array
    branches: Array
    """For every node, where it goes if its test fails and if it holds; a leaf goes to itself."""
    missing: Array
    """Whether the test counts as true where the feature is NaN."""
    members: Array | None
    """For every node, the values of a set (filled up with NaN)."""
    roots: Array
    weights: Array
    """For every node, what it adds to each target; 0 but for leaves."""
    used: Array
    """For every node and target, whether the leaf says something about the target."""
    base: Array
    aggregate: str


@dataclass(slots=True)
class Tables:
    """Nodes that all ask `feature <= threshold`; some tests take several of them."""

    features: Array
    thresholds: Array
    branches: Array
    missing: Array
    added: list[tuple[int, float, int, int]] = field(default_factory=list)
    """Nodes beyond those of the model: feature, threshold, branches. What is NaN fails their tests."""

    def depths(self, roots: Array) -> Array:
        """The most steps from each root to a leaf."""
        heights = np.zeros(len(self.branches), np.int64)
        inner = self.branches[:, 0] != np.arange(len(heights))
        inner |= self.branches[:, 1] != np.arange(len(heights))
        for _ in range(len(heights) + 1):
            higher = np.where(inner, heights[self.branches].max(axis=1) + 1, 0)
            if (higher == heights).all():
                return heights[roots]
            heights = higher
        raise UserError("a tree leads back to itself")


def at_most(forest: Forest, dtype: np.dtype[Any]) -> Tables:
    """The nodes of a forest for features of a type."""
    thresholds = forest.thresholds.astype(dtype)
    tables = Tables(forest.features.copy(), thresholds, forest.branches.copy(), forest.missing.copy())
    modes = np.where((forest.branches == np.arange(len(forest.modes))[:, None]).all(axis=1), LESS_EQUAL, forest.modes)
    before = _before(thresholds)
    turned = np.isin(modes, (GREATER, GREATER_EQUAL))
    tables.thresholds = np.where(np.isin(modes, (LESS, GREATER_EQUAL)), before, thresholds)
    # No number is above or below NaN: the exchanged test holds for all.
    tables.thresholds[turned & np.isnan(thresholds)] = np.inf
    tables.branches[turned] = tables.branches[turned][:, ::-1]
    tables.missing[turned] = ~tables.missing[turned]
    for node in np.flatnonzero(modes >= EQUAL):
        if modes[node] == MEMBER:
            assert forest.members is not None
            values = forest.members[node].astype(dtype)
        else:
            values = thresholds[node : node + 1]
        outside, inside = tables.branches[node]
        if modes[node] == NOT_EQUAL:
            outside, inside = inside, outside
            tables.missing[node] = False
        _search(tables, int(node), np.unique(values[~np.isnan(values)]), int(outside), int(inside))
    return _joined(tables)


def _before(values: Array) -> Array:
    """The numbers before others; NaN before the least, which nothing is below."""
    before: Array = np.nextafter(values, values.dtype.type(-np.inf))
    before[np.isneginf(values)] = np.nan
    return before


def _search(tables: Tables, node: int, values: Array, outside: int, inside: int) -> None:
    """Give a node, and others below it, the question whether a feature is among sorted values."""
    if not len(values):
        # Nothing is among no values; NaN may be said to be.
        tables.thresholds[node], tables.branches[node] = np.nan, (outside, inside)
        return
    # Gaps and values by turns, each told by its upper end.
    ends = np.stack([_before(values), values], axis=1).ravel()
    feature = int(tables.features[node])

    def split(first: int, last: int) -> tuple[float, int, int]:
        """The node of the ends from `first` up to `last`."""
        # It ends at a value: NaN goes on to the last part below, which is the value itself where it counts as inside.
        middle = min((first + last) // 2 | 1, last - 1)
        return float(ends[middle]), below(middle + 1, last), below(first, middle)

    def below(first: int, last: int) -> int:
        if first == last:
            return inside if first % 2 else outside
        threshold, fails, holds = split(first, last)
        tables.added.append((feature, threshold, fails, holds))
        return len(tables.branches) + len(tables.added) - 1

    threshold, fails, holds = split(0, len(ends))
    tables.thresholds[node], tables.branches[node] = threshold, (fails, holds)


def _joined(tables: Tables) -> Tables:
    """The tables with the added nodes at their end."""
    if not tables.added:
        return tables
    features, thresholds, fails, holds = zip(*tables.added, strict=True)
    return Tables(
        np.concatenate([tables.features, np.array(features, np.int64)]),
        np.concatenate([tables.thresholds, np.array(thresholds, tables.thresholds.dtype)]),
        np.concatenate([tables.branches, np.stack([fails, holds], axis=1)]),
        np.concatenate([tables.missing, np.zeros(len(features), bool)]),
    )
