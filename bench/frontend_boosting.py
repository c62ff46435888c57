"""The suites of XGBoost and LightGBM in `bench.frontends`: objectives, boosters and kinds of features, trained here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.frontend_case import Case

_ROWS, _ROUNDS = 400, 20


def _data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    rows = random.standard_normal((_ROWS, 6)).astype(np.float32)
    rows[random.random(rows.shape) < 0.1] = np.nan
    rows[random.random(rows.shape) < 0.1] = 0
    rows[:, 5] = random.integers(0, 30, _ROWS)
    return rows, np.nan_to_num(rows[:, 0]) + np.nan_to_num(rows[:, 1]) ** 2 + rows[:, 5] % 3


def _labels(target: Any, kind: str) -> Any:
    return {
        "number": target,
        "positive": np.abs(target) + 0.1,
        "binary": (target > np.median(target)).astype(np.int64),
        "classes": np.digitize(target, np.quantile(target, [0.33, 0.66])),
        "pair": np.stack([target, -target], axis=1),
    }[kind]


_XGBOOST: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((name, "number", {}) for name in ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror")),
    *((name, "positive", {}) for name in ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox")),
    ("reg:squaredlogerror", "positive", {}),
    ("reg:quantileerror", "number", {"quantile_alpha": 0.4}),
    *((name, "binary", {}) for name in ("binary:logistic", "binary:logitraw", "binary:hinge", "reg:logistic")),
    *((name, "binary", {}) for name in ("rank:pairwise", "rank:ndcg")),
    *((name, "classes", {"num_class": 3}) for name in ("multi:softprob", "multi:softmax")),
    ("reg:squarederror", "pair", {}),
    ("reg:squarederror", "pair", {"multi_strategy": "multi_output_tree"}),
    ("binary:logistic", "binary", {"num_parallel_tree": 3, "subsample": 0.5}),
    *(("reg:squarederror", "number", {"booster": name}) for name in ("dart", "gblinear")),
    *(("multi:softprob", "classes", {"num_class": 3, "booster": name}) for name in ("dart", "gblinear")),
    ("reg:squarederror", "number", {"categorical": True, "max_cat_to_onehot": 2}),
    ("binary:logistic", "binary", {"categorical": True, "max_cat_to_onehot": 50}),
    ("reg:squarederror", "number", {"max_depth": 12}),
    ("reg:squarederror", "number", {"tree_method": "exact"}),
)


def xgboost_cases() -> Iterator[Case]:
    """Every objective and booster, as JSON and UBJSON."""
    import xgboost

    rows, target = _data()

    def make(
        objective: str, label: str, options: dict[str, Any], form: str
    ) -> tuple[bytes, Mapping[str, Any], Sequence[Any]]:
        parameters = {"objective": objective, "max_depth": 5, **options}
        categorical = bool(parameters.pop("categorical", False))
        kinds = ["q"] * 5 + ["c"] if categorical else None
        data = xgboost.DMatrix(rows, _labels(target, label), feature_types=kinds, enable_categorical=categorical)
        if objective.startswith("rank:"):
            data.set_group([_ROWS])
        booster = xgboost.train(parameters, data, _ROUNDS)
        return bytes(booster.save_raw(form)), {"data": rows}, [booster.predict(data)]

    for objective, label, options in _XGBOOST:
        for form in ("json", "ubj"):
            name = f"{objective} {' '.join(f'{key}={value}' for key, value in options.items())} {form}"
            yield Case(name, partial(make, objective, label, options, form))


_LIGHTGBM: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((name, "number", {}) for name in ("regression", "regression_l1", "huber", "fair", "quantile", "mape")),
    *((name, "positive", {}) for name in ("poisson", "gamma", "tweedie")),
    *((name, "binary", {}) for name in ("binary", "cross_entropy", "cross_entropy_lambda")),
    *((name, "classes", {"num_class": 3}) for name in ("multiclass", "multiclassova")),
    ("regression", "positive", {"reg_sqrt": True}),
    ("binary", "binary", {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}),
    ("regression", "number", {"boosting": "dart"}),
    ("regression", "number", {"zero_as_missing": True}),
    ("regression", "number", {"use_missing": False}),
    ("binary", "binary", {"categorical": True}),
    ("regression", "number", {"linear_tree": True}),
)


def lightgbm_cases() -> Iterator[Case]:
    """Every objective and booster; linear trees are refused."""
    import lightgbm

    rows, target = _data()
    wide = rows.astype(np.float64)

    def make(objective: str, label: str, options: dict[str, Any]) -> tuple[bytes, Mapping[str, Any], Sequence[Any]]:
        parameters = {
            "objective": objective,
            "verbosity": -1,
            "min_data_in_leaf": 5,
            "min_data_per_group": 5,
            **options,
        }
        columns = [5] if parameters.pop("categorical", False) else []
        data = lightgbm.Dataset(wide, _labels(target, label), categorical_feature=columns)
        booster = lightgbm.train(parameters, data, _ROUNDS)
        return booster.model_to_string().encode(), {"data": wide}, [booster.predict(wide)]

    for objective, label, options in _LIGHTGBM:
        name = f"{objective} {' '.join(f'{key}={value}' for key, value in options.items())}"
        yield Case(name, partial(make, objective, label, options), 1e-12)
