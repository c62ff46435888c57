"""Axes that are data: what is done along them is done along the last axes, to which the host moves them."""

from __future__ import annotations

from tilewright.frontend.core.builder import evaluate, of_known_length, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UserError


def count_of(node: NodeContext, index: int) -> int:
    """How many axes an input names; a run decides it where it is not known."""
    sizes = sizes_of(of_known_length(node.input(index), rank_of(node.input(0))))
    count = sizes[0] if len(sizes) == 1 else 1
    if len(sizes) > 1 or not isinstance(count, int):
        raise UserError(f"axes of {node.node.op_type} must be a list, they are {sizes_text(sizes)}")
    return count


def by_data(node: NodeContext, index: int) -> bool:
    """Whether an input that names axes is there, names some, and only a run knows which."""
    return node.has_input(index) and count_of(node, index) != 0 and evaluate(node.input(index)) is None


def _symbols(node: NodeContext, count: int) -> tuple[Symbol, ...]:
    return tuple(node.symbol(f"dim{axis}") for axis in range(count))


def to_end(node: NodeContext, data: GraphExpr, axes: GraphExpr) -> GraphExpr:
    """The data with some axes moved to the end."""
    return node.call("axes.to_end", data, axes, dims=_symbols(node, rank_of(data)))


def from_end(node: NodeContext, data: GraphExpr, axes: GraphExpr) -> GraphExpr:
    """What `to_end` moved, back in its place."""
    return node.call("axes.from_end", data, axes, dims=_symbols(node, rank_of(data)))


def insert_axes(node: NodeContext, data: GraphExpr, axes: GraphExpr) -> GraphExpr:
    """New dimensions of 1."""
    count = sizes_of(axes)[0] if rank_of(axes) else 1
    assert isinstance(count, int)
    return node.call("axes.insert", data, axes, dims=_symbols(node, rank_of(data) + count))


def remove_axes(node: NodeContext, data: GraphExpr, axes: GraphExpr) -> GraphExpr:
    """Without dimensions of 1."""
    count = sizes_of(axes)[0] if rank_of(axes) else 1
    assert isinstance(count, int)
    return node.call("axes.remove", data, axes, dims=_symbols(node, rank_of(data) - count))
