"""Timing candidates: short samples in pairs with the default, more of them while they do not tell which is quicker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tune import toy
from tests.tune.test_device_measure import product as product_model
from tests.tune.test_tuner import _task
from tilewright.compiler import Compilation
from tilewright.target import Target
from tilewright.topi.schedule.choices import Choices
from tilewright.tune import runner
from tilewright.tune.builder import BuildRequest, build_candidate
from tilewright.tune.runner import Bench, Budget
from tilewright.tune.task import Task, extract_tasks

BUDGET = Budget(samples=8, seconds=0.4)
SECONDS = 2e-4
"""What the default takes on a quiet machine."""


@pytest.fixture(scope="module")
def bench() -> Bench:
    target = Target("native").replace(cores=1)
    kernel = _task().kernel
    program = toy.ToySpace().schedule(Choices({})).replace(name=kernel.func.name)
    return Bench(kernel.func, target, build_candidate(BuildRequest(kernel, target, program)), BUDGET)


class Machine:
    """A machine on which a candidate takes so many times as long as the default, and every call as `slowness` says."""

    def __init__(self, bench: Bench, ratio: float, slowness: Callable[[float], float]) -> None:
        self.bench, self.ratio, self.slowness = bench, ratio, slowness
        self.now, self.calls = 0.0, 0

    def sample(self, call: runner._Call, number: int, clock: object) -> float:
        is_default = call.function is self.bench.default_call.function
        taken = SECONDS * (1.0 if is_default else self.ratio) * self.slowness(self.now)
        self.now += taken
        self.calls += 1
        return taken


Measure = Callable[..., tuple[float, Machine]]


@pytest.fixture
def measure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Measure:
    program = toy.ToySpace().schedule(Choices({"rows": 4})).replace(name=bench.func.name)
    code = build_candidate(BuildRequest(_task().kernel, bench.target, program))

    def run(ratio: float, slowness: Callable[[float], float]) -> tuple[float, Machine]:
        machine = Machine(bench, ratio, slowness)
        clocks = SimpleNamespace(monotonic=lambda: machine.now, thread_time=None, perf_counter=None)
        monkeypatch.setattr(runner, "time", clocks)
        monkeypatch.setattr(runner, "_number", lambda call, seconds, clock: 1)
        monkeypatch.setattr(runner, "_sample", machine.sample)
        found = bench.measure(code)
        assert found.seconds > 0 and found.reference > 0
        return found.seconds / found.reference, machine

    return run


def neighbours(seed: int, share: float) -> Callable[[float], float]:
    """Somebody else's work on the core makes everything 1.4 times as long, for milliseconds, in a part of all time."""
    random = np.random.default_rng(seed)
    ends, busy = 0.0, False

    def slowness(now: float) -> float:
        nonlocal ends, busy
        while now >= ends:
            busy = not busy
            ends += random.exponential(2e-3 * (share if busy else 1 - share))
        return float((1.4 if busy else 1.0) * np.exp(0.01 * random.standard_normal()))

    return slowness


def test_a_quiet_machine_needs_few_samples(measure: Measure) -> None:
    ratio, machine = measure(0.9, lambda now: 1.0)
    assert ratio == pytest.approx(0.9)
    assert machine.calls == 2 * BUDGET.samples * 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.98])
def test_neighbours_do_not_change_what_is_quicker(measure: Measure, share: float) -> None:
    """Also where hardly any sample is free of them: the quickest of each would be luck."""
    for seed in range(8):
        ratio, _ = measure(0.97, neighbours(seed, share))
        assert ratio == pytest.approx(0.97, abs=0.01)


def test_a_machine_that_gets_slower_is_no_fault_of_the_candidate(measure: Measure) -> None:
    ratio, _ = measure(0.95, lambda now: 1.0 + now)
    assert ratio == pytest.approx(0.95, abs=0.002)


def test_slow_candidates_get_no_more_time(measure: Measure) -> None:
    ratio, machine = measure(2.0, neighbours(0, 0.5))
    assert ratio == pytest.approx(2.0, abs=0.1)
    assert machine.calls <= 4 * BUDGET.samples


def test_what_samples_do_not_tell_ends_in_time(measure: Measure) -> None:
    random = np.random.default_rng(0)
    _, machine = measure(1.0, lambda now: float(random.uniform(1.0, 3.0)))
    assert BUDGET.seconds <= machine.now < 1.1 * BUDGET.seconds


def _product() -> Task:
    """A product with constant weights."""
    (found,) = extract_tasks(Compilation(product_model(32), threads=1).lowered)
    return found


@pytest.fixture(scope="module")
def product() -> Bench:
    task = _product()
    return Bench(task.kernel.func, task.target, build_candidate(task.request({})), BUDGET)


def test_copies_of_weights_fill_a_place(product: Bench) -> None:
    place, other = product._places
    call = product.default_call
    assert call.constant_bytes == place.nbytes == other.nbytes
    for memory in (place, other):
        call.move_to(memory)
        first, last = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        assert len(call._sets) > 1, "small weights have copies"
        for number, array in enumerate(call.arranged):
            addresses = [slots[number] for slots, _ in call._sets]
            is_constant = number in product.constants
            assert len(set(addresses)) == (len(addresses) if is_constant else 1)
            assert all((first <= address < last) == is_constant for address in addresses)
            for _, arrays in call._sets:
                np.testing.assert_array_equal(arrays[number], array)
    call.run(3)
    for number in product.results:
        np.testing.assert_allclose(product.arrays[number], product.right[number], rtol=1e-6)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_place_that_is_bad_for_whatever_lies_there_does_not_count(
    product: Bench, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """One of both places makes everything slower by a twentieth."""
    [number, *_] = product.constants
    calls = 0

    def sample(call: runner._Call, times: int, clock: object) -> float:
        nonlocal calls
        calls += 1
        is_default = call.function is product.default_call.function
        is_bad = np.shares_memory(call._sets[0][1][number], product._places[bad])
        return SECONDS * (1.0 if is_default else 0.98) * (1.05 if is_bad else 1.0)

    monkeypatch.setattr(runner, "_number", lambda call, seconds, clock: 1)
    monkeypatch.setattr(runner, "_sample", sample)
    found = product.measure(build_candidate(_product().request({})))
    assert found.seconds / found.reference == pytest.approx(0.98)
    assert calls == 2 * BUDGET.samples * 2
