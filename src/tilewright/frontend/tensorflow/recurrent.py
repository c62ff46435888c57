"""Converters of recurrent layers that are one operator: LSTM and GRU blocks of old graphs, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import rank_of, shape_of, sizes_of
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import size_text
from tilewright.support.errors import UnsupportedError, UserError

_CELL = ("i", "cs", "f", "o", "ci", "co", "h")
_MOST_STEPS = 512
"""The most steps of a block that are spelled out."""


def _lstm_step(
    node: NodeContext, x: GraphExpr, c: GraphExpr, h: GraphExpr, weights: Sequence[GraphExpr], order: str
) -> list[GraphExpr]:
    """One step: the input gate, the cell, forget and output gates, candidates, the cell's activation, the state."""
    b, call = node.builder, node.call
    kernel, w_i, w_f, w_o, bias = weights
    both = b.concatenate([x, h], 1)
    gates = b.add(call("matmul", both, kernel), bias)
    units = shape_of(kernel)[1] // 4
    parts = {key: b.slice_axis(gates, 1, at * units, (at + 1) * units) for at, key in enumerate(order)}
    peephole, clip = node.flag("use_peephole"), node.number("cell_clip", 0.0 if order == "ifco" else 3.0)
    if peephole:
        parts["i"] = b.add(parts["i"], b.multiply(c, w_i))
        parts["f"] = b.add(parts["f"], b.multiply(c, w_f))
    i = call("sigmoid", parts["i"])
    f = call("sigmoid", b.add(parts["f"], node.number("forget_bias", 0.0 if order == "ifco" else 1.0)))
    ci = call("tanh", parts["c"])
    cell = b.add(b.multiply(f, c), b.multiply(i, ci))
    if clip > 0:
        cell = call("clip", cell, minimum=-clip, maximum=clip)
    o = call("sigmoid", b.add(parts["o"], b.multiply(cell, w_o)) if peephole else parts["o"])
    co = call("tanh", cell)
    return [i, cell, f, o, ci, co, b.multiply(o, co)]


@converter("LSTMBlockCell", outputs=_CELL)
def lstm_cell(node: NodeContext) -> Sequence[GraphExpr]:
    """One step of a long short-term memory, gates in the order input, candidate, forget, output."""
    x, c, h = (node.input(at) for at in range(3))
    return _lstm_step(node, x, c, h, [node.input(at) for at in range(3, 8)], "icfo")


@converter("BlockLSTM", "BlockLSTMV2", outputs=_CELL)
def lstm_block(node: NodeContext) -> Sequence[GraphExpr]:
    """All steps of a long short-term memory; the state is zeros behind the longest sequence."""
    b, x, c, h = node.builder, node.input(1), node.input(2), node.input(3)
    if rank_of(x) != 3:
        raise UserError(f"{node.operator} of data of {rank_of(x)} dimensions")
    steps = sizes_of(x)[0]
    if not isinstance(steps, int) or steps > _MOST_STEPS:
        raise UnsupportedError(
            f"{node.operator} of {size_text(steps)} steps", hint="give the shapes of inputs: shapes={...}"
        )
    weights = [node.input(at) for at in range(4, 9)]
    order = "ifco" if node.operator.endswith("V2") else "icfo"
    rows: list[list[GraphExpr]] = []
    for step in range(steps):
        results = _lstm_step(node, b.select(x, 0, step), c, h, weights, order)
        rows.append(results)
        c, h = results[1], results[6]
    return [b.stack([row[at] for row in rows], 0) for at in range(7)]


@converter("GRUBlockCell", outputs=("r", "u", "c", "h"))
def gru_cell(node: NodeContext) -> Sequence[GraphExpr]:
    """One step of a gated recurrent unit."""
    b, call = node.builder, node.call
    x, h, w_ru, w_c, b_ru, b_c = (node.input(at) for at in range(6))
    units = shape_of(w_c)[1]
    gates = call("sigmoid", b.add(call("matmul", b.concatenate([x, h], 1), w_ru), b_ru))
    r, u = b.slice_axis(gates, 1, 0, units), b.slice_axis(gates, 1, units, 2 * units)
    candidate = call("tanh", b.add(call("matmul", b.concatenate([x, b.multiply(r, h)], 1), w_c), b_c))
    kept = b.add(b.multiply(u, h), b.multiply(b.subtract(1.0, u), candidate))
    return [r, u, candidate, kept]
