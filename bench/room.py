"""How much room a model leaves to schedules: its time against what its kernels could take at best on this machine.

Each kernel does some arithmetic, reads some weights and moves some other data. It takes no less than the arithmetic at
the peak of multiply-adds, than its weights from where all weights of the model fit, and than its other data from where
these alone fit: the largest of the three, summed over the kernels, is the bound. Rates are those that threads reach
together, in loops of nothing else (`bench.peak`). A kernel that is quicker than its bound (one that reads a few rows of
a large table) counts as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

from bench.peak import Peak, arithmetic_peak, read_peak
from tilewright.runtime.artifact import ArgKind, ModelInfo
from tilewright.runtime.convert import Array
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.executor import Executable
from tilewright.runtime.profiler import ProfileRow
from tilewright.target import Target

_ROUNDS = 8
_ROUND_SECONDS = 0.02
_LOOKS = 4
"""Times that each limit is measured, first when it is asked for: a machine is not always at its best."""
_LEAST_BYTES, _MOST_BYTES = 1 << 14, 1 << 28
_CALL_BYTES = 1 << 26
"""What one call reads at least, over and over where the data are less: so that the call itself does not count."""
_REPEAT = 10
_OPERATIONS = 0
"""The place of arithmetic among those of bytes, which are known by how many there are."""


@dataclass(frozen=True, slots=True)
class Room:
    """Seconds of a run at its quickest, and those that its kernels take at least."""

    seconds: float
    bound: float

    @property
    def ratio(self) -> float:
        """How many times as quick the model could be with the same algorithms, at most."""
        return self.seconds / self.bound


class Limits:
    """What so many threads reach together: operations of float32 a second, and bytes a second by where they lie.

    The best that was ever seen: each limit is measured again a few times, some seconds apart (`look_again`).
    """

    def __init__(self, target: Target, threads: int) -> None:
        self.target, self.threads = target, threads
        self._best: dict[int, float] = {}
        self._looks: dict[int, int] = {}

    @property
    def operations(self) -> float:
        """Multiplications and additions a second."""
        return self._limit(_OPERATIONS)

    def bytes(self, size: int) -> float:
        """Bytes a second of so many that are read again and again, by the next power of two below."""
        size = max(_LEAST_BYTES, min(_MOST_BYTES, size))
        return self._limit(1 << int(log2(size / self.threads)))

    def look_again(self) -> None:
        """Measure once more what was asked for so far."""
        for place, looks in self._looks.items():
            if looks < _LOOKS:
                self._look(place)

    def _limit(self, place: int) -> float:
        if place not in self._best:
            self._look(place)
        return self._best[place]

    def _look(self, place: int) -> None:
        self._best[place] = max(self._best.get(place, 0.0), together([self._peak(place) for _ in range(self.threads)]))
        self._looks[place] = self._looks.get(place, 0) + 1

    def _peak(self, place: int) -> Peak:
        if place != _OPERATIONS:
            return read_peak(self.target, place, ceil(_CALL_BYTES / place))
        found = arithmetic_peak(self.target, "float32")
        assert found is not None
        return found


def together(peaks: Sequence[Peak]) -> float:
    """Work a second of loops that run at the same time, one a thread: the best of some rounds."""
    return max(_round(peaks) for _ in range(_ROUNDS))


def room(model: Executable, inputs: Sequence[Array], limits: Limits, quickest: float) -> Room:
    """What a model leaves to schedules, on these inputs; `quickest` is the shortest run that was seen of it.

    The limits are the machine's at its best, so the model is taken at its best, too: its kernels' shortest at most.
    """
    clock = time.thread_time if model.threads == 1 else time.perf_counter
    profile = model.profile_by(clock, inputs, _REPEAT)
    limits.look_again()
    weights = step_weights(model.model)
    total = model.artifact.constants.nbytes
    bound = sum(kernel_bound(row, weights[row.step], total, limits) for row in profile.rows)
    return Room(min(quickest, sum(row.min_seconds for row in profile.rows)), bound)


def step_weights(model: ModelInfo) -> list[int]:
    """The bytes of constants that each kernel call is given."""
    sizes = {item.offset: prod(item.shape) * storage_dtype(item.dtype).itemsize for item in model.constants}
    return [sum(sizes.get(ref.offset, 0) for ref in step.args if ref.kind is ArgKind.CONSTANT) for step in model.steps]


def kernel_bound(row: ProfileRow, weights: int, all_weights: int, limits: Limits) -> float:
    """Seconds that a kernel call takes at least, and not more than it took."""
    weights = min(weights, row.bytes)
    others = row.bytes - weights
    least = row.flops / limits.operations if row.flops else 0.0
    if weights:
        least = max(least, weights / limits.bytes(all_weights))
    if others:
        least = max(least, others / limits.bytes(others))
    return min(least, row.min_seconds)


def _round(peaks: Sequence[Peak]) -> float:
    """Work a second of all, each over the time that it had a processor: what else runs here is no limit of it."""
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
