"""Measuring runtimes against each other: interleaved rounds, medians and minima, errors against a reference.

Competitors are measured in turns, round after round: a slow minute of a shared machine then falls on all of them
alike, and their ratio stays true. The median says what to expect, the minimum what is possible. A competitor is a call
in this process, or an object that takes its samples elsewhere (in a process of its own).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

# Thread pools keep spinning for a moment after a call; the next competitor must not pay for that.
_SETTLE_SECONDS = 0.02
_ROUND_SECONDS = 0.15
_MOST_CALLS_PER_ROUND = 200


@dataclass(slots=True)
class Timing:
    """The measured times of one competitor, in milliseconds a call."""

    samples: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)

    @property
    def min_ms(self) -> float:
        """The quickest sample."""
        return min(self.samples)


@runtime_checkable
class Sampler(Protocol):
    """A competitor that times itself."""

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` calls, after one that is not counted."""


class LocalSampler:
    """A call in this process, timed by a clock that counts seconds."""

    def __init__(self, call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> None:
        self._call, self._clock = call, clock

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` calls, after one that is not counted."""
        self._call()
        samples = []
        for _ in range(count):
            start = self._clock()
            self._call()
            samples.append((self._clock() - start) * 1e3)
        return samples


def measure(
    competitors: Mapping[str, Callable[[], object] | Sampler],
    rounds: int,
    *,
    threads: int = 1,
    round_done: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time each competitor's call in `rounds` interleaved rounds, after warming it up.

    The order turns from round to round, so that no competitor always follows the same other. `round_done` is called
    after each round.
    """
    samplers = {name: item if isinstance(item, Sampler) else LocalSampler(item) for name, item in competitors.items()}
    # Warm up, and learn how many calls make a round of useful length.
    quickest = {name: sampler.sample(1)[0] for name, sampler in samplers.items()}
    timings = {name: Timing() for name in samplers}
    order = list(samplers)
    for index in range(rounds):
        turn = index % len(order) if order else 0
        for name in order[turn:] + order[:turn]:
            if threads > 1:
                time.sleep(_SETTLE_SECONDS)
            samples = samplers[name].sample(_calls_per_round(quickest[name]))
            timings[name].samples += samples
            # The first call may have met a busy machine.
            quickest[name] = min(quickest[name], *samples)
        round_done()
    return timings


def _calls_per_round(milliseconds: float) -> int:
    """How many calls of a length make a round."""
    return max(1, min(_MOST_CALLS_PER_ROUND, int(_ROUND_SECONDS * 1e3 / max(milliseconds, 1e-6))))


def max_relative_error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The worst over all outputs of `max|actual - expected| / max|expected|`; infinity on NaN or other shapes."""
    if len(actual) != len(expected):
        return float("inf")
    worst = 0.0
    for ours, theirs in zip(actual, expected, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        if theirs.size == 0:
            continue
        difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
        error = float(difference / max(float(np.abs(theirs).max()), 1e-30))
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def format_ms(milliseconds: float) -> str:
    """Three significant digits or so: 0.0712, 3.14, 128."""
    if milliseconds < 1:
        return f"{milliseconds:.4f}"
    return f"{milliseconds:.2f}" if milliseconds < 100 else f"{milliseconds:.1f}"
