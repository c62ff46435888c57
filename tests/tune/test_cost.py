"""Cost models: they learn the order of programs they have not seen, build upon priors, and score as they should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.requirements import need
from tests.tune.toy import TARGET, ToySpace, seconds
from tilewright.support.errors import UserError
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.cost import Matrix, TreeModel, Vector, pairwise_accuracy, recall_at, scores_of
from tilewright.tune.features import extract

needs_xgboost = pytest.mark.usefixtures("xgboost")


@pytest.fixture
def xgboost() -> None:
    need("xgboost")


def toy_data() -> tuple[Matrix, Vector]:
    space = ToySpace()
    points = list(space.grid())
    features = np.stack([extract(space.schedule(Choices(point)), TARGET) for point in points])
    return features, scores_of([seconds(point) for point in points], ["task"] * len(points))


@needs_xgboost
@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_trees_learn_the_order(objective: str) -> None:
    features, scores = toy_data()
    train = np.random.default_rng(0).permutation(len(scores))[:40]
    model = TreeModel(objective)  # type: ignore[arg-type]
    assert (model.predict(features) == 0).all()
    model.fit(features[train], scores[train], ["task"] * len(train))
    assert pairwise_accuracy(model.predict(features), scores) > 0.8
    assert recall_at(model.predict(features), scores, 20) > 0.5


@needs_xgboost
def test_a_prior_is_built_upon() -> None:
    features, scores = toy_data()
    first = TreeModel()
    first.fit(features, scores, ["a"] * len(scores))
    second = TreeModel(prior=first)
    assert pairwise_accuracy(second.predict(features), scores) > 0.9
    second.fit(features[:10], scores[:10], ["b"] * 10)
    assert pairwise_accuracy(second.predict(features), scores) > 0.8


@needs_xgboost
def test_what_is_asked_of_trees_must_fit() -> None:
    features, scores = toy_data()
    with pytest.raises(UserError, match="need as many scores and tasks"):
        TreeModel().fit(features, scores[:3], ["task"] * len(scores))
    with pytest.raises(UserError, match="learned nothing"):
        TreeModel().dump()


def test_scores() -> None:
    scores = scores_of([2.0, 1.0, None, 3.0], ["a", "a", "a", "b"])
    np.testing.assert_allclose(scores, [0.5, 1.0, 0.0, 1.0])
    assert pairwise_accuracy(scores, scores) == 1.0
    assert pairwise_accuracy(-scores, scores) == 0.0
    assert pairwise_accuracy(scores, np.zeros(4, np.float32)) == 1.0
    assert recall_at(scores, scores, 2) == 1.0
