"""Trees as plain arrays: they say what xgboost says, survive a file, and refuse what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.requirements import need
from tests.tune.test_cost import toy_data
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune import forest
from tilewright.tune.cost import TreeModel, pairwise_accuracy, scores_of
from tilewright.tune.features import VERSION, layout
from tilewright.tune.forest import Forest, shipped


@pytest.fixture(scope="module")
def learned() -> TreeModel:
    need("xgboost")
    features, scores = toy_data()
    model = TreeModel()
    model.fit(features, scores, ["a"] * len(scores))
    return model


def test_a_forest_says_what_its_trees_say(learned: TreeModel, tmp_path: Path) -> None:
    features, _ = toy_data()
    random = np.random.default_rng(0)
    # Also programs that are unlike all those that were learned from.
    features = np.concatenate([features, random.normal(0, 20, (300, features.shape[1])).astype(np.float32)])
    made = Forest.of(learned)
    right = learned.predict(features)
    np.testing.assert_allclose(made.predict(features) - made.predict(features)[0], right - right[0], atol=1e-4)
    made.save(tmp_path / "model.npz")
    loaded = Forest.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(features), made.predict(features))
    loaded.fit(features, np.zeros(len(features), np.float32), ["b"] * len(features))
    np.testing.assert_array_equal(loaded.predict(features), made.predict(features))
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


HELD_OUT = Path(__file__).parent / "held_out.npz"
"""Random schedules of a kernel that the shipped model has not learned from, with their times (`bench.pretrain`)."""


def test_the_shipped_model_orders_a_kernel_it_has_never_seen() -> None:
    model = shipped(Target("llvm -mtriple=x86_64-linux-gnu -mcpu=emeraldrapids"))
    assert model is not None and model.width == layout().width
    with np.load(HELD_OUT) as data:
        features, seconds = data["features"], data["seconds"]
    scores = scores_of([float(value) for value in seconds], ["held out"] * len(seconds))
    said = model.predict(features)
    assert pairwise_accuracy(said, scores) > 0.85
    # In its order, a few programs are as good as very many in random order.
    liked = scores[np.argsort(-said)[:16]].max()
    random = np.random.default_rng(0)
    by_chance = np.mean([scores[random.permutation(len(scores))[:16]].max() for _ in range(500)])
    assert liked > by_chance
    assert scores[np.argsort(-said)[:16]].mean() > 1.2 * scores.mean()


def test_only_families_with_a_model_have_one() -> None:
    assert shipped(Target("llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64")) is None
    assert shipped(Target("cuda -arch=sm_90")) is None


def test_a_model_of_other_features_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=emeraldrapids")
    assert shipped(target) is not None
    monkeypatch.setattr(forest, "VERSION", VERSION + 1)
    assert shipped(target) is None
