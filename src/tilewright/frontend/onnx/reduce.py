"""Converters of reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.axes import by_data, count_of, insert_axes, to_end
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_SIMPLE = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
}
_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


@dataclass(frozen=True)
class _Reduction:
    """What is reduced: the data, the axes (None: nothing is), and how dimensions come back in the end."""

    data: GraphExpr
    axes: tuple[int, ...] | None
    keep: bool
    finish: Callable[[GraphExpr], GraphExpr]


def _read(node: NodeContext) -> _Reduction:
    """The axes are an attribute or (from opset 13 for sums, 18 for the others) an input."""
    data, keep = node.input(0), node.flag("keepdims", True)
    rank = rank_of(data)
    as_input = node.opset >= (13 if node.node.op_type == "ReduceSum" else 18)
    empty_is_none = node.flag("noop_with_empty_axes") if as_input else False
    if as_input and by_data(node, 1):
        return _by_data(node, keep)
    if as_input:
        given = node.has_input(1) and count_of(node, 1) != 0
        values = node.constant_ints(1, "the axes") if given else ()
    else:
        values = node.ints("axes", ())
    if values:
        return _Reduction(data, node.axes(values, rank), keep, lambda result: result)
    return _Reduction(data, None if empty_is_none else tuple(range(rank)), keep, lambda result: result)


def _by_data(node: NodeContext, keep: bool) -> _Reduction:
    """Axes that only a run knows are moved to the end; they come back as dimensions of 1."""
    rank, count = rank_of(node.input(0)), count_of(node, 1)
    if count > rank:
        raise UserError(f"{count} axes of data of {rank} dimensions")
    moved = to_end(node, node.input(0), node.input(1))

    def finish(result: GraphExpr) -> GraphExpr:
        return insert_axes(node, result, node.input(1)) if keep else result

    return _Reduction(moved, tuple(range(rank - count, rank)), False, finish)


@converter(*_SIMPLE)
def reduce(node: NodeContext) -> GraphExpr:
    """One reduction operator; extremes of truth values are all and any."""
    name, what = _SIMPLE[node.node.op_type], _read(node)
    if what.axes is None:
        return what.data
    if dtype_of(what.data).is_bool:
        name = {"max": "any", "min": "all"}.get(name, name)
    return what.finish(node.call(name, what.data, axes=what.axes, keepdims=what.keep))


@converter(*_COMPOSED)
def reduce_composed(node: NodeContext) -> GraphExpr:
    """Sums of something, and something of sums."""
    what = _read(node)
    return what.finish(_composed(node, what.data, what.axes, what.keep))


def _composed(node: NodeContext, data: GraphExpr, axes: tuple[int, ...] | None, keep: bool) -> GraphExpr:
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
