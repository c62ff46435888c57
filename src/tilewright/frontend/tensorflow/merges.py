"""Switches and merges of old graphs as branches: one node `If` for all merges of a condition.

A `Switch` hands its data on at one of two ports by a condition, and a `Merge` takes what comes. What lies between is
the body of one side; what it takes from elsewhere are its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.frontend.tensorflow.model import Body, Node, Ref
from tilewright.support.errors import UnsupportedError, UserError

_MERGE = ("Merge", "RefMerge")
_SWITCH = ("Switch", "RefSwitch")
_AGAIN = "the graph is damaged: export the model again"


def with_branches(body: Body, source: str) -> Body:
    """A body whose merges are branches."""
    nodes = dict(body.nodes)
    while True:
        merges = [node for node in nodes.values() if node.op in _MERGE]
        if not merges:
            return replace(body, nodes=nodes)
        after = followers(nodes)
        later = _reached(after, [name for node in merges for name in after.get(node.name, ())])
        ready = [node for node in merges if node.name not in later]
        if not ready:
            raise UserError("merges of branches depend on each other", where=source, hint=_AGAIN)
        groups: dict[Ref, list[Node]] = {}
        for node in ready:
            groups.setdefault(_condition(nodes, node, source), []).append(node)
        condition, group = next(iter(groups.items()))
        nodes = _with_branch(nodes, condition, group, source)


def _before(nodes: Mapping[str, Node], roots: Iterable[str], stop: Iterable[str] = ()) -> set[str]:
    """What nodes depend on or wait for, and they themselves; not beyond operators to stop at."""
    reached: set[str] = set()
    ahead = list(roots)
    while ahead:
        name = ahead.pop()
        if name in reached or name not in nodes:
            continue
        reached.add(name)
        if nodes[name].op not in stop:
            ahead.extend((*(ref.node for ref in nodes[name].inputs), *nodes[name].controls))
    return reached


def followers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """The nodes that take a node's results, or wait for it."""
    found: dict[str, list[str]] = {}
    for node in nodes.values():
        for name in {*(ref.node for ref in node.inputs), *node.controls}:
            found.setdefault(name, []).append(node.name)
    return found


def _reached(after: Mapping[str, list[str]], roots: Iterable[str]) -> set[str]:
    """Nodes, and all that come after them."""
    reached: set[str] = set()
    ahead = list(roots)
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead.extend(after.get(name, ()))
    return reached


def _predicate(nodes: Mapping[str, Node], switch: Node) -> Ref:
    """The condition of a switch, whatever hands it on."""
    ref = switch.inputs[1]
    for _ in range(len(nodes)):
        if ref.node not in nodes or nodes[ref.node].op != "Identity":
            break
        ref = nodes[ref.node].inputs[0]
    return ref


def _ports(nodes: Mapping[str, Node], ref: Ref) -> dict[Ref, set[int]]:
    """The conditions of the switches that a value comes from, and through which ports."""
    found: dict[Ref, set[int]] = {}
    reached: set[str] = set()
    ahead: list[tuple[str, int | None]] = [(ref.node, ref.port)]
    while ahead:
        name, port = ahead.pop()
        node = nodes.get(name)
        if node is None:
            continue
        if node.op in _SWITCH:
            if port is not None:
                found.setdefault(_predicate(nodes, node), set()).add(port)
            continue
        if name in reached:
            continue
        reached.add(name)
        ahead.extend((item.node, item.port) for item in node.inputs)
        ahead.extend((item, None) for item in node.controls)
    return found


def _condition(nodes: Mapping[str, Node], merge: Node, source: str) -> Ref:
    """The condition that chooses among the two inputs of a merge."""
    if len(merge.inputs) != 2:
        raise UnsupportedError(f"'{merge.name}' merges {len(merge.inputs)} values", where=source)
    first, second = (_ports(nodes, ref) for ref in merge.inputs)
    for condition in {**first, **second}:
        ports = (first.get(condition, set()), second.get(condition, set()))
        if all(len(item) <= 1 for item in ports) and ports[0] != ports[1]:
            return condition
    raise UnsupportedError(
        f"'{merge.name}' merges values that no one condition switches",
        where=source,
        hint="export the model again by TF2",
    )


def _is_first_true(nodes: Mapping[str, Node], merge: Node, condition: Ref) -> bool:
    first, second = (_ports(nodes, ref).get(condition, set()) for ref in merge.inputs)
    return first == {1} or second == {0}


def _with_branch(nodes: dict[str, Node], condition: Ref, merges: list[Node], source: str) -> dict[str, Node]:
    """The nodes with all merges of one condition as one node `If`."""
    switches = {node.name for node in nodes.values() if node.op in _SWITCH and _predicate(nodes, node) == condition}
    between = _reached(followers(nodes), switches)
    sides: tuple[list[Ref], list[Ref]] = ([], [])
    for merge in merges:
        first, second = merge.inputs if _is_first_true(nodes, merge, condition) else reversed(merge.inputs)
        sides[0].append(first)
        sides[1].append(second)
    captures: dict[Ref, str] = {}
    parts = [_side(nodes, refs, switches, between, captures) for refs in sides]
    params = tuple(captures.values())
    bodies = tuple(
        Body(f"{merges[0].name}/{label}", params, inner, results)
        for label, (inner, results) in zip(("then", "else"), parts, strict=True)
    )
    name = f"{merges[0].name}/if"
    result = dict(nodes)
    result[name] = Node(name, "If", (condition, *captures), bodies=bodies)
    for at, merge in enumerate(merges):
        result[merge.name] = Node(merge.name, "Identity", (Ref(name, at),))
    return result


def _side(
    nodes: Mapping[str, Node], refs: list[Ref], switches: set[str], between: set[str], captures: dict[Ref, str]
) -> tuple[dict[str, Node], tuple[Ref, ...]]:
    """The nodes of one side, and its results; what comes from elsewhere gets a parameter."""
    inner = {
        name for name in _before(nodes, [ref.node for ref in refs], _SWITCH) if name in between and name not in switches
    }

    def seen(ref: Ref) -> Ref:
        if ref.node in inner:
            return ref
        outer = nodes[ref.node].inputs[0] if ref.node in switches else ref
        return Ref(captures.setdefault(outer, f"captured {outer.node}:{outer.port}"))

    copies: dict[str, Node] = {}
    for name in nodes:
        if name in inner:
            node = nodes[name]
            controls = tuple(item for item in node.controls if item in inner)
            copies[name] = replace(node, inputs=tuple(seen(ref) for ref in node.inputs), controls=controls)
    return copies, tuple(seen(ref) for ref in refs)
