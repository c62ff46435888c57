"""Which names of a graph are used later, while its nodes are imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.scopes import Scope
from tilewright.frontend.onnx.model import OnnxNode
from tilewright.frontend.onnx.order import used_names
from tilewright.graph.ir.expr import GraphExpr


@dataclass(frozen=True)
class Rest:
    """The nodes of a graph from a fork on; `wanted` are the names that are used after the last one."""

    nodes: Sequence[OnnxNode]
    scope: Scope
    opsets: Mapping[str, int]
    wanted: Sequence[str]
    start: int
    """The place of the first of these nodes in its graph."""
    last_uses: Mapping[str, int]
    """The place of the last node of the graph that uses a name."""

    def live(self, count: int, value: GraphExpr | None) -> list[str]:
        """The names that the first nodes give values, and those of a value that they know more of, that are used later.

        In the order in which they are given.
        """
        given = dict.fromkeys(name for node in self.nodes[:count] for name in node.outputs if name)
        if value is not None:
            given.update(dict.fromkeys(self.scope.names_of(value)))
        after = self.start + count
        return [name for name in given if name in self.wanted or self.last_uses.get(name, -1) >= after]


def last_uses(nodes: Sequence[OnnxNode]) -> dict[str, int]:
    """The place of the last node that uses a name, by the name."""
    return {name: place for place, node in enumerate(nodes) for name in used_names(node)}
