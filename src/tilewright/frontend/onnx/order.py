"""The order of nodes: ONNX asks for producers before consumers; graphs that are not in order are put in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tilewright.frontend.onnx.model import OnnxGraph, OnnxNode
from tilewright.support.errors import UserError


def sort_nodes(nodes: Sequence[OnnxNode], known: Callable[[str], bool], source: str) -> list[OnnxNode]:
    """Nodes with producers first; the given order is kept where it can be. A cycle is an error."""
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name:
                if name in producers:
                    raise UserError(f"the name '{name}' is given to two values", where=f"{source}, node '{node.name}'")
                producers[name] = index
    needs = [_needed(node, producers, known) for node in nodes]
    if all(before < index for index, wanted in enumerate(needs) for before in wanted):
        return list(nodes)
    users: list[list[int]] = [[] for _ in nodes]
    missing = [len(wanted) for wanted in needs]
    for index, wanted in enumerate(needs):
        for before in wanted:
            users[before].append(index)
    ready = deque(index for index, count in enumerate(missing) if count == 0)
    result: list[OnnxNode] = []
    while ready:
        index = ready.popleft()
        result.append(nodes[index])
        for user in users[index]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    if len(result) != len(nodes):
        stuck = [nodes[index].name for index, count in enumerate(missing) if count]
        names = ", ".join(f"'{name}'" for name in stuck[:5])
        raise UserError(f"the graph has a cycle through the nodes {names}", where=source)
    return result


def used_names(node: OnnxNode) -> set[str]:
    """Names of the values that a node uses: its inputs, and what graphs inside it use from outside."""
    return set(node.inputs) | _captured(node)


def _needed(node: OnnxNode, producers: dict[str, int], known: Callable[[str], bool]) -> set[int]:
    names = used_names(node)
    return {producers[name] for name in names if name in producers and not known(name)}


def _captured(node: OnnxNode) -> set[str]:
    """Names that graphs inside a node use from outside.

    A name that a graph gives a value of its own means that one, though a value outside may have it too: branches of
    an `If` often call their results as the `If` does.
    """
    found: set[str] = set()
    for value in node.attributes.values():
        if isinstance(value, OnnxGraph):
            used = {info.name for info in value.outputs}
            own = {info.name for info in value.inputs} | set(value.initializers)
            for inner in value.nodes:
                used |= set(inner.inputs) | _captured(inner)
                own.update(inner.outputs)
            found |= used - own
    return found
