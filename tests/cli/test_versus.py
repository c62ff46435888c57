"""Ours against peers in pairs: what is as quick comes out at 1.00 on a restless machine; what counts, and what not."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import pytest

from tests.tune.weather import Weather
from tilewright.cli import versus
from tilewright.tune.turns import PLACES, SAMPLE_SECONDS

SEEDS = range(12)
_SECONDS = 0.003


class Timed:
    """A competitor on a machine of made-up speed, which lies somewhere in memory."""

    def __init__(self, weather: Weather, seconds: float, place: float = 1.0) -> None:
        self.weather, self.seconds = weather, seconds * place

    def sample(self, count: int) -> list[float]:
        times = []
        for _ in range(count + 1):
            began = self.weather.now
            self.weather.run(self.seconds)
            times.append((self.weather.now - began) * 1e3)
        return times[1:]


class Given:
    """A competitor whose samples are given."""

    def __init__(self, *samples: float) -> None:
        self._samples = itertools.cycle(samples)

    def sample(self, count: int) -> list[float]:
        return [next(self._samples)]


class Watch:
    """Says for each pair whether nobody was there."""

    def __init__(self, *alone: bool) -> None:
        self._alone = iter(alone)

    def look(self) -> float:
        return 1.0

    def was_alone(self, *looks: float) -> bool:
        assert looks == (1.0, 1.0)
        return next(self._alone)


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is looked at."""
    ticks = itertools.count()
    return lambda: next(ticks) * seconds


def standing(seed: int, gain: float = 1.0, rounds: int = 10) -> versus.Standing:
    """Of ours, as quick at all places but for luck, against a peer that takes so many times as long, and a slow one."""
    weather = Weather(seed)
    peers = {"peer": Timed(weather, gain * _SECONDS), "slow": Timed(weather, 4 * _SECONDS)}
    return versus.against(
        lambda number: Timed(weather, _SECONDS, weather.place()), peers, rounds, clock=lambda: weather.now
    )


@pytest.mark.parametrize("gain", [1.0, 1.05])
def test_ratios_are_right_to_a_percent_on_a_machine_that_is_not(gain: float) -> None:
    found = [standing(seed, gain).peers["peer"] for seed in SEEDS]
    errors = [abs(item.ratio / gain - 1) for item in found]
    assert max(errors) < 0.01 and statistics.median(errors) < 0.005
    assert abs(statistics.fmean(item.ratio for item in found) / gain - 1) < 0.002, "no bias to either side"
    assert sum(item.bounds[0] <= gain <= item.bounds[1] for item in found) >= len(SEEDS) - 1


def test_rounds_of_blocks_would_be_off_by_percents() -> None:
    """The made-up noise is as bad as it is meant to be: medians of blocks of 150 ms, in turns, are worse than pairs."""
    errors = []
    for seed in SEEDS:
        weather = Weather(seed)
        first, second = Timed(weather, _SECONDS), Timed(weather, _SECONDS)
        blocks = [(first.sample(50), second.sample(50)) for _ in range(10)]
        one, other = (statistics.median(itertools.chain.from_iterable(times)) for times in zip(*blocks, strict=True))
        errors.append(abs(one / other - 1))
    assert max(errors) > 0.02


def test_ours_is_moved_and_every_sample_follows_the_other() -> None:
    order: list[str] = []

    class Named(Given):
        def __init__(self, name: str) -> None:
            super().__init__(1e3 * SAMPLE_SECONDS * 2)
            self.name = name

        def sample(self, count: int) -> list[float]:
            order.append(self.name)
            return super().sample(count)

    places = []

    def ours(place: int) -> Named:
        places.append(place)
        return Named(f"ours{place}")

    # Each look at the clock takes six tenths of a round: a round has two pairs.
    found = versus.against(ours, {"a": Named("a"), "b": Named("b")}, PLACES, clock=ticking(versus._ROUND_SECONDS * 0.6))
    assert places == list(range(PLACES))
    assert order[:3] == ["ours0", "a", "b"], "the first runs say how long a run is"
    names = order[3:]
    assert names[:8] == ["a", "ours0"] * 2 + ["b", "ours0"] * 2
    assert names[8:16] == ["b", "ours1"] * 2 + ["a", "ours1"] * 2
    assert [len(place) for place in found.peers["a"].places] == [2] * PLACES
    assert found.alone == 1.0 and len(found.ours) == 4 * PLACES


def test_what_is_short_runs_several_times_a_sample() -> None:
    counts = []

    class Counting(Given):
        def sample(self, count: int) -> list[float]:
            counts.append(count)
            return super().sample(count)

    versus.against(lambda place: Counting(1e3 * SAMPLE_SECONDS / 7.5), {}, 2)
    assert counts == [3, 8, 8], "ours is timed where there are no peers, too"


def test_a_peer_that_is_far_behind_has_one_pair_a_round() -> None:
    found = standing(0, 1.1)
    assert found.peers["slow"].ratio > versus._CLOSE * found.peers["peer"].ratio
    first = len(found.peers["slow"].ratios) - 9
    assert 1 < first < 0.2 * len(found.peers["peer"].ratios), "in the first round nobody knows"


def _watched(alone: list[bool], least: int, monkeypatch: pytest.MonkeyPatch) -> versus.Standing:
    """Rounds of one pair: alone, the peer takes twice as long as ours, and disturbed three times."""
    monkeypatch.setattr(versus, "_LEAST_ALONE", least)
    peer = Given(2.0, *(2.0 if quiet else 3.0 for quiet in alone))
    # A round is over after one pair.
    clock = ticking(versus._ROUND_SECONDS * 1.5)
    return versus.against(lambda place: Given(1.0), {"p": peer}, len(alone), watch=Watch(*alone), clock=clock)


def test_disturbed_pairs_do_not_count_where_there_are_enough_others(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [True, False, True, False, True, True]
    found = _watched(alone, 4, monkeypatch)
    assert found.peers["p"].ratios == (2.0,) * 4 and found.alone == pytest.approx(4 / 6)
    assert sorted(_watched(alone, 5, monkeypatch).peers["p"].ratios) == [2.0] * 4 + [3.0] * 2
