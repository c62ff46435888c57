"""What measuring runtimes takes: samples of a competitor, errors against a reference, figures as text.

`cli/versus.py` is the measuring itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


class Sampler(Protocol):
    """A competitor that times itself, here or in a process of its own."""

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` calls, after one that is not counted."""


class LocalSampler:
    """A call in this process, timed by a clock that counts seconds; so many seconds pass before each."""

    def __init__(
        self, call: Callable[[], object], clock: Callable[[], float] = time.perf_counter, pause: float = 0.0
    ) -> None:
        self._call, self._clock, self._pause = call, clock, pause

    def sample(self, count: int) -> list[float]:
        """Milliseconds of `count` calls, after one that is not counted."""
        self._call()
        samples = []
        for _ in range(count):
            if self._pause:
                time.sleep(self._pause)
            start = self._clock()
            self._call()
            samples.append((self._clock() - start) * 1e3)
        return samples


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


def format_ratio(ratio: float, bounds: tuple[float, float]) -> str:
    """A ratio with where it lies: 1.70x (1.67-1.73)."""
    return f"{ratio:.2f}x ({bounds[0]:.2f}-{bounds[1]:.2f})"
