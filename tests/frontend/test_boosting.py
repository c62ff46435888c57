"""XGBoost and LightGBM models against the predictions that the packages themselves gave (`tests/fixtures/boosting`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tilewright as tw
from tilewright.frontend.boosting.ubjson import read_ubjson
from tilewright.frontend.formats import identify
from tilewright.graph.interpreter import evaluate
from tilewright.onnx_writer import to_onnx
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "boosting"
MODELS = sorted(path.name for path in FOLDER.iterdir() if path.name.startswith(("xgboost_", "lightgbm_")))


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with np.load(FOLDER / "expected.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def rows_for(name: str, rows: Any) -> Any:
    return rows if name.startswith("xgboost") else rows.astype(np.float64)


@pytest.mark.parametrize("name", MODELS)
def test_predictions(name: str, expected: dict[str, Any]) -> None:
    assert identify(FOLDER / name).key == name.partition("_")[0]
    module = tw.load_model(FOLDER / name)
    found = evaluate(module, rows_for(name, expected["rows"]))
    assert isinstance(found, np.ndarray) and found.dtype == expected[name].dtype
    tolerance = 1e-6 if found.dtype == np.float32 else 1e-14
    np.testing.assert_allclose(found, expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["xgboost_squared.json", "xgboost_categories.ubj", "lightgbm_regression.txt"])
def test_compiled_code_gives_the_same_bits(name: str, expected: dict[str, Any]) -> None:
    rows = rows_for(name, expected["rows"])
    executable = tw.compile(FOLDER / name, threads=1)
    np.testing.assert_array_equal(executable(rows), expected[name])
    np.testing.assert_array_equal(executable(rows[:1]), expected[name][:1])


@pytest.mark.parametrize("name", ["xgboost_softprob.json", "lightgbm_multiclass.txt"])
def test_they_can_be_written_as_onnx(name: str, expected: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(to_onnx(tw.load_model(FOLDER / name)))
    (found,) = session.run(None, {"data": rows_for(name, expected["rows"])})
    np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)


def test_shapes() -> None:
    module = tw.load_model(FOLDER / "xgboost_squared.json", shapes={"data": (3, None)})
    assert module["main"].params[0].annotation.static_shape == (3, 5)
    with pytest.raises(UserError, match="has no input 'x'"):
        tw.load_model(FOLDER / "xgboost_squared.json", shapes={"x": (3, 5)})
    with pytest.raises(UserError, match=r"the input 'data' is \(batch, 5\), not \(3, 6\)"):
        tw.load_model(FOLDER / "lightgbm_binary.txt", shapes={"data": (3, 6)})


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "xgboost_squared.json").read_text())
    document["learner"]["objective"]["name"] = "reg:mine"
    (tmp_path / "own.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match="the objective 'reg:mine'"):
        tw.load_model(tmp_path / "own.json")
    text = (FOLDER / "lightgbm_regression.txt").read_text()
    for old, new, said in (
        ("objective=regression", "objective=mine", "the objective 'mine'"),
        ("is_linear=0", "is_linear=1", "linear trees"),
        ("end of trees", "", "cut short"),
        ("left_child=", "left_child=9 ", "entries of left_child instead of"),
        ("max_feature_idx=4", "max_feature_idx=0", "tests feature"),
        ("num_leaves=", "num_leaves=x", "damaged"),
    ):
        (tmp_path / "own.txt").write_text(text.replace(old, new))
        with pytest.raises(UserError, match=said):
            tw.load_model(tmp_path / "own.txt")


def test_trees_that_are_none(tmp_path: Path) -> None:
    for children, said in (
        ([1, -1, -1], "refers to a node"),
        ([0, -1, -1], "several ways"),
        ([2, -1, -1], "several ways"),
    ):
        document = json.loads((FOLDER / "xgboost_squared.json").read_text())
        tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
        for name in ("left_children", "right_children", "split_conditions", "split_indices", "default_left"):
            tree[name] = tree[name][:3]
        tree["left_children"] = children
        tree["right_children"] = [9 if said.startswith("refers") else 2, -1, -1]
        (tmp_path / "own.json").write_text(json.dumps(document))
        with pytest.raises(UserError, match=said):
            tw.load_model(tmp_path / "own.json")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"{i\x01aS" + b"i\x02hi" + b"i\x01b[$U#i\x02\x05\x06" + b"}", {"a": "hi", "b": [5, 6]}),
        (
            b"[NTFZ" + b"Cx" + b"I\x01\x00" + b"D" + np.array(2.5, ">f8").tobytes() + b"]",
            [True, False, None, "x", 256, 2.5],
        ),
        (b"[#i\x02i\x07U\xff", [7, 255]),
        (b"{$i#i\x01i\x01k\x09", {"k": 9}),
    ],
)
def test_ubjson(data: bytes, value: Any) -> None:
    found = read_ubjson(data)
    if isinstance(found, dict):
        found = {key: item.tolist() if isinstance(item, np.ndarray) else item for key, item in found.items()}
    assert found == value


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{i\x05ab", b"[$i", b"[$i#L" + b"\x7f" * 8, b"x", b"[" * 500, b"{$d#d\0\0\0\0", b"Si\xff"]
)
def test_damaged_ubjson(data: bytes) -> None:
    with pytest.raises(UserError, match="the UBJSON file is damaged at byte"):
        read_ubjson(data)
