"""Texts: their own operators, and operators that move them, against ONNX's reference and onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.helpers import data, import_one, make_model, run_onnxruntime, run_tilewright
from tilewright.support.errors import UnsupportedError, UserError

WORDS = np.array([["a", "bb", "ccc"], ["dd", "é", ""]], dtype=object)


def check(op_type, *values, outputs=1, opset=21, constants=(), **attributes):
    names = [f"x{index}" for index in range(len(values))]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    given = {names[at]: value for at, value in enumerate(values) if at not in constants}
    stored = {names[at]: value for at, value in enumerate(values) if at in constants}
    model = make_model([node], given, results, stored, opset)
    ours, theirs = run_tilewright(model, given), run_onnxruntime(model, given)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        assert mine.tolist() == other.tolist()


def test_operators_on_texts():
    check("StringConcat", WORDS, np.array(["!"], dtype=object))
    check("StringSplit", np.array(["a,b", "c", "d,e,f"], dtype=object), outputs=2, delimiter=",")
    check("StringSplit", np.array(["a b", " c"], dtype=object), outputs=2, maxsplit=1)
    check("RegexFullMatch", WORDS, pattern="[a-c]+")


def test_normalized_texts():
    """onnxruntime needs a locale for these, which a machine may lack."""
    options = {"case_change_action": "UPPER", "stopwords": ["bb"], "is_case_sensitive": 1}
    model = make_model([helper.make_node("StringNormalizer", ["x"], ["y"], **options)], {"x": WORDS[0]}, ["y"])
    assert run_tilewright(model, {"x": WORDS[0]})[0].tolist() == ["A", "CCC"]


def test_moves_of_texts():
    check("Identity", WORDS)
    check("Reshape", WORDS, np.array([3, -1]), constants=(1,))
    check("Reshape", WORDS, np.array([3, -1]))
    check("Transpose", WORDS, perm=[1, 0])
    check("Gather", WORDS, np.array([1, -1]), axis=1)
    check("Concat", WORDS, WORDS, axis=1)
    check("Slice", WORDS, np.array([0]), np.array([2]), np.array([1]), constants=(1, 2, 3))
    check("Slice", WORDS, np.array([2]), np.array([-9]), np.array([1]), np.array([-1]), constants=(1, 2, 3, 4))
    check("Unsqueeze", WORDS, np.array([0]), constants=(1,))
    check("Squeeze", WORDS[:1], np.array([0]), constants=(1,))
    check("Flatten", WORDS)
    check("Expand", WORDS[:1], np.array([2, 3]), constants=(1,))
    check("Tile", WORDS, np.array([2, 1]), constants=(1,))
    check("Shape", WORDS)
    check("Where", data(2, 3, dtype="bool"), WORDS, WORDS[:1])
    check("Equal", WORDS, WORDS[:1])


def test_numbers_and_texts():
    check("Cast", np.array(["1.5", "-2"], dtype=object), to=TensorProto.FLOAT)
    check("Cast", np.array(["7", "-2"], dtype=object), to=TensorProto.INT64)
    check("Cast", np.array([7, -2]), to=TensorProto.STRING)
    check("Cast", np.array([0.5, -2.25], np.float32), to=TensorProto.STRING)


def test_stored_texts():
    node = helper.make_node("StringConcat", ["x", "w"], ["y"])
    model = make_model([node], {"x": WORDS}, ["y"])
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.STRING, [1], [b"?"]))
    assert run_tilewright(model, {"x": WORDS})[0][0].tolist() == ["a?", "bb?", "ccc?"]


def test_unique_texts_and_numbers():
    check("Unique", WORDS.reshape(-1), outputs=4)
    check("Unique", data(3, 4, dtype="int64", low=0, high=2), outputs=4, axis=0)
    check("Unique", data(10, low=0, high=3, dtype="int64").astype(np.float32), outputs=4, sorted=0)


def test_n_grams_of_texts():
    options = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 1,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_strings": ["a", "b", "a", "b"],
    }
    words = np.array([["a", "b", "c", "b"], ["b", "a", "c", "b"]], dtype=object)
    check("TfIdfVectorizer", words, **options)
    check("TfIdfVectorizer", words[0], **{**options, "mode": "IDF"}, weights=[0.5, 2.0, 3.0])


@pytest.mark.parametrize(
    ("op_type", "values", "attributes", "message"),
    [
        ("RegexFullMatch", [WORDS], {"pattern": "("}, "no regular expression"),
        ("StringNormalizer", [WORDS], {"case_change_action": "TITLE"}, "unknown case_change_action"),
        ("StringConcat", [data(2), data(2)], {}, "StringConcat needs texts"),
        ("Add", [WORDS, WORDS], {}, "must be a number, not string"),
        ("Tanh", [WORDS], {}, "string"),
    ],
)
def test_what_is_refused(op_type, values, attributes, message):
    with pytest.raises((UserError, UnsupportedError), match=message):
        import_one(op_type, *values, **attributes)


def test_a_text_that_is_no_number():
    model = make_model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], {"x": WORDS}, ["y"])
    assert isinstance(model, onnx.ModelProto)
    with pytest.raises(UserError, match="no number of type float32"):
        run_tilewright(model, {"x": WORDS})
