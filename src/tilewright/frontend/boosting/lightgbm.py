"""Importer of LightGBM models (the text that `Booster.save_model` writes).

The result has one input, `data` (float64, a row for each sample), and gives what `Booster.predict` gives: LightGBM
computes in float64, and so does the compiled model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.core.tree_join import Tree, join_trees
from tilewright.frontend.core.tree_tables import LESS_EQUAL, MEMBER
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

_MALFORMED = (KeyError, ValueError, IndexError, OverflowError)
_NEARLY_ZERO = float(np.float32(1e-35))
"""What counts as zero where zero means missing."""
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_MISSING_ZERO = 1
_PLAIN = (
    "regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", "custom", "",
)  # fmt: skip


def from_lightgbm(
    source: str | os.PathLike[str] | bytes, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> IRModule:
    """Import a LightGBM model: the path or the bytes of a text file."""
    where = "the bytes" if isinstance(source, bytes) else os.fspath(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        blocks = _blocks(content.decode("utf-8"))
        return _module(blocks[0], blocks[1:], dict(shapes or {}))
    except OSError as error:
        raise UserError(f"cannot read {where}: {error.strerror or error}") from error
    except _MALFORMED as error:
        raise UserError(
            f"{where} is no LightGBM model, or it is damaged: {type(error).__name__}: {error}",
            hint="save it again with Booster.save_model('model.txt')",
        ) from error


def _blocks(text: str) -> list[dict[str, str]]:
    """The lines `key=value` of the head and of each tree."""
    blocks: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "Tree":
            blocks.append({})
        elif line == "end of trees":
            return blocks
        elif line:
            blocks[-1][key] = value
    raise UserError("the LightGBM model is cut short: it has no line 'end of trees'", hint="save it again")


def _module(
    head: Mapping[str, str], trees: Sequence[Mapping[str, str]], shapes: dict[str, Sequence[int | str | None]]
) -> IRModule:
    features = int(head["max_feature_idx"]) + 1
    targets = int(head["num_tree_per_iteration"])
    if not 0 < features < 1 << 31 or not 0 < targets <= 1 << 20 or len(trees) % targets:
        raise UserError(f"a LightGBM model of {features} features and {len(trees)} trees makes no sense")
    builder = Builder()
    shape = chosen_shape("data", ("batch", features), shapes)
    refuse_unknown(shapes, ["data"])
    data = new_input(builder, "data", shape, FLOAT64)
    found = [_tree(tree, number % targets, targets) for number, tree in enumerate(trees)]
    rows = _without_zeros(builder, data, _zero_is_missing(trees, features))
    scores = evaluate_forest(builder, rows, join_trees(found, np.zeros(targets)))
    if "average_output" in head:
        scores = builder.call("divide", scores, builder.constant_like(len(trees) // targets, scores))
    result = _transformed(builder, scores, head.get("objective", "").split())
    result = builder.reshape(result, sizes_of(result)[:1]) if targets == 1 else result
    return main_module(builder, [data], [result], ["prediction"], "lightgbm")


def _numbers(tree: Mapping[str, str], key: str, dtype: type, count: int) -> Array:
    found: Array = np.array(tree.get(key, "").split(), dtype)
    if len(found) != count:
        raise UserError(f"a LightGBM tree has {len(found)} entries of {key} instead of {count}")
    return found


def _tree(tree: Mapping[str, str], target: int, targets: int) -> Tree:
    leaves = int(tree["num_leaves"])
    inner = leaves - 1
    if leaves < 1 or tree.get("is_linear", "0") != "0":
        raise UnsupportedError("a LightGBM model with linear trees", hint="train it with linear_tree=False")
    own = np.arange(inner + leaves)
    fails, holds, features, modes = own.copy(), own.copy(), np.zeros_like(own), np.full_like(own, LESS_EQUAL)
    thresholds, missing = np.zeros(len(own)), np.zeros(len(own), bool)
    members: dict[int, list[float]] = {}
    if inner:
        sides = [_numbers(tree, key, np.int64, inner) for key in ("right_child", "left_child")]
        # Leaves are negative, and come after the inner nodes here.
        fails[:inner], holds[:inner] = (np.where(side < 0, inner + ~side, side) for side in sides)
        thresholds[:inner] = _numbers(tree, "threshold", np.float64, inner)
        features[:inner] = _numbers(tree, "split_feature", np.int64, inner)
        kinds = _numbers(tree, "decision_type", np.int64, inner)
        # Where nothing is missing, NaN counts as zero.
        missing[:inner] = np.where(kinds >> 2 & 3, kinds & _DEFAULT_LEFT, thresholds[:inner] >= 0)
        for node in np.flatnonzero(kinds & _CATEGORICAL):
            members[int(node)] = _categories(tree, int(thresholds[node]))
            modes[node], missing[node], thresholds[node] = MEMBER, False, 0.0
    weights = np.zeros((len(own), targets))
    weights[inner:, target] = _numbers(tree, "leaf_value", np.float64, leaves)
    return Tree(features, thresholds, modes, fails, holds, missing, weights, members)


def _categories(tree: Mapping[str, str], number: int) -> list[float]:
    """The set of a node that tests membership: bits of words."""
    ends = _numbers(tree, "cat_boundaries", np.int64, int(tree["num_cat"]) + 1)
    words = np.array(tree["cat_threshold"].split(), np.uint32)
    if not 0 <= number < len(ends) - 1 or not 0 <= ends[number] <= ends[number + 1] <= len(words):
        raise UserError(f"a LightGBM tree has no set {number} of categories")
    bits = np.unpackbits(words[ends[number] : ends[number + 1]].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).astype(np.float64).tolist()


def _zero_is_missing(trees: Sequence[Mapping[str, str]], features: int) -> Array:
    """For each feature, whether its zeros are missing values."""
    found: list[set[int]] = [set() for _ in range(features)]
    for tree in trees:
        columns = (np.array(tree.get(key, "").split(), np.int64) for key in ("split_feature", "decision_type"))
        for feature, kind in zip(*columns, strict=True):
            if not 0 <= feature < features:
                raise UserError(f"a LightGBM tree tests feature {feature}, the model has {features}")
            if not kind & _CATEGORICAL:
                found[feature].add(int(kind) >> 2 & 3)
    if any(len(kinds) > 1 and _MISSING_ZERO in kinds for kinds in found):
        raise UnsupportedError("a LightGBM model in which zeros of a feature are missing in some of its tests")
    return np.array([_MISSING_ZERO in kinds for kinds in found])


def _without_zeros(builder: Builder, data: GraphExpr, missing: Array) -> GraphExpr:
    """Features whose zeros are missing values have NaN in their place."""
    if not missing.any():
        return data
    nearly = builder.call("less_equal", builder.call("abs", data), builder.constant_like(_NEARLY_ZERO, data))
    hidden = builder.call("logical_and", nearly, builder.constant(missing))
    return builder.call("where", hidden, builder.constant_like(float("nan"), data), data)


def _transformed(builder: Builder, scores: GraphExpr, objective: Sequence[str]) -> GraphExpr:
    """Scores as predictions of an objective, which is a name and options such as `sigmoid:1`."""
    name = objective[0] if objective else ""
    options = dict(part.partition(":")[::2] for part in objective[1:])
    if name in ("binary", "multiclassova"):
        slope = builder.constant_like(float(options.get("sigmoid", "1")), scores)
        return builder.call("sigmoid", builder.call("multiply", scores, slope))
    if name == "multiclass":
        return builder.call("nn.softmax", scores, axis=1)
    if name == "cross_entropy":
        return builder.call("sigmoid", scores)
    if name == "cross_entropy_lambda":
        return builder.call("log1p", builder.call("exp", scores))
    if name in ("poisson", "gamma", "tweedie"):
        return builder.call("exp", scores)
    if name in _PLAIN:
        if "sqrt" in options:
            return builder.call("multiply", builder.call("multiply", builder.call("sign", scores), scores), scores)
        return scores
    raise UnsupportedError(f"the objective {name!r} of a LightGBM model", hint="its predictions are not known here")
