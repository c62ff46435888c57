"""How well cost models order programs that they have not seen: the held-out part of `bench.tuning`.

The programs are those that random search asked for, so that no search has chosen them. Two questions, each for every
task and then averaged: a model that learned on all *other* tasks (`other tasks`: what a transferred model knows before
the first measurement), and one that learned on some programs of the same task and is asked for the rest (`same task`:
what a search works with). `pairwise accuracy` is over pairs that differ by more than the noise of a measurement;
`recall@30` says how many of the 30 best are among the 30 that the model likes best.

What Tilewright claims of its cost model is the line `shipped`, `other tasks`: that is what a user's kernel meets before
its first measurement. The shipped trees have learned from all kernels of the ten models but those that are asked here
(`bench.pretrain`). The other models in this column learn from the few remaining tasks of this comparison alone, which
says how much a handful of kernels teaches about another one: little about which the very best are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from tilewright.tune.cost import CostModel, Matrix, Vector, pairwise_accuracy, recall_at, scores_of

RECALL = 30
FEWEST = 2 * RECALL
"""Programs that a task needs to be asked: of fewer than that most would be among the best."""
LEARNED = 128
"""Programs of the same task that a model learns from."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Measured programs of one task: their features and their times relative to the default schedule's."""

    task: str
    features: Matrix
    seconds: tuple[float, ...]

    def part(self, places: Sequence[int]) -> Programs:
        """Some of them."""
        return Programs(self.task, self.features[list(places)], tuple(self.seconds[n] for n in places))


def other_tasks(make: Callable[[], CostModel], known: Sequence[Programs], asked: Iterable[str]) -> dict[str, float]:
    """Quality on each asked task of a model that learned on all others."""
    found = []
    for item in known:
        others = [other for other in known if other.task != item.task]
        if item.task in asked and others and len(item.seconds) >= FEWEST:
            found.append(quality(learned_from(make, others), item))
    return _means(found)


def same_task(make: Callable[[], CostModel], known: Sequence[Programs], seeds: int = 3) -> dict[str, float]:
    """Quality on the rest of each task of a model that learned on some of its programs."""
    found = []
    for item in known:
        for seed in range(seeds):
            order = [int(n) for n in np.random.default_rng(seed).permutation(len(item.seconds))]
            if len(order) >= LEARNED + FEWEST:
                model = learned_from(make, [item.part(order[:LEARNED])])
                found.append(quality(model, item.part(order[LEARNED:])))
    return _means(found)


def learned_from(make: Callable[[], CostModel], programs: Sequence[Programs]) -> CostModel:
    """A model that has learned the order of programs of some tasks."""
    tasks = [item.task for item in programs for _ in item.seconds]
    seconds = [value for item in programs for value in item.seconds]
    model = make()
    model.fit(np.concatenate([item.features for item in programs]), scores_of(seconds, tasks), tasks)
    return model


def quality(model: CostModel, asked: Programs) -> dict[str, float]:
    """How well a model orders the programs of a task."""
    right: Vector = scores_of(asked.seconds, [asked.task] * len(asked.seconds))
    said = model.predict(asked.features)
    return {
        "pairwise_accuracy": pairwise_accuracy(said, right),
        f"recall_at_{RECALL}": recall_at(said, right, RECALL),
        "programs": len(right),
    }


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(mean(item[name] for item in found), 4) for name in found[0]} if found else {}
