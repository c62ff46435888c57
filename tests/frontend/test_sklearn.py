"""scikit-learn estimators, by their fitted attributes, against its own predictions (`tests/fixtures/sklearn`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import from_sklearn
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

WRITTEN = json.loads((Path(__file__).resolve().parents[1] / "fixtures" / "sklearn" / "estimators.json").read_text())


def value_of(data: Any) -> Any:
    """What `make.py` wrote as plain data."""
    if isinstance(data, list):
        return [value_of(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return np.array(data["array"], data["dtype"])
    if "columns" in data:
        return {name: value_of(item) for name, item in data["columns"].items()}
    if "mapping" in data:
        return {name: value_of(item) for name, item in data["mapping"].items()}
    if "slice" in data:
        return slice(*data["slice"])
    return estimator_of(data["class"], {name: value_of(item) for name, item in data["attributes"].items()})


def estimator_of(name: str, attributes: dict[str, Any]) -> Any:
    """An object of a class of that name, with these attributes."""
    methods = {
        "get_support": lambda self: self.support,
        "_raw_predict_init": lambda self, rows: self.initial,
    }
    made = type(name, (), methods)()
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("name", WRITTEN["estimators"])
def test_predictions(name: str) -> None:
    entry = WRITTEN["estimators"][name]
    module = from_sklearn(value_of(entry["estimator"]))
    found = evaluate(module, value_of(entry["rows"]))
    results = found if isinstance(found, tuple) else (found,)
    names = module.attributes["output_names"]
    assert isinstance(names, tuple) and len(names) == len(results)
    # Chances that scikit-learn gives and we do not are those of support vector machines.
    assert set(names) <= set(entry["outputs"])
    for key, ours in zip(names, results, strict=True):
        theirs = value_of(entry["outputs"][key])
        if theirs.dtype.kind in "US":
            assert ours.tolist() == theirs.tolist()
        else:
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=1e-9, atol=1e-9)


def test_compiled() -> None:
    name = next(name for name in WRITTEN["estimators"] if "RandomForestRegressor" in name)
    entry = WRITTEN["estimators"][name]
    module = from_sklearn(value_of(entry["estimator"]), shapes={"data": (12, None)})
    found = tw.compile(module, threads=1)(value_of(entry["rows"]))
    np.testing.assert_array_equal(found, value_of(entry["outputs"]["prediction"]))


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        ("Mine", {"n_features_in_": 2}, "the scikit-learn estimator Mine is not supported"),
        ("LinearRegression", {}, "is no fitted scikit-learn estimator"),
        ("Pipeline", {"n_features_in_": 2, "steps": [("a", estimator_of("Mine", {})), ("b", "x")]}, "transformer Mine"),
        ("Normalizer", {"n_features_in_": 2, "norm": "x"}, "the norm 'x'"),
        ("FunctionTransformer", {"n_features_in_": 2, "func": len}, "a function of Python"),
        ("KNeighborsClassifier", {"n_features_in_": 2, "_fit_X": [[1, 2]], "effective_metric_": "cosine"}, "'cosine'"),
    ],
)
def test_what_is_not_known_is_named(name: str, attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_sklearn(estimator_of(name, attributes))


def test_columns_by_name_are_refused() -> None:
    columns = [("a", "passthrough", ["age"])]
    with pytest.raises(UnsupportedError, match="columns by name"):
        from_sklearn(estimator_of("ColumnTransformer", {"n_features_in_": 2, "transformers_": columns}))
