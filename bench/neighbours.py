"""Noticing neighbours: whether somebody else's work shared the core while something was measured.

On a rented machine a processor is often one of two threads of a core, and the other belongs to somebody else. Nothing
in the system tells: processor time goes on as ever, and kernels take 1.4 times as long for seconds at a time. A chain
of multiply-adds hardly notices, since it leaves most of the core unused; a run of independent additions, which wants
the core's whole width, does. So a short run of those before and after a measurement says whether to believe it.
"""

from __future__ import annotations

import time

from bench.peak import width_peak
from tilewright.target import Target

_ALONE = 0.75
"""The part of the widest seen from which on the core counts as ours alone; frequencies differ by less."""
_CALIBRATION_SECONDS = 0.5


class CoreWatch:
    """Looks at the width of the core the calling thread is on, and remembers the best that it has seen."""

    def __init__(self, target: Target, calibration_seconds: float = _CALIBRATION_SECONDS) -> None:
        self._peak = width_peak(target)
        self._best = 0.0
        start = time.monotonic()
        self.look()
        while time.monotonic() - start < calibration_seconds:
            self.look()

    def look(self) -> float:
        """Additions a second just now."""
        start = time.thread_time()
        self._peak.call()
        rate = self._peak.work / max(time.thread_time() - start, 1e-9)
        self._best = max(self._best, rate)
        return rate

    def was_alone(self, *looks: float) -> bool:
        """Whether nobody shared the core at these looks."""
        return min(looks) >= _ALONE * self._best
