"""Ensembles of decision trees."""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import agree, require_float, require_integer, require_rank, tensors
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

AGGREGATES = ("sum", "min", "max")
TABLES = ("features", "thresholds", "branches", "leaves", "roots", "depths", "missing")


@node()
class ForestAttributes(Attributes):
    """How the leaves that a row comes to are joined."""

    aggregate: str = "sum"


def _forest(args: list[Array], attributes: ForestAttributes) -> Array:
    data, features, thresholds, branches, leaves, roots, depths = args[:7]
    at = np.broadcast_to(roots, (len(data), len(roots)))
    rows = np.arange(len(data))[:, None]
    for _ in range(int(depths.max(initial=0))):
        value = data[rows, features[at]]
        holds = value <= thresholds[at]
        if len(args) > 7:
            holds |= np.isnan(value) & args[7][at]
        at = branches[at, holds.astype(np.int64)]
    found = leaves[at]
    if attributes.aggregate == "sum":
        # One tree after the other, as compiled code adds them up.
        total = np.zeros((len(data), leaves.shape[1]), leaves.dtype)
        for tree in range(len(roots)):
            total += found[:, tree]
        return total
    return np.asarray((np.min if attributes.aggregate == "min" else np.max)(found, axis=1), leaves.dtype)


@operator(
    "trees.forest",
    inputs=("data", *TABLES),
    kind=FusionKind.OPAQUE,
    reference=_forest,
    attributes=ForestAttributes,
    optional=1,
)
def forest(types: Types, attributes: ForestAttributes) -> Type:
    """Rows of features through an ensemble of decision trees: the leaves they come to, added up or compared.

    Nodes of all trees are in tables. A row at a node goes to `branches[node, 1]` where its feature `features[node]` is
    at most `thresholds[node]` (or NaN, where `missing[node]`), else to `branches[node, 0]`; a leaf leads to itself.
    `leaves[node]` has what a leaf says about each target, `roots` and `depths` where each tree begins and its most
    steps. The tables must be right: nothing looks at them again.
    """
    names = ("data", *TABLES)[: len(types)]
    given = dict(zip(names, tensors(types, names), strict=True))
    if attributes.aggregate not in AGGREGATES:
        raise UserError(f"trees are joined by {', '.join(AGGREGATES)}, not {attributes.aggregate}")
    data, leaves = given["data"], given["leaves"]
    require_float(data.dtype)
    for name in ("features", "branches", "roots", "depths"):
        require_integer(given[name].dtype, name)
    for name, item in given.items():
        if item.shape is not None:
            require_rank(item.shape, 2 if name in ("data", "branches", "leaves") else 1, name)
    for name in ("features", "thresholds", "branches", "missing"):
        if name in given and (shape := given[name].shape) is not None and leaves.shape is not None:
            agree(shape[0], leaves.shape[0], f"the nodes of {name} and leaves")
    if data.shape is None or leaves.shape is None:
        return TensorType(None, leaves.dtype)
    return TensorType((data.shape[0], leaves.shape[1]), leaves.dtype)
