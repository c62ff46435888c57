"""How ensembles of decision trees are written: TreeEnsembleRegressor or TreeEnsemble of the ai.onnx.ml domain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call, Constant
from tilewright.ir.dtype import FLOAT32
from tilewright.onnx_writer.writer import Writer, rule
from tilewright.support.errors import UnsupportedError

_ML = "ai.onnx.ml"
_ENSEMBLE_OPSET = 5
_MOST_NODES = 1 << 22
"""Of a tree; branches that meet again are written once on each way."""


@dataclass(frozen=True)
class _Tables:
    features: Any
    thresholds: Any
    branches: Any
    leaves: Any
    missing: Any

    def is_leaf(self, row: int) -> bool:
        return int(self.branches[row, 0]) == row and int(self.branches[row, 1]) == row


@rule("trees.forest")
def _forest(writer: Writer, call: Call, inputs: list[str]) -> str:
    """The tables as ONNX has them: a tree at a time, each node once on each way to it."""
    own: Any = call.attributes
    tables = []
    for arg in call.args[1:]:
        if not isinstance(arg, Constant):
            raise UnsupportedError("decision trees whose tables are computed cannot be written to an ONNX model")
        tables.append(np.asarray(arg.data))
    features, thresholds, branches, leaves, roots = tables[:5]
    missing = tables[6] if len(tables) > 6 else np.zeros(len(features), np.bool_)
    plain = _Tables(features, thresholds, branches, leaves, missing)
    if call.args[0].tensor_type.dtype is FLOAT32 and leaves.dtype == np.float32:
        return _regressor(writer, inputs[0], plain, roots, own.aggregate)
    return _ensemble(writer, inputs[0], plain, roots, own.aggregate)


def _walk(tables: _Tables, root: int) -> Iterator[tuple[int, int, int]]:
    """Rows of a tree with their numbers, and the number of the first of the two below them."""
    waiting, following = [(root, 0)], 1
    while waiting:
        row, number = waiting.pop()
        yield row, number, following
        if not tables.is_leaf(row):
            waiting += [(int(tables.branches[row, 1]), following), (int(tables.branches[row, 0]), following + 1)]
            following += 2
        if following > _MOST_NODES:
            raise UnsupportedError("decision trees whose branches meet again have too many nodes for an ONNX model")


def _regressor(writer: Writer, data: str, tables: _Tables, roots: Any, aggregate: str) -> str:
    """TreeEnsembleRegressor, which every runtime has, for float32."""
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    nodes["missing_value_tracks_true"] = []
    targets: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree, root in enumerate(roots):
        for row, number, below in _walk(tables, int(root)):
            leaf = tables.is_leaf(row)
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(number)
            nodes["featureids"].append(0 if leaf else int(tables.features[row]))
            nodes["values"].append(0.0 if leaf else float(tables.thresholds[row]))
            nodes["modes"].append("LEAF" if leaf else "BRANCH_LEQ")
            nodes["truenodeids"].append(0 if leaf else below)
            nodes["falsenodeids"].append(0 if leaf else below + 1)
            nodes["missing_value_tracks_true"].append(0 if leaf else int(tables.missing[row]))
            for target, weight in enumerate(tables.leaves[row]) if leaf else ():
                for name, value in zip(targets, (tree, number, target, float(weight)), strict=True):
                    targets[name].append(value)
    columns: dict[str, Any] = {f"nodes_{name}": values for name, values in nodes.items()}
    columns |= {f"target_{name}": values for name, values in targets.items()}
    return str(
        writer.node(
            "TreeEnsembleRegressor",
            data,
            domain=_ML,
            n_targets=tables.leaves.shape[1],
            aggregate_function=aggregate.upper(),
            **columns,
        )
    )


def _ensemble(writer: Writer, data: str, tables: _Tables, roots: Any, aggregate: str) -> str:
    """TreeEnsemble, which knows float64; its leaves speak of one target each, so that each target has its trees."""
    writer.require(_ENSEMBLE_OPSET, domain=_ML)
    names = (
        "featureids",
        "splits",
        "truenodeids",
        "falsenodeids",
        "trueleafs",
        "falseleafs",
        "missing_value_tracks_true",
    )
    nodes: dict[str, list[Any]] = {name: [] for name in names}
    leaves: list[tuple[int, float]] = []
    starts: list[int] = []

    def added(row: int) -> int:
        values = (int(tables.features[row]), tables.thresholds[row], 0, 0, 0, 0, int(tables.missing[row]))
        for name, value in zip(names, values, strict=True):
            nodes[name].append(value)
        if len(nodes["splits"]) > _MOST_NODES:
            raise UnsupportedError("decision trees whose branches meet again have too many nodes for an ONNX model")
        return len(nodes["splits"]) - 1

    for target, root in itertools.product(range(tables.leaves.shape[1]), roots):
        waiting = [(int(root), added(int(root)))]
        starts.append(waiting[0][1])
        while waiting:
            row, at = waiting.pop()
            for side, name in ((1, "true"), (0, "false")):
                below = int(tables.branches[row, side])
                if tables.is_leaf(below):
                    nodes[f"{name}nodeids"][at], nodes[f"{name}leafs"][at] = len(leaves), 1
                    leaves.append((target, tables.leaves[below, target]))
                else:
                    nodes[f"{name}nodeids"][at] = added(below)
                    waiting.append((below, nodes[f"{name}nodeids"][at]))
    helper, kind = writer.onnx.numpy_helper, tables.leaves.dtype
    splits = np.asarray(nodes.pop("splits"), kind)
    columns: dict[str, Any] = {f"nodes_{name}": values for name, values in nodes.items()}
    return str(
        writer.node(
            "TreeEnsemble",
            data,
            domain=_ML,
            n_targets=tables.leaves.shape[1],
            aggregate_function={"sum": 1, "min": 2, "max": 3}[aggregate],
            tree_roots=starts,
            nodes_splits=helper.from_array(splits),
            nodes_modes=helper.from_array(np.zeros(len(nodes["featureids"]), np.uint8)),
            leaf_targetids=[target for target, _ in leaves],
            leaf_weights=helper.from_array(np.asarray([weight for _, weight in leaves], kind)),
            **columns,
        )
    )
