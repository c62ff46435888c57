"""Timing candidates: short samples in turns with the default, more of them while the machine is disturbed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tune import toy
from tests.tune.test_tuner import _task
from tilewright.target import Target
from tilewright.topi.schedule.choices import Choices
from tilewright.tune import runner
from tilewright.tune.builder import BuildRequest, build_candidate
from tilewright.tune.runner import Bench, Budget

BUDGET = Budget(samples=5, most=30)


@pytest.fixture(scope="module")
def bench() -> Bench:
    target = Target("native").replace(cores=1)
    kernel = _task().kernel
    program = toy.ToySpace().schedule(Choices({})).replace(name=kernel.func.name)
    return Bench(kernel.func, target, build_candidate(BuildRequest(kernel, target, program)), BUDGET)


class Machine:
    """A machine whose samples are as long as its script says: the default's and the candidate's factor in each turn."""

    def __init__(self, bench: Bench, script: Callable[[int], tuple[float, float]]) -> None:
        self.bench, self.script, self.turn = bench, script, 0

    def sample(self, call: object, number: int, clock: object) -> float:
        default, candidate = self.script(self.turn)
        if call is self.bench.default_call:
            return default
        self.turn += 1
        return candidate


@pytest.fixture
def measure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., runner.Timing]:
    program = toy.ToySpace().schedule(Choices({"rows": 4})).replace(name=bench.func.name)
    code = build_candidate(BuildRequest(_task().kernel, bench.target, program))
    bench._quickest_default = float("inf")

    def run(script: Callable[[int], tuple[float, float]]) -> runner.Timing:
        monkeypatch.setattr(runner, "_number", lambda call, seconds, clock: 1)
        monkeypatch.setattr(runner, "_sample", Machine(bench, script).sample)
        return bench.measure(code)

    return run


def test_a_quiet_machine_needs_few_samples(measure: Callable[..., runner.Timing]) -> None:
    found = measure(lambda turn: (1.0, 0.9))
    assert len(found.samples) == len(found.reference) == BUDGET.samples
    assert found.seconds / min(found.reference) == pytest.approx(0.9)


def test_a_disturbed_start_is_waited_for(measure: Callable[..., runner.Timing]) -> None:
    """While neighbours are busy the candidate looks slow, and no two samples agree."""
    found = measure(lambda turn: (1.5 + 0.1 * turn, 2.0 + 0.2 * turn) if turn < 10 else (1.0, 0.9))
    assert len(found.samples) == 13
    assert found.seconds / min(found.reference) == pytest.approx(0.9)


def test_a_steady_disturbance_is_known_by_the_default(measure: Callable[..., runner.Timing]) -> None:
    """All samples agree, but the default was quicker before: the machine is not what it was."""
    measure(lambda turn: (1.0, 1.0))
    found = measure(lambda turn: (1.4, 1.2) if turn < 20 else (1.0, 0.9))
    assert 20 < len(found.samples) < BUDGET.most
    assert found.seconds / min(found.reference) == pytest.approx(0.9)
    for_ever = measure(lambda turn: (1.4, 1.2))
    assert len(for_ever.samples) == BUDGET.most


def test_slow_candidates_get_no_more_time(measure: Callable[..., runner.Timing]) -> None:
    found = measure(lambda turn: (1.0, 2.0 + 0.3 * turn))
    assert len(found.samples) == BUDGET.samples
