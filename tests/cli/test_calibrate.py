"""`tilewright calibrate`: what it measures, writes, leaves alone and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.cli import calibrate
from tilewright.cli.main import main
from tilewright.support import settings
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.target.machine.parameters import user_table_path
from tilewright.target.machine.tables import Fit, read_table, write_table
from tilewright.tune.machine_cases import MachineCase
from tilewright.tune.machine_fit import Changes, MachineFit, Parameter, Trial
from tilewright.tune.machine_probes import CoreRates

Captured = pytest.CaptureFixture[str]
RATES = CoreRates(3e9, 3e9, 1e9, 30e9, 9e9, 9e9)


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose rates are known, and on which one value of a parameter is better."""

    def fit(self: MachineFit, parameter: Parameter) -> list[Trial]:
        self.changes.setdefault(parameter.group, {})[parameter.name] = parameter.values[-1]
        return [Trial(value, 1.0 + number / 10, 1) for number, value in enumerate(parameter.values)]

    def accept(self: MachineFit, changes: Changes, cases: Sequence[MachineCase]) -> float:
        self.changes.update(changes)
        return 1.1

    monkeypatch.setattr(MachineFit, "fit", fit)
    monkeypatch.setattr(MachineFit, "accept", accept)
    monkeypatch.setattr(calibrate, "measure_core", lambda target, say: RATES)


def test_what_was_measured_is_kept_and_used(capsys: Captured, tmp_path: Path) -> None:
    target = Target("native")
    with settings.MACHINES.override(tmp_path):
        assert main(["calibrate"]) == 0
        found = cpu_parameters(target)
    text = capsys.readouterr().out
    path = user_table_path(target, tmp_path)
    assert f"written to {path}" in text
    assert "a core: 3.00 GHz" in text and "30.0 GB/s from the second cache level" in text
    assert "streams.count" in text and "core: 1.100x\n" in text
    assert (found.core.fma_per_cycle, found.core.fma_in_flight) == (1, 3)
    assert found.streams.count == 8
    fit = read_table(path, "").fits["streams"]
    assert (fit.by, fit.on) == ("tilewright calibrate", target.describe())


def test_what_is_not_measured_again_stays(capsys: Captured, tmp_path: Path) -> None:
    path = user_table_path(Target("native"), tmp_path)
    with settings.MACHINES.override(tmp_path):
        main(["calibrate", "--only", "core"])
        before = read_table(path, "")
        write_table(replace(before, fits={"core": Fit("tilewright calibrate", "another day", "2026-01-01")}), path)
        main(["calibrate", "--only", "streams"])
    after = read_table(path, "")
    assert after.values == {**before.values, "streams": {"count": 8}}
    assert after.fits["core"].when == "2026-01-01" != after.fits["streams"].when


def test_a_dry_run_keeps_nothing(capsys: Captured, tmp_path: Path) -> None:
    with settings.MACHINES.override(tmp_path):
        assert main(["calibrate", "--dry-run", "--only", "streams"]) == 0
    text = capsys.readouterr().out
    assert "nothing was kept" in text and "a core:" not in text
    assert "product." not in text
    assert not list(tmp_path.iterdir())


def test_reset_goes_back_to_the_shipped_values(capsys: Captured, tmp_path: Path) -> None:
    target = Target("native")
    with settings.MACHINES.override(None):
        shipped = cpu_parameters(target)
    with settings.MACHINES.override(tmp_path):
        main(["calibrate", "--only", "core"])
        assert cpu_parameters(target) != shipped
        assert main(["calibrate", "--reset"]) == 0
        assert cpu_parameters(target) == shipped
        assert "deleted" in capsys.readouterr().out
        assert main(["calibrate", "--reset"]) == 0
        assert "there is no table" in capsys.readouterr().out


def test_reset_deletes_a_table_that_cannot_be_read(capsys: Captured, tmp_path: Path) -> None:
    path = user_table_path(Target("native"), tmp_path)
    path.write_text("{")
    with settings.MACHINES.override(tmp_path):
        assert main(["calibrate", "--reset"]) == 0
    assert not path.exists()


def test_groups_that_are_none_are_refused(capsys: Captured, tmp_path: Path) -> None:
    with settings.MACHINES.override(tmp_path):
        assert main(["calibrate", "--only", "core,colour"]) == 1
    assert "there is no group 'colour' to measure" in capsys.readouterr().err


def test_without_a_folder_there_is_nowhere_to_write(capsys: Captured) -> None:
    with settings.MACHINES.override(None):
        assert main(["calibrate"]) == 1
    assert "TILEWRIGHT_MACHINES says none" in capsys.readouterr().err
