"""TopK, Det and n-grams against onnxruntime and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_topk(axis, largest):
    k = np.array([3], np.int64)
    check("TopK", data(4, 3, 5), k, constants=[1], outputs=2, axis=axis, largest=largest)
    check("TopK", data(4, 3, 5, dtype="int32", high=2), k, constants=[1], outputs=2, axis=axis, largest=largest)


def test_the_old_topk():
    module = import_one("TopK", data(2, 4), outputs=2, opset=9, k=2)
    values, places = evaluate(module, np.array([[1, 4, 4, 2], [0, 3, 1, 2]], np.float32))
    assert values.tolist() == [[4, 4], [3, 2]]
    assert places.tolist() == [[1, 2], [1, 3]]


def test_topk_refuses():
    with pytest.raises(UserError, match="k of TopK must be one number"):
        import_one("TopK", data(4), np.array([2, 3], np.int64), constants=[1], outputs=2)
    with pytest.raises(UserError, match="k is 5"):
        import_one("TopK", data(4), np.array([5], np.int64), constants=[1], outputs=2)


def test_topk_on_the_host():
    """Where k is data, or the axis is long."""
    check("TopK", data(3, 7), np.array([2], np.int64), outputs=2, axis=1)
    check("TopK", data(70000), np.array([5], np.int64), constants=[1], outputs=2, largest=0)
    assert operators_of(import_one("TopK", data(7), np.array([2], np.int64), outputs=2)) == ["host.topk"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_determinants(size):
    x = data(2, 3, size, size)
    wanted = np.linalg.det(x.astype(np.float64))
    np.testing.assert_allclose(evaluate(import_one("Det", x), x), wanted, rtol=1e-3, atol=1e-4)


def test_determinants_refuse():
    with pytest.raises(UserError, match="square matrices"):
        import_one("Det", data(2, 3))
    with pytest.raises(UnsupportedError, match="at most 6"):
        import_one("Det", data(7, 7))


GRAMS = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "ngram_counts": [0, 3],
    "ngram_indexes": [0, 1, 2, 3, 4],
    "pool_int64s": [2, 3, 5, 2, 3, 5, 2],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
def test_n_grams(mode, skips):
    x = data(3, 12, dtype="int64", low=2, high=5)
    weights = [0.5, 2.0, 3.0, 1.5, 0.25]
    check("TfIdfVectorizer", x, mode=mode, max_skip_count=skips, weights=weights, **GRAMS)
    check("TfIdfVectorizer", x[0], mode=mode, max_skip_count=skips, weights=weights, **GRAMS)


def test_n_grams_refuse():
    x = data(3, 12, dtype="int64")
    with pytest.raises(UserError, match="in mode 'BM25'"):
        import_one("TfIdfVectorizer", x, mode="BM25", max_skip_count=0, **GRAMS)
    with pytest.raises(UserError, match="start at"):
        import_one("TfIdfVectorizer", x, mode="TF", max_skip_count=0, **{**GRAMS, "ngram_counts": [0, 99]})
    with pytest.raises(UserError, match="6 indexes for 5 n-grams"):
        import_one("TfIdfVectorizer", x, mode="TF", max_skip_count=0, **{**GRAMS, "ngram_indexes": [0, 1, 2, 3, 4, 5]})
    with pytest.raises(UserError, match="2 indexes for 5 n-grams"):
        import_one("TfIdfVectorizer", x, mode="TF", max_skip_count=0, **{**GRAMS, "ngram_indexes": [0, 1]})
    with pytest.raises(UserError, match="the pool of TfIdfVectorizer does not fit data of type int64"):
        import_one("TfIdfVectorizer", x, mode="TF", max_skip_count=0, pool_strings=["a"], **GRAMS)
