"""What checks of data found on a device: statuses that kernels leave in its memory, read with the results.

A kernel on a device cannot fail. Every check writes its status whatever it finds; after the run all statuses of a call
are gathered in one piece of memory. A call whose results go to the host reads it before they do. Results that stay on
the device carry it, and whoever first takes one of them to the host, or to another package, reads it then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.core.artifact import CheckInfo
from tilewright.runtime.core.checks import FINE, STATUS_BYTES, STATUS_SIZE, failed_check
from tilewright.runtime.device.program import Device


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


def gathered(
    device: Device, places: Sequence[tuple[Any, int]], checks: Sequence[CheckInfo], symbols: Mapping[str, int]
) -> PendingChecks:
    """The statuses at places (memory and offset), copied to memory of their own after what has been started."""
    memory = device.allocate(len(places) * STATUS_BYTES)
    for number, (source, offset) in enumerate(places):
        device.copy(source, offset, memory, number * STATUS_BYTES, STATUS_BYTES)
    return PendingChecks(device, memory, checks, symbols)
