"""CUDA graphs of a model's launches, and how early their kernels start: measured when a graph is first made.

From sm_90 on kernels may start before those in front of them are done, which hides what starting them costs. But blocks
that come early go to whatever multiprocessor has room, several to one; where there are hardly more blocks than
multiprocessors, that one is late. So blocks are kept apart: kernels that start early ask for so much shared memory that
no more of their blocks fit than each multiprocessor should get. Then they come when those in front of them go; kernels
that begin with weights of their own gain more where both have room. Clusters cannot be kept apart like that. Whether
they had better start early too, or nothing at all, depends on the kernels and on their neighbours: a few runs decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.runtime.device.program import BoundCall, Device, Recording

_MOST_GRAPHS = 8
"""Graphs of a recording that are remembered, beside those that somebody may still start."""
_TRIAL_RUNS = 5
_FEWEST_CALLS = 3
"""With fewer launches there is little to choose."""


@dataclass(frozen=True, slots=True)
class LaunchAs:
    """How a kernel is launched: before those in front of it are done or not, and with how much shared memory."""

    early: bool
    dynamic_bytes: int


Policy = Callable[["GraphDevice", BoundCall], LaunchAs]


class GraphDevice(Protocol):
    """What graphs need of a GPU."""

    def captured(self, calls: Sequence[BoundCall], policy: Policy) -> Any:
        """An executable graph of calls in order."""

    def start(self, graph: Any) -> None:
        """Run an executable graph."""

    def discard(self, graph: Any) -> None:
        """Give an executable graph back."""

    def seconds(self, graph: Any, repeat: int, before: Callable[[], None]) -> list[float]:
        """The time of a graph, `repeat` times over; `before` is called before each run, and not timed."""

    def spread_bytes(self, call: BoundCall, kernels: int = 1) -> int | None:
        """Shared memory with which blocks are spread evenly over the multiprocessors; None where that cannot be.

        `kernels` is how many alike should find room together.
        """


def plain(device: GraphDevice, call: BoundCall) -> LaunchAs:
    """One kernel after the other."""
    return LaunchAs(False, call.kernel.dynamic_bytes)


def spread(device: GraphDevice, call: BoundCall) -> LaunchAs:
    """Kernels start early whose blocks can be kept apart."""
    size = device.spread_bytes(call) if call.kernel.dependent else None
    return plain(device, call) if size is None else LaunchAs(True, size)


def early(device: GraphDevice, call: BoundCall) -> LaunchAs:
    """All kernels start early that can, with their blocks kept apart where they can be."""
    size = device.spread_bytes(call) if call.kernel.dependent else None
    return LaunchAs(call.kernel.dependent, call.kernel.dynamic_bytes if size is None else size)


def beside(device: GraphDevice, call: BoundCall) -> LaunchAs:
    """All kernels start early that can, and leave room for another one on each multiprocessor."""
    size = device.spread_bytes(call, 2) if call.kernel.dependent else None
    return LaunchAs(call.kernel.dependent, call.kernel.dynamic_bytes if size is None else size)


POLICIES: tuple[Policy, ...] = (plain, spread, early, beside)


def _is_choice(calls: Sequence[BoundCall]) -> bool:
    return len(calls) >= _FEWEST_CALLS and any(call.kernel.dependent for call in calls)


def quickest(device: GraphDevice, calls: Sequence[BoundCall], before: Callable[[], None] = lambda: None) -> Policy:
    """The way to launch some calls that a few runs show to be the quickest; `before` is called before each."""
    if not _is_choice(calls):
        return plain
    times: dict[Policy, float] = {}
    for policy in POLICIES:
        graph = device.captured(calls, policy)
        times[policy] = min(device.seconds(graph, _TRIAL_RUNS, before))
        device.discard(graph)
    return min(times, key=lambda policy: times[policy])


class _Graph:
    """An executable graph, given back when nobody would start it any more."""

    __slots__ = ("_gpu", "_graph")

    def __init__(self, gpu: GraphDevice, graph: Any) -> None:
        self._gpu = gpu
        self._graph = graph

    def __call__(self) -> None:
        self._gpu.start(self._graph)

    def __del__(self) -> None:
        self._gpu.discard(self._graph)


class CudaRecording(Recording):
    """Launches as CUDA graphs: one for each set of arguments, of which the latest are kept."""

    def __init__(self, device: Device, graphs: GraphDevice, calls: Sequence[BoundCall]) -> None:
        super().__init__(device, calls)
        self._gpu = graphs
        self._policy: Policy | None = None
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._changed: dict[int, tuple[int, ...]] = {}

    def replace(self, number: int, args: list[Any]) -> None:
        """Give a call other arguments."""
        super().replace(number, args)
        self._changed[number] = tuple(arg.address for arg in args if hasattr(arg, "address"))

    @property
    def will_try(self) -> bool:
        """Whether a few runs are to decide how kernels are launched."""
        return self._policy is None and _is_choice(self.calls)

    def bound(self) -> Callable[[], None]:
        """The graph for the present arguments."""
        key = tuple(address for number in sorted(self._changed) for address in (number, *self._changed[number]))
        graph = self._graphs.get(key)
        if graph is None:
            if self._policy is None:
                self._policy = quickest(self._gpu, self.calls[: self.tried], self.before_trial)
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            graph = self._graphs[key] = _Graph(self._gpu, self._gpu.captured(self.calls, self._policy))
        return graph


def even_share(blocks: int, processors: int, capacity: int, own: int, most: int, kernels: int = 1) -> int:
    """Bytes that a block must take of a multiprocessor's `capacity` so that no more fit than its even share.

    `own` is what it takes anyway; `most` is what a block may take, beyond which nothing can be done. `kernels` is how
    many alike should find room together.
    """
    share = math.ceil(blocks / processors) * kernels
    # A little more than a part: what the system keeps of each block is not counted.
    return min(max(own, capacity // (share + 1) + 1), most)
