"""The order in which the nodes of a body are done, and which of them need not be."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.frontend.tensorflow.model import Body, Node
from tilewright.frontend.tensorflow.registry import has_effect
from tilewright.support.errors import UserError


def needed_nodes(body: Body, source: str) -> list[Node]:
    """The nodes that results need, and those before them that are run for what they do, in order.

    What is only waited for (assertions, and what they print) is left out.
    """
    order = _in_order(body, source)
    needed = {ref.node for ref in body.results}
    for node in reversed(order):
        if node.name in needed or has_effect(node.op):
            needed.add(node.name)
            needed.update(ref.node for ref in node.inputs)
    return [node for node in order if node.name in needed]


def _in_order(body: Body, source: str) -> list[Node]:
    """All nodes that results and effects depend on or wait for, each after those that it depends on."""
    done: set[str] = set(body.params)
    open_nodes: set[str] = set()
    order: list[Node] = []
    stack: list[tuple[Node, Iterator[str]]] = []

    def enter(name: str) -> None:
        if name in done:
            return
        if name in open_nodes:
            raise UserError(f"the node '{name}' depends on itself", where=source, hint="export the model again")
        node = body.nodes.get(name)
        if node is None:
            raise UserError(f"there is no node '{name}' in '{body.name}'", where=source, hint="export the model again")
        open_nodes.add(name)
        stack.append((node, iter([*(ref.node for ref in node.inputs), *node.controls])))

    for root in [*(ref.node for ref in body.results), *body.effects]:
        enter(root)
        while stack:
            node, rest = stack[-1]
            before = next(rest, None)
            if before is not None:
                enter(before)
                continue
            stack.pop()
            open_nodes.discard(node.name)
            done.add(node.name)
            order.append(node)
    return order
