"""Which ranks a value may have of which only a run knows how many dimensions it has."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.types import TensorType

MOST_RANK = 8
"""The most dimensions of a tensor of which only a run decides how many it has."""


class Ranks:
    """What is known of the ranks of values of unknown rank."""

    def __init__(self) -> None:
        self._possible: dict[int, tuple[GraphExpr, frozenset[int]]] = {}

    def possible(self, value: GraphExpr) -> frozenset[int]:
        """The ranks that a tensor may have."""
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            return frozenset({len(value.type.shape)})
        entry = self._possible.get(id(value))
        return frozenset(range(MOST_RANK + 1)) if entry is None else entry[1]

    def note(self, value: GraphExpr, ranks: Iterable[int]) -> None:
        """Say which ranks a tensor may have, if it is of unknown rank."""
        if isinstance(value.type, TensorType) and value.type.shape is None:
            self._possible[id(value)] = (value, frozenset(ranks))  # the value is kept, so that its identity is its own
