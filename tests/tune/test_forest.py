"""Trees as plain arrays: they say what xgboost says, survive a file, and refuse what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tune.test_cost import toy_data
from tilewright.support.errors import UserError
from tilewright.tune.cost import TreeModel
from tilewright.tune.forest import Forest


@pytest.fixture(scope="module")
def learned() -> TreeModel:
    pytest.importorskip("xgboost", reason="the extra 'tune' is not installed")
    features, scores = toy_data()
    model = TreeModel()
    model.fit(features, scores, ["a"] * len(scores))
    return model


def test_a_forest_says_what_its_trees_say(learned: TreeModel, tmp_path: Path) -> None:
    features, _ = toy_data()
    random = np.random.default_rng(0)
    # Also programs that are unlike all those that were learned from.
    features = np.concatenate([features, random.normal(0, 20, (300, features.shape[1])).astype(np.float32)])
    forest = Forest.of(learned)
    right = learned.predict(features)
    np.testing.assert_allclose(forest.predict(features) - forest.predict(features)[0], right - right[0], atol=1e-4)
    forest.save(tmp_path / "model.npz")
    loaded = Forest.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(features), forest.predict(features))
    loaded.fit(features, np.zeros(len(features), np.float32), ["b"] * len(features))
    np.testing.assert_array_equal(loaded.predict(features), forest.predict(features))
    assert len(loaded.predict(features[:0])) == 0


def test_trees_grow_on_a_forest(learned: TreeModel) -> None:
    features, scores = toy_data()
    model = TreeModel(prior=Forest.of(learned))
    np.testing.assert_array_equal(model.predict(features), Forest.of(learned).predict(features))
    model.fit(features[:10], scores[:10], ["b"] * 10)
    assert np.abs(model.predict(features) - Forest.of(learned).predict(features)).max() > 1e-3


def test_what_is_no_forest(learned: TreeModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such cost model"):
        Forest.load(tmp_path / "none.npz")
    for content in (b"", b"PK\x03\x04 broken", b"text"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(UserError, match="no saved cost model"):
            Forest.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", some=np.zeros(3))
    with pytest.raises(UserError, match="no saved cost model"):
        Forest.load(tmp_path / "other.npz")
    with pytest.raises(UserError, match="features, not of 3"):
        Forest.of(learned).predict(np.zeros((2, 3), np.float32))
