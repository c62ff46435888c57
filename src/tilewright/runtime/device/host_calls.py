"""Kernels of a model on a device that the host computes: what they read is copied there, what they write back.

What the host computes and reads again stays on the host: it goes to the device only where a kernel of the device, or
somebody after the run, reads it. So the host need not wait for a device that has nothing to do with it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.runtime.core.artifact import ArgKind
from tilewright.runtime.core.convert import Array, address_of, aligned_empty
from tilewright.runtime.core.library import check_code
from tilewright.runtime.device.program import Device, Scalar, Span
from tilewright.runtime.device.steps import Place, PlannedStep


class Memories(Protocol):
    """The memory of a run, as a call of the host sees it."""

    @property
    def device(self) -> Device:
        """Where it is."""

    def read(self, place: Place, array: Array) -> None:
        """Copy a place to the host."""

    def write(self, place: Place, array: Array) -> None:
        """Copy from the host to a place."""


@dataclass(slots=True)
class _Value:
    """What the host computed, in an array of its own."""

    place: Place
    array: Array
    is_uploaded: bool = False
    """Whether somebody reads it from the device's memory."""


class HostValues:
    """The places that hold what the host computed, while the steps of a run are recorded in order."""

    def __init__(self, kept: Sequence[Place] = ()) -> None:
        """`kept` are places that are read after the run."""
        self._kept = kept
        self._values: list[_Value] = []

    def launched(self, step: PlannedStep) -> None:
        """A step of the device comes next."""
        for place, is_written in step.uses():
            self._upload(place)
            if is_written:
                self._overwrite(place)

    def read(self, place: Place) -> Array | None:
        """The array of the host that holds what is to be read; None where the device's memory has it."""
        for value in self._values:
            if value.place == place:
                return value.array
        self._upload(place)
        return None

    def wrote(self, place: Place, array: Array) -> _Value:
        """The host comes to write a place, and keeps it in an array."""
        self._overwrite(place)
        is_kept = place.kind is ArgKind.OUTPUT or any(place.overlaps(other) for other in self._kept)
        self._values.append(_Value(place, array, is_kept))
        return self._values[-1]

    def _upload(self, place: Place) -> None:
        for value in self._values:
            value.is_uploaded |= value.place.overlaps(place)

    def _overwrite(self, place: Place) -> None:
        for value in self._values:
            # Of one that is written over in part, the rest is in the device's memory.
            if value.place.overlaps(place) and not _covers(place, value.place):
                value.is_uploaded = True
        self._values = [value for value in self._values if not value.place.overlaps(place)]


def _covers(place: Place, other: Place) -> bool:
    return place.offset <= other.offset and other.offset + other.size <= place.offset + place.size


class HostCall:
    """A kernel that the host computes, between the launches of a run."""

    def __init__(self, memories: Memories, step: PlannedStep, values: HostValues) -> None:
        self._memories, self._step = memories, step
        self._reads: list[tuple[Place, Array]] = []
        arrays: list[tuple[Place, Array]] = []
        addresses: list[int] = []
        for arg in step.args:
            if isinstance(arg, Scalar):
                addresses.append(arg.bits)
                continue
            is_written = len(arrays) in step.info.written
            array = None if is_written or not arg.size else values.read(arg)
            if array is None:
                array = aligned_empty((arg.size,), np.dtype(np.uint8))
                if not is_written and arg.size:
                    self._reads.append((arg, array))
            arrays.append((arg, array))
            addresses.append(address_of(array))
        self._results = [values.wrote(*arrays[number]) for number in step.info.written]
        # Arrays of other calls must live as long as their addresses are used here.
        self._arrays = arrays
        self._packed = (ctypes.c_int64 * max(len(addresses), 1))(*addresses)

    def __call__(self) -> None:
        """Compute it."""
        step = self._step
        for place, array in self._reads:
            self._memories.read(place, array)
        # Constants stay what they are: they are copied to the host once.
        self._reads = [read for read in self._reads if read[0].kind is not ArgKind.CONSTANT]
        begin, spans = time.perf_counter(), self._memories.device.spans
        check_code(step.native(self._packed), f"the kernel '{step.kernel.symbol}'")
        if spans is not None:
            spans.append(Span("host", step.kernel.symbol, begin, time.perf_counter()))
        for value in self._results:
            if value.is_uploaded and value.place.size:
                self._memories.write(value.place, value.array)
