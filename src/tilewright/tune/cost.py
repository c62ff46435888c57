"""Cost models: which of some programs are likely to be quick, learned from those that were measured.

A score is the speed of a program relative to the best of its task, 1 for the best and 0 for those that failed: so
scores of different tasks mean the same, and what is learned on one carries over to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import MissingDependencyError, UserError

Matrix = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float32]


class CostModel(Protocol):
    """Learns scores from features."""

    def fit(self, features: Matrix, scores: Vector, tasks: Sequence[str]) -> None:
        """Learn from all that is known so far; `tasks` names the task of each row."""

    def predict(self, features: Matrix) -> Vector:
        """Scores of programs, higher for quicker ones; only their order means something."""


@dataclass(slots=True)
class RandomModel:
    """Knows nothing: what a model-guided search does with it is the baseline for every other model."""

    seed: int = 0

    def fit(self, features: Matrix, scores: Vector, tasks: Sequence[str]) -> None:
        """Learns nothing."""

    def predict(self, features: Matrix) -> Vector:
        """Random scores, the same for the same features."""
        weights = np.random.default_rng(self.seed).standard_normal(features.shape[1])
        return np.asarray(np.modf(np.abs(features @ weights) * 1e3)[0], np.float32)


Objective = Literal["rank", "regression"]
NOISE = 0.02
"""Differences of scores that a second measurement may turn round."""


@dataclass(slots=True)
class TreeModel:
    """Gradient-boosted trees. `rank` learns which of two programs of a task is quicker, `regression` the score itself.

    `prior` is a model trained on other tasks: new trees are grown on top of what it says.
    """

    objective: Objective = "rank"
    rounds: int = 120
    depth: int = 6
    rate: float = 0.15
    threads: int = 1
    seed: int = 0
    prior: CostModel | None = None
    _booster: Any = field(default=None, repr=False)

    def fit(self, features: Matrix, scores: Vector, tasks: Sequence[str]) -> None:
        """Grow trees on everything measured so far."""
        xgboost = _xgboost()
        if len(scores) != len(features) or len(tasks) != len(features):
            raise UserError(f"{len(features)} programs need as many scores and tasks")
        # Rows of one task must lie together to be ranked against each other.
        order = np.argsort(np.unique(np.asarray(tasks), return_inverse=True)[1], kind="stable")
        groups = np.unique(np.asarray(tasks)[order], return_inverse=True)[1]
        # Two programs that differ by less than the noise of a measurement have no order to learn.
        labels = np.round(scores[order] / NOISE) * NOISE if self.objective == "rank" else scores[order]
        data = xgboost.DMatrix(features[order], label=labels, qid=groups, nthread=self.threads)
        if self.prior is not None:
            data.set_base_margin(self.prior.predict(features[order]))
        parameters = {
            "objective": "rank:pairwise" if self.objective == "rank" else "reg:squarederror",
            "max_depth": self.depth,
            "eta": self.rate,
            "min_child_weight": 0 if self.objective == "rank" else 1,
            "subsample": 0.9,
            "colsample_bytree": 0.7,
            "nthread": self.threads,
            "seed": self.seed,
            "verbosity": 0,
        }
        if self.objective == "rank":
            # Pairs are drawn from the whole task, and count alike wherever they lie in it.
            parameters.update(
                {
                    "lambdarank_pair_method": "mean",
                    "lambdarank_num_pair_per_sample": 8,
                    "lambdarank_normalization": False,
                    "lambdarank_score_normalization": False,
                }
            )
        self._booster = xgboost.train(parameters, data, num_boost_round=self.rounds)

    def predict(self, features: Matrix) -> Vector:
        """Scores; zeros before anything was learned."""
        start = self.prior.predict(features) if self.prior is not None else None
        if self._booster is None:
            return np.zeros(len(features), np.float32) if start is None else start
        data = _xgboost().DMatrix(features, nthread=self.threads)
        if start is not None:
            data.set_base_margin(start)
        return np.asarray(self._booster.predict(data, output_margin=True), np.float32)

    @staticmethod
    def check_installed() -> None:
        """An error if what trees are grown with is not installed: better now than after the first measurements."""
        _xgboost()

    def dump(self) -> str:
        """The trees (without those of a prior) in xgboost's own text format; `Forest.of` reads it."""
        if self._booster is None:
            raise UserError("the model has learned nothing that could be saved")
        return bytes(self._booster.save_raw("json")).decode()


def _xgboost() -> Any:
    """The library of boosted trees, which is loaded when it is first needed."""
    try:
        import xgboost
    except ImportError:
        raise MissingDependencyError(
            "the cost model of boosted trees needs the package 'xgboost-cpu', which is not installed",
            hint="pip install 'tilewright[tune]', or take the model that needs no extra: --cost-model neural",
        ) from None
    return xgboost


def scores_of(seconds: Sequence[float | None], tasks: Sequence[str]) -> Vector:
    """Scores of measured programs: the best time of the task over the program's own, 0 for failures."""
    best: dict[str, float] = {}
    for value, task in zip(seconds, tasks, strict=True):
        if value is not None:
            best[task] = min(best.get(task, value), value)
    return np.asarray(
        [0.0 if value is None else best[task] / value for value, task in zip(seconds, tasks, strict=True)], np.float32
    )


def pairwise_accuracy(predicted: Vector, scores: Vector, least_gap: float = NOISE) -> float:
    """How often the model orders two programs rightly, over pairs whose scores differ by more than `least_gap`."""
    difference = scores[:, None] - scores[None, :]
    clear = difference > least_gap
    if not clear.any():
        return 1.0
    said = predicted[:, None] - predicted[None, :]
    return float(((said > 0) & clear).sum() + 0.5 * ((said == 0) & clear).sum()) / float(clear.sum())


def recall_at(predicted: Vector, scores: Vector, count: int) -> float:
    """How many of the `count` best programs are among the `count` that the model likes best."""
    count = min(count, len(scores))
    return len(set(np.argsort(-predicted)[:count]) & set(np.argsort(-scores)[:count])) / max(1, count)
