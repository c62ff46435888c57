"""`tilewright calibrate`: measure this machine's processor and keep its machine parameters."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

from tilewright.cli.options import positive_number
from tilewright.support import settings
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress
from tilewright.support.text import human_seconds, table
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.target.machine.parameters import BAD_USER_TABLE, forget_tables, parameters_origin, user_table_path
from tilewright.target.machine.tables import Fit, Value, read_table, values_of, write_table
from tilewright.tune.machine_fit import CORE_CASES, PARAMETERS, Changes, MachineFit, Trial, user_table
from tilewright.tune.machine_probes import CoreRates, core_values, measure_core

DESCRIPTION = """\
Measure this machine: what its cores, caches and memory do, and which values of machine parameters make the quickest
code. What differs from the shipped values is kept for later compilations for this processor.

  tilewright calibrate                    a few minutes; nothing else should run meanwhile
  tilewright calibrate --dry-run          measure and print, keep nothing
  tilewright calibrate --only core,streams
  tilewright calibrate --reset            back to the shipped values

The setting TILEWRIGHT_MACHINES names the folder of the tables.
"""

_GROUPS = tuple(dict.fromkeys(["core", *(parameter.group for parameter in PARAMETERS)]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dry-run", action="store_true", help="print what was measured, keep nothing")
    parser.add_argument("--reset", action="store_true", help="delete this processor's table, measure nothing")
    parser.add_argument("--only", metavar="GROUPS", help=f"some of {', '.join(_GROUPS)}, comma-separated")
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=1.0,
        metavar="S",
        help="how long one comparison of two codes takes (default: 1; longer is surer)",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    target, folder = Target("native"), settings.MACHINES.get()
    if folder is None:
        raise UserError("there is no folder for tables: the setting TILEWRIGHT_MACHINES says none")
    path = user_table_path(target, folder)
    if options.reset:
        return _reset(path, target)
    chosen = _chosen(options.only)
    began = time.monotonic()
    print(f"{target.describe()}; its parameters are {parameters_origin(target)}")
    values, fits = _measured_before(path, chosen)
    fit = MachineFit(target, options.seconds, changes=values)
    rates = _measure(fit, chosen)
    if rates is not None:
        print(_rates(rates, target))
    shipped = _shipped_values(target)
    rows = [
        [f"{group}.{name}", f"{shipped[group][name]:g}", f"{value:g}"]
        for group, values in fit.changes.items()
        for name, value in values.items()
    ]
    print(table(["parameter", "shipped", "measured"], rows) if rows else "the shipped values are the best")
    taken = human_seconds(time.monotonic() - began)
    if options.dry_run:
        print(f"measured in {taken}; nothing was kept (--dry-run)")
        return 0
    measured = user_table(target, fit.changes, date.today().isoformat())
    write_table(replace(measured, fits={**measured.fits, **fits}), path)
    forget_tables()
    print(f"measured in {taken}; written to {path}")
    return 0


def _chosen(text: str | None) -> tuple[str, ...]:
    groups = tuple(word.strip() for word in text.split(",")) if text else _GROUPS
    for group in groups:
        if group not in _GROUPS:
            known = f"one of {', '.join(_GROUPS)}"
            raise UserError(f"there is no group '{group}' to measure", where="--only", hint=known)
    return groups


def _measured_before(path: Path, chosen: tuple[str, ...]) -> tuple[Changes, dict[str, Fit]]:
    """What is not measured anew: the other groups of the table that is there, and where they come from."""
    if not path.exists():
        return {}, {}
    before = read_table(path, BAD_USER_TABLE)
    groups = [group for group in before.values if group not in chosen]
    return {group: dict(before.values[group]) for group in groups}, {group: before.fits[group] for group in groups}


def _reset(path: Path, target: Target) -> int:
    if path.exists():
        path.unlink()
        forget_tables()
        print(f"deleted {path}; the parameters of {target.cpu} are {parameters_origin(target)} again")
    else:
        print(f"there is no table of {target.cpu}; its parameters are {parameters_origin(target)}")
    return 0


def _shipped_values(target: Target) -> dict[str, dict[str, Value]]:
    with settings.MACHINES.override(None):
        return values_of(cpu_parameters(target))


def _measure(fit: MachineFit, groups: tuple[str, ...]) -> CoreRates | None:
    """Fit what differs from the shipped values; gives the rates of a core if these were asked for."""
    target = fit.target
    parameters = [item for item in PARAMETERS if item.group in groups and (target.cores > 1 or not item.all_cores)]
    steps = sum(len(item.values) for item in parameters) + 7 * ("core" in groups)
    rates = None
    with Progress("measuring", total=steps) as line:
        fit.say = line.step
        if "core" in groups:
            with settings.MACHINES.override(None):
                before = cpu_parameters(target).core
            rates = measure_core(target, line.step)
            line.step("models with the rates of a core")
            found = core_values(rates, target.cores, before)
            changed = {name: value for name, value in found.items() if value != getattr(before, name)}
            speedup = fit.accept({"core": changed}, CORE_CASES) if changed else 1.0
            is_taken = changed.items() <= fit.changes.get("core", {}).items()
            print(f"core: {speedup:.3f}x{'' if is_taken else ', not taken'}", flush=True)
        for parameter in parameters:
            print(_line(f"{parameter.group}.{parameter.name}", fit.fit(parameter)), flush=True)
    return rates


def _line(name: str, trials: list[Trial]) -> str:
    """What each value of a parameter makes of its models."""
    if not any(trial.changed for trial in trials):
        return f"{name}: all values make the same code"
    return f"{name}: " + ", ".join(f"{trial.value:g} {trial.speedup:.3f}x" for trial in trials)


def _rates(rates: CoreRates, target: Target) -> str:
    """What a core does, for people."""
    arithmetic = rates.multiply_adds * target.lanes(32) * 2
    bytes_read = (rates.l2_bytes, rates.memory_bytes, rates.shared_memory_bytes)
    near, memory, shared = (f"{rate / 1e9:.1f} GB/s" for rate in bytes_read)
    return (
        f"a core: {rates.cycles / 1e9:.2f} GHz, {arithmetic / 1e9:.1f} GFLOP/s, {near} from the second cache level, "
        f"{memory} from memory (all cores: {shared})"
    )
