"""What checks of data found on a device: statuses that kernels leave in memory, read with the results or before.

A kernel on a device cannot fail. Every check writes its status whatever it finds; after the run all statuses of a call
are gathered in one piece of memory. A call whose results go to the host reads it before they do. Results that stay on
the device carry it, and whoever first takes one of them to the host, or to another package, reads it then.

Where the device writes to memory of the host's, the host looks at the statuses while the run goes on: every call knows
what they say before it returns, and waits for its checks alone.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.runtime.core.artifact import CheckInfo
from tilewright.runtime.core.checks import FINE, STATUS_BYTES, STATUS_SIZE, failed_check
from tilewright.runtime.device.program import Device, HostMemory
from tilewright.support.errors import CompilerBug

STATUS_STRIDE: Final = 64
"""Bytes from one status to the next in memory of the host's."""
_NOT_WRITTEN: Final = -2
"""The place in a status that no check has written yet."""
_SPIN, _PAUSE, _ASK = 2e-4, 5e-5, 1e-3
"""Seconds: how long a status is looked at again and again, the pauses after that, and how often the device is asked."""
_let_others_run: Callable[[], object] = (
    partial(time.sleep, 0.0) if os.name == "nt" else partial(select.select, (), (), (), 0)
)
"""Gives other threads a turn in half a microsecond; on Linux a sleep, however short, takes fifty."""


class PendingChecks:
    """The statuses of one call, gathered on the device."""

    __slots__ = ("_checks", "_device", "_memory", "_symbols")

    def __init__(self, device: Device, memory: Any, checks: Sequence[CheckInfo], symbols: Mapping[str, int]) -> None:
        self._device = device
        self._memory = memory
        self._checks = checks
        self._symbols = symbols

    def verify(self) -> None:
        """Wait for the call, and raise what is wrong with its data."""
        found = np.empty((len(self._checks), STATUS_SIZE), np.int64)
        self._device.read(self._memory, 0, found)
        for check, status in zip(self._checks, found.tolist(), strict=True):
            if status[0] != FINE:
                raise failed_check(check, status, self._symbols)


class HostStatuses:
    """The statuses of one run at a time, in memory of the host's that the device writes.

    Each is written once in a run, its numbers in any order. So what the first number says of good data is known at
    once; of wrong data the others are read when the device is done.
    """

    __slots__ = ("_checks", "_device", "_places", "_symbols", "_words", "is_settled", "memory", "slot")

    def __init__(
        self, device: Device, memory: HostMemory, slot: int, checks: Sequence[CheckInfo], symbols: Mapping[str, int]
    ) -> None:
        """`slot` is the number of the workspace that the memory is."""
        self._device = device
        self._checks = checks
        self._symbols = symbols
        self._words = memory.words
        self._places = [number * STATUS_STRIDE // 8 for number in range(len(checks))]
        self.memory = memory
        self.slot = slot
        self.is_settled = True
        """Whether all checks of the last run have written. Until then the memory is that run's."""

    def begin(self) -> None:
        """Forget what the last run has left, before the next one starts."""
        self.is_settled = False
        for place in self._places:
            self._words[place] = _NOT_WRITTEN

    def verify(self) -> None:
        """Wait for the checks of the run, and raise what is wrong with its data."""
        words, found = self._words, FINE
        for place in self._places:
            if words[place] == _NOT_WRITTEN:
                self._wait(place)
            found = max(found, words[place])
        if found != FINE:
            self._device.wait()
            self.is_settled = True
            self._complain()
        self.is_settled = True

    def _complain(self) -> None:
        for check, place in zip(self._checks, self._places, strict=True):
            if self._words[place] != FINE:
                raise failed_check(check, self._words[place : place + STATUS_SIZE], self._symbols)

    def _wait(self, place: int) -> None:
        """Wait until a check has written: not for long most often, since checks come early."""
        words, is_done = self._words, False
        start = asked = time.perf_counter()
        while words[place] == _NOT_WRITTEN:
            if is_done:
                raise CompilerBug("a check of the model's data has left no status")
            now = time.perf_counter()
            if now > asked + _ASK:
                asked, is_done = now, self._device.is_done()
            elif now < start + _SPIN:
                _let_others_run()
            else:
                time.sleep(_PAUSE)


def gathered(
    device: Device, places: Sequence[tuple[Any, int]], checks: Sequence[CheckInfo], symbols: Mapping[str, int]
) -> PendingChecks:
    """The statuses at places (memory and offset), copied to memory of their own after what has been started."""
    memory = device.allocate(len(places) * STATUS_BYTES)
    for number, (source, offset) in enumerate(places):
        device.copy(source, offset, memory, number * STATUS_BYTES, STATUS_BYTES)
    return PendingChecks(device, memory, checks, symbols)
