"""Converters of reductions, orders and running sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_REDUCTIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceLogicalAnd": "all",
    "ReduceLogicalOr": "any",
    "ReduceL1": "sum",
    "ReduceL2": "sum",
}


@converter(*_REDUCTIONS)
def reduction(node: NodeContext) -> GraphExpr:
    """A reduction over axes."""
    b, x, kind = node.builder, node.input(0), node.layer.kind
    given = node.known(1, "the axes")
    axes = tuple(sorted({node.axis(axis, rank_of(x)) for axis in given}))
    if kind.startswith("ReduceLogical"):
        x = b.truth(x)
    elif kind == "ReduceL1":
        x = b.call("abs", x)
    elif kind == "ReduceL2":
        x = b.multiply(x, x)
    result = b.reduce(_REDUCTIONS[kind], x, axes, node.flag("keep_dims"))
    return b.call("sqrt", result) if kind == "ReduceL2" else result


@converter("TopK")
def top_k(node: NodeContext) -> Sequence[GraphExpr]:
    """The greatest or least elements along an axis by value or by place, and where they are."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.integer("axis"), rank_of(x))
    count = b.at_least_1d(b.cast(node.input(1), "int64"))
    largest, order = node.text("mode") == "max", node.text("sort", "value")
    values, places = node.onnx.several("TopK", 2, x, count, axis=axis, largest=largest)
    if order == "index":
        kept = b.shape_tensor([sizes_of(places)[axis]])
        places, turn = node.onnx.several("TopK", 2, places, kept, axis=axis, largest=False)
        values = node.onnx("GatherElements", values, turn, axis=axis)
    elif order not in ("value", "none"):
        raise UserError(f"an order by {order!r}")
    return [values, b.cast(places, node.dtype("index_element_type", "i32"))]


@converter("CumSum")
def cumulative_sum(node: NodeContext) -> GraphExpr:
    """Running sums along an axis."""
    x = node.input(0)
    axis = node.axis(node.known(1, "the axis")[0] if node.has_input(1) else 0, rank_of(x))
    return node.call("cumsum", x, axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))


@converter("Unique")
def unique(node: NodeContext) -> Sequence[GraphExpr]:
    """The distinct elements or slices, where each is first, which one each place holds, and how often each occurs."""
    b, x = node.builder, node.input(0)
    axis = node.axis(node.known(1, "the axis")[0], rank_of(x)) if node.has_input(1) else None
    found = node.onnx.several("Unique", 4, x, axis=axis, sorted=node.flag("sorted", True))
    index, counts = node.dtype("index_element_type"), node.dtype("count_element_type")
    return [found[0], b.cast(found[1], index), b.cast(found[2], index), b.cast(found[3], counts)]


@converter("Bucketize")
def bucketize(node: NodeContext) -> GraphExpr:
    """How many bounds lie below each element."""
    b, x, bounds = node.builder, node.input(0), node.input(1)
    common = dtype_of(x) if dtype_of(x).is_float else dtype_of(bounds)
    wide = b.expand_dims(b.cast(x, common), (rank_of(x),))
    name = "less" if node.flag("with_right_bound", True) else "less_equal"
    below = b.call(name, b.cast(bounds, common), wide)
    return b.reduce("sum", b.cast(below, node.dtype("output_type")), (rank_of(x),))


@converter("SearchSorted")
def search_sorted(node: NodeContext) -> GraphExpr:
    """How many elements of a sorted row lie before each value."""
    b, row, values = node.builder, node.input(0), node.input(1)
    row = b.expand_dims(row, (rank_of(row) - 1,)) if rank_of(row) > 1 else row
    wide = b.expand_dims(values, (rank_of(values),))
    before = b.call("less_equal" if node.flag("right_mode") else "less", row, wide)
    return b.reduce("sum", b.cast(before, node.dtype("output_type")), (rank_of(before) - 1,))
