"""The steps of a model for known sizes: where their arguments are, and what they launch or call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.runtime.core.artifact import ArgKind, DeviceKernelInfo, KernelInfo
from tilewright.runtime.device.program import Scalar

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the memory of a run: `size` bytes from `offset` of an input, an output, a constant or a slot."""

    kind: ArgKind
    index: int
    offset: int
    size: int

    def overlaps(self, other: Place) -> bool:
        """Whether it has bytes in common with another place."""
        if (self.kind, self.index) != (other.kind, other.index):
            return False
        return self.offset < other.offset + other.size and other.offset < self.offset + self.size

    def covers(self, other: Place) -> bool:
        """Whether all bytes of another place are in it."""
        inside = self.offset <= other.offset and other.offset + other.size <= self.offset + self.size
        return inside and (self.kind, self.index) == (other.kind, other.index)


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch for known sizes."""

    kernel: Any
    grid: Triple
    block: Triple
    args: tuple[Place | Scalar, ...]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step for known sizes: launches, or a call of native code on the host."""

    number: int
    kernel: KernelInfo
    info: DeviceKernelInfo
    launches: tuple[PlannedLaunch, ...]
    args: tuple[Place | Scalar, ...]
    native: Any = None
    """The function on the host, in its packed form."""

    def uses(self) -> Iterator[tuple[Place, bool]]:
        """Its places, and whether it writes them: results, and all behind them, which is scratch."""
        last = max(self.info.written, default=-1)
        for number, place in enumerate(arg for arg in self.args if isinstance(arg, Place)):
            yield place, number in self.info.written or number > last

    def moved(self, old: Place, new: Place) -> PlannedStep:
        """The step with another place in the place of one of its arguments."""

        def args(given: tuple[Place | Scalar, ...]) -> tuple[Place | Scalar, ...]:
            return tuple(new if arg == old else arg for arg in given)

        launches = tuple(replace(launch, args=args(launch.args)) for launch in self.launches)
        return replace(self, args=args(self.args), launches=launches)
