"""Minimum cuts of networks whose nodes have names."""

from __future__ import annotations

from collections import deque


class Network:
    """Capacities between named nodes."""

    def __init__(self) -> None:
        self._capacities: dict[str, dict[str, int]] = {}

    def add(self, start: str, end: str, capacity: int) -> None:
        """More capacity from one node to another."""
        if start != end:
            edges = self._capacities.setdefault(start, {})
            edges[end] = edges.get(end, 0) + capacity
            self._capacities.setdefault(end, {}).setdefault(start, 0)

    def minimum_cut(self, source: str, sink: str) -> set[str]:
        """The source's side of a minimum cut: what it still reaches when no more can flow (Edmonds and Karp)."""
        while True:
            before = self._reached(source)
            if sink not in before:
                return set(before)
            path = [sink]
            while path[-1] != source:
                path.append(before[path[-1]])
            pairs = list(zip(path[1:], path[:-1], strict=True))
            flow = min(self._capacities[start][end] for start, end in pairs)
            for start, end in pairs:
                self._capacities[start][end] -= flow
                self._capacities[end][start] += flow

    def _reached(self, source: str) -> dict[str, str]:
        """The nodes that flow reaches, each with the one before it on a shortest way."""
        before = {source: source}
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for end, capacity in self._capacities.get(node, {}).items():
                if capacity > 0 and end not in before:
                    before[end] = node
                    waiting.append(end)
        return before
