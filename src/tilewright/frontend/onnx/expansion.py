"""How large a model is once the calls of its functions are replaced by their bodies, counted before it is done.

Functions that call functions twice each are a file of a few hundred bytes and a graph of any size: 30 such functions
are a thousand million nodes. The count takes one look at each node that the file has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilewright.frontend.onnx.model import OnnxFunction, OnnxGraph, OnnxModel, OnnxNode
from tilewright.support.errors import UserError

MOST_NODES = 100_000
"""Nodes of a model after expansion, as far as they come from functions."""
_Key = tuple[str, str, str]


def check_expansion(model: OnnxModel) -> None:
    """Refuse a model whose functions would make it too large. Functions that call themselves are told elsewhere."""
    sizes: dict[_Key, int] = {}
    for key in _callees_first(model):
        sizes[key] = _size(model.functions[key].nodes, sizes)
    plain = sum(1 for _ in _nodes(model.graph.nodes))
    expanded = _size(model.graph.nodes, sizes) - plain
    if expanded > MOST_NODES:
        raise UserError(
            f"the functions of the model stand for {expanded} nodes, more than the {MOST_NODES} that are allowed",
            where=model.source,
            hint="functions that call functions make a model grow fast: export it with fewer calls of them",
        )


def _key(node: OnnxNode) -> _Key:
    return node.domain, node.op_type, node.overload


def _nodes(nodes: Iterable[OnnxNode]) -> Iterator[OnnxNode]:
    """Nodes, and those of the graphs inside them."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for value in node.attributes.values():
            for graph in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(graph, OnnxGraph):
                    stack.extend(graph.nodes)


def _size(nodes: Iterable[OnnxNode], sizes: Mapping[_Key, int]) -> int:
    """The number of nodes after expansion; a function whose size is not known counts as a node."""
    return sum(1 + sizes.get(_key(node), 0) for node in _nodes(nodes))


def _callees_first(model: OnnxModel) -> list[_Key]:
    """The functions, those that others call before them (as far as there is such an order)."""
    functions: Mapping[_Key, OnnxFunction] = model.functions
    below = {
        key: [_key(node) for node in _nodes(function.nodes) if _key(node) in functions]
        for key, function in functions.items()
    }
    order: list[_Key] = []
    entered: set[_Key] = set()
    for root in functions:
        stack = [(root, False)]
        while stack:
            key, done = stack.pop()
            if done:
                order.append(key)
            elif key not in entered:
                entered.add(key)
                stack.append((key, True))
                stack.extend((callee, False) for callee in below[key])
    return order
