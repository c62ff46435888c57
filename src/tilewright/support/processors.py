"""The processors that this process may use."""

from __future__ import annotations

import os


def usable_cpus() -> frozenset[int]:
    """The logical processors this process is allowed to run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
