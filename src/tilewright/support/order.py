"""The order in which a graph is walked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

T = TypeVar("T")


def children_first(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> list[T]:
    """Everything that the roots reach, each item once and after what is below it; a cycle is cut where it closes."""
    order: list[T] = []
    seen: set[int] = set()
    # None: all below what lies under it is done.
    stack: list[T | None] = [*roots]
    stack.reverse()
    while stack:
        item = stack.pop()
        if item is None:
            order.append(cast(T, stack.pop()))
            continue
        key = id(item)
        if key in seen:
            continue
        seen.add(key)
        found = tuple(below(item))
        if found:
            stack += (item, None)
            stack += found[::-1]
        else:
            order.append(item)
    return order
