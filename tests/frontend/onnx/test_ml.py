"""ai.onnx.ml: classifiers, support vector machines, tables and maps against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.onnx.helpers import data, make_model, run_onnxruntime, run_tilewright
from tests.frontend.onnx.test_classic import STUMPS
from tilewright.frontend import from_onnx
from tilewright.support.errors import UnsupportedError, UserError

DOMAIN = "ai.onnx.ml"
TREES = {key: value for key, value in STUMPS.items() if key.startswith("nodes_")}
TREES["nodes_modes"] = ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]
X = data(6, 4)
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]


def model_of(
    op_type: str, value: np.ndarray, outputs: int = 2, version: int = 3, **attributes: object
) -> onnx.ModelProto:
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, ["x"], results, name="n", domain=DOMAIN, **attributes)
    return make_model([node], {"x": value}, results, domains={DOMAIN: version})


def check(op_type: str, value: np.ndarray, outputs: int = 2, tolerance: float = 1e-5, **attributes: object) -> None:
    model = model_of(op_type, value, outputs, **attributes)
    ours, theirs = run_tilewright(model, {"x": value}), run_onnxruntime(model, {"x": value})
    assert len(ours) == len(theirs) == outputs
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        if other.dtype.kind == "f":
            np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)
        else:
            assert mine.tolist() == other.tolist()


def floats(*shape: int, low: float = -2.0) -> list[float]:
    return [float(item) for item in data(*shape, low=low).ravel()]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_classifier(transform):
    options = {"coefficients": floats(12), "intercepts": floats(3), "post_transform": transform}
    check("LinearClassifier", X, classlabels_ints=[4, 5, 9], **options)
    check("LinearClassifier", X, classlabels_strings=["a", "b", "c"], **options)
    two = {"coefficients": floats(4), "intercepts": floats(1), "post_transform": transform}
    check("LinearClassifier", X, classlabels_ints=[0, 1], **two)


def test_linear_regressor_with_a_transform():
    check(
        "LinearRegressor",
        X,
        outputs=1,
        coefficients=floats(8),
        intercepts=[0.1, 0.2],
        targets=2,
        post_transform="SOFTMAX",
    )


@pytest.mark.parametrize("transform", [*TRANSFORMS, "PROBIT"])
def test_tree_classifier(transform):
    leaves = {"class_treeids": [0, 0, 0, 1, 1], "class_nodeids": [2, 3, 4, 1, 2], "class_ids": [0, 1, 2, 0, 2]}
    weights = [0.125, 0.25, 0.375, 0.25, 0.5]
    if transform == "PROBIT":  # of numbers between 0 and 1
        leaves = {"class_treeids": [0, 0, 0, 1, 1] * 3, "class_nodeids": [2, 3, 4, 1, 2] * 3,
                  "class_ids": [0] * 5 + [1] * 5 + [2] * 5}  # fmt: skip
        weights = [0.1, 0.2, 0.3, 0.25, 0.4, 0.15, 0.25, 0.35, 0.2, 0.3, 0.3, 0.1, 0.2, 0.3, 0.1]
    options = {**TREES, **leaves, "class_weights": weights, "post_transform": transform}
    check("TreeEnsembleClassifier", X, classlabels_int64s=[3, 5, 8], **options, tolerance=1e-4)
    if transform == "SOFTMAX":
        check("TreeEnsembleClassifier", X, classlabels_strings=["x", "y", "z"], **options)
        check("TreeEnsembleClassifier", X, classlabels_int64s=[3, 5, 8], base_values=[0.1, 0.2, 0.3], **options)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("weights", [[0.1, 0.2, 0.3, 0.25, 0.5], [0.1, -0.2, 0.3, -0.25, 0.5]])
@pytest.mark.parametrize("which", [0, 1])
def test_tree_classifier_of_two_classes(transform, weights, which):
    leaves = {"class_treeids": [0, 0, 0, 1, 1], "class_nodeids": [2, 3, 4, 1, 2], "class_ids": [which] * 5}
    options = {**TREES, **leaves, "class_weights": weights, "post_transform": transform}
    check("TreeEnsembleClassifier", X, classlabels_int64s=[0, 1], **options)
    check("TreeEnsembleClassifier", X, classlabels_int64s=[0, 1], base_values=[0.25], **options)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel):
    options = {"kernel_type": kernel, "kernel_params": [0.5, 0.1, 3.0], "rho": [0.25]}
    check("SVMRegressor", X, outputs=1, coefficients=floats(3), support_vectors=floats(3, 4), n_supports=3, **options,
          tolerance=1e-4)  # fmt: skip
    check("SVMRegressor", X, outputs=1, coefficients=floats(3), support_vectors=floats(3, 4), n_supports=3, one_class=1,
          **options)  # fmt: skip


def test_linear_svm_regressor():
    options = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "n_supports": 0}
    check("SVMRegressor", X, outputs=1, coefficients=floats(4), rho=[0.5], **options)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("chances", [False, True])
def test_svm_classifier(transform, classes, chances):
    pairs = classes * (classes - 1) // 2
    options = {"prob_a": floats(pairs, low=-1.5), "prob_b": floats(pairs)} if chances else {}
    check("SVMClassifier", X, classlabels_ints=list(range(classes)), kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0],
          coefficients=floats(classes - 1, 2 * classes), support_vectors=floats(2 * classes, 4), rho=floats(pairs),
          vectors_per_class=[2] * classes, post_transform=transform, tolerance=1e-4, **options)  # fmt: skip


def test_label_encoder():
    words = np.array([["a", "b"], ["c", "a"]], dtype=object)
    check("LabelEncoder", words, outputs=1, keys_strings=["a", "b"], values_int64s=[1, 2], default_int64=9)
    check("LabelEncoder", words, outputs=1, keys_strings=["a", "b"], values_strings=["x", "y"])
    check("LabelEncoder", words, outputs=1, keys_strings=["a", "b"], values_floats=[0.5, 1.5], default_float=7.0)
    numbers = np.array([1, 2, 3])
    check("LabelEncoder", numbers, outputs=1, keys_int64s=[1, 3], values_strings=["one", "three"])
    check("LabelEncoder", np.array([1.0, 3.0], np.float32), outputs=1, keys_floats=[1.0, 2.0], values_int64s=[10, 20])
    check("LabelEncoder", words, outputs=1, version=1, classes_strings=["a", "b"], default_int64=7)
    check("LabelEncoder", np.array([0, 1, 5]), outputs=1, version=1, classes_strings=["a", "b"])


def test_category_mapper_and_one_hot():
    words = np.array(["a", "b", "z"], dtype=object)
    check("CategoryMapper", words, outputs=1, cats_strings=["a", "b"], cats_int64s=[7, 8])
    check("CategoryMapper", np.array([7, 8, 9]), outputs=1, cats_strings=["a", "b"], cats_int64s=[7, 8])
    check("OneHotEncoder", words, outputs=1, cats_strings=["b", "a"])


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 5]}, {"classlabels_strings": ["p", "q"]}])
def test_zip_map(labels):
    scores = data(3, 2)
    model = model_of("ZipMap", scores, 1, **labels)
    [ours] = run_tilewright(model, {"x": scores})
    [theirs] = run_onnxruntime(model, {"x": scores})
    assert [dict(zip(keys.tolist(), row.tolist(), strict=True)) for keys, row in ours] == theirs


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("LinearClassifier", {"coefficients": [1.0] * 4}, "needs labels"),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 8, "classlabels_ints": [1, 2, 3]},
            "2 rows of coefficients for 3",
        ),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 4, "classlabels_ints": [1, 2], "post_transform": "MAGIC"},
            "unknown",
        ),
        (
            "SVMRegressor",
            {"coefficients": [1.0], "rho": [0.0], "n_supports": 2, "support_vectors": [1.0]},
            "do not make",
        ),
        ("SVMClassifier", {"coefficients": [1.0], "rho": [0.0], "classlabels_ints": [1, 2]}, "without support vectors"),
        ("LabelEncoder", {"keys_int64s": [1, 2], "values_int64s": [1]}, "2 keys for 1 values"),
        ("ZipMap", {}, "ZipMap needs labels"),
    ],
)
def test_what_is_refused(op_type, attributes, message):
    with pytest.raises((UserError, UnsupportedError), match=message):
        from_onnx(model_of(op_type, X, 1, **attributes))
