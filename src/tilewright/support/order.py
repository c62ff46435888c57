"""The order in which a graph is walked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def children_first(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> list[T]:
    """Everything that the roots reach, each item once and after what is below it; a cycle is cut where it closes."""
    order: list[T] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        item, expanded = stack.pop()
        if expanded:
            order.append(item)
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        stack.append((item, True))
        stack.extend((child, False) for child in reversed(list(below(item))) if id(child) not in seen)
    return order
