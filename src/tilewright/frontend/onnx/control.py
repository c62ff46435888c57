"""Converters of control flow: branches, and loops whose number of turns is known, which are unrolled."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.builder import evaluate, rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.expr import GraphExpr, If
from tilewright.support.errors import UnsupportedError, UserError

MOST_TURNS = 4096
"""Loops of more turns are refused: every turn is spelled out."""


@converter("If")
def branch(node: NodeContext) -> Sequence[GraphExpr]:
    """A known condition chooses the branch now; else both are kept and one is computed."""
    condition = node.input(0)
    then_graph, else_graph = node.graph("then_branch"), node.graph("else_branch")
    known = evaluate(condition)
    if known is not None:
        if known.size != 1:
            raise UserError(f"the condition must be one truth value, it has shape {known.shape}")
        return node.run_graph(then_graph if bool(known.ravel()[0]) else else_graph, ())
    builder = node.builder
    condition = builder.reshape(condition, ())
    sides = [builder.tuple(node.run_graph(graph, ())) for graph in (then_graph, else_graph)]
    if sides[0].type is not sides[1].type:
        raise UnsupportedError(f"the branches of If give {sides[0].type!r} and {sides[1].type!r}: one type is needed")
    made = If(condition, sides[0], sides[1])
    made.type, made.span = sides[0].type, builder.span
    count = len(then_graph.outputs)
    return [made] if count == 1 else [builder.item(made, index) for index in range(count)]


def _stack(node: NodeContext, parts: Sequence[GraphExpr], axis: int) -> GraphExpr:
    """Values of all turns along a new axis."""
    builder = node.builder
    return builder.concatenate([builder.expand_dims(part, (axis,)) for part in parts], axis)


@converter("Loop")
def loop(node: NodeContext) -> Sequence[GraphExpr]:
    """Unrolled: the number of turns and the conditions must be known."""
    body = node.graph("body")
    turns = _known(node, node.optional(0), "the number of turns")
    running = _known(node, node.optional(1), "the condition")
    if turns is None and running is None:
        raise UnsupportedError("a Loop without an end")
    most = MOST_TURNS + 1 if turns is None else turns
    carried = [node.input(index) for index in range(2, len(node.inputs))]
    collected: list[list[GraphExpr]] = [[] for _ in body.outputs[1 + len(carried) :]]
    going = running is None or bool(running)
    step = 0
    while going and step < most:
        if step >= MOST_TURNS:
            raise UnsupportedError(f"a Loop of more than {MOST_TURNS} turns")
        counter = node.builder.constant(step, "int64")
        results = node.run_graph(body, [counter, node.builder.constant(True, "bool"), *carried])
        carried, scanned = results[1 : 1 + len(carried)], results[1 + len(carried) :]
        for column, value in zip(collected, scanned, strict=True):
            column.append(value)
        if node.optional(1) is not None or turns is None:
            going = bool(_known(node, results[0], "the condition after a turn"))
        step += 1
    if not step and collected:
        raise UnsupportedError("a Loop of no turns that collects values")
    return [*carried, *(_stack(node, column, 0) for column in collected)]


def _known(node: NodeContext, value: GraphExpr | None, what: str) -> int | None:
    if value is None:
        return None
    array = evaluate(value)
    if array is None:
        raise UnsupportedError(
            f"{what} of {node.node.op_type} depends on the inputs of the model",
            hint="only loops with a fixed number of turns can be imported",
        )
    if array.size != 1:
        raise UserError(f"{what} must be one value, it has shape {array.shape}")
    return int(array.ravel()[0])


@converter("Scan", since=9)
def scan(node: NodeContext) -> Sequence[GraphExpr]:
    """Unrolled over the scanned axis."""
    body = node.graph("body")
    count = node.integer("num_scan_inputs")
    values = node.all_inputs()
    if not 1 <= count <= len(values):
        raise UserError(f"num_scan_inputs is {count}, there are {len(values)} inputs")
    states, scanned = values[: len(values) - count], values[len(values) - count :]
    outputs = len(body.outputs) - len(states)
    axes = [
        node.axis(axis, rank_of(value))
        for axis, value in zip(node.ints("scan_input_axes", (0,) * count), scanned, strict=True)
    ]
    backward = node.ints("scan_input_directions", (0,) * count)
    output_axes = node.ints("scan_output_axes", (0,) * outputs)
    output_backward = node.ints("scan_output_directions", (0,) * outputs)
    steps = {shape_of(value)[axis] for value, axis in zip(scanned, axes, strict=True)}
    if len(steps) != 1:
        raise UserError(f"the scanned inputs have {sorted(steps)} steps: one number is needed")
    total = steps.pop()
    if not 0 < total <= MOST_TURNS or outputs < 0:
        raise UnsupportedError(f"a Scan of {total} turns")
    builder = node.builder
    collected: list[list[GraphExpr]] = [[] for _ in range(outputs)]
    for step in range(total):
        parts: list[GraphExpr] = []
        for value, axis, reverse in zip(scanned, axes, backward, strict=True):
            at = total - 1 - step if reverse else step
            shape = [dim for place, dim in enumerate(shape_of(value)) if place != axis]
            parts.append(builder.reshape(builder.slice_axis(value, axis, at, at + 1), shape))
        results = node.run_graph(body, [*states, *parts])
        states = results[: len(states)]
        for column, value in zip(collected, results[len(states) :], strict=True):
            column.append(value)
    stacked: list[GraphExpr] = []
    for column, axis, reverse in zip(collected, output_axes, output_backward, strict=True):
        place = node.axis(axis, rank_of(column[0]) + 1)
        stacked.append(_stack(node, column[::-1] if reverse else column, place))
    return [*states, *stacked]
