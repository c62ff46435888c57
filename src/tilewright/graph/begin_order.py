"""The order in which the kernels of a model begin, where a processor computes its layers beside the host.

The processor executes its layers in the order in which the host begins them, and the host goes on until it reads a
result of one. So layers begin as soon as they can, and the host computes what waits for none before what waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children, post_order

_LAYERS = "accel."
"""How the names of a processor's operators begin."""


def begin_order(order: Sequence[GraphExpr]) -> list[GraphExpr]:
    """Nodes of a fused function, each after its operands, in the order in which they begin; as given without layers."""
    kinds = [_kind(item) for item in order]
    return _Order(order, kinds).run() if _Kind.LAYER in kinds else list(order)


def has_layers(order: Sequence[GraphExpr]) -> bool:
    """Whether a processor computes some of a function's kernels beside the host."""
    return any(_kind(item) is _Kind.LAYER for item in order)


class _Kind(Enum):
    VALUE = auto()
    """No kernel: a parameter, a constant, a part of a result."""
    HOST = auto()
    LAYER = auto()


def _kind(item: GraphExpr) -> _Kind:
    if not isinstance(item, Call) or not isinstance(item.callee, Function):
        return _Kind.VALUE
    calls = (node for node in post_order(item.callee) if isinstance(node, Call))
    is_layer = any(isinstance(node.callee, Operator) and node.callee.name.startswith(_LAYERS) for node in calls)
    return _Kind.LAYER if is_layer else _Kind.HOST


class _Order:
    def __init__(self, order: Sequence[GraphExpr], kinds: Sequence[_Kind]) -> None:
        self._order, self._kinds = order, kinds
        places = {id(item): place for place, item in enumerate(order)}
        self._operands = [{places[id(part)] for part in children(item) if id(part) in places} for item in order]
        self._users: list[list[int]] = [[] for _ in order]
        for place, operands in enumerate(self._operands):
            for part in operands:
                self._users[part].append(place)
        self._leads = [kind is _Kind.LAYER for kind in kinds]
        """Whether a layer comes of an item."""
        for place in reversed(range(len(order))):
            self._leads[place] |= any(self._leads[user] for user in self._users[place])
        self._layer: dict[int, int] = {}
        """The number of the layer that an item is there with."""
        self._done = -1
        """The last layer that the host has waited for."""

    def run(self) -> list[GraphExpr]:
        """All of them, in order."""
        missing = [len(operands) for operands in self._operands]
        ready = {place for place, count in enumerate(missing) if not count}
        result: list[GraphExpr] = []
        layers = 0
        while ready:
            place = min(ready, key=self._rank)
            ready.remove(place)
            result.append(self._order[place])
            if self._kinds[place] is _Kind.LAYER:
                self._layer[place] = layers
                layers += 1
            elif self._kinds[place] is _Kind.HOST:
                self._done = max(self._done, self._waits_for(place))
            else:
                self._layer[place] = self._waits_for(place)
            for user in self._users[place]:
                missing[user] -= 1
                if not missing[user]:
                    ready.add(user)
        return result

    def _waits_for(self, place: int) -> int:
        """The last layer whose result an item reads."""
        return max((self._layer.get(part, -1) for part in self._operands[place]), default=-1)

    def _rank(self, place: int) -> tuple[int, int, int]:
        """What goes first: layers and values; then what waits for no layer, and leads to one; then the rest."""
        if self._kinds[place] is not _Kind.HOST:
            return 0, 0, place
        waits = self._waits_for(place)
        if waits <= self._done:
            return 1, not self._leads[place], place
        return 2, 2 * waits + (not self._leads[place]), place
