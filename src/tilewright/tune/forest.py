"""Boosted trees as plain arrays: a cost model that was learned before, to be read and asked with numpy alone.

    Forest.of(tree_model).save("model.npz")
    Forest.load("model.npz").predict(features)

What `bench.pretrain` learned on many kernels lies in `tune/data`, one file a family of processors (`shipped`): it
orders programs before the first one of a task is measured, and a `TreeModel` grows its trees on top of what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.target import Target
from tilewright.tune.cost import Matrix, TreeModel, Vector
from tilewright.tune.features import VERSION

SHIPPED = Path(__file__).parent / "data"
_ROWS = 4096
"""Programs that are asked about at once: the places in all trees of all programs must fit in memory."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees side by side. A node's children lie at `child` (the feature is less than `limit`) and `child + 1`.

    A leaf is its own child and holds its value in `limit`; its feature is the one after the last, which is always less.
    """

    feature: npt.NDArray[np.int16]
    limit: npt.NDArray[np.float32]
    child: npt.NDArray[np.int16]
    depth: int
    width: int
    """How many features a program has."""
    version: int = VERSION

    @staticmethod
    def of(model: TreeModel) -> Forest:
        """The trees of a model that has learned (without those of its prior)."""
        data = json.loads(model.dump())["learner"]
        width = int(data["learner_model_param"]["num_feature"])
        trees = [_Tree(item) for item in data["gradient_booster"]["model"]["trees"]]
        shape = (len(trees), max(len(tree.order) for tree in trees))
        feature = np.full(shape, width, np.int16)
        limit = np.zeros(shape, np.float32)
        child = np.zeros(shape, np.int16)
        for place, tree in enumerate(trees):
            numbers = {old: new for new, old in enumerate(tree.order)}
            for old, new in numbers.items():
                limit[place, new] = tree.limit[old]
                is_leaf = tree.left[old] < 0
                child[place, new] = new if is_leaf else numbers[tree.left[old]]
                feature[place, new] = width if is_leaf else tree.feature[old]
        return Forest(feature, limit, child, max(tree.depth for tree in trees), width)

    def fit(self, features: Matrix, scores: Vector, tasks: Sequence[str]) -> None:
        """Learns nothing: it has learned before."""

    def predict(self, features: Matrix) -> Vector:
        """The sum of what all trees say of each program."""
        if features.shape[1] != self.width:
            raise UserError(f"the cost model knows programs of {self.width} features, not of {features.shape[1]}")
        parts = [self._predict(features[start : start + _ROWS]) for start in range(0, len(features), _ROWS)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _predict(self, features: Matrix) -> Vector:
        wide = np.concatenate([features, np.full((len(features), 1), -np.inf, np.float32)], axis=1)
        trees = np.arange(len(self.feature))[None, :]
        rows = np.arange(len(features))[:, None]
        place = np.zeros((len(features), len(self.feature)), np.int64)
        for _ in range(self.depth):
            right = ~(wide[rows, self.feature[trees, place]] < self.limit[trees, place])
            place = self.child[trees, place].astype(np.int64) + right
        total: Vector = self.limit[trees, place].sum(axis=1, dtype=np.float32)
        return total

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trees."""
        shape = np.asarray([self.depth, self.width, self.version], np.int32)
        with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, feature=self.feature, limit=self.limit, child=self.child, shape=shape)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Forest:
        """The trees that `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as data:
                depth, width, version = (int(value) for value in data["shape"])
                return Forest(data["feature"], data["limit"], data["child"], depth, width, version)
        except FileNotFoundError:
            raise UserError("there is no such cost model", where=str(path)) from None
        except Exception as error:
            # Of a damaged file numpy, zipfile, zlib and Python's tokenizer each complain in their own way.
            raise UserError(f"this is no saved cost model: {error}", where=str(path)) from None


class _Tree:
    """One tree as xgboost stores it, with its nodes in an order where the two children of a node are neighbours."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.left: list[int] = data["left_children"]
        self.feature: list[int] = data["split_indices"]
        self.limit: list[float] = data["split_conditions"]
        self.order = [0]
        self.depth = 0
        level = [0]
        while level := [child for node in level if self.left[node] >= 0 for child in self._pair(node, data)]:
            self.order += level
            self.depth += 1

    def _pair(self, node: int, data: Mapping[str, Any]) -> tuple[int, int]:
        return self.left[node], int(data["right_children"][node])


def shipped(target: Target) -> Forest | None:
    """The model that was learned on processors of the target's family; None where there is none."""
    found = _load(target.arch) if target.is_cpu else None
    return found if found is not None and found.version == VERSION else None


@cache
def _load(family: str) -> Forest | None:
    path = SHIPPED / f"{family}.npz"
    return Forest.load(path) if path.exists() else None
