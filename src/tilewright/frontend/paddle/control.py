"""Converters of control flow: branches and loops, by values (PaddlePaddle 3) and by variables (PaddlePaddle 2).

A block of PaddlePaddle 2 writes to variables of the blocks around it. A variable that only a branch gives a value is
kept as that branch until `select_input` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.core.forks import import_side, join_sides
from tilewright.frontend.core.loops import Loop, Turn, build_loop
from tilewright.frontend.core.scopes import Captures, Scope
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.model import Block
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

BY_NAME = frozenset(["conditional_block", "conditional_block_infer", "while", "select_input"])
"""Operators that read and write variables of the scope themselves."""
_MOST_TURNS = 64
"""Loops of more turns, or of turns that only a run counts, are functions that call themselves."""


def _chosen(
    node: NodeContext, condition: GraphExpr, sides: Sequence[Callable[[], list[GraphExpr]]], names: Sequence[str]
) -> list[GraphExpr]:
    """What the first or the second side gives, by a condition."""
    known = evaluate(condition)
    if known is not None:
        return sides[0 if known.all() else 1]()
    b = node.builder
    imported = [import_side(b, side) for side in sides]
    failed = [side.error for side in imported if side.error is not None]
    if len(failed) == len(imported):
        raise failed[0]
    return join_sides(b, [b.reshape(b.truth(condition), ()), None], imported, names)


def _found(scope: Scope, name: str) -> GraphExpr:
    value = scope.find(name)
    if value is None:
        raise UserError(f"nothing produces '{name}'")
    return value


@converter("if", inputs="Cond")
def branch(node: NodeContext) -> Sequence[GraphExpr]:
    """Two blocks, each of which yields the results."""
    if len(node.node.blocks) != 2:
        raise UserError(f"a branch of {len(node.node.blocks)} blocks")

    def side(block: Block) -> Callable[[], list[GraphExpr]]:
        def build() -> list[GraphExpr]:
            scope = Scope(node.bodies.scope)
            node.bodies.run(block, scope)
            return [_found(scope, name) for name in block.results]

        return build

    names = [name for group in node.node.outputs for name in group]
    return _chosen(node, node.input(0), [side(block) for block in node.node.blocks], names)


def _loop(
    node: NodeContext,
    going: GraphExpr,
    start: Sequence[GraphExpr],
    turn: Callable[[Scope, Sequence[GraphExpr]], tuple[GraphExpr, list[GraphExpr]]],
) -> list[GraphExpr]:
    """The carried values after a loop: spelled out if it is short and known, else a function that calls itself."""
    b, outer = node.builder, node.bodies.scope
    condition, values = going, list(start)
    for _ in range(_MOST_TURNS + 1):
        known = evaluate(condition)
        if known is None:
            break
        if not known.all():
            return values
        condition, values = turn(Scope(outer), values)

    def run(number: GraphExpr, carried: list[GraphExpr]) -> Turn:
        captures: Captures = []
        after, results = turn(Scope(outer, captures), carried)
        return Turn(b.reshape(b.truth(after), ()), results, [], captures)

    taken = {function.name for function in node.bodies.functions}
    name = next(name for number in range(len(taken) + 1) if (name := f"loop_{number}") not in taken)
    loop = Loop(name, None, b.reshape(b.truth(going), ()), list(start), run)
    return build_loop(b, node.bodies.functions, loop)[0]


@converter("while_by_values", inputs="Cond X")
def while_by_values(node: NodeContext) -> Sequence[GraphExpr]:
    """A block with arguments, which yields the condition and the next values."""
    (block,) = node.node.blocks
    start = [value for group in node.groups[1:] for value in group]
    if len(block.arguments) != len(start) or len(block.results) != len(start) + 1:
        raise UserError(f"a loop carries {len(start)} values, its block {len(block.arguments)}")

    def turn(scope: Scope, values: Sequence[GraphExpr]) -> tuple[GraphExpr, list[GraphExpr]]:
        scope.values.update(zip(block.arguments, values, strict=True))
        node.bodies.run(block, scope)
        condition, *results = [_found(scope, name) for name in block.results]
        return condition, results

    return _loop(node, node.input(0), start, turn)


def _names(node: NodeContext, parameter: str, of_outputs: bool = False) -> tuple[str, ...]:
    groups = node.node.outputs if of_outputs else node.node.inputs
    if not isinstance(groups, dict):
        raise UserError(f"{node.node.kind} gives its variables no names")
    return tuple(groups.get(parameter, ()))


@converter("while")
def while_by_names(node: NodeContext) -> Sequence[GraphExpr]:
    """A block that writes variables of the scope; what it writes and what is there already is carried."""
    scope, (block,) = node.bodies.scope, node.node.blocks
    (condition,) = _names(node, "Condition")
    written = {name for item in block.operators for group in _groups(item.outputs) for name in group}
    carried = [name for name in _names(node, "Out", True) if name in written and scope.find(name) is not None]
    carried = [name for name in dict.fromkeys(carried) if name != condition]

    def turn(inner: Scope, values: Sequence[GraphExpr]) -> tuple[GraphExpr, list[GraphExpr]]:
        inner.values.update(zip(carried, values, strict=True))
        node.bodies.run(block, inner)
        return _found(inner, condition), [_found(inner, name) for name in carried]

    results = _loop(node, _found(scope, condition), [_found(scope, name) for name in carried], turn)
    scope.values.update(zip(carried, results, strict=True))
    return []


def _groups(outputs: object) -> list[tuple[str, ...]]:
    return list(outputs.values()) if isinstance(outputs, dict) else []


@converter("conditional_block", "conditional_block_infer")
def conditional_block(node: NodeContext) -> Sequence[GraphExpr]:
    """A block that runs only if a condition holds; what it writes keeps its former value otherwise."""
    scope, (block,) = node.bodies.scope, node.node.blocks
    condition = _found(scope, _names(node, "Cond")[0])
    names = list(dict.fromkeys(_names(node, "Out", True)))

    def run() -> list[GraphExpr]:
        inner = Scope(scope)
        node.bodies.run(block, inner)
        return [_found(inner, name) for name in names]

    known = evaluate(condition)
    if known is not None:
        if known.all():
            scope.values.update(zip(names, run(), strict=True))
        return []
    before = [scope.find(name) for name in names]
    kept = [value for value in before if value is not None]
    if len(kept) == len(names):
        scope.values.update(zip(names, _chosen(node, condition, [run, lambda: kept], names), strict=True))
        return []
    if kept:
        raise UnsupportedError("a block that gives some of its variables a value and changes others")
    # Only `select_input` reads variables that a branch alone gives a value.
    for at, name in enumerate(names):
        node.bodies.pending[name] = lambda at=at: run()[at]  # type: ignore[misc]
    return []


@converter("select_input")
def select_input(node: NodeContext) -> Sequence[GraphExpr]:
    """One of several variables by a number."""
    scope = node.bodies.scope
    names, (mask,), (result,) = _names(node, "X"), _names(node, "Mask"), _names(node, "Out", True)
    if len(names) != 2:
        raise UnsupportedError(f"a choice among {len(names)} variables")

    def side(name: str) -> Callable[[], list[GraphExpr]]:
        return lambda: [node.bodies.pending[name]() if name in node.bodies.pending else _found(scope, name)]

    sides = [side(name) for name in reversed(names)]
    scope.values[result] = _chosen(node, node.builder.truth(_found(scope, mask)), sides, [result])[0]
    return []
