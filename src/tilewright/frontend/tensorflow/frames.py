"""Control flow of old graphs as that of new ones: frames become loops, switches and merges become branches.

A loop enters a frame by `Enter`, comes around by `NextIteration` to a `Merge`, and leaves by `Exit` where the `Switch`
of its `LoopCond` says so:

    Enter -> Merge -> Switch -> Identity -> ... -> NextIteration -> Merge
                         \\-> Exit

It becomes one node `While` with a body for the condition and one for a turn, whose parameters are called like the
merges. Innermost frames come first. What is left of switches and merges are branches (`merges.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tilewright.frontend.tensorflow.merges import followers, with_branches
from tilewright.frontend.tensorflow.model import Body, Node, Ref
from tilewright.frontend.tensorflow.tensors import text_of
from tilewright.support.errors import UserError

ENTER = ("Enter", "RefEnter")
MERGE = ("Merge", "RefMerge")
SWITCH = ("Switch", "RefSwitch")
EXIT = ("Exit", "RefExit")
NEXT = ("NextIteration", "RefNextIteration")
_LEAST_INPUTS = {
    **dict.fromkeys((*ENTER, *EXIT, *NEXT, "LoopCond", "Identity"), 1),
    **dict.fromkeys((*MERGE, *SWITCH), 2),
}
"""How many inputs operators of control flow have at least."""
_AGAIN = "the graph is damaged: export the model again"


def structured(body: Body, source: str) -> Body:
    """A body without frames, switches and merges."""
    ops = {node.op for node in body.nodes.values()}
    if not ops & {*ENTER, *MERGE}:
        return body
    for node in body.nodes.values():
        if len(node.inputs) < _LEAST_INPUTS.get(node.op, 0):
            raise UserError(f"'{node.name}' ({node.op}) has {len(node.inputs)} inputs", where=source, hint=_AGAIN)
    nodes = dict(body.nodes)
    frames: dict[str, list[Node]] = {}
    for node in nodes.values():
        if node.op in ENTER:
            frames.setdefault(_frame(node), []).append(node)
    while frames:
        name = _innermost(nodes, frames, source)
        nodes = _with_loop(nodes, name, frames.pop(name), source)
    return with_branches(replace(body, nodes=nodes), source)


def _frame(node: Node) -> str:
    return text_of(node.attributes["frame_name"].s) if "frame_name" in node.attributes else ""


def _inside(nodes: Mapping[str, Node], enters: Iterable[Node], after: Mapping[str, list[str]]) -> set[str]:
    """What is reached from some nodes, up to where a frame is left."""
    reached: set[str] = set()
    ahead = [node.name for node in enters]
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        if nodes[name].op not in EXIT:
            ahead.extend(after.get(name, ()))
    return reached


def _innermost(nodes: Mapping[str, Node], frames: Mapping[str, list[Node]], source: str) -> str:
    """A frame that no other one is in."""
    after = followers(nodes)
    for name, enters in frames.items():
        inside = _inside(nodes, enters, after)
        if not any(nodes[item].op in ENTER and _frame(nodes[item]) != name for item in inside):
            return name
    raise UserError("frames of loops contain each other", where=source, hint=_AGAIN)


def _with_loop(nodes: Mapping[str, Node], name: str, enters: list[Node], source: str) -> dict[str, Node]:
    """The nodes with a frame as one node `While`."""
    inside = _inside(nodes, enters, followers(nodes))
    members = {item: nodes[item] for item in nodes if item in inside}
    conditions = [node for node in members.values() if node.op == "LoopCond"]
    if len(conditions) != 1:
        raise UserError(f"the frame '{name}' has {len(conditions)} conditions", where=source, hint=_AGAIN)
    (condition,) = conditions
    by_name = {node.name: node for node in enters}
    merges = [node for node in members.values() if node.op in MERGE and _is_loop(node, members, by_name)]
    starts = [next(by_name[ref.node] for ref in node.inputs if ref.node in by_name) for node in merges]
    nexts = [next(members[ref.node] for ref in node.inputs if _comes_around(ref, members)) for node in merges]
    fixed = [node for node in enters if node not in starts]
    rename = _renaming(members, merges, condition)
    taken = {node.name for node in (*enters, *merges, *nexts, condition)}
    inner = {
        item.name: _renamed(item, rename, set(members) - taken)
        for item in members.values()
        if item.name not in taken and item.op not in EXIT and not _is_loop_switch(item, merges, condition)
    }
    params = tuple(node.name for node in (*merges, *fixed))
    test = Body(f"{name}/test", params, inner, (rename(condition.inputs[0]),))
    turn = Body(f"{name}/turn", params, inner, tuple(rename(node.inputs[0]) for node in nexts))
    whole = Node(
        condition.name,
        "While",
        tuple(node.inputs[0] for node in (*starts, *fixed)),
        tuple({item for node in enters for item in node.controls if item not in inside}),
        bodies=(test, turn),
    )
    return _outside(nodes, members, whole, merges, rename, source)


def _is_loop(node: Node, members: Mapping[str, Node], enters: Mapping[str, Node]) -> bool:
    enters_here = any(ref.node in enters for ref in node.inputs)
    return enters_here and any(_comes_around(ref, members) for ref in node.inputs)


def _comes_around(ref: Ref, members: Mapping[str, Node]) -> bool:
    return ref.node in members and members[ref.node].op in NEXT


def _is_loop_switch(node: Node, merges: list[Node], condition: Node) -> bool:
    return (
        node.op in SWITCH
        and len(node.inputs) == 2
        and node.inputs[1].node == condition.name
        and any(node.inputs[0].node == merge.name for merge in merges)
    )


def _renaming(members: Mapping[str, Node], merges: list[Node], condition: Node) -> Callable[[Ref], Ref]:
    """In a turn, what a switch of the loop hands on is what its merge has."""
    switches = {node.name: node.inputs[0] for node in members.values() if _is_loop_switch(node, merges, condition)}
    return lambda ref: switches.get(ref.node, ref)


def _renamed(node: Node, rename: Callable[[Ref], Ref], known: set[str]) -> Node:
    inputs = tuple(rename(ref) for ref in node.inputs)
    return replace(node, inputs=inputs, controls=tuple(item for item in node.controls if item in known))


def _outside(
    nodes: Mapping[str, Node],
    members: Mapping[str, Node],
    whole: Node,
    merges: list[Node],
    rename: Callable[[Ref], Ref],
    source: str,
) -> dict[str, Node]:
    """The nodes around a loop: its exits hand on what it gives."""
    places = {node.name: at for at, node in enumerate(merges)}
    result: dict[str, Node] = {}
    for node in nodes.values():
        if node.name not in members:
            controls = tuple(
                whole.name if item in members and members[item].op not in EXIT else item for item in node.controls
            )
            result[node.name] = replace(node, controls=controls)
        elif node.op in EXIT:
            place = places.get(rename(node.inputs[0]).node)
            if place is None:
                raise UserError(f"'{node.name}' leaves no loop", where=source, hint=_AGAIN)
            result[node.name] = Node(node.name, "Identity", (Ref(whole.name, place),))
    result[whole.name] = whole
    return result
