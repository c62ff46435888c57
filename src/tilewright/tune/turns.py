"""Compiled forms of one model run in turns: how long each takes, whole and kernel by kernel.

A machine gets quicker and slower while it measures; what runs in turns meets the same weather.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.lower.model import LoweredModel
from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.convert import Array
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.executor import Executable
from tilewright.runtime.profiler import Profile, ProfileRow
from tilewright.support.errors import UnsupportedError

TURNS, MOST_TURNS, SECONDS = 6, 40, 4.0
"""Turns of each comparison: at least, at most, and for about so long."""
_REPEAT = 3
_MEMORY = 2 << 30
"""Bytes for the constants of all models that are tried."""

Parts = Callable[[ProfileRow], Iterable[str]]
"""The names under which the time of a kernel call counts."""


@dataclass(frozen=True, slots=True)
class Times:
    """For each model the seconds of its parts in one run, and of a run as a whole; and how many profiles that took."""

    parts: tuple[dict[str, float], ...]
    whole: tuple[float, ...]
    profiles: int


def time_in_turns(models: Sequence[Executable], parts: Parts = lambda row: (), seconds: float | None = None) -> Times:
    """Profile models in turns, on one plausible input; `seconds` is how long at most, about."""
    longest = SECONDS if seconds is None else min(seconds, SECONDS)
    inputs = [_input(info) for info in models[0].input_info]
    samples: list[dict[str, list[float]]] = [{} for _ in models]
    wholes: list[list[float]] = [[] for _ in models]
    turns, began = 0, time.monotonic()
    while turns < TURNS or (turns < MOST_TURNS and time.monotonic() - began < longest):
        turns += 1
        for model, known, whole in zip(models, samples, wholes, strict=True):
            profile = _profile(model, inputs)
            whole.append(profile.whole_seconds)
            seen: dict[str, float] = {}
            for row in profile.rows:
                for name in parts(row):
                    seen[name] = seen.get(name, 0.0) + row.min_seconds
            for name, found in seen.items():
                known.setdefault(name, []).append(found)
    typical = tuple({name: _typical(found) for name, found in known.items()} for known in samples)
    return Times(typical, tuple(map(_typical, wholes)), turns * len(models))


def most_models(lowered: LoweredModel) -> int:
    """How many compiled forms of a model may be in memory, by the size of its constants."""
    constants = sum(constant.data.nbytes for part in lowered.segments for constant in part.plan.constants)
    return max(1, _MEMORY // max(1, constants))


def _input(info: TensorInfo) -> Array:
    """A plausible input: floats around zero; integers of zeros, which are valid places of any table."""
    shape = tuple(extent for extent in info.shape if isinstance(extent, int))
    if len(shape) != len(info.shape):
        raise UnsupportedError(f"the size of the input {info.name} is not known")
    kind = storage_dtype(info.dtype)
    if not np.issubdtype(kind, np.floating):
        return np.zeros(shape, kind)
    return np.random.default_rng(0).standard_normal(shape).astype(kind)


def _profile(model: Executable, inputs: Sequence[Array]) -> Profile:
    """A short profile; of a model on one thread by the time that it has the processor, as candidates are timed."""
    clock = time.thread_time if model.threads == 1 else time.perf_counter
    return model.profile_by(clock, inputs, _REPEAT)


def _typical(samples: Sequence[float]) -> float:
    """The lower quartile: other load makes some samples longer, luck makes the very shortest."""
    return float(np.quantile(samples, 0.25))
