"""Converters of control flow: symbols inside of nodes as bodies of loops, and as branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilewright.frontend.core.builder import evaluate, sizes_of
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, stack
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.dimensions import Size, subtract
from tilewright.graph.ir.expr import GraphExpr, If, Var
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.dtype import BOOL, INT64
from tilewright.ir.expr import Var as Symbolic
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError, UserError

Captures = list[tuple[GraphExpr, Var]]


def _arguments(values: Sequence[GraphExpr], locations: Sequence[int], count: int) -> list[GraphExpr]:
    """Values in the order of a symbol's arguments, which say where each goes."""
    if sorted(locations) != list(range(count)) or len(values) != count:
        raise UserError(f"the arguments {tuple(locations)} of a body are not those of its symbol")
    ordered: list[GraphExpr | None] = [None] * count
    for value, at in zip(values, locations, strict=True):
        ordered[at] = value
    return [value for value in ordered if value is not None]


def _name(node: Node) -> str:
    """A name for the function of a loop that no other function of the module has."""
    taken = {function.name for function in node.bodies.functions} | {"main"}
    count = 0
    while f"loop_{count}" in taken:
        count += 1
    return f"loop_{count}"


def _inner(node: Node, count: int) -> None:
    if len(node.node.subgraphs) != count:
        raise UserError(f"{node.op} has {len(node.node.subgraphs)} symbols inside, {count} are needed")


@converter("_foreach")
def foreach(node: Node) -> list[GraphExpr]:
    """A body for each slice of some tensors, which hands on states: slices of results, and the last states."""
    _inner(node, 1)
    body, b = node.node.subgraphs[0], node.b
    data_places, state_places, rest_places = (
        node.ints(name, ()) for name in ("in_data_locs", "in_state_locs", "remain_locs")
    )
    values = node.all_inputs()
    scanned = values[: len(data_places)]
    states = values[len(data_places) : len(data_places) + len(state_places)]
    rest = values[len(data_places) + len(state_places) :]
    if not scanned:
        raise UserError("_foreach walks along nothing")
    steps: Size = sizes_of(scanned[0])[0]
    outputs = node.integer("num_out_data")

    def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
        captures: Captures = []
        slices = [b.call("take", captured(value, captures), number, axis=0) for value in scanned]
        inside = [captured(value, captures) for value in rest]
        places = (*data_places, *state_places, *rest_places)
        given = _arguments([*slices, *carried, *inside], places, len(body.arguments))
        results = node.bodies.run(body, given)
        return Turn(None, results[outputs:], results[:outputs], captures)

    limit = b.reshape(b.shape_tensor([steps]), ())
    loop = Loop(_name(node), limit, None, states, run)
    finished, sequences = build_loop(b, node.bodies.functions, loop)
    whole = [stack(b, value, steps, 0, f"{loop.name}_{at}") for at, value in enumerate(sequences)]
    return [*whole, *finished]


@converter("_while_loop")
def while_loop(node: Node) -> list[GraphExpr]:
    """A body as long as a condition holds, at most so often; what is not computed of the results is 0."""
    _inner(node, 2)
    test_body, body = node.node.subgraphs
    b, values = node.b, node.all_inputs()
    most, outputs = node.integer("max_iterations"), node.integer("num_out_data")
    test_places, body_places = node.ints("cond_input_locs"), node.ints("func_input_locs")
    variables = node.ints("func_var_locs")
    # The body's arguments at `variables` are what it changes: the others stay.
    changed = [body_places[at] for at in variables]

    def with_states(carried: Sequence[GraphExpr], captures: Captures | None) -> list[GraphExpr]:
        now = [value if captures is None else captured(value, captures) for value in values]
        for place, value in zip(changed, carried, strict=True):
            now[place] = value
        return now

    def test(now: Sequence[GraphExpr]) -> GraphExpr:
        result = node.bodies.run(test_body, [now[at] for at in test_places])[0]
        return b.cast(b.reshape(result, ()), BOOL)

    def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
        captures: Captures = []
        kept = [captured(value, captures) if at not in changed else value for at, value in enumerate(values)]
        for place, value in zip(changed, carried, strict=True):
            kept[place] = value
        results = node.bodies.run(body, [kept[at] for at in body_places])
        after = list(kept)
        for place, value in zip(changed, results[outputs:], strict=True):
            after[place] = value
        return Turn(test(after), results[outputs:], results[:outputs], captures)

    states = [values[place] for place in changed]
    loop = Loop(_name(node), b.constant(most, INT64), test(with_states(states, None)), states, run)
    finished, sequences = build_loop(b, node.bodies.functions, loop)
    whole: list[GraphExpr] = []
    for at, value in enumerate(sequences):
        turns = Symbolic(f"{loop.name}_turns")
        made = stack(b, value, turns, 0, f"{loop.name}_{at}")
        after = (subtract(most, sizes_of(made)[0]), *(0,) * (len(sizes_of(made)) - 1))
        padded = b.call("pad", made, before=(0,) * len(after), after=after)
        whole.append(b.match(padded, (most, *sizes_of(made)[1:])))
    return [*whole, *finished]


@converter("_cond")
def condition(node: Node) -> list[GraphExpr]:
    """One of two symbols, by a condition that is a symbol as well."""
    _inner(node, 3)
    b, values = node.b, node.all_inputs()
    places = [node.ints(f"{name}_input_locs", ()) for name in ("cond", "then", "else")]

    def run(at: int) -> list[GraphExpr]:
        return node.bodies.run(node.node.subgraphs[at], [values[place] for place in places[at]])

    holds = b.cast(b.reshape(run(0)[0], ()), BOOL)
    known = evaluate(holds)
    if known is not None:
        return run(1 if known.all() else 2)
    counts: list[int] = []

    def side(at: int) -> GraphExpr:
        results = run(at)
        counts.append(len(results))
        return b.tuple(results)

    sides = [b.enclosed(lambda at=at: side(at)) for at in (1, 2)]  # type: ignore[misc]
    made = If(holds, sides[0], sides[1])
    try:
        made.type = Unifier().join(cast(Type, sides[0].type), cast(Type, sides[1].type))
    except Mismatch as error:
        texts = [show_type(cast(Type, item.type)) for item in sides]
        raise UnsupportedError(f"the branches of _cond give {texts[0]} and {texts[1]}: {error}") from None
    made.span = b.span
    items = [made] if counts[0] == 1 else [b.item(made, index) for index in range(counts[0])]
    return [b.named(value, node.name) for value in items]
