"""The order of kernels that keeps less memory alive: what frees more than it takes runs as soon as it can.

Before:  dx = product(dy, w);  ... the rest of the way back ...;  dw = product(dy, x);  db = sum(dy)
After:   dx = product(dy, w);  dw = product(dy, x);  db = sum(dy);  ... the rest of the way back ...

Kernels come in the order of the results that need them: gradients of weights, which the end of a step reads, would hold
all that they are computed from until then. The last readers of a value go together, with what they wait for, if what
ends with them is more than what they give. Where that lowers neither the peak nor, at the same peak, what is alive on
average (results over arguments and scratch memory come later, and may move the peak), the order stays as it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet
from tilewright.graph.ir.op import Operator
from tilewright.graph.state import StatePair, dependents, results_of
from tilewright.graph.views import is_view
from tilewright.ir.types import TensorType, TupleType, Type

Value = tuple[int, int]
"""A result of a kernel: the kernel's place in the order that was, and the number of the result."""
_MOST_TOGETHER: Final = 8
"""Kernels that are moved at a time."""


def memory_order(order: Sequence[GraphExpr], function: Function, state: Sequence[StatePair]) -> list[GraphExpr]:
    """Nodes of a fused function, each after its operands, and new values of state after all that read the old ones."""
    graph = Lifetimes(order, function)
    places = _Schedule(graph, dependents(order, function, state)).run()
    better = graph.alive(places) < graph.alive(range(len(order)))
    return [order[place] for place in places] if better else list(order)


class Lifetimes:
    """What each kernel of a function gives and reads."""

    def __init__(self, order: Sequence[GraphExpr], function: Function) -> None:
        self._place = {id(item): place for place, item in enumerate(order)}
        self.given: list[dict[Value, int]] = [_given(place, item) for place, item in enumerate(order)]
        """The bytes of each result in the workspace."""
        for item in results_of(function):
            # What a caller gets is elsewhere.
            place, number = self.value_of(item)
            for value in self.given[place].keys() if isinstance(item.type, TupleType) else [(place, number)]:
                self.given[place][value] = 0
        self.read: list[set[Value]] = [
            {value for arg in item.args if (value := self.value_of(arg)) in self.given[value[0]]}
            if isinstance(item, Call) and self.given[place]
            else set()
            for place, item in enumerate(order)
        ]

    def value_of(self, item: GraphExpr) -> Value:
        """The value that an expression is, or is a view of."""
        while True:
            if isinstance(item, Call) and is_view(item):
                item = item.args[0]
            elif isinstance(item, TupleGet) and isinstance(item.value, Tuple):
                item = item.value.items[item.index]
            elif isinstance(item, TupleGet):
                return self._place[id(item.value)], item.index
            else:
                return self._place[id(item)], 0

    def alive(self, places: Iterable[int]) -> tuple[int, int]:
        """The most bytes that are alive while a kernel runs, and the sum over all kernels, in an order."""
        left = {value: len(readers) for value, readers in self.readers().items()}
        alive = most = total = 0
        for place in places:
            alive += sum(self.given[place].values())
            most = max(most, alive)
            total += alive if self.given[place] else 0
            for value in self.read[place]:
                left[value] -= 1
            ended = [value for value in (*self.read[place], *self.given[place]) if not left[value]]
            alive -= sum(self.given[value[0]][value] for value in ended)
        return most, total

    def readers(self) -> dict[Value, set[int]]:
        """The kernels that read each value."""
        found: dict[Value, set[int]] = {value: set() for values in self.given for value in values}
        for place, values in enumerate(self.read):
            for value in values:
                found[value].add(place)
        return found


class _Schedule:
    """Nodes in a new order, one after the other."""

    def __init__(self, graph: Lifetimes, later: Sequence[set[int]]) -> None:
        self._graph, self._later = graph, later
        self._left = graph.readers()
        """The kernels that read a value and have not run."""
        self._missing = [0] * len(later)
        self._needs: list[list[int]] = [[] for _ in later]
        for place, users in enumerate(later):
            for user in users:
                self._missing[user] += 1
                self._needs[user].append(place)
        self._ready: list[int] = []
        """Kernels that could run; what needs none runs when it can."""
        self._done = [False] * len(later)
        self._result: list[int] = []

    def run(self) -> list[int]:
        """All places."""
        first = [place for place, count in enumerate(self._missing) if not count]
        for place in first:
            if self._graph.given[place]:
                heapq.heappush(self._ready, place)
            else:
                self._run(place)
        while self._ready:
            place = heapq.heappop(self._ready)
            if not self._done[place]:
                self._take([place])
        return self._result

    def _take(self, places: Sequence[int]) -> None:
        """Run kernels, and then all those that free memory now."""
        waiting = list(reversed(places))
        while waiting:
            place = waiting.pop()
            if self._done[place]:
                continue
            touched = [*self._graph.read[place]]
            for user in self._run(place):
                touched += self._graph.read[user]
            for value in touched:
                waiting += reversed(self._ending_together(value))

    def _run(self, place: int) -> list[int]:
        """Run a kernel, and what needs none; returns the kernels that can run since then."""
        ready: list[int] = []
        stack = [place]
        while stack:
            place = stack.pop()
            self._done[place] = True
            self._result.append(place)
            for value in self._graph.read[place]:
                self._left[value].discard(place)
            for user in sorted(self._later[place]):
                self._missing[user] -= 1
                if not self._missing[user]:
                    (ready if self._graph.given[user] else stack).append(user)
        for user in ready:
            heapq.heappush(self._ready, user)
        return ready

    def _ending_together(self, value: Value) -> list[int]:
        """The last readers of a value with what they wait for, where these few free more than they take."""
        places = self._with_needed(self._left[value])
        touched = {other for place in places for other in (*self._graph.read[place], *self._graph.given[place])}
        freed = sum(self._graph.given[other[0]][other] for other in touched if self._left[other] <= places)
        taken = sum(sum(self._graph.given[place].values()) for place in places)
        return sorted(places) if freed > taken else []

    def _with_needed(self, places: set[int]) -> set[int]:
        """Kernels, and those that must run before them; none if they are many."""
        found: set[int] = set()
        seen = set(places)
        stack = list(places)
        while stack:
            place = stack.pop()
            if self._graph.given[place]:
                found.add(place)
            before = [need for need in self._needs[place] if not self._done[need] and need not in seen]
            seen.update(before)
            stack += before
            if len(found) > _MOST_TOGETHER or len(seen) > 8 * _MOST_TOGETHER:
                return set()
        return found


def _given(place: int, item: GraphExpr) -> dict[Value, int]:
    """The bytes of each result of a kernel; nothing for other nodes."""
    if not isinstance(item, Call) or isinstance(item.callee, Operator):
        return {}
    kinds = item.type.items if isinstance(item.type, TupleType) else (item.type,)
    return {(place, number): _bytes(kind) for number, kind in enumerate(kinds)}


def _bytes(kind: Type | None) -> int:
    assert isinstance(kind, TensorType) and kind.static_shape is not None
    return prod(kind.static_shape) * kind.dtype.itemsize
