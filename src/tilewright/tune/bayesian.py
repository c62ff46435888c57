"""Bayesian search: a Gaussian process over the answers themselves says which points are worth measuring.

For spaces whose points are dear to look at (schedules for GPUs) and whose options the template has put in the order of
an analytic model: nothing is scheduled but what is proposed. A point is described by the numbers in its answers (sizes
by their logarithms) and by the places of its answers among the options, which is what the analytic model thinks of
them. A batch takes the points with the largest expected improvement, each as if those before it had come out as
expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import erf, log, log2, pi, sqrt
from random import Random

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import TilewrightError
from tilewright.topi.schedule.choices import Answer, Question
from tilewright.tune.search import Observation
from tilewright.tune.space import Key, Point, Space, key_of

Matrix = npt.NDArray[np.float64]

_POOL = 1024
"""Points that are compared for a batch; smaller spaces are looked at as a whole."""
_NOISE = 0.02
"""Logarithms of times that a second measurement may differ by."""
_LENGTH = 0.35
"""How far points are alike: the part of the range of each number."""
_STIFFNESS = 0.1
"""How reluctantly the trend of times over the features leaves zero."""
_FAILED = 1.0
"""How much worse than the median points count that failed, as a logarithm."""
_FIRST = 0.75
"""The part of a first batch that the analytic model decides; the rest is spread over its whole order."""


class BayesianSearch:
    """Proposes the points that promise most by what was measured and by the order of the options."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self.space = space
        self.random = Random(seed)
        self.seen: set[Key] = set()
        self.observed: list[Observation] = []
        self._asked: dict[Key, tuple[str, ...]] = {}
        self._same: dict[Key, frozenset[tuple[str, Answer]]] = {}
        """Settled points that leave questions out: whatever agrees with one of them is the same schedule."""

    def observe(self, results: Sequence[Observation]) -> None:
        """Remember the results."""
        self.observed += results
        self.seen.update(key_of(point) for point, _ in results)

    def propose(self, count: int) -> list[Point]:
        """Up to `count` points that were not proposed before; fewer when the space has no more."""
        pool = [point for point in self._pool() if self._is_new(point)]
        found: list[Point] = []
        if not any(seconds is not None for _, seconds in self.observed):
            for point in self._by_order(pool, count):
                if len(found) < count:
                    found += self._settled(point)
            return found
        guess = _Process(self.space, self.observed)
        while pool and len(found) < count:
            gains = guess.improvements(pool)
            point = pool.pop(int(np.argmax(gains)))
            new = self._settled(point)
            for item in new:
                guess.assume(item)
            found += new
            pool = [other for other in pool if self._is_new(other)]
        return found

    def _settled(self, point: Point) -> list[Point]:
        """The point as the template takes it, unless that is known already or cannot be."""
        try:
            settled = self._taken(point)
        except TilewrightError:
            self.seen.add(key_of(point))
            return []
        if len(settled) < len(point):
            self._same[key_of(settled)] = frozenset(settled.items())
        known = key_of(settled) in self.seen
        self.seen.update((key_of(settled), key_of(point)))
        return [] if known else [settled]

    def _taken(self, point: Point) -> Point:
        """The answers that the template asks for.

        Templates take their time. What they ask hardly depends on the answer with most options, the sizes of a tile:
        they are run once for each set of the others.
        """
        largest = max(self.space.questions.values(), key=lambda question: len(question.options)).name
        others = key_of({name: answer for name, answer in point.items() if name != largest})
        asked = self._asked.get(others)
        if asked is None or any(name not in point for name in asked):
            settled = self.space.settle(point)
            self._asked[others] = tuple(settled)
            return settled
        return {name: point[name] for name in asked}

    def _is_new(self, point: Point) -> bool:
        if key_of(point) in self.seen:
            return False
        items = point.items()
        return not any(items >= same for same in self._same.values())

    def _pool(self) -> Iterator[Point]:
        """Points to compare: the whole space, or the default with each answer changed, kin of the best, and any."""
        if self.space.size() <= _POOL:
            yield from self.space.grid()
            return
        known: set[Key] = set()
        for point in self._some():
            if key_of(point) not in known:
                known.add(key_of(point))
                yield point
            if len(known) >= _POOL:
                return

    def _some(self) -> Iterator[Point]:
        yield from self.space.neighbours(self.space.default)
        good = sorted((seconds, number) for number, (_, seconds) in enumerate(self.observed) if seconds is not None)
        best = [self.observed[number][0] for _, number in good[:16]]
        for _ in range(2 * _POOL):
            if best and self.random.random() < 0.5:
                yield self.space.mutate(self.random.choice(best), self.random)
            else:
                yield self.space.random(self.random)

    def _by_order(self, pool: Sequence[Point], count: int) -> Iterator[Point]:
        """Before anything is known: the first ones by the analytic order, then some of all of it."""
        ranked = sorted(pool, key=lambda point: sum(_place(q, point) for q in self.space.open_questions))
        first = max(1, int(count * _FIRST))
        yield from ranked[:first]
        rest = ranked[first:]
        step = max(1, len(rest) // max(1, count - first))
        yield from rest[step // 2 :: step]
        yield from rest


class _Process:
    """A Gaussian process over the logarithms of times."""

    def __init__(self, space: Space, observed: Sequence[Observation]) -> None:
        self._questions = space.open_questions
        self._codes = {question.name: _Code(question) for question in self._questions}
        times = [log(seconds) for _, seconds in observed if seconds is not None]
        bad = float(np.median(times)) + _FAILED
        self._points = self._features([point for point, _ in observed])
        self.best = min(times)
        values = np.array([bad if seconds is None else log(seconds) for _, seconds in observed])
        # A line over the features first: the trend of the analytic order; the process is for what it leaves.
        design = self._design(self._points)
        weight = design.T @ design + _STIFFNESS * np.eye(design.shape[1])
        self._trend: Matrix = np.linalg.solve(weight, design.T @ values)
        rest = values - design @ self._trend
        self._scale = max(float(np.std(rest)), 2 * _NOISE)
        self._noise = (_NOISE / self._scale) ** 2
        covariance = self._likeness(self._points, self._points) + self._noise * np.eye(len(rest))
        self._inverse: Matrix = np.asarray(np.linalg.inv(covariance), np.float64)
        self._weights: Matrix = self._inverse @ rest

    def assume(self, point: Point) -> None:
        """Take a point as measured, with what is expected of it: what is expected of others stays as it is."""
        row = self._features([point])
        near = self._likeness(self._points, row)[:, 0]
        known = self._inverse @ near
        left = 1.0 + self._noise - float(near @ known)
        self._inverse = np.block(
            [[self._inverse + np.outer(known, known) / left, -known[:, None] / left], [-known / left, 1.0 / left]]
        )
        self._points = np.vstack([self._points, row])
        self._weights = np.concatenate([self._weights, np.zeros(1)])

    def improvements(self, points: Sequence[Point]) -> Matrix:
        """How much each point is expected to improve on the best, in logarithms of time."""
        mean, deviation = self._expected(self._features(points))
        z = (self.best - mean) / deviation
        normal = np.exp(-0.5 * z * z) / sqrt(2 * pi)
        below = 0.5 * (1.0 + np.array([erf(value / sqrt(2.0)) for value in z]))
        gains: Matrix = deviation * (z * below + normal)
        return gains

    def _features(self, points: Sequence[Point]) -> Matrix:
        rows = [
            [value for q in self._questions for value in self._codes[q.name].values(point.get(q.name, q.default))]
            for point in points
        ]
        return np.array(rows, np.float64).reshape(len(points), -1)

    @staticmethod
    def _design(points: Matrix) -> Matrix:
        return np.hstack([np.ones((len(points), 1)), points])

    def _likeness(self, first: Matrix, second: Matrix) -> Matrix:
        distance = np.sqrt(np.maximum(((first[:, None, :] - second[None, :, :]) ** 2).sum(-1), 0.0))
        scaled = sqrt(5.0) * distance / (_LENGTH * sqrt(max(1, first.shape[1])))
        alike: Matrix = (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)
        return alike

    def _expected(self, points: Matrix) -> tuple[Matrix, Matrix]:
        near = self._likeness(points, self._points)
        mean = self._design(points) @ self._trend + near @ self._weights
        spread = 1.0 - ((near @ self._inverse) * near).sum(1)
        return mean, self._scale * np.sqrt(np.maximum(spread, 1e-9))


class _Code:
    """The numbers that describe the options of a question, each between 0 and 1."""

    def __init__(self, question: Question) -> None:
        raw = {option: _numbers(option) for option in question.options}
        length = max(len(numbers) for numbers in raw.values())
        table = np.array([[*numbers, *[0.0] * (length - len(numbers))] for numbers in raw.values()])
        table = table.reshape(len(raw), -1)
        low, high = table.min(0, initial=np.inf), table.max(0, initial=-np.inf)
        scaled = (table - low) / np.where(high > low, high - low, 1.0)
        places = np.linspace(0.0, 1.0, len(raw))
        self._rows = {option: [place, *row] for option, place, row in zip(raw, places, scaled, strict=True)}
        self._default = self._rows[question.default]

    def values(self, answer: Answer) -> list[float]:
        """The numbers of an answer; those of the default for what is no option."""
        return self._rows.get(answer, self._default)


def _numbers(answer: Answer) -> list[float]:
    if isinstance(answer, tuple):
        return [log2(1 + max(0, value)) for value in answer]
    if isinstance(answer, int):
        return [log2(1 + max(0, answer))]
    return []


def _place(question: Question, point: Point) -> int:
    """How far an answer is from the default's place among the options."""
    answer = point.get(question.name, question.default)
    place = question.options.index(answer) if answer in question.options else question.default_place
    return abs(place - question.default_place)
