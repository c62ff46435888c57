"""Converters of control flow: branches, and loops.

Short loops of a known number of turns are unrolled; others become functions that call themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.builder import evaluate, rank_of, size_at, sizes_of
from tilewright.frontend.core.forks import Fork, Side
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, item_rank, reverse, stack
from tilewright.frontend.core.scopes import Captures
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.model import OnnxGraph
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.sequence import as_sequence
from tilewright.graph.ir.dimensions import Size, different
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UnsupportedError, UserError

MOST_TURNS = 256
"""Loops of more turns are not spelled out."""


@converter("If")
def branch(node: NodeContext) -> Sequence[GraphExpr]:
    """A known condition chooses the branch now; else a run does, and typing of what follows is left to the fork."""
    condition = node.input(0)
    then_graph, else_graph = node.graph("then_branch"), node.graph("else_branch")
    known = evaluate(condition)
    if known is not None:
        if known.size != 1:
            raise UserError(f"the condition must be one truth value, it has shape {known.shape}")
        return node.run_graph(then_graph if bool(known.ravel()[0]) else else_graph, ())
    condition = node.builder.reshape(condition, ())
    raise Fork([Side(condition, _outputs(node, then_graph)), Side(None, _outputs(node, else_graph))])


def _outputs(node: NodeContext, graph: OnnxGraph) -> Callable[[], Sequence[GraphExpr]]:
    return lambda: node.run_graph(graph, ())


def _stack(node: NodeContext, parts: Sequence[GraphExpr], axis: int) -> GraphExpr:
    """Values of all turns along a new axis."""
    builder = node.builder
    return builder.concatenate([builder.expand_dims(part, (axis,)) for part in parts], axis)


@converter("Loop")
def loop(node: NodeContext) -> Sequence[GraphExpr]:
    """Unrolled where the number of turns and the conditions are known, a function that calls itself elsewhere."""
    body = node.graph("body")
    carried = [node.input(index) for index in range(2, len(node.inputs))]
    if len(body.outputs) < 1 + len(carried):
        raise UserError(f"the body of Loop gives {len(body.outputs)} values, it carries {len(carried)}")
    turns, running = (None if node.optional(at) is None else evaluate(node.input(at)) for at in (0, 1))
    for known, what in ((turns, "the number of turns"), (running, "the condition")):
        if known is not None and known.size != 1:
            raise UserError(f"{what} must be one value, it has shape {known.shape}")
    if node.optional(0) is None and node.optional(1) is None:
        raise UnsupportedError("a Loop without an end")
    most = None if turns is None else int(turns.ravel()[0])
    if running is not None and not running.any():
        most = 0
    is_short = most is not None and most <= MOST_TURNS
    if most == 0 and len(body.outputs) == 1 + len(carried):
        return carried
    if is_short and most and (node.optional(1) is None or running is not None):
        unrolled = _unrolled(node, body, carried, most)
        if unrolled is not None:
            return unrolled
    return _recursive_loop(node, body, carried)


def _unrolled(
    node: NodeContext, body: OnnxGraph, carried: Sequence[GraphExpr], turns: int
) -> Sequence[GraphExpr] | None:
    """The turns one after the other; None if a condition after a turn is not known."""
    values = list(carried)
    collected: list[list[GraphExpr]] = [[] for _ in body.outputs[1 + len(values) :]]
    for step in range(turns):
        counter = node.builder.constant(step, "int64")
        results = node.run_graph(body, [counter, node.builder.constant(True, "bool"), *values])
        values, scanned = results[1 : 1 + len(values)], results[1 + len(values) :]
        for column, value in zip(collected, scanned, strict=True):
            column.append(value)
        if node.optional(1) is not None:
            going = evaluate(results[0])
            if going is None:
                return None
            if not going.all():
                break
    return [*values, *(_stack(node, column, 0) for column in collected)]


def _recursive_loop(node: NodeContext, body: OnnxGraph, carried: Sequence[GraphExpr]) -> Sequence[GraphExpr]:
    builder = node.builder
    counts = node.optional(1) is not None

    def run(number: GraphExpr, values: list[GraphExpr]) -> Turn:
        results, captures = node.bodies.closed(body, [number, builder.constant(True, "bool"), *values])
        going = builder.reshape(results[0], ()) if counts else None
        return Turn(going, results[1 : 1 + len(values)], results[1 + len(values) :], captures)

    turns = node.optional(0)
    limit = None if turns is None else builder.reshape(builder.cast(turns, "int64"), ())
    going = builder.reshape(node.input(1), ()) if counts else None
    made = Loop(_name(node), limit, going, [as_sequence(node.builder, value) for value in carried], run)
    results, collected = build_loop(builder, node.bodies.functions, made)
    known = None if turns is None or counts else symbolic_value(turns)
    count: Size = node.symbol("turns") if known is None else known.reshape(-1)[0]
    stacked = [stack(builder, value, count, 0, f"{made.name}_{at}") for at, value in enumerate(collected)]
    return [*results, *stacked]


def _name(node: NodeContext) -> str:
    """A name for the function of a loop that no other function of the module has."""
    taken = {function.name for function in node.bodies.functions} | {"main"}
    base = "".join(c if c.isascii() and c.isalnum() else "_" for c in node.node.name).strip("_") or "loop"
    base = f"loop_{base}" if base[0].isdigit() else base
    name, count = base, 1
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    return name


@converter("Scan", since=9)
def scan(node: NodeContext) -> Sequence[GraphExpr]:
    """Over the scanned axis: unrolled if it is short, else a function that calls itself."""
    return _steps(_scanned(node))


@converter("Scan", since=8, until=8)
def scan_of_batches(node: NodeContext) -> Sequence[GraphExpr]:
    """The old form: of each item of a batch (the first axis of everything) along the second axis."""
    if node.has_input(0):
        raise UnsupportedError("Scan of sequences that differ in length", hint="export the model for opset 9 or later")
    builder, body, count = node.builder, node.graph("body"), node.integer("num_scan_inputs")
    values = [node.input(index) for index in range(1, len(node.inputs))]
    batch = size_at(values[0], 0)
    backward = node.ints("directions", (0,) * count)
    outputs = len(body.outputs) - (len(values) - count)
    rows: list[Sequence[GraphExpr]] = []
    for number in range(batch):
        items = [
            builder.reshape(builder.slice_axis(value, 0, number, number + 1), sizes_of(value)[1:]) for value in values
        ]
        states, scanned = items[: len(items) - count], items[len(items) - count :]
        zeros = (0,) * outputs
        total = sizes_of(scanned[0])[0]
        rows.append(_steps(_Scan(node, body, states, scanned, (0,) * count, backward, zeros, zeros, total)))
    return [_stack(node, column, 0) for column in zip(*rows, strict=True)]


def _steps(item: _Scan) -> Sequence[GraphExpr]:
    return _unrolled_scan(item) if isinstance(item.total, int) and item.total <= MOST_TURNS else _looped_scan(item)


@dataclass(frozen=True)
class _Scan:
    """A Scan with its inputs told apart: what it carries, what it walks along and in which direction."""

    node: NodeContext
    body: OnnxGraph
    states: Sequence[GraphExpr]
    scanned: Sequence[GraphExpr]
    axes: Sequence[int]
    backward: Sequence[int]
    output_axes: Sequence[int]
    output_backward: Sequence[int]
    total: Size

    def slices(self, number: GraphExpr, scanned: Sequence[GraphExpr]) -> list[GraphExpr]:
        """What a step takes of each scanned input."""
        builder = self.node.builder
        last = builder.reshape(builder.shape_tensor([self.total - 1]), ())
        return [
            self.node.call("take", value, self.node.call("subtract", last, number) if is_reverse else number, axis=axis)
            for value, axis, is_reverse in zip(scanned, self.axes, self.backward, strict=True)
        ]


def _scanned(node: NodeContext) -> _Scan:
    body = node.graph("body")
    count = node.integer("num_scan_inputs")
    values = node.all_inputs()
    if not 1 <= count <= len(values):
        raise UserError(f"num_scan_inputs is {count}, there are {len(values)} inputs")
    states, scanned = values[: len(values) - count], values[len(values) - count :]
    outputs = len(body.outputs) - len(states)
    if outputs < 0:
        raise UserError(f"the body of Scan gives {len(body.outputs)} values, it carries {len(states)}")
    axes = [
        node.axis(axis, rank_of(value))
        for axis, value in zip(node.ints("scan_input_axes", (0,) * count), scanned, strict=True)
    ]
    steps = [sizes_of(value)[axis] for value, axis in zip(scanned, axes, strict=True)]
    if any(different(step, steps[0]) for step in steps):
        raise UserError(f"the scanned inputs have {sizes_text(steps)} steps: one number is needed")
    total = next((step for step in steps if isinstance(step, int)), steps[0])
    if isinstance(total, int) and total == 0:
        raise UnsupportedError("a Scan of 0 turns")
    scanned = [
        node.builder.match(value, [total if at == axis else size for at, size in enumerate(sizes_of(value))])
        for value, axis in zip(scanned, axes, strict=True)
    ]
    return _Scan(
        node,
        body,
        states,
        scanned,
        axes,
        node.ints("scan_input_directions", (0,) * count),
        node.ints("scan_output_axes", (0,) * outputs),
        node.ints("scan_output_directions", (0,) * outputs),
        total,
    )


def _unrolled_scan(item: _Scan) -> Sequence[GraphExpr]:
    """The steps one after another."""
    node, states = item.node, item.states
    assert isinstance(item.total, int)
    collected: list[list[GraphExpr]] = [[] for _ in item.output_axes]
    for step in range(item.total):
        number = node.builder.constant(step, "int64")
        results = node.run_graph(item.body, [*states, *item.slices(number, item.scanned)])
        states = results[: len(states)]
        for column, value in zip(collected, results[len(states) :], strict=True):
            column.append(value)
    stacked = [
        _stack(node, column[::-1] if is_reverse else column, node.axis(axis, rank_of(column[0]) + 1))
        for column, axis, is_reverse in zip(collected, item.output_axes, item.output_backward, strict=True)
    ]
    return [*states, *stacked]


def _looped_scan(item: _Scan) -> Sequence[GraphExpr]:
    """A function that calls itself."""
    node, builder = item.node, item.node.builder

    def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
        captures: Captures = []
        inside = [captured(value, captures) for value in item.scanned]
        results, more = node.bodies.closed(item.body, [*carried, *item.slices(number, inside)])
        return Turn(None, results[: len(carried)], results[len(carried) :], [*captures, *more])

    limit = builder.reshape(builder.shape_tensor([item.total]), ())
    loop = Loop(_name(node), limit, None, item.states, run)
    finished, sequences = build_loop(builder, node.bodies.functions, loop)
    joined: list[GraphExpr] = []
    outputs = zip(sequences, item.output_axes, item.output_backward, strict=True)
    for at, (value, axis, is_reverse) in enumerate(outputs):
        place = node.axis(axis, item_rank(value) + 1)
        whole = stack(builder, value, item.total, place, f"{loop.name}_{at}")
        joined.append(reverse(builder, whole, place) if is_reverse else whole)
    return [*finished, *joined]
