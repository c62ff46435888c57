"""Converters of control flow: other graphs of the model as branches, bodies of loops, or in place."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.branches import choice, free_name
from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.core.loops import Loop, Turn, build_loop
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.support.errors import UnsupportedError

_MOST_TURNS = 64
"""Loops of more turns, or of turns that only a run counts, are functions that call themselves."""


@converter("IF")
def branch(node: NodeContext) -> Sequence[GraphExpr]:
    """A known condition chooses the branch now; else both are kept and one is computed."""
    graphs = (node.integer("then_subgraph_index"), node.integer("else_subgraph_index"))
    return _branches(node, node.input(0), graphs, [node.input(at) for at in range(1, len(node.inputs))])


def _branches(
    node: NodeContext, condition: GraphExpr, graphs: tuple[int, int], values: Sequence[GraphExpr]
) -> Sequence[GraphExpr]:
    builder, variables = node.builder, node.bodies.variables
    known = evaluate(condition)
    if known is not None:
        return node.bodies.run(graphs[0] if known.all() else graphs[1], values)
    before = dict(variables)
    names: list[list[str]] = []

    def side(graph: int) -> list[GraphExpr]:
        variables.clear()
        variables.update(before)
        results = node.bodies.run(graph, values)
        names.append([name for name, value in variables.items() if before.get(name) is not value])
        if names[-1] and set(names[-1]) - set(before):
            raise UnsupportedError("a variable that only a branch of IF gives a value")
        return [*results, *(variables[name] for name in before)]

    items = choice(builder, condition, (lambda: side(graphs[0]), lambda: side(graphs[1])), "IF", node.name)
    count = len(items) - len(before)
    variables.clear()
    variables.update(zip(before, items[count:], strict=True))
    if not names[0] and not names[1]:
        variables.update(before)
    return items[:count]


@converter("WHILE", "STABLEHLO_WHILE")
def while_loop(node: NodeContext) -> Sequence[GraphExpr]:
    """Short loops of known conditions are spelled out, others are functions that call themselves."""
    builder, variables = node.builder, node.bodies.variables
    test_graph, body_graph = node.integer("cond_subgraph_index"), node.integer("body_subgraph_index")
    start = node.all_inputs()
    unrolled = _unrolled(node, start, test_graph, body_graph)
    if unrolled is not None:
        return unrolled
    names = list(variables)
    carried = [*start, *variables.values()]

    def test(values: Sequence[GraphExpr]) -> GraphExpr:
        found = node.bodies.run(test_graph, values[: len(start)])
        return builder.reshape(found[0], ())

    def turn(number: GraphExpr, values: list[GraphExpr]) -> Turn:
        variables.update(zip(names, values[len(start) :], strict=True))
        results = node.bodies.run(body_graph, values[: len(start)])
        if set(variables) != set(names):
            raise UnsupportedError("a variable that only the body of a loop gives a value")
        after = [*results, *(variables[name] for name in names)]
        captures: list[tuple[GraphExpr, Var]] = []
        return Turn(test(after), after, [], captures)

    loop = Loop(free_name(builder), None, test(carried), carried, turn)
    results, _ = build_loop(builder, node.bodies.functions, loop)
    variables.update(zip(names, results[len(start) :], strict=True))
    return results[: len(start)]


def _unrolled(
    node: NodeContext, start: Sequence[GraphExpr], test_graph: int, body_graph: int
) -> Sequence[GraphExpr] | None:
    """The turns one after the other, where every condition is known; None if one is not, or there are too many."""
    values, before = list(start), dict(node.bodies.variables)
    for _ in range(_MOST_TURNS + 1):
        going = evaluate(node.bodies.run(test_graph, values)[0])
        if going is None:
            break
        if not going.all():
            return values
        values = node.bodies.run(body_graph, values)
    node.bodies.variables.clear()
    node.bodies.variables.update(before)
    return None


@converter("CALL_ONCE")
def call_once(node: NodeContext) -> Sequence[GraphExpr]:
    """The initialisation of variables and tables, which every run begins with."""
    node.bodies.run(node.integer("init_subgraph_index"), [])
    return []


@converter("CALL")
def call_graph(node: NodeContext) -> Sequence[GraphExpr]:
    """Another graph in place."""
    return node.bodies.run(node.integer("subgraph"), node.all_inputs())


@converter("STABLEHLO_COMPOSITE")
def composite(node: NodeContext) -> Sequence[GraphExpr]:
    """An operator of a name, by the graph that the file gives for it."""
    return node.bodies.run(node.integer("decomposition_subgraph_index"), node.all_inputs())


@converter("STABLEHLO_CASE")
def case(node: NodeContext) -> Sequence[GraphExpr]:
    """One of several graphs by a number; one outside of them means the last."""
    graphs = [int(item) for item in node.option("branch_subgraph_indices", ())]
    known = evaluate(node.input(0))
    if not graphs or known is None:
        raise UnsupportedError("STABLEHLO_CASE by a number that only a run knows")
    number = int(known.ravel()[0])
    chosen = graphs[number] if 0 <= number < len(graphs) else graphs[-1]
    return node.bodies.run(chosen, [node.input(at) for at in range(1, len(node.inputs))])
