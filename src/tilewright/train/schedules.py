"""Learning rates that change: functions of the number of the step, counted from 0, which the host computes.

Any function of an int will do; those here say what they are when a checkpoint is looked at, and can be pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.support.errors import UserError
from tilewright.support.text import kind_of

Schedule = Callable[[int], float]


def rate_at(rate: float | Schedule, step: int) -> float:
    """The learning rate of a step."""
    if not callable(rate) and (not isinstance(rate, (int, float)) or isinstance(rate, bool)):
        raise UserError(f"a learning rate is a number or a function of the step's number, not {kind_of(rate)}")
    value = float(rate(step)) if callable(rate) else float(rate)
    if not math.isfinite(value) or value < 0:
        raise UserError(f"the learning rate of step {step} is {value}", hint="it must be finite and not negative")
    return value


def _positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name} must be a whole number of at least 1, not {value!r}")


@dataclass(frozen=True)
class Constant:
    """The same rate in every step."""

    rate: float

    def __call__(self, step: int) -> float:
        """The rate."""
        return self.rate


@dataclass(frozen=True)
class StepDecay:
    """A rate that is multiplied by `factor` after every `every` steps."""

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _positive(every=self.every)

    def __call__(self, step: int) -> float:
        """The rate."""
        return self.rate * self.factor ** (step // self.every)


@dataclass(frozen=True)
class Cosine:
    """A rate that falls along half a cosine to `least` over `steps` steps, and stays there."""

    rate: float
    steps: int
    least: float = 0.0

    def __post_init__(self) -> None:
        _positive(steps=self.steps)

    def __call__(self, step: int) -> float:
        """The rate."""
        share = min(step / self.steps, 1.0)
        return self.least + (self.rate - self.least) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class WarmUp:
    """Another schedule, after `steps` steps in which the rate rises from near zero to where that one starts."""

    after: float | Schedule
    steps: int

    def __post_init__(self) -> None:
        _positive(steps=self.steps)

    def __call__(self, step: int) -> float:
        """The rate."""
        if step < self.steps:
            return rate_at(self.after, 0) * (step + 1) / self.steps
        return rate_at(self.after, step - self.steps)


@dataclass(frozen=True)
class OneCycle:
    """A rate that rises along a cosine to `most` for the share `rise` of `steps`, and then falls to almost nothing.

    As torch.optim.lr_scheduler.OneCycleLR: it starts at `most / start` and ends at `most / start / end`.
    """

    most: float
    steps: int
    rise: float = 0.3
    start: float = 25.0
    end: float = 1e4

    def __post_init__(self) -> None:
        _positive(steps=self.steps)
        if not 0.0 < self.rise < 1.0:
            raise UserError(f"the share of rising steps is between 0 and 1, not {self.rise}")

    def __call__(self, step: int) -> float:
        """The rate."""
        first = self.most / self.start
        top = self.rise * self.steps - 1
        last = max(self.steps - 1, 1)
        if step <= top:
            return _between(first, self.most, step / top if top > 0 else 1.0)
        return _between(self.most, first / self.end, min((step - top) / (last - top), 1.0))


def _between(begin: float, end: float, share: float) -> float:
    """The place between two rates, along half a cosine."""
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2
