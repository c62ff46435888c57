"""How much room a model leaves to schedules: its time against what its kernels could take at best on this machine.

Each kernel does some arithmetic, reads some weights and moves some other data. It takes no less than the arithmetic at
the peak of multiply-adds, than its weights from where all weights of the model fit, and than its other data from where
these alone fit: the largest of the three, summed over the kernels, is the bound. Rates are those that threads reach
together, in loops of nothing else (`bench.peak`). A kernel that is quicker than its bound (one that reads a few rows of
a large table) counts as it is. A machine's clock goes up and down by a tenth: peaks and model take turns, and each turn
has a ratio of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import numpy as np

from bench.peak import Peak, arithmetic_peak, read_peak
from tilewright.runtime.artifact import ArgKind, ModelInfo
from tilewright.runtime.convert import Array
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.executor import Executable
from tilewright.runtime.profiler import Profile
from tilewright.target import Target

_TURNS, _SECONDS = 12, 3.0
"""Turns of peaks and model: at least, and for about so long."""
_ROUND_SECONDS = 0.02
_ROUNDS = 5
_LEAST_BYTES, _MOST_BYTES = 1 << 14, 1 << 28
_CALL_BYTES = 1 << 26
"""What one call reads at least, over and over where the data are less: so that the call itself does not count."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does just now: operations of float32 a second, and bytes a second of a model's weights."""

    operations: float
    weights: float


class Limits:
    """What so many threads reach together."""

    def __init__(self, target: Target, threads: int) -> None:
        self.target, self.threads = target, threads
        self._arithmetic: list[Peak] = []
        self._reading: dict[int, list[Peak]] = {}
        self._bytes: dict[int, float] = {}

    def now(self, weights: int) -> Rates:
        """The rates of this moment, of so many bytes of weights."""
        if not self._arithmetic:
            peaks = [arithmetic_peak(self.target, "float32") for _ in range(self.threads)]
            self._arithmetic = [peak for peak in peaks if peak is not None]
        return Rates(together(self._arithmetic), together(self._read(self._place(weights))))

    def bytes(self, size: int) -> float:
        """Bytes a second of so many that are read again and again, by the next power of two below: at its best."""
        place = self._place(size)
        if place not in self._bytes:
            self._bytes[place] = max(together(self._read(place)) for _ in range(_ROUNDS))
        return self._bytes[place]

    def _place(self, size: int) -> int:
        return 1 << int(log2(max(_LEAST_BYTES, min(_MOST_BYTES, size)) / self.threads))

    def _read(self, place: int) -> list[Peak]:
        if place not in self._reading:
            passes = ceil(_CALL_BYTES / place)
            self._reading[place] = [read_peak(self.target, place, passes) for _ in range(self.threads)]
        return self._reading[place]


def room(model: Executable, inputs: Sequence[Array], limits: Limits) -> float:
    """How many times as quick a model could be with the same algorithms, at most.

    Of all turns about the least: neighbours on a core make a model longer, and hardly the peak of arithmetic.
    """
    clock = time.thread_time if model.threads == 1 else time.perf_counter
    weights, total = step_weights(model.model), model.artifact.constants.nbytes
    ratios: list[float] = []
    began = time.monotonic()
    while len(ratios) < _TURNS or time.monotonic() - began < _SECONDS:
        rates = limits.now(total)
        profile = model.profile_by(clock, inputs, 1)
        ratios.append(profile.whole_seconds / bound(profile, weights, rates, limits))
    return float(np.quantile(ratios, 0.1))


def step_weights(model: ModelInfo) -> list[int]:
    """The bytes of constants that each kernel call is given."""
    sizes = {item.offset: prod(item.shape) * storage_dtype(item.dtype).itemsize for item in model.constants}
    return [sum(sizes.get(ref.offset, 0) for ref in step.args if ref.kind is ArgKind.CONSTANT) for step in model.steps]


def bound(profile: Profile, weights: Sequence[int], rates: Rates, limits: Limits) -> float:
    """Seconds that a model's kernels take at least; `weights` are the bytes of constants of each."""
    total = 0.0
    for row in profile.rows:
        # Rearranged weights may be padded.
        own = min(weights[row.step], row.bytes)
        others = row.bytes - own
        least = max(row.flops / rates.operations, own / rates.weights, others / limits.bytes(others))
        total += min(least, row.seconds)
    return total


def together(peaks: Sequence[Peak]) -> float:
    """Work a second of loops that run at the same time, one a thread.

    Each counts over the time that it had a processor: what else runs here is no limit of the machine.
    """
    rates = [0.0] * len(peaks)
    ready = threading.Barrier(len(peaks))

    def work(number: int) -> None:
        peak = peaks[number]
        peak.call()
        ready.wait()
        began, count = time.thread_time(), 0
        while (spent := time.thread_time() - began) < _ROUND_SECONDS:
            peak.call()
            count += 1
        rates[number] = peak.work * count / spent

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, len(peaks))]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    return sum(rates)
