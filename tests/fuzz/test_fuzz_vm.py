"""A few mutated programs and libraries with every run of the tests; `make fuzz-vm` and `fuzz-libraries` have more."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import children, libraries, vm_programs, vm_victims
from tests.fuzz.vm_mutations import mutated
from tilewright.runtime.vm.codec import encode
from tilewright.runtime.vm.runner import ProgramRunner


def test_mutated_programs_raise_our_own_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what crashed would be seen."""
    before = signal.signal(signal.SIGALRM, vm_programs._stop)
    monkeypatch.setattr(vm_programs, "ENDLESS", 0.5)
    try:
        outcomes = set()
        victims = vm_victims.small()
        for seed in range(300):
            random = np.random.default_rng(seed)
            exe, inputs = victims[seed % len(victims)]
            assert isinstance(exe.runner, ProgramRunner)
            outcomes.add(vm_programs.run_one(exe, inputs, mutated(exe.runner.machine.program, random)))
        assert {"refused", "ran", "errors"} <= outcomes
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_victims_are_good_programs() -> None:
    for exe, inputs in vm_victims.small():
        assert isinstance(exe.runner, ProgramRunner)
        program = exe.runner.machine.program
        assert vm_programs.run_one(exe, inputs, encode(program)) == "ran"


def test_mutations_are_repeatable_and_various() -> None:
    exe, _ = vm_victims.small()[0]
    assert isinstance(exe.runner, ProgramRunner)
    made = [mutated(exe.runner.machine.program, np.random.default_rng(seed)) for seed in (*range(60), 5)]
    assert made[5] == made[-1]
    assert len(set(made)) > 50


def test_damaged_libraries_are_refused() -> None:
    run = libraries.prepare()
    outcomes = {run(seed) for seed in range(1, 80)}
    assert {"damaged refused", "described refused", "described loaded"} <= outcomes


CHILD = """
import os, sys, time
from tests.fuzz.children import run_campaign
def work():
    def run(seed):
        if seed == 3: os.abort()
        if seed == 5: raise ValueError("not ours")
        if seed == 7: time.sleep(60)
        return "fine"
    return run
sys.exit(run_campaign("{module}", "things", 9, work, 2.0))
"""


def test_crashes_errors_and_hangs_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_campaign.py").write_text(CHILD.replace("{module}", "some_campaign"))
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    failures, outcomes = children.fuzz("some_campaign", range(9), 2.0)
    assert [seed for seed, _ in failures] == [3, 5, 7]
    assert "exit code -6" in failures[0][1]
    assert "ValueError: not ours" in failures[1][1]
    assert "not done after 2 s" in failures[2][1]
    assert outcomes == {"fine": 6}
