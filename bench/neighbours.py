"""Noticing neighbours: whether somebody else's work shared the core while something was measured.

On a rented machine a processor is often one of two threads of a core, and the other belongs to somebody else. Nothing
in the system tells: processor time goes on as ever, and kernels take 1.4 times as long for seconds at a time. A chain
of multiply-adds hardly notices, since it leaves most of the core unused; a run of independent additions, which wants
the core's whole width, does. So a short run of those before and after a measurement says whether to believe it.

Where the machine has given more processors away than it has, each is taken away now and then, for milliseconds that
count as the processor time of whoever ran: a kernel then takes five times as long. The system counts those (Linux).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tilewright.target import Target
from tilewright.tune.peak import width_peak

_ALONE = 0.75
"""The part of the widest seen from which on the core counts as ours alone; frequencies differ by less."""
_CALIBRATION_SECONDS = 0.5
_COUNTERS = Path("/proc/stat")
_STOLEN = 8
"""The place of stolen time in a line of the counters, after the processor's name."""


class CoreWatch:
    """Looks at the width of the core the calling thread is on, and remembers the best that it has seen."""

    def __init__(self, target: Target, calibration_seconds: float = _CALIBRATION_SECONDS) -> None:
        self._peak = width_peak(target)
        self._best = 0.0
        self._stolen = stolen_ticks()
        start = time.monotonic()
        self.look()
        while time.monotonic() - start < calibration_seconds:
            self.look()

    def look(self) -> float:
        """Additions a second just now; none if the processor was taken away since the last look."""
        start = time.thread_time()
        self._peak.call()
        rate = self._peak.work / max(time.thread_time() - start, 1e-9)
        self._best = max(self._best, rate)
        before, self._stolen = self._stolen, stolen_ticks()
        return rate if self._stolen == before else 0.0

    def was_alone(self, *looks: float) -> bool:
        """Whether nobody shared the core at these looks."""
        return min(looks) >= _ALONE * self._best


def stolen_ticks() -> int:
    """How often the processors that this process may use have been taken away; 0 where the system does not count."""
    if not _COUNTERS.exists():
        return 0
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in _COUNTERS.read_text().splitlines() if line.startswith("cpu")]
    return sum(int(line[_STOLEN]) for line in lines if line[0] in names)
