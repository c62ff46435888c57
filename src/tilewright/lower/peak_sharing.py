"""Which kernels of a device write a result over an argument: those that run when most memory is taken.

A kernel that is told that its parameters are distinct memory reads quicker, so on devices results are elsewhere, unless
the peak of a model depends on it. The step with most alive is asked first; once it shares, or does not need to, the
next one is: until one at the peak cannot.

    alive:  scores (119 MiB), loss's gradient of them (119), all others (600)       ->  the gradient over the scores
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import accumulate

from tilewright.graph.passes.plan_memory import MemoryPlan, PlannedStep
from tilewright.tir.analysis.in_place import Pair


def sharing_at_the_peak(plan: MemoryPlan, can_share: Callable[[PlannedStep, Pair], bool]) -> dict[int, list[Pair]]:
    """By the number of a step, pairs of an argument that ends there and a result that are to be the same memory."""
    alive = _alive(plan)
    waiting = [(-size, step) for step, size in enumerate(alive)]
    heapq.heapify(waiting)
    found: dict[int, list[Pair]] = {}
    while waiting:
        size, step = heapq.heappop(waiting)
        pair = _next_pair(plan.steps[step], found.get(step, []), can_share)
        if pair is None:
            break
        found.setdefault(step, []).append(pair)
        heapq.heappush(waiting, (size + _bytes(plan.steps[step], pair), step))
    return found


def _alive(plan: MemoryPlan) -> list[int]:
    """The bytes of the workspace that are alive at each step."""
    change = [0] * (len(plan.steps) + 2)
    for place, first, last in plan.lifetimes:
        assert isinstance(place.size, int)
        change[first] += place.size
        change[min(last, len(plan.steps)) + 1] -= place.size
    return list(accumulate(change[: len(plan.steps)]))


def _bytes(step: PlannedStep, pair: Pair) -> int:
    size = step.results[pair[1]].size
    assert isinstance(size, int)
    return size


def _next_pair(step: PlannedStep, taken: list[Pair], can_share: Callable[[PlannedStep, Pair], bool]) -> Pair | None:
    """The largest pair of a step that shares memory, of arguments and results that do not yet."""
    left = [
        pair
        for pair in step.ending
        if step.arguments[pair[0]].kind == "workspace" and all(a != pair[0] and b != pair[1] for a, b in taken)
    ]
    return next((pair for pair in sorted(left, key=lambda pair: -_bytes(step, pair)) if can_share(step, pair)), None)
