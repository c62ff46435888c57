"""Kernels with several results: elementwise kernels at the end of a function that read one another become one.

Before:  v2 = fused_multiply_add(v, g);  a = where(ok, v2, v);  b = fused_multiply_subtract_where(v2, rate, p, ok)
         (a, b)
After:   both = joint_where_where(v, g, ok, rate, p)
         (both.0, both.1)

So are the updates of an optimizer: what is remembered of a parameter and the parameter itself are read once, written
once, and what they have in common is never stored. Kernels are joined that only results and one another read, so
nothing waits for the joint kernel but the end; they are of one shape, and elementwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, users
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import MAX_GROUP, is_primitive
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType

JOINT: Final = "joint"
"""The note of a kernel whose results are of one shape, and computed together element by element."""


def joint_results(module: IRModule, options: GraphOptions) -> IRModule:
    """Join the last elementwise kernels of every function, as far as kernels of the target may have results."""
    most = None if options.target is None else options.target.capabilities.most_buffers
    return map_functions(module, lambda function: function if is_primitive(function) else _joined(function, most))


def _joined(function: Function, most: int | None) -> Function:
    if not isinstance(function.body, Tuple):
        return function
    results = {id(item) for item in function.body.items}
    parts: dict[int, GraphExpr] = {}
    for group in _groups(function, function.body):
        last = [call for call in group if id(call) in results]
        inside = {id(call) for call in group}
        inputs = list({id(arg): arg for call in group for arg in call.args if id(arg) not in inside}.values())
        if len(group) > 1 and (most is None or len(inputs) + len(last) <= most):
            call = fill_type(Call(_primitive(group, inputs, last), tuple(inputs)))
            call.span = last[-1].span
            parts.update((id(old), fill_type(TupleGet(call, number))) for number, old in enumerate(last))
    if not parts:
        return function
    result = function.replace(body=fill_type(rewrite(function.body, lambda old, new: None, parts)))
    result.type, result.span = function.type, function.span
    return result


def _groups(function: Function, results: Tuple) -> list[list[Call]]:
    """Calls that may be joined: what reads one of them is in its group too, or is the tuple of results."""
    order = post_order(function, closures=False)
    readers = users(order)
    group_of: dict[int, list[Call]] = {}
    groups: dict[int, list[Call]] = {}
    for item in reversed(order):
        if not isinstance(item, Call) or not _is_elementwise(item):
            continue
        above = [reader for reader in readers[id(item)] if reader is not results]
        if any(id(reader) not in group_of or static_shape(reader) != static_shape(item) for reader in above):
            continue
        below = {id(group_of[id(reader)]): group_of[id(reader)] for reader in above}
        members = [item, *(member for group in below.values() for member in group)]
        if sum(len(_operators(member)) for member in members) > MAX_GROUP:
            continue
        for key in below:
            del groups[key]
        groups[id(members)] = members
        group_of.update((id(member), members) for member in members)
    return list(groups.values())


def fused_nodes(call: Call) -> tuple[str, ...]:
    """The user's nodes that a kernel computes."""
    nodes = call.callee.notes["nodes"] if isinstance(call.callee, Function) else ()
    assert isinstance(nodes, tuple)
    return nodes


def _operators(call: Call) -> list[Call]:
    """The operators of a kernel."""
    assert isinstance(call.callee, Function)
    return [item for item in post_order(call.callee.body) if isinstance(item, Call)]


def _is_elementwise(call: Call) -> bool:
    """Whether a kernel computes each element of its one result of the same elements of what it reads, or of numbers."""
    shape = static_shape(call) if isinstance(call.type, TensorType) else None
    if shape is None or not is_primitive(call.callee):
        return False
    parts = _operators(call)
    elementwise = all(isinstance(item.callee, Operator) and item.callee.elementwise for item in parts)
    return elementwise and all(static_shape(item) in (shape, ()) for item in parts)


def _primitive(group: Sequence[Call], inputs: Sequence[GraphExpr], results: Sequence[Call]) -> Function:
    """The function of a group: the bodies of its kernels, in order, with a tuple of results."""
    params = tuple(Var(f"p{index}", arg.type) for index, arg in enumerate(inputs))
    values: dict[int, GraphExpr] = {id(arg): param for arg, param in zip(inputs, params, strict=True)}
    names: list[str] = []
    nodes: dict[str, None] = {}
    for call in group:
        function = call.callee
        assert isinstance(function, Function)
        given = {id(param): values[id(arg)] for param, arg in zip(function.params, call.args, strict=True)}
        values[id(call)] = rewrite(function.body, lambda old, new: fill_type(new), given)
        names.append(str(function.notes["name"]))
        nodes.update(dict.fromkeys(fused_nodes(call)))
    body = fill_type(Tuple(tuple(values[id(call)] for call in results)))
    notes: dict[str, object] = {"primitive": True, "name": f"joint_{names[-1]}", "nodes": tuple(nodes), JOINT: True}
    result = Function("", params, body, body.type, (), notes)
    result.span = results[-1].span
    fill_type(result)
    return result
