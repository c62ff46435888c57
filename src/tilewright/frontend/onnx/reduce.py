"""Converters of reductions."""

from __future__ import annotations

from tilewright.frontend.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import GraphExpr

_SIMPLE = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
}
_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


def _axes(node: NodeContext) -> tuple[int, ...] | None:
    """The axes, an attribute or (from opset 13 for sums, 18 for the others) an input; None reduces nothing."""
    rank = rank_of(node.input(0))
    as_input = node.opset >= (13 if node.node.op_type == "ReduceSum" else 18)
    empty_is_none = node.flag("noop_with_empty_axes") if as_input else False
    if as_input:
        values = node.constant_ints(1, "the axes") if node.has_input(1) else ()
    else:
        values = node.ints("axes", ())
    if not values:
        return None if empty_is_none else tuple(range(rank))
    return node.axes(values, rank)


@converter(*_SIMPLE)
def reduce(node: NodeContext) -> GraphExpr:
    """One reduction operator; extremes of truth values are all and any."""
    data, name = node.input(0), _SIMPLE[node.node.op_type]
    keep = node.flag("keepdims", True)
    axes = _axes(node)
    if axes is None:
        return data
    if dtype_of(data).is_bool:
        name = {"max": "any", "min": "all"}.get(name, name)
    return node.call(name, data, axes=axes, keepdims=keep)


@converter(*_COMPOSED)
def reduce_composed(node: NodeContext) -> GraphExpr:
    """Sums of something, and something of sums."""
    data = node.input(0)
    keep = node.flag("keepdims", True)
    axes = _axes(node)
    dtype = dtype_of(data)
    if node.node.op_type == "ReduceLogSumExp":
        return _log_sum_exp(node, data, axes, keep)
    match node.node.op_type:
        case "ReduceL1":
            value = node.call("abs", data)
        case "ReduceL2" | "ReduceSumSquare":
            value = node.call("multiply", data, data)
        case _:
            value = data
    if axes is not None:
        value = node.call("sum", value, axes=axes, keepdims=keep)
    last = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}.get(node.node.op_type)
    if last is None:
        return value
    wide = value if dtype.is_float else node.builder.cast(value, "float64")
    return node.builder.cast(node.call(last, wide), dtype)


def _log_sum_exp(node: NodeContext, data: GraphExpr, axes: tuple[int, ...] | None, keep: bool) -> GraphExpr:
    """Shifted by the maximum so that exp cannot overflow; the shift is 0 where the maximum is infinite."""
    if axes is None:
        return data
    dtype = dtype_of(data)
    wide = data if dtype.is_float else node.builder.cast(data, "float64")
    most = node.call("max", wide, axes=axes, keepdims=True)
    zero = node.builder.constant_like(0, most)
    shift = node.call("where", node.call("isinf", most), zero, most)
    total = node.call("sum", node.call("exp", node.call("subtract", wide, shift)), axes=axes, keepdims=True)
    result = node.call("add", node.call("log", total), shift)
    if not keep:
        result = node.builder.reshape(result, [dim for axis, dim in enumerate(sizes_of(data)) if axis not in axes])
    return node.builder.cast(result, dtype)


@converter("ArgMax", "ArgMin")
def arg_reduce(node: NodeContext) -> GraphExpr:
    """The position of an extreme."""
    data = node.input(0)
    return node.call(
        node.node.op_type.lower(),
        data,
        axis=node.axis(node.integer("axis", 0), rank_of(data)),
        keepdims=node.flag("keepdims", True),
        select_last=node.flag("select_last_index"),
    )
