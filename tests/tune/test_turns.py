"""Models that run in turns: what can be told from noise is told, nothing else is, and chunks are one measurement."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.integration.small_models import classifier
from tests.tune.weather import Weather
from tilewright.compiler import Compilation
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.executor import Executable
from tilewright.tune import turns
from tilewright.tune.turns import Comparison, Times, compare_in_turns, compared, time_in_chunks, time_in_turns

SEEDS = range(12)


class Model:
    """Stands for an executable: takes so long wherever it lies, and a little more or less where it lies now."""

    threads = 2
    input_info = (TensorInfo("x", (1,), "float32"),)

    def __init__(self, weather: Weather, seconds: float) -> None:
        self.weather, self.seconds = weather, seconds
        self.place = weather.place()

    def __call__(self, *arrays: object) -> None:
        self.weather.run(self.seconds * self.place)


def _compared(seed: int, gain: float, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Comparison:
    """Of a model of 30 ms, and of another form of it that is so many times as quick."""
    weather = Weather(seed)
    monkeypatch.setattr(turns, "_clock", lambda model: lambda: weather.now)
    monkeypatch.setattr(turns, "elsewhere", lambda model: Model(weather, model.seconds))
    monkeypatch.setattr(turns, "MOST_PAIRS", 30)
    first, second = (cast(Executable, Model(weather, seconds)) for seconds in (0.03, 0.03 / gain))
    return compare_in_turns(first, second, **options)


@pytest.mark.parametrize(("gain", "is_quicker"), [(1.0, False), (0.98, False), (1.03, True)])
def test_only_what_is_quicker_is_said_to_be(gain: float, is_quicker: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [_compared(seed, gain, monkeypatch) for seed in SEEDS]
    assert [item.is_quicker for item in found] == [is_quicker] * len(SEEDS)
    for item in found:
        assert abs(item.ratio - gain) < 0.015
        assert len(item.places) == turns.PLACES and len(item.ratios) == 30 * turns.PLACES
        assert item.bounds[0] <= item.ratio <= item.bounds[1]
    # The truth is between the bounds, but for luck.
    assert sum(item.bounds[0] <= gain <= item.bounds[1] for item in found) >= len(SEEDS) - 2


def test_runs_that_follow_their_own_are_not_compared_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are large are in a cache after a run, and out of it after a run of the other form."""
    now, last, order = 0.0, None, []

    class Large:
        threads, input_info = 1, Model.input_info

        def __call__(self, *arrays: object) -> None:
            nonlocal now, last
            order.append(self)
            now, last = now + (0.02 if last is self else 0.03), self

    monkeypatch.setattr(turns, "_clock", lambda model: lambda: now)
    first, second = (cast(Executable, Large()) for _ in range(2))
    pairs = turns._pairs(first, second, (), 0.0)
    assert len(pairs) == turns.PAIRS and len(order) == 2 * (3 + turns.PAIRS)
    assert compared([pairs]).ratios[1:] == (1.0,) * (turns.PAIRS - 1), "but for the first, which follows the warm-up"


def test_the_median_of_each_alone_would_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up noise is as bad as meant: without pairs, equal forms differ by more than is worth a change."""
    found = [_compared(seed, 1.0, monkeypatch) for seed in SEEDS]
    assert max(abs(item.first / item.second - 1) for item in found) > 1.5 * (turns.WORTH - 1)


def test_what_is_clear_ends_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    for gain in (0.9, 1.1):
        assert len(_compared(0, gain, monkeypatch, until_clear=True).places) == turns._LEAST_PLACES
    assert len(_compared(0, 1.0, monkeypatch, until_clear=True).places) == turns.PLACES


def test_all_places_must_agree() -> None:
    assert Comparison(1.0, 1.0, ((1.05,) * 40, (1.04,) * 40)).is_quicker
    assert not Comparison(1.0, 1.0, ((1.05,) * 40, (1.04,) * 40, (0.99,) * 6)).is_quicker
    assert not Comparison(1.0, 1.0, ((1.005,) * 40, (1.005,) * 40)).is_quicker, "quicker, but not worth it"
    few = Comparison(1.0, 1.0, ((1.05, 0.99, 1.04),))
    assert few.bounds == (0.99, 1.05) and not few.is_quicker and not few.is_clear


@pytest.fixture(scope="module")
def models() -> list[Executable]:
    compilation = Compilation(bytes(classifier().SerializeToString()), threads=1)
    return [compilation.executable() for _ in range(2)]


def test_for_real(models: list[Executable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    seen = []
    moved = turns.elsewhere

    def elsewhere(model: Executable) -> Executable:
        made = moved(model)
        seen.append((model.artifact.constants.ctypes.data, made.artifact.constants.ctypes.data))
        np.testing.assert_array_equal(made.artifact.constants, model.artifact.constants)
        assert made.threads == model.threads
        return made

    monkeypatch.setattr(turns, "elsewhere", elsewhere)
    found = compare_in_turns(models[0], models[1])
    assert [len(place) for place in found.places] == [turns.PAIRS] * turns.PLACES
    assert found.first > 0 and found.second > 0 and 0.2 < found.ratio < 5
    assert len(seen) == 2 * (turns.PLACES - 1) and all(before != after for before, after in seen)
    times = time_in_turns(models, lambda row: (row.kernel.symbol,))
    assert times.profiles == 2 * turns.TURNS and times.parts[0].keys() == times.surely[1].keys()
    assert times.parts[0] == times.surely[0], "the first is what the others are measured by"
    assert all(times.parts[1][name] <= times.surely[1][name] for name in times.parts[1])


def test_a_clock_that_stands_still_is_no_crash(models: list[Executable], monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a thread may advance in steps that are longer than a run."""
    monkeypatch.setattr(turns, "_clock", lambda model: lambda: 0.0)
    monkeypatch.setattr(turns, "SAMPLE_SECONDS", 0.0)
    assert compare_in_turns(models[0], models[1]).ratio == 1.0


def test_chunks_are_brought_to_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is twice as slow in the second chunk; the parts of models are what their numbers say."""
    sizes: list[int] = []

    def timed(models: list[int], parts: object, seconds: object) -> Times:
        speed = 1.0 + len(sizes)
        sizes.append(len(models))
        known = tuple({"a": speed * number, "new": 7.0} if number > 1 else {"a": speed * number} for number in models)
        surely = tuple({name: 1.5 * value for name, value in item.items()} for item in known[1:])
        return Times(known, (known[0], *surely), tuple(10 * speed * number for number in models), len(models))

    monkeypatch.setattr(turns, "time_in_turns", timed)
    makers: Any = [lambda number=number: number for number in (2, 3, 4, 5, 6)]
    found = time_in_chunks(cast(Any, 1), makers, 3, lambda row: ())
    assert sizes == [3, 3, 2] and found.profiles == 8
    assert [item["a"] for item in found.parts] == [1, 2, 3, 4, 5, 6]
    assert [item["a"] for item in found.surely] == [1, 3, 4.5, 6, 7.5, 9]
    assert [item["new"] for item in found.parts[1:]] == [7.0] * 5, "the first has none: nothing to bring it to"
    assert list(found.whole) == [10, 20, 30, 40, 50, 60]
    # Where not even two fit, there are two; and without others there is the first alone.
    sizes.clear()
    assert len(time_in_chunks(cast(Any, 1), makers, 1, lambda row: ()).parts) == 6 and sizes == [2] * 5
    sizes.clear()
    assert len(time_in_chunks(cast(Any, 1), [], 4, lambda row: ()).parts) == 1 and sizes == [1]
