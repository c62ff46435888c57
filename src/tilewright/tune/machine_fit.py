"""Fitting machine parameters: each is tried with several values on small models, and the quickest value is kept.

A value matters only where it changes code: a model is timed once for each code that it gets, in pairs of runs with the
code that it has now (`tune/turns.py`). A value must be worth it over all models of its parameter, or nothing changes;
among equally good ones the nearest to the present one is taken.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tilewright import front
from tilewright.runtime.core.executor import Executable
from tilewright.support import settings
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.target.machine.parameters import forget_tables, user_table_path
from tilewright.target.machine.tables import Fit, Processors, Table, Value, merged, values_of, write_table
from tilewright.tune.machine_cases import CONVOLUTIONS, PRODUCTS, ROWS, SMALL, MachineCase
from tilewright.tune.turns import WORTH, compare_in_turns

Changes = dict[str, dict[str, Value]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that is fitted by timing: values to try, the models that show it, on one core or all."""

    group: str
    name: str
    values: tuple[Value, ...]
    cases: tuple[MachineCase, ...]
    all_cores: bool = False


PARAMETERS = (
    Parameter("parallel", "least_work", tuple(1 << power for power in range(11, 19)), SMALL, all_cores=True),
    Parameter("streams", "count", (1, 2, 4, 8), ROWS),
    Parameter("register_tile", "column_load", (1.0, 2.0, 3.0, 5.0), (*ROWS, *PRODUCTS, *CONVOLUTIONS)),
    Parameter("register_tile", "column", (0.75, 1.5, 3.0), PRODUCTS),
    Parameter("register_tile", "fetched_column", (1.0, 1.5, 2.5, 4.0), PRODUCTS),
    Parameter("product", "weights_share", (0.125, 0.25, 0.5), PRODUCTS),
    Parameter("product", "rows_share", (0.2, 0.375, 0.6), PRODUCTS),
    Parameter("product", "many_rows", (50, 150, 400, 1000), PRODUCTS),
    Parameter("prefetch", "operands_share", (0.3, 0.625, 0.9), PRODUCTS),
    Parameter("winograd", "least_gain", (1.0, 1.15, 1.35, 1.7, 2.5), CONVOLUTIONS),
    Parameter("winograd", "group_share", (0.25, 0.5, 0.75), CONVOLUTIONS),
)
"""In the order of fitting: those whose effect is largest come first, and what they become holds for the rest."""

CORE_CASES = (*ROWS, *PRODUCTS, *CONVOLUTIONS)
"""Models that show whether parameters of a core that follow from its rates are of use."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a value makes of a parameter's models: how many times as quick they are together, and how many changed."""

    value: Value
    speedup: float
    changed: int


@dataclass(slots=True)
class MachineFit:
    """Parameters of this machine's processor under measurement; `changes` are what was found so far."""

    target: Target
    seconds: float
    """How long one comparison takes, about."""
    say: Callable[[str], None] = field(default=lambda text: None)
    """Where progress goes."""
    changes: Changes = field(default_factory=dict)

    def try_values(self, parameter: Parameter) -> list[Trial]:
        """Time a parameter's models with each of its values; the present value is one of the trials."""
        present = self._present(parameter)
        times = [_CaseTimes(case, self, parameter.all_cores) for case in parameter.cases]
        trials = []
        for value in sorted({*parameter.values, present}):
            self.say(f"{parameter.group}.{parameter.name} = {value}")
            ratios = [case.speedup({parameter.group: {parameter.name: value}}) for case in times]
            trials.append(Trial(value, _mean(ratios), sum(ratio is not None for ratio in ratios)))
        return trials

    def fit(self, parameter: Parameter) -> list[Trial]:
        """Try a parameter's values and keep the best for what follows."""
        trials, present = self.try_values(parameter), self._present(parameter)
        best = best_value(trials, present)
        if best != present:
            self.changes.setdefault(parameter.group, {})[parameter.name] = best
        return trials

    def accept(self, changes: Changes, cases: Sequence[MachineCase]) -> float:
        """Take over values that were measured by themselves, unless models are slower for it; gives the speed-up."""
        speedup = _mean([_CaseTimes(case, self, all_cores=False).speedup(changes) for case in cases])
        if speedup > 1 / WORTH:
            self.changes = {group: dict(values) for group, values in merged(self.changes, changes).items()}
        return speedup

    def _present(self, parameter: Parameter) -> Value:
        with self.parameters({}):
            return values_of(cpu_parameters(self.target))[parameter.group][parameter.name]

    @contextmanager
    def parameters(self, extra: Changes) -> Iterator[None]:
        """Compile with what was found so far and some more, and without what others have tuned."""
        with tempfile.TemporaryDirectory(prefix="tilewright-machine-") as folder:
            place = Path(folder)
            table = user_table(self.target, merged(self.changes, extra), "trial")
            write_table(table, user_table_path(self.target, place))
            with settings.MACHINES.override(place), settings.DATABASE.override(None):
                try:
                    yield
                finally:
                    forget_tables()


class _CaseTimes:
    """The codes that one model gets from values of parameters, and how quick each is against the present one."""

    def __init__(self, case: MachineCase, fit: MachineFit, all_cores: bool) -> None:
        self._fit, self._module = fit, case.module()
        self._threads = None if all_cores else 1
        self._present = self._compile({})
        self._speedups: dict[str, float | None] = {_code(self._present): None}

    def speedup(self, changes: Changes) -> float | None:
        """How many times as quick changes make the model, 1 where that is not clear; None if it has the same code."""
        model = self._compile(changes)
        code = _code(model)
        if code not in self._speedups:
            found = compare_in_turns(self._present, model, seconds=self._fit.seconds, until_clear=True)
            self._speedups[code] = found.ratio if found.is_clear else 1.0
        return self._speedups[code]

    def _compile(self, changes: Changes) -> Executable:
        with self._fit.parameters(changes):
            return front.compile(self._module, target=self._fit.target, threads=self._threads)


def _mean(speedups: Sequence[float | None]) -> float:
    """The geometric mean of speed-ups; models whose code did not change count as 1."""
    return math.exp(math.fsum(math.log(speedup or 1.0) for speedup in speedups) / len(speedups))


def _code(model: Executable) -> str:
    """A text that tells codes apart."""
    digest = hashlib.sha256()
    for part in model.artifact.objects:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def best_value(trials: Sequence[Trial], present: Value) -> Value:
    """The value to take: the quickest if it is worth a change, the nearest of those that are as quick."""
    best = max(trial.speedup for trial in trials)
    if best < WORTH:
        return present
    quickest = [trial.value for trial in trials if trial.speedup >= best / (1 + (WORTH - 1) / 2)]
    return min(quickest, key=lambda value: abs(math.log(value / present)))


def user_table(target: Target, values: Mapping[str, Mapping[str, Value]], when: str) -> Table:
    """A table of what was measured on this machine, for its processor alone."""
    place = Processors("cpu", target.arch, (target.cpu,))
    fit = Fit("tilewright calibrate", target.describe(), when)
    about = "measured by `tilewright calibrate`"
    return Table(target.cpu, about, place, values, dict.fromkeys(values, fit))
