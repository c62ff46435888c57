"""The comparison of searches, on made-up times: each candidate is measured once, curves and summaries are right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import pytest

from bench import tuning
from tests.tune.test_tuner import FakeMeasurer, _task
from tilewright.lower.database import Database
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import LocalMeasurer
from tilewright.tune.tuner import TuneOptions

QUICK = {
    "random": TuneOptions(search="random"),
    "genetic": TuneOptions(search="genetic"),
    "annealing, rank": TuneOptions(search="annealing", model=RandomModel),
    "annealing, regression": TuneOptions(search="annealing", model=RandomModel),
    "evolution, rank": TuneOptions(search="evolution", model=RandomModel),
}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[tuning.Measured, FakeMeasurer]]:
    measurer = FakeMeasurer()
    with Database(tmp_path / "t.db") as database:
        yield tuning.Measured(_task(), database, cast(LocalMeasurer, measurer)), measurer


def test_a_candidate_is_measured_once(asked: tuple[tuning.Measured, FakeMeasurer]) -> None:
    measured, measurer = asked
    first = tuning.run_search(measured, QUICK["random"], 20)
    again = tuning.run_search(measured, QUICK["random"], 20)
    assert first.best == again.best and len(first.best) == 20
    assert len(measurer.asked) == measured.fresh == 20


def test_a_small_space_ends_the_search(asked: tuple[tuning.Measured, FakeMeasurer]) -> None:
    curve = tuning.run_search(asked[0], TuneOptions(search="grid"), 1000)
    assert 72 <= len(curve.best) < 1000
    assert curve.best[-1] == max(curve.best) > 1.0


def test_summary_and_plot(asked: tuple[tuning.Measured, FakeMeasurer]) -> None:
    found = {name: [tuning.run_search(asked[0], base, 16)] for name, base in QUICK.items()}
    summary = tuning._summary([found], "random")
    assert summary["speed_up"] == round(found["random"][0].best[-1], 4)
    assert summary["trials_to_random_best"] == found["random"][0].best.index(found["random"][0].best[-1]) + 1
    plot = ElementTree.fromstring(tuning._plot({"task": found}, 16))
    lines = [item for item in plot.iter() if item.tag.endswith("polyline")]
    assert len(lines) == len(tuning.SEARCHES)
    assert all(len(line.attrib["points"].split()) == 16 for line in lines)


def test_curves() -> None:
    curve = tuning.Curve([0.5, 1.0, 1.0, 1.2], 0.0)
    assert [curve.trials_to(level) for level in (0.5, 1.0, 1.1, 2.0)] == [1, 2, 4, None]
