"""Importer of XGBoost models (JSON and UBJSON, as `Booster.save_model` writes them).

The result has one input, `data` (float32, a row for each sample; NaN is missing), and gives what `Booster.predict`
gives, with sums in the order in which XGBoost adds them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.boosting.ubjson import read_ubjson
from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, sizes_of
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.core.tree_join import Tree, join_trees
from tilewright.frontend.core.tree_tables import LESS, MEMBER
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
"""What looking up raises in a file whose parts make no sense."""
_LOGISTIC = ("binary:logistic", "reg:logistic")
_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
_PLAIN = (
    "binary:logitraw",
    "reg:squarederror",
    "reg:linear",
    "reg:squaredlogerror",
    "reg:absoluteerror",
    "reg:quantileerror",
    "reg:pseudohubererror",
    "rank:pairwise",
    "rank:ndcg",
    "rank:map",
)


def from_xgboost(
    source: str | os.PathLike[str] | bytes, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> IRModule:
    """Import an XGBoost model: the path or the bytes of a .json or .ubj file."""
    where = "the bytes" if isinstance(source, bytes) else os.fspath(source)
    document = _read(source, where)
    try:
        return _Importer(document["learner"]).module(dict(shapes or {}))
    except _MALFORMED as error:
        raise UserError(
            f"{where} is no XGBoost model, or it is damaged: {type(error).__name__}: {error}",
            hint="save it again with Booster.save_model('model.json')",
        ) from error


def _read(source: str | os.PathLike[str] | bytes, where: str) -> Any:
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {where}: {error.strerror or error}") from error
    if content.lstrip()[:1] == b"{" and content.lstrip()[1:2] in b' \t\r\n"':
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is no JSON: {error}", hint="save the model again") from error
    return read_ubjson(content)


class _Importer:
    """The import of one booster."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.builder = Builder()
        param = learner["learner_model_param"]
        self.features = int(param["num_feature"])
        self.targets = max(int(param["num_class"]), int(param.get("num_target", 1)), 1)
        self.objective = str(learner["objective"]["name"])
        self.base = self._margins(np.array(json.loads(str(param["base_score"])), np.float64).reshape(-1))
        if len(self.base) not in (1, self.targets) or not 0 < self.features < 1 << 31 or self.targets > 1 << 20:
            raise UserError(f"an XGBoost model of {self.features} features and {self.targets} targets makes no sense")

    def module(self, shapes: dict[str, Sequence[int | str | None]]) -> IRModule:
        shape = chosen_shape("data", ("batch", self.features), shapes)
        refuse_unknown(shapes, ["data"])
        data = new_input(self.builder, "data", shape, FLOAT32)
        booster = self.learner["gradient_booster"]
        kind = str(booster["name"])
        if kind == "gblinear":
            margin = self._linear(data, np.array(booster["model"]["weights"], np.float32))
        elif kind in ("gbtree", "dart"):
            model = booster["gbtree"]["model"] if kind == "dart" else booster["model"]
            drops = np.array(booster["weight_drop"], np.float32) if kind == "dart" else None
            margin = self._trees(data, model, drops)
        else:
            raise UnsupportedError(f"an XGBoost model with the booster {kind!r}")
        return main_module(self.builder, [data], [self._transformed(margin)], ["prediction"], "xgboost")

    # Scores

    def _margins(self, scores: Array) -> Array:
        """Base scores, which are predictions, as sums of leaves have them."""
        if self.objective in _LOGISTIC:
            return -np.log(1 / scores.astype(np.float32) - np.float32(1))
        return np.log(scores) if self.objective in _EXPONENTIAL else scores

    def _linear(self, data: GraphExpr, weights: Array) -> GraphExpr:
        table = weights.reshape(self.features + 1, self.targets)
        # What is missing adds nothing.
        zero = self.builder.constant_like(0, data)
        given = self.builder.call("where", self.builder.call("isnan", data), zero, data)
        products = self.builder.call("matmul", given, self.builder.constant(table[:-1], FLOAT32))
        # Every target has the first base score here, which XGBoost's own predictor adds.
        base = table[-1].astype(np.float64) + self.base[0]
        return self.builder.call("add", products, self.builder.constant(base, FLOAT32))

    def _trees(self, data: GraphExpr, model: Any, drops: Array | None) -> GraphExpr:
        owners = np.array(model["tree_info"], np.int64)
        trees = model["trees"]
        if len(owners) != len(trees) or (owners.size and not 0 <= owners.min() <= owners.max() < self.targets):
            raise UserError(f"an XGBoost model of {len(trees)} trees for {len(owners)} targets makes no sense")
        found = [self._base_tree()]
        for number, (tree, owner) in enumerate(zip(trees, owners, strict=True)):
            found.append(self._tree(tree, int(owner), 1.0 if drops is None else float(drops[number])))
        return evaluate_forest(self.builder, data, join_trees(found, np.zeros(self.targets)))

    def _base_tree(self) -> Tree:
        """A tree of one leaf: XGBoost's sums begin with the base score."""
        zero = np.zeros(1, np.int64)
        weights = np.broadcast_to(self.base.astype(np.float32), (1, self.targets)).astype(np.float64)
        return Tree(zero, np.zeros(1), zero, zero, zero, np.zeros(1, bool), weights)

    def _tree(self, tree: Any, owner: int, factor: float) -> Tree:
        left = np.array(tree["left_children"], np.int64)
        right = np.array(tree["right_children"], np.int64)
        own = np.arange(len(left))
        leaf = left == -1
        conditions = np.array(tree["split_conditions"], np.float32).astype(np.float64)
        width = int(tree["tree_param"].get("size_leaf_vector", 1) or 1)
        weights = np.zeros((len(left), self.targets))
        if width > 1:
            vectors = np.array(tree["base_weights"], np.float32).astype(np.float64).reshape(len(left), width)
            weights[leaf] = vectors[leaf]
        else:
            weights[leaf, owner] = (conditions[leaf].astype(np.float32) * np.float32(factor)).astype(np.float64)
        modes = np.where(leaf, 0, LESS)
        goes_left = np.array(tree["default_left"], np.int64).astype(bool)
        holds, fails = np.where(leaf, own, left), np.where(leaf, own, right)
        members: dict[int, list[float]] = {}
        parts = zip(*(tree.get(f"categories{name}", ()) for name in ("_nodes", "_segments", "_sizes")), strict=True)
        values = np.array(tree.get("categories", ()), np.int64)
        for node, start, size in parts:
            # What is among the categories goes right.
            members[int(node)] = values[int(start) : int(start) + int(size)].astype(np.float64).tolist()
            modes[node] = MEMBER
            holds[node], fails[node] = right[node], left[node]
            goes_left[node] = not goes_left[node]
        features = np.where(leaf, 0, np.array(tree["split_indices"], np.int64))
        return Tree(features, np.where(leaf, 0, conditions), modes, fails, holds, goes_left & ~leaf, weights, members)

    # Predictions

    def _transformed(self, margin: GraphExpr) -> GraphExpr:
        build = self.builder
        name = self.objective
        if name == "multi:softprob":
            return build.call("nn.softmax", margin, axis=1)
        if name == "multi:softmax":
            return build.cast(build.call("argmax", margin, axis=1, keepdims=False), FLOAT32)
        kinds: dict[tuple[str, ...], Callable[[GraphExpr], GraphExpr]] = {
            _LOGISTIC: lambda x: build.call("sigmoid", x),
            _EXPONENTIAL: lambda x: build.call("exp", x),
            ("binary:hinge",): lambda x: build.cast(build.call("greater", x, build.constant_like(0, x)), FLOAT32),
            _PLAIN: lambda x: x,
        }
        for names, transform in kinds.items():
            if name in names:
                return self._flat(transform(margin))
        raise UnsupportedError(f"the objective {name!r} of an XGBoost model", hint="its predictions are not known here")

    def _flat(self, value: GraphExpr) -> GraphExpr:
        """One target is no dimension of its own."""
        assert rank_of(value) == 2 and dtype_of(value) is FLOAT32
        return self.builder.reshape(value, sizes_of(value)[:1]) if self.targets == 1 else value
