"""A machine of made-up speed, seeded: what can be told from its noise, and what cannot."""

from __future__ import annotations

import numpy as np

_RUN, _STEP, _PLACE = 0.02, 0.025, 0.005
"""As measured on a shared machine with two cores: pairs differ by 4 %, runs some seconds apart by 20 %."""
_STEP_SECONDS = 0.03
"""What it drifts by in a step takes so long: less in shorter runs."""


class Weather:
    """It drifts, every run is a little off, and so is every place in memory."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.load = 0.0

    def run(self, seconds: float) -> None:
        """Something that would take so long on a quiet machine."""
        steps = seconds / _STEP_SECONDS
        self.load = 0.99**steps * self.load + _STEP * np.sqrt(steps) * self.random.standard_normal()
        self.now += seconds * np.exp(abs(self.load) + _RUN * self.random.standard_normal())

    def place(self) -> float:
        """How many times as long something takes for where it lies."""
        return float(np.exp(_PLACE * self.random.standard_normal()))
