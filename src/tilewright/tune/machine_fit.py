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
        times = [_CaseTimes(case, self, parameter) for case in parameter.cases]
        trials = []
        for value in sorted({*parameter.values, present}):
            self.say(f"{parameter.group}.{parameter.name} = {value}")
            ratios = [case.speedup(value) for case in times]
            changed = sum(case.is_changed(value) for case in times)
            speedup = math.exp(math.fsum(math.log(ratio) for ratio in ratios) / len(ratios))
            trials.append(Trial(value, speedup, changed))
        return trials

    def fit(self, parameter: Parameter) -> list[Trial]:
        """Try a parameter's values and keep the best for what follows."""
        trials, present = self.try_values(parameter), self._present(parameter)
        best = best_value(trials, present)
        if best != present:
            self.changes.setdefault(parameter.group, {})[parameter.name] = best
        return trials

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
    """The codes that one model gets from values of a parameter, and how quick each is against the present one."""

    def __init__(self, case: MachineCase, fit: MachineFit, parameter: Parameter) -> None:
        self._fit, self._parameter, self._module = fit, parameter, case.module()
        self._codes: dict[Value, str] = {}
        self._present = self._compile({})
        self._speedups = {_code(self._present): 1.0}

    def speedup(self, value: Value) -> float:
        """How many times as quick the model is with a value; 1 where that is not clear."""
        model = self._compile({self._parameter.group: {self._parameter.name: value}})
        code = self._codes[value] = _code(model)
        if code not in self._speedups:
            found = compare_in_turns(self._present, model, seconds=self._fit.seconds, until_clear=True)
            self._speedups[code] = found.ratio if found.is_clear else 1.0
        return self._speedups[code]

    def is_changed(self, value: Value) -> bool:
        """Whether a value that was timed makes other code than the present one."""
        return self._codes[value] != _code(self._present)

    def _compile(self, extra: Changes) -> Executable:
        threads = None if self._parameter.all_cores else 1
        with self._fit.parameters(extra):
            return front.compile(self._module, target=self._fit.target, threads=threads)


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
    place = Processors(("llvm",), target.arch, (target.cpu,))
    fit = Fit("tilewright calibrate", target.describe(), when)
    about = "measured by `tilewright calibrate`"
    return Table(target.cpu, about, place, values, dict.fromkeys(values, fit))
