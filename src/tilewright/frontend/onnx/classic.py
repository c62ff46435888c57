"""Converters of `ai.onnx.ml`: scalers, encoders, regressions, linear and by trees."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.forests import evaluate_forest
from tilewright.frontend.core.tree_tables import Forest
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.ml_classifiers import rows_of_features
from tilewright.frontend.onnx.ml_labels import lookup
from tilewright.frontend.onnx.ml_scores import DOMAIN, matrix, read_transform, transformed
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.trees import read_ensemble, read_regressor
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT64, STRING
from tilewright.support.errors import UnsupportedError, UserError


@converter("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: NodeContext) -> GraphExpr:
    """Columns of the last axis."""
    data, chosen = _features(node), node.input(1)
    chosen = checked_index(node.builder, chosen, [sizes_of(data)[-1]], [rank_of(data) - 1], negative=False)
    flat = node.builder.reshape(chosen, (product(sizes_of(chosen)),))
    name = "text.take" if dtype_of(data) is STRING else "take"
    result = node.call(name, data, flat, axis=rank_of(data) - 1)
    if rank_of(data) > 1:
        return result
    return node.builder.expand_dims(result, (0,))


@converter("Binarizer", domain=DOMAIN)
def binarizer(node: NodeContext) -> GraphExpr:
    """1 above a threshold, else 0."""
    data = node.input(0)
    above = node.call("greater", data, node.builder.constant_like(node.number("threshold", 0.0), data))
    return node.builder.cast(above, dtype_of(data))


def _features(node: NodeContext) -> GraphExpr:
    """The first input, which has at least one dimension."""
    data = node.input(0)
    if not rank_of(data):
        raise UserError(f"{node.node.op_type} needs data of at least 1 dimension")
    return data


def _row(node: NodeContext, values: tuple[float, ...], count: int, what: str) -> GraphExpr:
    """One number, or one a feature."""
    if len(values) not in (1, count):
        raise UserError(f"{len(values)} entries of {what} do not fit {count} features")
    return node.builder.constant(np.array(values, np.float32), FLOAT32)


@converter("Scaler", domain=DOMAIN)
def scaler(node: NodeContext) -> GraphExpr:
    """(x - offset) * scale."""
    data = node.builder.cast(_features(node), FLOAT32)
    count = size_at(data, -1)
    offset = _row(node, node.floats("offset", (0.0,)), count, "offset")
    scale = _row(node, node.floats("scale", (1.0,)), count, "scale")
    return node.call("multiply", node.call("subtract", data, offset), scale)


@converter("Normalizer", domain=DOMAIN)
def normalizer(node: NodeContext) -> GraphExpr:
    """Rows divided by their greatest, their sum of magnitudes or their length (rows of zeros stay)."""
    data = node.builder.cast(_features(node), FLOAT32)
    axes = (rank_of(data) - 1,)
    match node.text("norm", "MAX"):
        case "MAX":
            norm = node.call("max", data, axes=axes, keepdims=True)
        case "L1":
            norm = node.call("sum", node.call("abs", data), axes=axes, keepdims=True)
        case "L2":
            norm = node.call("sqrt", node.call("sum", node.call("multiply", data, data), axes=axes, keepdims=True))
        case other:
            raise UserError(f"unknown norm {other!r}", hint="one of MAX, L1, L2")
    zero = node.call("equal", norm, node.builder.constant(0.0, FLOAT32))
    return node.call("divide", data, node.call("where", zero, node.builder.constant(1.0, FLOAT32), norm))


@converter("Imputer", domain=DOMAIN)
def imputer(node: NodeContext) -> GraphExpr:
    """A value in place of missing ones."""
    data = node.input(0)
    count = size_at(data, -1) if rank_of(data) else 1
    if dtype_of(data).is_float:
        fill = node.builder.cast(_row(node, node.floats("imputed_value_floats"), count, "imputed_value_floats"),
                                 dtype_of(data))  # fmt: skip
        wanted = node.number("replaced_value_float", 0.0)
        missing = (
            node.call("isnan", data)
            if np.isnan(wanted)
            else node.call("equal", data, node.builder.constant_like(wanted, data))
        )
    else:
        values = node.ints("imputed_value_int64s")
        if len(values) not in (1, count):
            raise UserError(f"{len(values)} entries of imputed_value_int64s do not fit {count} features")
        fill = node.builder.constant(np.array(values), dtype_of(data))
        missing = node.call("equal", data, node.builder.constant_like(node.integer("replaced_value_int64", 0), data))
    return node.call("where", missing, fill, data)


@converter("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: NodeContext) -> GraphExpr:
    """Features side by side; each takes the first so many columns."""
    values = [node.builder.cast(value, FLOAT32) for value in node.all_inputs()]
    _features(node)
    sizes = node.ints("inputdimensions", tuple(size_at(value, -1) if rank_of(value) else -1 for value in values))
    if len(sizes) != len(values) or any(rank_of(value) not in (1, 2) for value in values) or min(sizes) < 0:
        raise UserError(f"inputdimensions {sizes} do not fit {len(values)} inputs of 1 or 2 dimensions")
    parts: list[GraphExpr] = []
    for value, size in zip(values, sizes, strict=True):
        matrix = value if rank_of(value) == 2 else node.builder.expand_dims(value, (0,))
        width = size_at(matrix, 1)
        if size > width:
            matrix = node.call("pad", matrix, before=(0, 0), after=(0, size - width))
        parts.append(node.builder.slice_axis(matrix, 1, 0, size))
    return node.builder.concatenate(parts, 1)


@converter("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: NodeContext) -> GraphExpr:
    """1 at the category of each number or text, along a new last axis."""
    data = node.input(0)
    if node.has_attribute("cats_strings"):
        names = node.texts("cats_strings")
        categories: tuple[int, ...] = tuple(range(len(names)))
        data = lookup(node, data, names, categories, -1, INT64)
    else:
        categories = node.ints("cats_int64s")
    if not node.flag("zeros", True):
        raise UnsupportedError("OneHotEncoder that fails on unknown categories (zeros=0)")
    column = node.builder.expand_dims(node.builder.cast(data, INT64), (rank_of(data),))
    return node.builder.cast(
        node.call("equal", column, node.builder.constant(np.array(categories, np.int64), INT64)), FLOAT32
    )


@converter("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: NodeContext) -> GraphExpr:
    """A matrix product and intercepts."""
    data = rows_of_features(node)
    targets = node.integer("targets", 1)
    table = matrix(node, node.floats("coefficients"), targets, size_at(data, 1), data)
    result = node.call("matmul", data, table, transpose_b=True)
    if node.has_attribute("intercepts"):
        result = node.call("add", result, _row(node, node.floats("intercepts"), targets, "intercepts"))
    return transformed(node, result, read_transform(node))


@converter("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(node: NodeContext) -> GraphExpr:
    """Trees whose leaves are added up, averaged, or compared."""
    return _forest(node, read_ensemble(node))


@converter("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(node: NodeContext) -> GraphExpr:
    """The older form of trees of numbers."""
    return _forest(node, read_regressor(node))


def _forest(node: NodeContext, forest: Forest) -> GraphExpr:
    data = node.input(0)
    if rank_of(data) != 2:
        raise UserError(f"trees need data of 2 dimensions, it has {rank_of(data)}")
    if dtype_of(data) not in (FLOAT32, FLOAT64):
        data = node.builder.cast(data, FLOAT32)
    return evaluate_forest(node.builder, data, forest)
