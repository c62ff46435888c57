"""The neural cost model: its gradients are right, it learns the order of programs, and goes on from what it knows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tune.test_cost import toy_data
from tilewright.support.errors import UserError
from tilewright.tune.cost import pairwise_accuracy, recall_at
from tilewright.tune.features import layout
from tilewright.tune.neural import NeuralModel, backward, first_weights, forward, rank_slope


def test_gradients_are_those_of_the_loss() -> None:
    random = np.random.default_rng(0)
    weights = {name: value.astype(np.float64) for name, value in first_weights(5, 7, random).items()}
    rows = random.normal(0, 1, (6, layout().width))
    scores = random.random(6)

    def loss() -> float:
        said = forward(weights, rows)[0]
        better = np.maximum(scores[:, None] - scores[None, :], 0)
        return float((better * np.logaddexp(0, said[None, :] - said[:, None])).sum() / better.sum())

    said, kept = forward(weights, rows)
    gradients = backward(weights, kept, rank_slope(said, scores))
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        for _ in range(4):
            place = tuple(random.integers(0, size) for size in gradient.shape)
            kept_value = weights[name][place]
            weights[name][place] = kept_value + 1e-5
            above = loss()
            weights[name][place] = kept_value - 1e-5
            below = loss()
            weights[name][place] = kept_value
            assert gradient[place] == pytest.approx((above - below) / 2e-5, abs=1e-7, rel=1e-4), name


def test_it_learns_the_order() -> None:
    features, scores = toy_data()
    assert features.shape[1] == layout().width
    train = np.random.default_rng(0).permutation(len(scores))[:60]
    model = NeuralModel(first_steps=150)
    assert (model.predict(features) == 0).all()
    model.fit(features[train], scores[train], ["task"] * len(train))
    first = pairwise_accuracy(model.predict(features), scores)
    assert first > 0.8
    assert recall_at(model.predict(features), scores, 20) > 0.4
    model.fit(features, scores, ["task"] * len(scores))
    assert pairwise_accuracy(model.predict(features), scores) > first
    again = NeuralModel(first_steps=150)
    again.fit(features[train], scores[train], ["task"] * len(train))
    again.fit(features, scores, ["task"] * len(scores))
    np.testing.assert_array_equal(again.predict(features), model.predict(features))


def test_tasks_are_not_compared_with_each_other() -> None:
    """Two tasks whose scores are the other way round teach nothing of each other, and one program alone nothing."""
    features, scores = toy_data()
    model = NeuralModel(first_steps=50)
    model.fit(features[:2], scores[:2], ["a", "b"])
    weights = NeuralModel(first_steps=50)
    weights.fit(features[:2], 1 - scores[:2], ["a", "b"])
    np.testing.assert_array_equal(model.predict(features), weights.predict(features))


def test_a_prior_is_built_upon() -> None:
    features, scores = toy_data()

    class Known:
        def fit(self, *unused: object) -> None: ...

        def predict(self, given: np.ndarray) -> np.ndarray:
            return 10 * scores[: len(given)]

    model = NeuralModel(first_steps=20, prior=Known())
    np.testing.assert_array_equal(model.predict(features), 10 * scores)
    model.fit(features, scores, ["task"] * len(scores))
    assert pairwise_accuracy(model.predict(features), scores) > 0.95


def test_what_does_not_fit_is_refused() -> None:
    features, scores = toy_data()
    with pytest.raises(UserError, match="need as many scores and tasks"):
        NeuralModel().fit(features, scores[:3], ["task"] * len(scores))
