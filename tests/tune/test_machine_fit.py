"""Fitting machine parameters: which value is taken, that equal code is timed once, and what rates of a core mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright.runtime.core.executor import Executable
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.tune import machine_fit
from tilewright.tune.machine_cases import _product
from tilewright.tune.machine_fit import PARAMETERS, MachineFit, Parameter, Trial, best_value
from tilewright.tune.machine_probes import CoreRates, core_values, measure_core
from tilewright.tune.turns import Comparison

NEOVERSE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
RATES = CoreRates(
    cycles=2.5e9,
    multiply_adds=4.9e9,
    dependent_multiply_adds=0.63e9,
    l2_bytes=49e9,
    memory_bytes=10e9,
    shared_memory_bytes=18e9,
)


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ({1: 1.2, 2: 1.0, 4: 1.1}, 1),
        ({1: 1.005, 2: 1.0, 4: 0.9}, 2),
        ({1: 0.9, 2: 1.0, 4: 0.9}, 2),
        ({1: 1.2, 2: 1.0, 4: 1.199, 8: 1.2}, 4),
    ],
    ids=["the best", "not worth it", "as it is", "the nearest of the best"],
)
def test_the_value_that_is_taken(speedups: dict[int, float], expected: int) -> None:
    trials = [Trial(value, speedup, 1) for value, speedup in speedups.items()]
    assert best_value(trials, 2 if expected != 4 else 3) == expected


def test_every_fitted_parameter_is_one_and_is_asked_around_its_shipped_value() -> None:
    shipped = cpu_parameters(NEOVERSE)
    for parameter in PARAMETERS:
        value = getattr(getattr(shipped, parameter.group), parameter.name)
        assert min(parameter.values) <= value <= max(parameter.values), parameter
        assert all(isinstance(item, type(value)) for item in parameter.values), parameter


def test_equal_code_is_timed_once_and_the_quickest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`many_rows` decides between two orders of loops: 60 rows are many for both of two values."""
    timed: list[tuple[Executable, Executable]] = []

    def compare(first: Executable, second: Executable, *, seconds: float, until_clear: bool) -> Comparison:
        timed.append((first, second))
        return Comparison(1.5, 1.0, ((1.5, 1.5), (1.5, 1.5)))

    monkeypatch.setattr(machine_fit, "compare_in_turns", compare)
    said: list[str] = []
    fit = MachineFit(Target("native"), 0.1, said.append)
    parameter = Parameter("product", "many_rows", (30, 50, 400), (_product(60, 256, 96),))
    trials = fit.fit(parameter)
    assert {trial.value: trial.speedup for trial in trials} == {30: 1.5, 50: 1.5, 400: 1.0}
    assert [trial.changed for trial in trials] == [1, 1, 0]
    assert len(timed) == 1 and len(said) == 3
    assert fit.changes == {"product": {"many_rows": 50}}, "the nearer one"
    with fit.parameters({"streams": {"count": 4}}):
        found = cpu_parameters(Target("native"))
        assert (found.product.many_rows, found.streams.count) == (50, 4)
    assert cpu_parameters(Target("native")).product.many_rows == 400


def test_what_is_not_clear_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(first: Executable, second: Executable, **options: object) -> Comparison:
        return Comparison(1.0, 1.0, ((1.3, 0.7), (0.8, 1.2)))

    monkeypatch.setattr(machine_fit, "compare_in_turns", compare)
    fit = MachineFit(Target("native"), 0.1)
    trials = fit.fit(Parameter("product", "many_rows", (30, 400), (_product(60, 256, 96),)))
    assert [trial.speedup for trial in trials] == [1.0, 1.0]
    assert not fit.changes


@pytest.mark.parametrize(("ratio", "is_taken"), [(1.2, True), (1.0, True), (0.8, False)])
def test_measured_rates_are_taken_unless_models_are_slower(
    ratio: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ((ratio, ratio), (ratio, ratio))
    monkeypatch.setattr(machine_fit, "compare_in_turns", lambda *models, **options: Comparison(1.0, 1.0, places))
    fit = MachineFit(Target("native"), 0.1)
    changes = {"product": {"many_rows": 30}}
    assert fit.accept(changes, [_product(60, 256, 96)]) == pytest.approx(ratio)
    assert fit.changes == (changes if is_taken else {})


def test_what_the_rates_of_a_core_mean() -> None:
    before = cpu_parameters(NEOVERSE).core
    found = core_values(RATES, 2, before)
    assert (found["fma_per_cycle"], found["fma_in_flight"]) == (2, 8)
    assert (found["l2_bytes_per_fma"], found["memory_bytes_per_cycle"]) == (10.0, 4.0)
    assert found["cores_to_saturate"] == before.cores_to_saturate, "two cores do not fill it"
    assert core_values(RATES, 8, before)["cores_to_saturate"] == 2
    disturbed = replace(RATES, shared_memory_bytes=5e9)
    assert core_values(disturbed, 8, before)["cores_to_saturate"] == 8, "less than one core: others were at work"


def test_a_core_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("tilewright.tune.machine_probes._LEAST_MEMORY", 1 << 20)
    rates = measure_core(Target("native").replace(l3_bytes=0, cores=1), said.append)
    assert 2e8 < rates.cycles < 2e10
    assert rates.cycles / 20 < rates.dependent_multiply_adds <= 1.1 * rates.multiply_adds
    assert min(rates.l2_bytes, rates.memory_bytes, rates.shared_memory_bytes) > 1e8
    assert said == [
        "cycles",
        "multiply-adds",
        "multiply-adds",
        "the second cache level",
        "memory",
        "memory, all cores",
    ]


def _names(parameters: Sequence[Parameter]) -> list[str]:
    return [f"{item.group}.{item.name}" for item in parameters]


def test_parameters_are_fitted_once() -> None:
    assert len(set(_names(PARAMETERS))) == len(PARAMETERS)
