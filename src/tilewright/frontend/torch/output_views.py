"""What captured graphs give, laid out in memory as torch says: views at the end of a graph are left to torch.

Torch makes results that share memory with an input, or with each other, from the strides of what a graph gives; so do
programs of users. Compiled code computes dense tensors: what torch lays out in another order of axes is computed in
that order and given as a view.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.torch.training import STORAGE_ORDER


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """A graph without the views at its end."""

    graph: Any
    """A graph module with the inputs of the whole."""
    views: Any
    """A graph module that takes the inputs and what the graph gives, and gives the results; None if the graph does."""


def split_views(graph_module: Any) -> SplitGraph:
    """Take what is only another view of an input, or of a computed tensor, out of a captured graph."""
    import torch

    nodes = list(graph_module.graph.nodes)
    results = list(nodes[-1].args[0])
    computed, viewed = _sources(results)
    direct = {item for item in results if isinstance(item, torch.fx.Node)}
    alone = {node for node in computed if node in direct and not viewed.intersection(node.users)}
    orders = {node: _order_of(node, is_given=node in alone) for node in computed}
    if not viewed and not any(orders.values()):
        return SplitGraph(graph_module, None)

    inner = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for node in nodes[:-1]:
        copies[node] = inner.node_copy(node, lambda item: copies[item])
    inner.output([_in_order(inner, copies[node], orders[node]) for node in computed])
    inner.eliminate_dead_code()

    outer = torch.fx.Graph()
    values = {node: outer.placeholder(node.name) for node in nodes if node.op == "placeholder"}
    given = [outer.placeholder(f"given_{place}") for place in range(len(computed))]
    for node, value in zip(computed, given, strict=True):
        values[node] = _in_order(outer, value, inverse(orders[node]))
    for node in nodes:
        if node in viewed and node not in values:
            values[node] = outer.node_copy(node, lambda item: values[item])
    outer.output([values.get(item, item) if isinstance(item, torch.fx.Node) else item for item in results])
    return SplitGraph(torch.fx.GraphModule(graph_module, inner), torch.fx.GraphModule(graph_module, outer))


def _sources(results: list[Any]) -> tuple[list[Any], set[Any]]:
    """The nodes to compute for results, and the inputs, views and sizes that results are made of beside them."""
    import torch

    computed: dict[Any, None] = {}
    viewed: set[Any] = set()
    for result in results:
        if not isinstance(result, torch.fx.Node):
            continue
        source: Any = result
        passed: list[Any] = []
        while _is_view(source) and all(map(_is_of_sizes, _other_operands(source))):
            passed.append(source)
            source = source.args[0]
        if source.op != "placeholder":
            computed[source] = None
        else:
            passed.append(source)
        viewed.update(passed)
        for node in passed:
            viewed.update(*map(_upstream, _other_operands(node)))
    return list(computed), viewed - set(computed)


def _is_view(node: Any) -> bool:
    """Whether a node only looks at its first operand, which is a tensor or a list of views, in another way."""
    import torch

    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _other_operands(node: Any) -> list[Any]:
    if node.op == "placeholder":
        return []
    return [operand for operand in node.all_input_nodes if operand is not node.args[0]]


def _is_of_sizes(node: Any) -> bool:
    """Whether a node is a number that is computed from sizes of inputs alone."""
    import torch

    if node.op == "placeholder":
        return True
    if node.op != "call_function" or isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return all(map(_is_of_sizes, node.all_input_nodes))


def _upstream(node: Any) -> set[Any]:
    """A node and all that it is computed from."""
    return {node}.union(*map(_upstream, node.all_input_nodes))


def _order_of(node: Any, *, is_given: bool) -> list[int] | None:
    """In which order the axes of a computed tensor are stored; what is no result itself is only looked at."""
    chosen: list[int] | None = node.meta.get(STORAGE_ORDER) if is_given else None
    return chosen or storage_order(node.meta.get("val"))


def storage_order(value: Any) -> list[int] | None:
    """The axes of a dense tensor as its storage has them, outermost first; None if in order, or not dense."""
    import torch
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if not isinstance(value, torch.Tensor) or value.is_complex() or value.layout is not torch.strided:
        return None
    left = [axis for axis in range(value.dim()) if not statically_known_true(value.shape[axis] == 1)]
    order = [axis for axis in range(value.dim()) if axis not in left]
    inner: list[int] = []
    step: Any = 1
    while left:
        axis = next((axis for axis in reversed(left) if statically_known_true(value.stride(axis) == step)), None)
        if axis is None:
            return None
        left.remove(axis)
        inner.insert(0, axis)
        step = step * value.shape[axis]
    return None if inner == sorted(inner) else order + inner


def inverse(order: list[int] | None) -> list[int] | None:
    """The order that undoes another."""
    return None if order is None else [order.index(axis) for axis in range(len(order))]


def _in_order(graph: Any, node: Any, order: list[int] | None) -> Any:
    """A node with its axes in another order."""
    import torch

    if order is None:
        return node
    moved = graph.call_function(torch.ops.aten.permute.default, (node, order))
    if "val" in node.meta:
        moved.meta["val"] = node.meta["val"].permute(order)
    return moved
