"""Kernels with several results: elementwise kernels that read one another, or the same, become one.

Before:  v2 = fused_multiply_add(v, g);  a = where(ok, v2, v);  b = fused_multiply_subtract_where(v2, rate, p, ok)
         (a, b)
After:   both = joint_where_where(v, g, ok, rate, p)
         (both.0, both.1)

So are the updates of an optimizer: what is remembered of a parameter and the parameter itself are read once, written
once, and what they have in common is never stored. Kernels are joined that only results and one another read, so
nothing waits for the joint kernel but the end; they are of one shape, and elementwise.

Before:  y = fused_gelu(x);  ...  slope = fused_erf_exp(x)          nothing else reads x
After:   both = joint_erf_exp(x);  y = both.0;  ...  slope = both.1

On CPUs functions of the same elements share what they have in common, such as the error function in an activation and
in its derivative; the derivative is then remembered in the place of the elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


_FUNCTIONS: Final = frozenset(
    ["erf", "exp", "log", "nn.gelu", "nn.softplus", "pow", "sigmoid", "sin", "cos", "tanh", "nn.elu"]
)
"""Operators that take many instructions for each element."""


def joint_results(module: IRModule, options: GraphOptions) -> IRModule:
    """Join the last elementwise kernels of every function, as far as kernels of the target may have results."""
    most = None if options.target is None else options.target.capabilities.most_buffers
    on_cpu = options.target is not None and options.target.is_cpu

    def joined(function: Function) -> Function:
        if is_primitive(function):
            return function
        return _joined(_with_siblings(function, most) if on_cpu else function, most)

    return map_functions(module, joined)


def _with_siblings(function: Function, most: int | None) -> Function:
    """Join kernels that read the same elements, which nothing else reads."""
    group_of = {id(call): group for group in _siblings(function, most) for call in group}
    if not group_of:
        return function
    made: dict[int, Call] = {}

    def visit(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        fill_type(new)
        group = group_of.get(id(old))
        if group is None:
            return None
        assert isinstance(new, Call)
        if id(group) not in made:
            inputs = list({id(arg): arg for arg in new.args}.values())
            # The arguments of all are the same ones, in any order.
            was = {id(before): after for before, after in zip(_call(old).args, new.args, strict=True)}
            calls = [Call(call.callee, tuple(was[id(arg)] for arg in call.args)) for call in group]
            for call in calls:
                fill_type(call)
            made[id(group)] = joint = Call(_primitive(calls, inputs, calls), tuple(inputs))
            fill_type(joint)
            joint.span = old.span
        return fill_type(TupleGet(made[id(group)], next(n for n, call in enumerate(group) if call is old)))

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    changed.type, changed.span = function.type, function.span
    return changed


def _call(item: GraphExpr) -> Call:
    assert isinstance(item, Call)
    return item


def _siblings(function: Function, most: int | None) -> list[list[Call]]:
    """Groups of elementwise kernels of the same elements that compute functions; nothing else reads the elements."""
    order = post_order(function, closures=False)
    readers = users(order)
    found: dict[frozenset[int], list[Call]] = {}
    for item in order:
        if isinstance(item, Call) and _is_elementwise(item):
            found.setdefault(frozenset(id(arg) for arg in item.args), []).append(item)
    return [
        group
        for group in found.values()
        if len(group) > 1
        and all(_computes_functions(call) for call in group)
        and _have_to_themselves(group, readers)
        and sum(len(_operators(call)) for call in group) <= MAX_GROUP
        and (most is None or len({id(arg) for arg in group[0].args}) + len(group) <= most)
    ]


def _have_to_themselves(group: Sequence[Call], readers: Mapping[int, Sequence[GraphExpr]]) -> bool:
    """Whether a group of kernels, all of one shape, is all that reads their arguments of that shape."""
    shape, members = static_shape(group[0]), {id(call) for call in group}
    if any(static_shape(call) != shape for call in group):
        return False
    elements = [arg for arg in group[0].args if static_shape(arg) == shape and not isinstance(arg, Var)]
    return bool(elements) and all(id(reader) in members for arg in elements for reader in readers[id(arg)])


def _computes_functions(call: Call) -> bool:
    """Whether a kernel computes more than sums and products."""
    return any(isinstance(item.callee, Operator) and item.callee.name in _FUNCTIONS for item in _operators(call))


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
