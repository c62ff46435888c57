"""Thinking ahead: the next points of a task are looked for in a thread while another task's are being measured.

    with Ahead(next_points) as ahead:
        ahead.begin(other, 8)           # returns at once
        ...                             # measure something: this process only waits
        points = ahead.points(other, 8)

A task's search depends on what was measured of that task alone, so points that were found ahead are those that would be
found later: looking ahead changes no result, it only takes place at another time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from tilewright.tune.measure import divided_cpus
from tilewright.tune.space import Point

T = TypeVar("T")


class Ahead(Generic[T]):
    """Answers of a function of a task and a number of points, some of them found before they are asked for."""

    def __init__(self, find: Callable[[T, int], list[Point]]) -> None:
        self._find = find
        self._found: dict[int, Future[list[Point]]] = {}
        # What is being timed has a processor to itself: looking for points stays off it.
        self._thread = ThreadPoolExecutor(1, "tilewright-search", _leave_quiet_cpu)

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *unused: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, task: T, count: int) -> None:
        """Look for points of a task, unless that was begun before."""
        if id(task) not in self._found:
            self._found[id(task)] = self._thread.submit(self._find, task, count)

    def points(self, task: T, count: int) -> list[Point]:
        """Points of a task: those that were looked for ahead (not more than now wanted), or such as are found now."""
        ahead = self._found.pop(id(task), None)
        return self._find(task, count) if ahead is None else ahead.result()[:count]


def _leave_quiet_cpu() -> None:
    others, _ = divided_cpus()
    if others is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, others)
