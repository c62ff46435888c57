"""Search: which points of a space to measure next. One interface, several ways.

    search = AnnealingSearch(space, TreeModel(), seed=0)
    while trials_left:
        points = search.propose(16)
        search.observe([(point, seconds), ...])

`RandomSearch` and `GridSearch` look at nothing; `GeneticSearch` breeds the quickest measured points; `AnnealingSearch`
and `EvolutionarySearch` ask a cost model, which learns from every batch; `CoordinateDescent` tries the neighbours of
the best point, to finish. No point is proposed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random
from typing import Protocol

import numpy as np

from tilewright.ir.visit import find_all
from tilewright.support.errors import CompilerBug, TilewrightError
from tilewright.tir.stmt import Block
from tilewright.tune.cost import CostModel, Matrix, scores_of
from tilewright.tune.features import Vector, extract
from tilewright.tune.space import Key, Point, Space, key_of

Observation = tuple[Point, float | None]


class Search(Protocol):
    """Proposes points and learns from what came of them."""

    def propose(self, count: int) -> list[Point]:
        """Up to `count` points that were not proposed before; fewer when the space has no more."""

    def observe(self, results: Sequence[Observation]) -> None:
        """What some points took, in seconds (None: they failed)."""


class _Base:
    """What all searches share: points that mean the same schedule are one, and each is proposed once."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.random = Random(seed)
        self.seen: set[Key] = set()
        self.observed: list[Observation] = []

    def observe(self, results: Sequence[Observation]) -> None:
        """Remember the results."""
        self.observed += results
        self.seen.update(key_of(point) for point, _ in results)

    @property
    def ranked(self) -> list[Point]:
        """The measured points that worked, quickest first."""
        good = [(seconds, n) for n, (_, seconds) in enumerate(self.observed) if seconds is not None]
        return [self.observed[n][0] for _, n in sorted(good)]

    def _fresh(self, points: Iterator[Point], count: int, tries: int) -> list[Point]:
        """The first `count` new points of a stream, canonical; gives up after `tries` in vain."""
        found: list[Point] = []
        vain = 0
        while len(found) < count and vain < tries:
            point = next(points, None)
            if point is None:
                break
            canonical = self._canonical(point)
            if canonical is None or key_of(canonical) in self.seen:
                vain += 1
                continue
            self.seen.add(key_of(canonical))
            found.append(canonical)
        return found

    def _canonical(self, point: Point) -> Point | None:
        """The point as the template takes it, or None if the template cannot."""
        try:
            return self.space.canonical(point)
        except TilewrightError:
            return None

    def _random_points(self) -> Iterator[Point]:
        while True:
            yield self.space.random(self.random)


_TRIES_IN_VAIN = 400


class RandomSearch(_Base):
    """Any points."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space, seed)

    def propose(self, count: int) -> list[Point]:
        """Random points."""
        return self._fresh(self._random_points(), count, _TRIES_IN_VAIN)


class GridSearch(_Base):
    """All points in order."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space, seed)
        self._rest = space.grid()

    def propose(self, count: int) -> list[Point]:
        """The next points of the grid."""
        return self._fresh(self._rest, count, 1 << 30)


class GeneticSearch(_Base):
    """Breeds the quickest measured points; no model."""

    def __init__(self, space: Space, seed: int = 0, parents: int = 16, mutation: float = 0.3) -> None:
        super().__init__(space, seed)
        self.parents = parents
        self.mutation = mutation

    def propose(self, count: int) -> list[Point]:
        """Children of the best."""
        best = self.ranked[: self.parents]
        if len(best) < 2:
            return self._fresh(self._random_points(), count, _TRIES_IN_VAIN)

        def children() -> Iterator[Point]:
            while True:
                child = self.space.cross(self.random.choice(best), self.random.choice(best), self.random)
                if self.random.random() < self.mutation:
                    child = self.space.mutate(child, self.random)
                yield child

        found = self._fresh(children(), count, _TRIES_IN_VAIN)
        return found + self._fresh(self._random_points(), count - len(found), _TRIES_IN_VAIN)


class CoordinateDescent(_Base):
    """The neighbours of the best point, one answer changed at a time."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space, seed)

    def propose(self, count: int) -> list[Point]:
        """Neighbours that were not tried; none when the best point is better than all of them."""
        best = self.ranked
        return self._fresh(self.space.neighbours(best[0]), count, 1 << 30) if best else []


_PROGRAMS, _PROGRAMS_OF_ONE_BLOCK = 4, 32
"""New programs to schedule for each point of a batch, at least and for programs of one block: scheduling takes most of
a search's time, and the more blocks the longer. What was scheduled once is remembered."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """How a model-guided search spreads: the part of random points, and how alike points of a batch may be."""

    random_part: float = 0.1
    diversity: float = 0.02


class _ModelSearch(_Base):
    """A search that asks a cost model; how it climbs on the model is up to the subclass."""

    def __init__(
        self,
        space: Space,
        model: CostModel,
        seed: int = 0,
        *,
        task: str = "task",
        exploration: Exploration | None = None,
    ) -> None:
        super().__init__(space, seed)
        self.model = model
        self.task = task
        self.exploration = exploration or Exploration()
        self._features: dict[Key, Vector | None] = {}
        self._knows = False
        self._blocks = max(1, len(find_all(space.func.body, Block)))
        self._programs_left = 0
        self.programs = 0
        """How many programs were scheduled to see their features."""

    def observe(self, results: Sequence[Observation]) -> None:
        """Learn from the results, together with all earlier ones."""
        super().observe(results)
        rows = [(self.features_of(point), seconds) for point, seconds in self.observed]
        known = [(features, seconds) for features, seconds in rows if features is not None]
        if sum(seconds is not None for _, seconds in known) < 2:
            return
        tasks = [self.task] * len(known)
        scores = scores_of([seconds for _, seconds in known], tasks)
        self.model.fit(np.stack([features for features, _ in known]), scores, tasks)
        self._knows = True

    def features_of(self, point: Point) -> Vector | None:
        """The features of a point's program; None if the template cannot make one."""
        key = key_of(point)
        if key not in self._features:
            self.programs += 1
            try:
                func = self.space.program(point)
                # Points that mean the same program are known by the answers that the template really used.
                canonical = key_of(self.space.canonical(point))
                if canonical not in self._features:
                    self._features[canonical] = extract(func, self.space.target)
                self._features[key] = self._features[canonical]
            except TilewrightError:
                self._features[key] = None
        return self._features[key]

    def scores(self, points: Sequence[Point]) -> Vector:
        """What the model thinks of points; those without a program, or beyond what may be scheduled, come last."""
        rows = [self._affordable(point) for point in points]
        known = [n for n, row in enumerate(rows) if row is not None]
        result = np.full(len(points), -np.inf, np.float32)
        if known:
            matrix: Matrix = np.stack([row for row in rows if row is not None])
            result[known] = self.model.predict(matrix)
        return result

    def _affordable(self, point: Point) -> Vector | None:
        """The features of a point, if they are known or one more program may be scheduled in this round."""
        if key_of(point) in self._features:
            return self._features[key_of(point)]
        if self._programs_left <= 0:
            return None
        self._programs_left -= 1
        return self.features_of(point)

    def propose(self, count: int) -> list[Point]:
        """Points that the model likes, a few random ones among them."""
        self._programs_left = count * max(_PROGRAMS, _PROGRAMS_OF_ONE_BLOCK // self._blocks)
        if not self._knows and not self._has_prior:
            return self._first(count)
        chance = sum(self.random.random() < self.exploration.random_part for _ in range(count))
        liked = self._climb()
        found = self._fresh(iter(self._diverse(liked, count - chance)), count - chance, _TRIES_IN_VAIN)
        return found + self._fresh(self._random_points(), count - len(found), _TRIES_IN_VAIN)

    def _first(self, count: int) -> list[Point]:
        """Before anything is known: points near the template's own answers, which are seldom bad, and any points."""
        near = iter(lambda: self.space.mutate(self.space.default, self.random), None)
        found = self._fresh(near, count // 2, _TRIES_IN_VAIN)
        return found + self._fresh(self._random_points(), count - len(found), _TRIES_IN_VAIN)

    @property
    def _has_prior(self) -> bool:
        return getattr(self.model, "prior", None) is not None

    def _climb(self) -> list[Point]:
        """Points with high scores, the best first."""
        raise CompilerBug("a search on a model must say how it climbs")

    def _diverse(self, points: Sequence[Point], count: int) -> list[Point]:
        """Points in order of their scores, each worth less the more it is like those taken before it."""
        pool = [point for point in points if key_of(point) not in self.seen][: count * 8]
        if not pool:
            return []
        worth = self.scores(pool).astype(np.float64)
        spread = float(np.ptp(worth[np.isfinite(worth)])) if np.isfinite(worth).any() else 0.0
        taken: list[Point] = []
        while pool and len(taken) < count:
            place = int(np.argmax(worth))
            chosen = pool.pop(place)
            worth = np.delete(worth, place)
            taken.append(chosen)
            for n, other in enumerate(pool):
                same = sum(chosen.get(name) == answer for name, answer in other.items()) / max(1, len(other))
                worth[n] -= self.exploration.diversity * spread * same
        return taken


class AnnealingSearch(_ModelSearch):
    """Many walks on the model's scores at once, each accepting a worse point the less often the cooler it is."""

    walks: int = 64
    steps: int = 12
    hot: float = 1.0

    def _climb(self) -> list[Point]:
        best = self.ranked[: self.walks // 4]
        points: list[Point] = [*best, *(self.space.random(self.random) for _ in range(self.walks - len(best)))]
        scores = self.scores(points)
        collected = {key_of(point): (float(score), point) for point, score in zip(points, scores, strict=True)}
        for step in range(self.steps):
            finite = scores[np.isfinite(scores)]
            temperature = self.hot * (1 - step / self.steps) * max(1e-6, float(np.std(finite)) if len(finite) else 0.0)
            moved = [self.space.mutate(point, self.random) for point in points]
            changed = self.scores(moved)
            for n, (before, after) in enumerate(zip(scores, changed, strict=True)):
                collected[key_of(moved[n])] = (float(after), moved[n])
                # A point that cannot be scored is left for any other, and never taken for a scored one.
                worse = -inf if after == -inf else float(after - before)
                if after >= before or self.random.random() < exp(max(-60.0, worse / temperature)):
                    points[n], scores[n] = moved[n], after
        return [point for _, point in sorted(collected.values(), key=lambda item: -item[0])]


class EvolutionarySearch(_ModelSearch):
    """Generations on the model's scores: the best are crossed and mutated."""

    population: int = 96
    generations: int = 8
    mutation: float = 0.6

    def _climb(self) -> list[Point]:
        best = self.ranked[: self.population // 4]
        points: list[Point] = [*best, *(self.space.random(self.random) for _ in range(self.population - len(best)))]
        collected: dict[Key, tuple[float, Point]] = {}
        for _ in range(self.generations):
            scores = self.scores(points)
            for point, score in zip(points, scores, strict=True):
                collected[key_of(point)] = (float(score), point)
            order = np.argsort(-scores)[: self.population // 3]
            parents = [points[n] for n in order]
            points = [self._child(parents) for _ in range(self.population)]
        return [point for _, point in sorted(collected.values(), key=lambda item: -item[0])]

    def _child(self, parents: Sequence[Point]) -> Point:
        child: Point = self.space.cross(self.random.choice(parents), self.random.choice(parents), self.random)
        return self.space.mutate(child, self.random) if self.random.random() < self.mutation else child
