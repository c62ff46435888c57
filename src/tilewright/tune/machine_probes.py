"""What a core does in a cycle, measured: the group `core` of the machine parameters (`target/machine/cpu.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilewright.target import Target
from tilewright.target.machine.cpu import Core
from tilewright.target.machine.tables import Value
from tilewright.tune.peak import Peak, arithmetic_peak, read_peak, width_peak

_TIMES = 12
"""Times that a probe runs; the quickest counts: whatever disturbs it makes it slower."""
_LEAST_MEMORY = 64 << 20
"""Bytes that are read from memory at least."""
_SATURATED = 0.85
"""The part of so many times one core's rate from which on cores do not hold each other up."""
_L2_PASSES = 16


@dataclass(frozen=True, slots=True)
class CoreRates:
    """Rates of one core, by the second; `shared_memory` is how fast all cores together read memory."""

    cycles: float
    multiply_adds: float
    dependent_multiply_adds: float
    l2_bytes: float
    memory_bytes: float
    shared_memory_bytes: float


def measure_core(target: Target, say: Callable[[str], None]) -> CoreRates:
    """Measure the core that runs this, and memory with all cores."""
    lanes = target.lanes(32)

    def rate(what: str, peak: Peak) -> float:
        say(what)
        return peak.work / min(_timed(peak) for _ in range(_TIMES))

    cycles = rate("cycles", width_peak(target, 1))
    operations = [arithmetic_peak(target, "float32", chains) for chains in (None, 1)]
    together, dependent = (rate("multiply-adds", peak) / (2 * lanes) for peak in operations if peak is not None)
    l2_bytes = rate("the second cache level", read_peak(target, max(target.l2_bytes // 2, 1), _L2_PASSES))
    far = max(_LEAST_MEMORY, 2 * target.l3_bytes)
    readers = [read_peak(target, far) for _ in range(target.cores)]
    memory = rate("memory", readers[0])
    say("memory, all cores")
    shared = sum(peak.work for peak in readers) / min(_timed_together(readers) for _ in range(_TIMES // 4))
    return CoreRates(cycles, together, dependent, l2_bytes, memory, shared)


def _timed(peak: Peak) -> float:
    start = time.perf_counter()
    peak.call()
    return time.perf_counter() - start


def _timed_together(peaks: Sequence[Peak]) -> float:
    """Seconds until the last of several threads has read its own memory."""
    with ThreadPoolExecutor(len(peaks)) as threads:
        start = time.perf_counter()
        for done in [threads.submit(peak.call) for peak in peaks]:
            done.result()
        return time.perf_counter() - start


def core_values(rates: CoreRates, cores: int, before: Core) -> dict[str, Value]:
    """Parameters that are simple functions of rates; `before` has what this machine is too small to tell."""
    pipes = max(1, round(rates.multiply_adds / rates.cycles))
    latency = max(1, round(rates.cycles / rates.dependent_multiply_adds))
    # Less than one core alone had is what others on the machine leave.
    scaling = rates.shared_memory_bytes / rates.memory_bytes
    is_saturated = 1.0 <= scaling < _SATURATED * cores
    return {
        "fma_per_cycle": pipes,
        "fma_in_flight": pipes * latency,
        "l2_bytes_per_fma": round(rates.l2_bytes / rates.multiply_adds, 2),
        "memory_bytes_per_cycle": round(rates.memory_bytes / rates.cycles, 2),
        "cores_to_saturate": round(scaling) if is_saturated else max(cores, before.cores_to_saturate),
    }
