"""What scikit-learn's transformers do with rows of features, by their fitted attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import Builder, size_at
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT64
from tilewright.support.errors import UnsupportedError, UserError

Transformer = Callable[[Builder, Any, GraphExpr], GraphExpr]


def kind_name(estimator: object) -> str:
    """The name of an estimator's class."""
    return type(estimator).__name__


def transformed(build: Builder, estimator: Any, data: GraphExpr) -> GraphExpr:
    """The rows that a fitted transformer gives."""
    if isinstance(estimator, str):
        if estimator != "passthrough":
            raise UnsupportedError(f"the step '{estimator}' of a scikit-learn pipeline")
        return data
    name = kind_name(estimator)
    if name not in TRANSFORMERS:
        raise UnsupportedError(
            f"the scikit-learn transformer {name} is not supported", hint=f"known are {', '.join(sorted(TRANSFORMERS))}"
        )
    return TRANSFORMERS[name](build, estimator, data)


def _row(build: Builder, values: Any) -> GraphExpr:
    return build.constant(np.asarray(values, np.float64), FLOAT64)


def _standard(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    mean = getattr(own, "mean_", None)
    if mean is not None and getattr(own, "with_mean", True):
        data = build.call("subtract", data, _row(build, mean))
    return _divided(build, data, getattr(own, "scale_", None))


def _divided(build: Builder, data: GraphExpr, scale: Any) -> GraphExpr:
    return data if scale is None else build.call("divide", data, _row(build, scale))


def _min_max(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    result = build.call("add", build.call("multiply", data, _row(build, own.scale_)), _row(build, own.min_))
    if not getattr(own, "clip", False):
        return result
    low, high = own.feature_range
    return build.call("clip", result, minimum=float(low), maximum=float(high))


def _robust(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    if own.center_ is not None:
        data = build.call("subtract", data, _row(build, own.center_))
    return _divided(build, data, own.scale_)


def _normalizer(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    sizes = build.call("abs", data)
    if own.norm == "l2":
        norm = build.call("sqrt", build.call("sum", build.call("multiply", data, data), axes=(1,), keepdims=True))
    elif own.norm in ("l1", "max"):
        norm = build.call("sum" if own.norm == "l1" else "max", sizes, axes=(1,), keepdims=True)
    else:
        raise UnsupportedError(f"a Normalizer with the norm {own.norm!r}")
    zero = build.call("equal", norm, build.constant_like(0, norm))
    return build.call("divide", data, build.call("where", zero, build.constant_like(1, norm), norm))


def _pca(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    components = np.asarray(own.components_, np.float64)
    if getattr(own, "mean_", None) is not None:
        data = build.call("subtract", data, _row(build, own.mean_))
    result = build.call("matmul", data, _row(build, components.T))
    if getattr(own, "whiten", False):
        result = build.call("divide", result, _row(build, np.sqrt(own.explained_variance_)))
    return result


def _imputer(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    fill = np.asarray(own.statistics_, np.float64)
    if getattr(own, "add_indicator", False) or np.isnan(fill).any():
        raise UnsupportedError("a SimpleImputer that adds indicators or drops features")
    wanted = float(own.missing_values)
    is_missing = (
        build.call("isnan", data) if np.isnan(wanted) else build.call("equal", data, build.constant_like(wanted, data))
    )
    return build.call("where", is_missing, _row(build, fill), data)


def _polynomial(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    """Each output is a product of features; powers are products as well."""
    columns = [build.slice_axis(data, 1, place, place + 1) for place in range(size_at(data, 1))]
    parts: list[GraphExpr] = []
    for powers in np.asarray(own.powers_, np.int64):
        factors = [columns[place] for place, power in enumerate(powers) for _ in range(power)]
        product = build.call("add", build.call("multiply", columns[0], build.constant_like(0, columns[0])),
                             build.constant_like(1, columns[0]))  # fmt: skip
        for place, factor in enumerate(factors):
            product = factor if place == 0 else build.call("multiply", product, factor)
        parts.append(product)
    return build.concatenate(parts, 1)


def _binarizer(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    return build.cast(build.call("greater", data, build.constant_like(float(own.threshold), data)), FLOAT64)


def _selection(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    places = np.flatnonzero(np.asarray(own.get_support()))
    return _columns(build, places, data)


def _columns(build: Builder, chosen: Any, data: GraphExpr) -> GraphExpr:
    count = size_at(data, 1)
    if isinstance(chosen, slice):
        places = np.arange(count)[chosen]
    else:
        places = np.atleast_1d(np.asarray(chosen))
        if places.dtype == bool:
            places = np.flatnonzero(places)
    if places.dtype.kind not in "iu":
        raise UnsupportedError("columns by name", hint="fit the estimator on arrays, with columns by number")
    if places.size and not -count <= int(places.min()) <= int(places.max()) < count:
        raise UserError(f"columns {places.tolist()} of {count}")
    return build.call("take", data, build.constant(places % count, "int64"), axis=1)


def _one_hot(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    if getattr(own, "drop_idx_", None) is not None or own.handle_unknown not in ("ignore", "error"):
        raise UnsupportedError("a OneHotEncoder that drops or joins categories")
    parts: list[GraphExpr] = []
    for place, categories in enumerate(own.categories_):
        values = np.asarray(categories)
        if values.dtype.kind not in "iuf":
            raise UnsupportedError("a OneHotEncoder of texts")
        column = build.slice_axis(data, 1, place, place + 1)
        parts.append(build.cast(build.call("equal", column, _row(build, values)), FLOAT64))
    return build.concatenate(parts, 1)


def _union(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    weights = own.transformer_weights or {}
    parts: list[GraphExpr] = []
    for name, step in own.transformer_list:
        if isinstance(step, str) and step == "drop":
            continue
        part = transformed(build, step, data)
        factor = float(weights.get(name, 1.0))
        parts.append(part if factor == 1 else build.call("multiply", part, build.constant_like(factor, part)))
    return build.concatenate(parts, 1)


def _by_column(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    parts = [
        transformed(build, step, _columns(build, columns, data))
        for _, step, columns in own.transformers_
        if not (isinstance(step, str) and step == "drop") and len(np.atleast_1d(np.asarray(columns, object)))
    ]
    if not parts:
        raise UserError("a ColumnTransformer that drops all columns")
    return build.concatenate(parts, 1)


def _pipeline(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    for _, step in own.steps:
        data = data if step is None else transformed(build, step, data)
    return data


def _function(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    if own.func is not None:
        raise UnsupportedError("a FunctionTransformer with a function of Python")
    return data


TRANSFORMERS: dict[str, Transformer] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": lambda build, own, data: _divided(build, data, own.scale_),
    "RobustScaler": _robust,
    "Normalizer": _normalizer,
    "PCA": _pca,
    "TruncatedSVD": _pca,
    "SimpleImputer": _imputer,
    "PolynomialFeatures": _polynomial,
    "Binarizer": _binarizer,
    "VarianceThreshold": _selection,
    "SelectKBest": _selection,
    "SelectPercentile": _selection,
    "SelectFromModel": _selection,
    "RFE": _selection,
    "OneHotEncoder": _one_hot,
    "FeatureUnion": _union,
    "ColumnTransformer": _by_column,
    "Pipeline": _pipeline,
    "FunctionTransformer": _function,
}
"""The transformers by the names of their classes."""
