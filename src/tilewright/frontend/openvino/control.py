"""Converters of control flow and of state: nets inside layers as branches and bodies of loops, variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.frontend.core.builder import evaluate, sizes_of
from tilewright.frontend.core.forks import import_side, join_sides
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, stack
from tilewright.frontend.core.scopes import Captures
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.model import Net, PortMap
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import Size, ceil_divide
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, INT64
from tilewright.support.errors import UnsupportedError, UserError

_MOST_TURNS = 64
"""Loops of more turns, or of turns that only a run counts, are functions that call themselves."""


def _body(node: NodeContext, name: str) -> Net:
    if name not in node.layer.bodies:
        raise UserError(f"{node.layer.kind} has no {name}")
    return node.layer.bodies[name]


def _external(node: NodeContext, port: int) -> GraphExpr:
    """The input that the file gives a number."""
    ports = node.layer.input_ports
    if port not in ports:
        raise UserError(f"{node.layer.kind} has no input port {port}")
    return node.input(ports.index(port))


def _output_place(node: NodeContext, port: int) -> int:
    numbers = [item.number for item in node.layer.outputs]
    if port not in numbers:
        raise UserError(f"{node.layer.kind} has no output port {port}")
    return numbers.index(port)


@converter("If")
def branch(node: NodeContext) -> Sequence[GraphExpr]:
    """One of two nets, by a condition."""
    b, names = node.builder, [f"{node.layer.name}_{port.number}" for port in node.layer.outputs]

    def side(key: str) -> Callable[[], list[GraphExpr]]:
        def build() -> list[GraphExpr]:
            net, maps = _body(node, f"{key}_body"), node.layer.port_maps.get(f"{key}_port_map", ())
            given = {item.internal: _external(node, item.external) for item in maps if item.is_input}
            results = node.bodies.run(net, given)
            places = {_output_place(node, item.external): item.internal for item in maps if not item.is_input}
            return [results[places[at]] for at in range(len(names))]

        return build

    known = evaluate(node.input(0))
    if known is not None:
        return side("then" if known.all() else "else")()
    imported = [import_side(b, side(key)) for key in ("then", "else")]
    failed = [item.error for item in imported if item.error is not None]
    if len(failed) == 2:
        raise failed[0]
    return join_sides(b, [b.reshape(b.truth(node.input(0)), ()), None], imported, names)


class _Iteration:
    """A loop of a body: what it takes slices of, what it carries, what stays, and what it collects."""

    def __init__(self, node: NodeContext) -> None:
        self.node, self.b = node, node.builder
        self.net = _body(node, "body")
        maps = node.layer.port_maps.get("port_map", ())
        self.sliced = [item for item in maps if item.is_input and "axis" in item.options]
        inputs = [item for item in maps if item.is_input and "axis" not in item.options]
        back = {to: source for source, to in node.layer.back_edges}
        self.carried = [item for item in inputs if item.internal in back]
        self.fixed = [item for item in inputs if item.internal not in back and item.external >= 0]
        self.counters = [item.internal for item in inputs if item.external == -1]
        self.next = [back[item.internal] for item in self.carried]
        outputs = [item for item in maps if not item.is_input]
        self.collected = [item for item in outputs if "axis" in item.options]
        self.last = [item for item in outputs if "axis" not in item.options and item.external >= 0]
        self.condition = next((item.internal for item in outputs if item.external == -1), None)

    def turns(self) -> Size | None:
        """How many turns the slices allow; None if nothing is sliced."""
        if not self.sliced:
            return None
        item = self.sliced[0]
        value = _external(self.node, item.external)
        size = sizes_of(value)[item.options["axis"]]
        stride, part = abs(item.options.get("stride", 1)), item.options.get("part_size", 1)
        if not isinstance(size, int):
            return ceil_divide(size, stride)
        start, end = item.options.get("start", 0), item.options.get("end", -1)
        first, last = (place + size + 1 if place < 0 else place for place in (start, end))
        return (abs(last - first) - part) // stride + 1 if abs(last - first) >= part else 0

    def slice_of(self, value: GraphExpr, item: PortMap, turn: GraphExpr) -> GraphExpr:
        """The part of a value that a turn takes."""
        b, axis = self.b, item.options["axis"]
        stride, part = item.options.get("stride", 1), item.options.get("part_size", 1)
        start, size = item.options.get("start", 0), sizes_of(value)[axis]
        length = b.reshape(b.shape_tensor([size]), ())
        first = b.add(length, start + 1) if start < 0 else b.scalar(start, INT64)
        place = b.add(first, b.multiply(turn, stride))
        place = b.subtract(place, part) if stride < 0 else place
        places = b.add(b.reshape(place, (1,)), b.arange(part))
        return b.call("take", value, places, axis=axis)

    def run(self, turn: GraphExpr, values: Sequence[GraphExpr], captures: Captures | None) -> dict[int, GraphExpr]:
        """The results of the body in a turn, by number."""

        def outside(item: PortMap) -> GraphExpr:
            value = _external(self.node, item.external)
            return value if captures is None else captured(value, captures)

        given: dict[int, GraphExpr] = {item.internal: outside(item) for item in self.fixed}
        given.update({item.internal: value for item, value in zip(self.carried, values, strict=True)})
        given.update({item.internal: self.slice_of(outside(item), item, turn) for item in self.sliced})
        for number in self.counters:
            given[number] = self._counter(number, turn)
        return self.node.bodies.run(self.net, given)

    def _counter(self, number: int, turn: GraphExpr) -> GraphExpr:
        layer = next(item for item in self.net.layers if item.number == number)
        shape = tuple(int(size) for size in layer.options.get("shape", "").split(",") if size.strip())
        kind = "int32" if layer.options.get("element_type") == "i32" else "int64"
        return self.b.reshape(self.b.cast(turn, kind), shape)

    def after(self, results: Mapping[int, GraphExpr]) -> list[GraphExpr]:
        """The carried values after a turn."""
        return [results[number] for number in self.next]


def _iterated(node: NodeContext, most: Size | None, going: GraphExpr | None) -> list[GraphExpr]:
    """A loop unrolled, where turns and conditions are known and few; else a function that calls itself."""
    what = _Iteration(node)
    sliced = what.turns()
    limit = sliced if sliced is not None else most
    start = [_external(node, item.external) for item in what.carried]
    if isinstance(limit, int) and limit <= _MOST_TURNS:
        results = _unrolled(what, limit, going, start)
        if results is not None:
            return results
    return _recursive(what, limit, going, start)


def _unrolled(
    what: _Iteration, turns: int, going: GraphExpr | None, start: Sequence[GraphExpr]
) -> list[GraphExpr] | None:
    b, values = what.b, list(start)
    results: dict[int, GraphExpr] = {}
    lists: list[list[GraphExpr]] = [[] for _ in what.collected]
    first = None if going is None else evaluate(going)
    if going is not None and first is None:
        return None
    done = turns == 0 or (first is not None and not first.all())
    for number in range(0 if done else turns):
        results = what.run(b.constant(number, INT64), values, None)
        values = what.after(results)
        for items, item in zip(lists, what.collected, strict=True):
            items.append(results[item.internal])
        if what.condition is not None:
            known = evaluate(results[what.condition])
            if known is None:
                return None
            if not known.all():
                break
    if not results:
        return None
    outputs: dict[int, GraphExpr] = {}
    for item in what.last:
        outputs[_output_place(what.node, item.external)] = results[item.internal]
    for items, item in zip(lists, what.collected, strict=True):
        ordered = items[::-1] if item.options.get("stride", 1) < 0 else items
        outputs[_output_place(what.node, item.external)] = b.concatenate(ordered, item.options["axis"])
    return [outputs[at] for at in range(len(what.node.layer.outputs))]


def _recursive(
    what: _Iteration, limit: Size | None, going: GraphExpr | None, start: Sequence[GraphExpr]
) -> list[GraphExpr]:
    b, node = what.b, what.node
    by_number = dict(zip(what.next, range(len(what.next)), strict=True))
    if any(item.internal not in by_number for item in what.last):
        raise UnsupportedError(f"{node.layer.kind} of unknown length, of which a value of the last turn is used")
    conditional = what.condition is not None

    def run(number: GraphExpr, values: list[GraphExpr]) -> Turn:
        captures: Captures = []
        results = what.run(number, values, captures)
        after = b.reshape(b.truth(results[what.condition]), ()) if what.condition is not None else None
        return Turn(after, what.after(results), [results[item.internal] for item in what.collected], captures)

    taken = {function.name for function in node.bodies.functions}
    name = next(name for number in range(len(taken) + 1) if (name := f"loop_{number}") not in taken)
    turns = None if limit is None else b.reshape(b.shape_tensor([limit]), ())
    first = b.constant(True, BOOL) if going is None else b.reshape(b.truth(going), ())
    loop = Loop(name, turns, first if conditional else None, list(start), run)
    results, lists = build_loop(b, node.bodies.functions, loop)
    outputs: dict[int, GraphExpr] = {}
    for item in what.last:
        outputs[_output_place(node, item.external)] = results[by_number[item.internal]]
    count: Size = limit if limit is not None and not conditional else node.symbol("turns")
    for place, (items, item) in enumerate(zip(lists, what.collected, strict=True)):
        axis = item.options["axis"]
        stacked = stack(b, items, count, axis, f"{name}_{place}")
        if item.options.get("stride", 1) < 0:
            stacked = b.flip(stacked, (axis,))
        shape = list(sizes_of(stacked))
        if shape[axis + 1] != 1:
            raise UnsupportedError(f"{node.layer.kind} that collects parts of {shape[axis + 1]}")
        outputs[_output_place(node, item.external)] = b.reshape(stacked, (*shape[: axis + 1], *shape[axis + 2 :]))
    return [outputs[at] for at in range(len(node.layer.outputs))]


@converter("TensorIterator")
def tensor_iterator(node: NodeContext) -> Sequence[GraphExpr]:
    """A body for each slice of its inputs."""
    return _iterated(node, None, None)


@converter("Loop")
def loop(node: NodeContext) -> Sequence[GraphExpr]:
    """A body for a number of turns, or as long as a condition holds."""
    known = symbolic_value(node.input(0))
    found = evaluate(node.input(0))
    most: Size | None = None
    if found is not None:
        count = int(found.ravel()[0])
        most = None if count < 0 else count
    elif known is not None:
        most = known.reshape(-1)[0]
    else:
        most = node.computed_size(node.builder.reshape(node.input(0), ()), "turns")
    return _iterated(node, most, node.input(1))


@converter("ReadValue")
def read_value(node: NodeContext) -> GraphExpr:
    """The value of a variable."""
    return node.bodies.read_state(node.layer.options.get("variable_id", node.layer.name), node.layer, node.optional(0))


@converter("Assign")
def assign(node: NodeContext) -> GraphExpr:
    """The next value of a variable."""
    node.bodies.write_state(node.layer.options.get("variable_id", node.layer.name), node.input(0))
    return node.input(0)
