"""ai.onnx.ml: scalers, encoders, linear models and trees against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.helpers import compare, data, make_model, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.support.errors import UnsupportedError, UserError

DOMAIN = "ai.onnx.ml"
X = data(5, 4)


def _model(op_type: str, inputs: dict[str, np.ndarray], version: int = 3, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op_type, list(inputs), ["y"], name="n", domain=DOMAIN, **attributes)
    return make_model([node], inputs, ["y"], domains={DOMAIN: version})


def _check(op_type: str, *values: np.ndarray, **attributes: object) -> None:
    inputs = {f"x{index}": value for index, value in enumerate(values)}
    compare(_model(op_type, inputs, **attributes), inputs)


def test_features():
    _check("ArrayFeatureExtractor", X, np.array([2, 0], np.int64))
    _check("Binarizer", X, threshold=0.3)
    _check("Scaler", X, offset=[0.5, 1.0, -1.0, 0.0], scale=[2.0, 1.0, 0.5, 3.0])
    _check("Scaler", X, offset=[0.5], scale=[2.0])
    _check("OneHotEncoder", data(3, 2, dtype="int64", low=0, high=5), cats_int64s=[1, 3, 4])
    _check("FeatureVectorizer", X, data(5, 2), inputdimensions=[4, 2])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    _check("Normalizer", np.abs(X) + 0.1, norm=norm)


def test_imputer():
    holes = X.copy()
    holes[1, 2] = np.nan
    _check("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan"))
    _check("Imputer", data(3, 2, dtype="int64"), imputed_value_int64s=[7], replaced_value_int64=1)


def test_linear_regressor():
    weights = [float(item) for item in data(8)]
    _check("LinearRegressor", X, coefficients=weights, intercepts=[0.5, -1.0], targets=2)


STUMPS = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 2, 0, 0, 0, 3, 0, 0],
    "nodes_values": [0.1, -0.5, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "target_treeids": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
    "target_nodeids": [2, 2, 3, 3, 4, 4, 1, 1, 2, 2],
    "target_ids": [0, 1] * 5,
    "target_weights": [1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0, -3.0, -4.0, -5.0],
    "n_targets": 2,
}


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])
def test_trees(mode, aggregate):
    modes = [mode, mode, "LEAF", "LEAF", "LEAF", mode, "LEAF", "LEAF"]
    _check("TreeEnsembleRegressor", data(20, 4), nodes_modes=modes, aggregate_function=aggregate,
           base_values=[0.5, -0.5], **STUMPS)  # fmt: skip


def test_trees_with_several_modes_and_missing_values():
    modes = ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"]
    x = data(20, 4)
    x[3:6] = np.nan
    _check("TreeEnsembleRegressor", x, nodes_modes=modes, nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 1, 0, 0],
           **STUMPS)  # fmt: skip


def test_the_new_form_of_trees_with_sets():
    attributes = {
        "n_targets": 2,
        "aggregate_function": 1,
        "membership_values": numpy_helper.from_array(np.array([1.2, 3.7, 8, 9, np.nan, 12, 7, np.nan], np.float32)),
        "nodes_missing_value_tracks_true": None,
        "nodes_hitrates": None,
        "post_transform": 0,
        "tree_roots": [0],
        "nodes_modes": numpy_helper.from_array(np.array([0, 6, 6], np.uint8)),
        "nodes_featureids": [0, 0, 0],
        "nodes_splits": numpy_helper.from_array(np.array([11, 232344.0, np.nan], np.float32)),
        "nodes_truenodeids": [1, 0, 1],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 2, 3],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": numpy_helper.from_array(np.array([1, 10, 1000, 100], np.float32)),
    }
    given = {key: value for key, value in attributes.items() if value is not None}
    x = {"x": np.array([1.2, 3.4, -0.12, np.nan, 12, 7], np.float32).reshape(-1, 1)}
    model = _model("TreeEnsemble", x, version=5, **given)
    (result,), (wanted,) = run_tilewright(model, x), ReferenceEvaluator(model).run(None, x)
    np.testing.assert_allclose(result, wanted)
    given["membership_values"] = numpy_helper.from_array(np.array([1.0], np.float32))
    with pytest.raises(UserError, match="1 sets of values for 2 nodes"):
        from_onnx(_model("TreeEnsemble", x, version=5, **given))


LEAVES = ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_modes": ["MAGIC", *LEAVES[1:]]}, "make no sense"),
        ({"nodes_truenodeids": [1, 9, 0, 0, 0, 1, 0, 0]}, "a node that is not there"),
        ({"nodes_featureids": [0, 2, 0, 0, 0, 7, 0, 0]}, "tests feature 7, the data has 4"),
        ({"target_ids": [0, 1, 0, 5, 0, 1, 0, 1, 0, 1]}, "a target beyond the 2"),
        ({"aggregate_function": "MEDIAN"}, "unknown aggregate_function"),
        ({"post_transform": "PROBIT"}, "post_transform PROBIT"),
        ({"nodes_values": [0.1]}, "has 1 entries instead of 8"),
    ],
)
def test_trees_refuse(changes, message):
    attributes = {**STUMPS, "nodes_modes": LEAVES, **changes}
    with pytest.raises(UserError, match=message):
        from_onnx(_model("TreeEnsembleRegressor", {"x": X}, **attributes))


def test_trees_that_lead_back_are_refused():
    attributes = {**STUMPS, "nodes_modes": LEAVES, "nodes_truenodeids": [1, 0, 0, 0, 0, 1, 0, 0]}
    with pytest.raises(UserError, match="does it lead back to itself"):
        from_onnx(_model("TreeEnsembleRegressor", {"x": X}, **attributes))


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("Scaler", {"offset": [1.0, 2.0]}, "2 entries of offset do not fit 4 features"),
        ("Normalizer", {"norm": "L9"}, "unknown norm"),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, "do not fit 4 features"),
        ("OneHotEncoder", {"cats_int64s": [1], "zeros": 0}, "zeros=0"),
        ("LinearRegressor", {"coefficients": [1.0]}, "1 numbers of LinearRegressor do not make a matrix of 1 x 4"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "MAGIC"}, "unknown post_transform"),
    ],
)
def test_refusals(op_type, attributes, message):
    with pytest.raises((UserError, UnsupportedError), match=message):
        from_onnx(_model(op_type, {"x": X}, **attributes))
