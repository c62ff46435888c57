"""The operator that walks down decision trees, for whatever format they came in."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, size_at
from tilewright.frontend.core.tree_tables import Forest, at_most
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32
from tilewright.support.errors import UserError


def evaluate_forest(builder: Builder, data: GraphExpr, forest: Forest) -> GraphExpr:
    """The targets of every row of the data."""
    dtype = dtype_of(data)
    columns = size_at(data, 1)
    if forest.features.size and not 0 <= int(forest.features.min()) <= int(forest.features.max()) < columns:
        raise UserError(f"a tree tests feature {int(forest.features.max())}, the data has {columns}")
    tables = at_most(forest, dtype.numpy())
    added = len(tables.features) - len(forest.features)
    leaves = np.concatenate([forest.weights, np.zeros((added, forest.weights.shape[1]))])
    how = {"MIN": "min", "MAX": "max"}.get(forest.aggregate, "sum")
    if how != "sum":
        # A leaf that says nothing about a target must not be its extreme.
        leaves[: len(forest.used)][~forest.used] = np.inf if how == "min" else -np.inf
    arguments = [
        builder.constant(tables.features, INT32),
        builder.constant(tables.thresholds, dtype),
        builder.constant(tables.branches, INT32),
        builder.constant(leaves, dtype),
        builder.constant(forest.roots, INT32),
        builder.constant(tables.depths(forest.roots), INT32),
    ]
    if tables.missing.any():
        arguments.append(builder.constant(tables.missing, "bool"))
    found = builder.call("trees.forest", data, *arguments, aggregate=how)
    if forest.aggregate == "AVERAGE":
        found = builder.call("divide", found, builder.constant(float(len(forest.roots)), dtype))
    elif how != "sum":
        found = builder.call("where", builder.call("isinf", found), builder.constant(0.0, dtype), found)
    return builder.call("add", found, builder.constant(forest.base, dtype))
