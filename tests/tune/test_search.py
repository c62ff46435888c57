"""Searches: no point twice, failures survived, and the guided ones find the best of a made-up landscape quickly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.requirements import need
from tests.tune.toy import ToySpace, seconds
from tilewright.tune.cost import RandomModel, TreeModel
from tilewright.tune.search import (
    AnnealingSearch,
    CoordinateDescent,
    EvolutionarySearch,
    GeneticSearch,
    GridSearch,
    RandomSearch,
    Search,
)
from tilewright.tune.space import Space, key_of

need("xgboost")

SEARCHES: dict[str, Callable[[Space], Search]] = {
    "random": RandomSearch,
    "grid": GridSearch,
    "genetic": GeneticSearch,
    "annealing": lambda space: AnnealingSearch(space, TreeModel()),
    "annealing, regression": lambda space: AnnealingSearch(space, TreeModel("regression")),
    "evolution": lambda space: EvolutionarySearch(space, TreeModel()),
    "evolution, random model": lambda space: EvolutionarySearch(space, RandomModel()),
}
BEST = 1.0


def _run(search: Search, trials: int, batch: int = 8) -> list[float]:
    """The best time after each trial."""
    best, history = float("inf"), []
    seen = set()
    while len(history) < trials:
        points = search.propose(min(batch, trials - len(history)))
        if not points:
            break
        for point in points:
            assert key_of(point) not in seen, "a point was proposed twice"
            seen.add(key_of(point))
        results = [(point, seconds(point)) for point in points]
        search.observe(results)
        for _, value in results:
            best = min(best, value if value is not None else best)
            history.append(best)
    return history


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_propose_each_point_once_and_survive_failures(name: str) -> None:
    history = _run(SEARCHES[name](ToySpace()), 40)
    assert history[-1] < 3.0


def test_the_whole_space_is_covered_and_then_there_is_nothing_left() -> None:
    space = ToySpace()
    search = GridSearch(space)
    history = _run(search, 10_000, 16)
    assert history[-1] == BEST
    assert search.propose(4) == []
    # 72 points with the reduction outside or inside, two more depths for those inside.
    assert len(history) >= 72


@pytest.mark.parametrize("name", ["annealing", "evolution"])
def test_guided_searches_find_the_best_in_a_third_of_the_space(name: str) -> None:
    assert min(_run(SEARCHES[name](ToySpace()), 40)) <= 1.3


def test_coordinate_descent_ends_in_a_point_better_than_its_neighbours() -> None:
    space = ToySpace()
    search = CoordinateDescent(space)
    search.observe([(space.default, seconds(space.default))])
    history = _run(search, 1000, 4)
    assert history[-1] == BEST
    assert search.propose(4) == []


def test_coordinate_descent_needs_a_start() -> None:
    assert CoordinateDescent(ToySpace()).propose(4) == []
