"""Import of fitted scikit-learn estimators, by the names of their classes and their public fitted attributes.

Files of estimators are pickles, which are programs: load one yourself if you trust who wrote it, and pass the object.
The result has one input, `data` (batch, features); a classifier gives `label` and, where it has them, `probabilities`,
a regressor `prediction`, a transformer `transformed`. Computations are in float64, as scikit-learn's are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import Builder, sizes_of
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.core.kernel_machines import (
    inverse_distance_mean,
    kernel_values,
    pair_scores,
    pair_votes,
    squared_distances,
)
from tilewright.frontend.sklearn.transformers import TRANSFORMERS, kind_name, transformed
from tilewright.frontend.sklearn.trees import boosted, histogram_boosted, mean_of_trees
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64, INT64, STRING
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError, UserError

Named = dict[str, GraphExpr]
Predictor = Callable[[Builder, Any, GraphExpr], Named]
_LINEAR_REGRESSORS = (
    "LinearRegression Ridge RidgeCV Lasso LassoCV ElasticNet ElasticNetCV Lars LassoLars BayesianRidge ARDRegression "
    "HuberRegressor SGDRegressor LinearSVR TheilSenRegressor OrthogonalMatchingPursuit"
).split()
_LOG_LINK = ("PoissonRegressor", "GammaRegressor")
_LINEAR_CLASSIFIERS = (
    "LogisticRegression LogisticRegressionCV SGDClassifier Perceptron PassiveAggressiveClassifier RidgeClassifier "
    "RidgeClassifierCV LinearSVC LinearDiscriminantAnalysis"
).split()
_WITH_CHANCES = ("LogisticRegression", "LogisticRegressionCV", "LinearDiscriminantAnalysis")
_TREES = ("DecisionTree", "ExtraTree", "RandomForest", "ExtraTrees")


def from_sklearn(
    estimator: Any, shapes: Mapping[str, Sequence[int | str | None]] | None = None, *, dtype: str = "float64"
) -> IRModule:
    """Import a fitted estimator or pipeline; `dtype` is that of its input."""
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        raise UserError(
            f"{kind_name(estimator)} is no fitted scikit-learn estimator: it has no n_features_in_",
            hint="fit it first; for a file, pass what joblib.load(path) gives",
        )
    build = Builder()
    wanted = dict(shapes or {})
    data = new_input(build, "data", chosen_shape("data", ("batch", int(features)), wanted), dtype)
    refuse_unknown(wanted, ["data"])
    outputs = _predicted(build, estimator, build.cast(data, FLOAT64))
    return main_module(build, [data], list(outputs.values()), list(outputs), kind_name(estimator))


def _predicted(build: Builder, estimator: Any, data: GraphExpr) -> Named:
    name = kind_name(estimator)
    if name == "Pipeline":
        *before, (_, last) = estimator.steps
        for _, step in before:
            data = data if step is None else transformed(build, step, data)
        return _predicted(build, last, data)
    if name in TRANSFORMERS:
        return {"transformed": transformed(build, estimator, data)}
    for names, predictor in _PREDICTORS:
        if name in names:
            return predictor(build, estimator, data)
    raise UnsupportedError(
        f"the scikit-learn estimator {name} is not supported",
        hint="convert it with skl2onnx; the operators of ONNX-ML are supported",
    )


def _labels(build: Builder, estimator: Any, places: GraphExpr) -> GraphExpr:
    """The classes at places."""
    classes = np.asarray(estimator.classes_)
    if classes.dtype.kind in "iub":
        return build.call("take", build.constant(classes.astype(np.int64), INT64), places, axis=0)
    if classes.dtype.kind == "f":
        return build.call("take", build.constant(classes, FLOAT64), places, axis=0)
    return build.call("text.take", build.constant(classes.astype(object), STRING), places, axis=0)


def _best(build: Builder, estimator: Any, scores: GraphExpr) -> GraphExpr:
    return _labels(build, estimator, build.call("argmax", scores, axis=1, keepdims=False))


def _of_scores(build: Builder, estimator: Any, scores: GraphExpr, *, chances: bool) -> Named:
    """Labels (and chances) of scores: of one column, the second class is that of a score above 0."""
    if len(estimator.classes_) != 2:
        found = {"label": _best(build, estimator, scores)}
        return {**found, "probabilities": build.call("nn.softmax", scores, axis=1)} if chances else found
    flat = build.reshape(scores, sizes_of(scores)[:1])
    above = build.cast(build.call("greater", flat, build.constant_like(0, flat)), INT64)
    found = {"label": _labels(build, estimator, above)}
    if not chances:
        return found
    parts = [build.call("sigmoid", build.call("negative", scores)), build.call("sigmoid", scores)]
    return {**found, "probabilities": build.concatenate(parts, 1)}


def _linear(build: Builder, own: Any, data: GraphExpr) -> GraphExpr:
    weights = np.atleast_2d(np.asarray(own.coef_, np.float64))
    product = build.call("matmul", data, build.constant(weights.T, FLOAT64))
    return build.call("add", product, build.constant(np.atleast_1d(np.asarray(own.intercept_, np.float64)), FLOAT64))


def _flat(build: Builder, value: GraphExpr, is_flat: bool) -> GraphExpr:
    return build.reshape(value, sizes_of(value)[:1]) if is_flat else value


def _linear_regressor(build: Builder, own: Any, data: GraphExpr) -> Named:
    result = _flat(build, _linear(build, own, data), np.ndim(own.coef_) == 1)
    return {"prediction": build.call("exp", result) if kind_name(own) in _LOG_LINK else result}


def _linear_classifier(build: Builder, own: Any, data: GraphExpr) -> Named:
    chances = kind_name(own) in _WITH_CHANCES
    if kind_name(own).startswith("LogisticRegression") and getattr(own, "multi_class", "auto") == "ovr":
        raise UnsupportedError("a LogisticRegression of one class against the others (multi_class='ovr')")
    return _of_scores(build, own, _linear(build, own, data), chances=chances)


def _trees(build: Builder, own: Any, data: GraphExpr) -> Named:
    classifier = kind_name(own).endswith("Classifier")
    trees = list(own.estimators_) if hasattr(own, "estimators_") else [own]
    mean = mean_of_trees(build, data, trees, classifier)
    if classifier:
        return {"label": _best(build, own, mean), "probabilities": mean}
    return {"prediction": _flat(build, mean, int(own.n_outputs_) == 1)}


def _boosting(build: Builder, own: Any, data: GraphExpr) -> Named:
    name = kind_name(own)
    if name.startswith("Hist"):
        scores = histogram_boosted(build, data, own)
        if not name.endswith("Classifier") and getattr(own, "loss", "squared_error") in ("poisson", "gamma"):
            scores = build.call("exp", scores)
    else:
        row = np.zeros((1, int(own.n_features_in_)), np.float32)
        scores = boosted(build, data, own, np.asarray(own._raw_predict_init(row), np.float64)[0])
        if name.endswith("Classifier") and own.loss != "log_loss":
            raise UnsupportedError(f"GradientBoostingClassifier with the loss {own.loss!r}")
    if name.endswith("Classifier"):
        return _of_scores(build, own, scores, chances=True)
    return {"prediction": _flat(build, scores, True)}


def _kernels(build: Builder, own: Any, data: GraphExpr, vectors: Array) -> GraphExpr:
    """The kernel of every row with every support vector."""
    return kernel_values(build, str(own.kernel), data, vectors, float(own._gamma), float(own.coef0), float(own.degree))


def _svm_regressor(build: Builder, own: Any, data: GraphExpr) -> Named:
    kernels = _kernels(build, own, data, np.asarray(own.support_vectors_, np.float64))
    weights = np.asarray(own.dual_coef_, np.float64)
    values = build.call("matmul", kernels, build.constant(weights.T, FLOAT64))
    values = build.call("add", values, build.constant(np.asarray(own.intercept_, np.float64), FLOAT64))
    flat = _flat(build, values, True)
    if kind_name(own) != "OneClassSVM":
        return {"prediction": flat}
    inside = build.call("greater", flat, build.constant_like(0, flat))
    one = build.constant(np.int64(1))
    return {"label": build.call("where", inside, one, build.call("negative", one))}


def _svm_classifier(build: Builder, own: Any, data: GraphExpr) -> Named:
    """Each pair of classes votes, as libsvm has it."""
    counts = np.asarray(own.n_support_, np.int64)
    kernels = _kernels(build, own, data, np.asarray(own.support_vectors_, np.float64))
    dual, shifts = np.asarray(own._dual_coef_, np.float64), np.asarray(own._intercept_, np.float64)
    scores = pair_scores(build, kernels, dual, shifts, counts)
    return {"label": _best(build, own, pair_votes(build, scores, len(counts)))}


def _neighbors(build: Builder, own: Any, data: GraphExpr) -> Named:
    rows = np.asarray(own._fit_X, np.float64)
    metric = str(getattr(own, "effective_metric_", "euclidean"))
    if metric not in ("euclidean", "l2") and not (metric == "minkowski" and own.p == 2):
        raise UnsupportedError(f"nearest neighbours by the metric {metric!r}")
    distances = squared_distances(build, data, rows)
    nearest = build.call("topk", distances, k=int(own.n_neighbors), axis=1, largest=False)
    places = build.item(nearest, 1)
    classifier = kind_name(own).endswith("Classifier")
    targets = np.asarray(own._y)
    if classifier and targets.ndim > 1:
        raise UnsupportedError("nearest neighbours that classify several outputs at once")
    table = np.eye(len(own.classes_))[targets] if classifier else targets.reshape(len(rows), -1).astype(np.float64)
    values = build.call("take", build.constant(table, FLOAT64), places, axis=0)
    if own.weights == "uniform":
        mean = build.call("mean", values, axes=(1,), keepdims=False)
    elif own.weights == "distance":
        mean = inverse_distance_mean(build, values, build.call("sqrt", build.item(nearest, 0)))
    else:
        raise UnsupportedError("nearest neighbours with weights by a function of Python")
    if classifier:
        return {"label": _best(build, own, mean), "probabilities": mean}
    return {"prediction": _flat(build, mean, targets.ndim == 1)}


_PREDICTORS: tuple[tuple[Sequence[str], Predictor], ...] = (
    ((*_LINEAR_REGRESSORS, *_LOG_LINK), _linear_regressor),
    (_LINEAR_CLASSIFIERS, _linear_classifier),
    ([f"{name}{kind}" for name in _TREES for kind in ("Classifier", "Regressor")], _trees),
    ([f"{name}GradientBoosting{kind}" for name in ("", "Hist") for kind in ("Classifier", "Regressor")], _boosting),
    (("SVR", "NuSVR", "OneClassSVM"), _svm_regressor),
    (("SVC", "NuSVC"), _svm_classifier),
    (("KNeighborsClassifier", "KNeighborsRegressor"), _neighbors),
)
"""The estimators that predict, by the names of their classes."""
