"""Control flow of Core ML's programs: branches, loops, classes of results, and state, which is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from tilewright.frontend.core.builder import evaluate, rank_of, sizes_of
from tilewright.frontend.core.loops import Loop, Turn, build_loop
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.graph.ir.expr import GraphExpr, If
from tilewright.graph.ir.unify import Mismatch, Unifier, show_type
from tilewright.ir.types import Type
from tilewright.support.errors import UnsupportedError, UserError


@operation("cond")
def branch(op: Operation) -> Sequence[GraphExpr]:
    """A known condition chooses the block now; else both are kept and one is computed."""
    blocks = op.bodies.blocks
    if len(blocks) != 2:
        raise UserError(f"cond has {len(blocks)} blocks, not two")
    condition = op.builder.truth(op.builder.reshape(op.value("pred"), ()))
    known = evaluate(condition)
    if known is not None:
        return op.bodies.inline(blocks[0] if known.all() else blocks[1], [])
    builder = op.builder
    counts: list[int] = []

    def side(block: object) -> GraphExpr:
        results = op.bodies.inline(block, [])
        counts.append(len(results))
        return builder.tuple(results)

    sides = [builder.enclosed(lambda block=block: side(block)) for block in blocks]  # type: ignore[misc]
    if counts[0] != counts[1]:
        raise UserError(f"the blocks of cond give {counts[0]} and {counts[1]} results")
    made = If(condition, sides[0], sides[1])
    try:
        made.type = Unifier().join(cast(Type, sides[0].type), cast(Type, sides[1].type))
    except Mismatch as error:
        texts = [show_type(cast(Type, item.type)) for item in sides]
        raise UnsupportedError(f"the blocks of cond give {texts[0]} and {texts[1]}: {error}") from None
    made.span = builder.span
    items = [made] if counts[0] == 1 else [builder.item(made, index) for index in range(counts[0])]
    return [builder.named(value, op.name) for value in items]


@operation("while_loop")
def while_loop(op: Operation) -> Sequence[GraphExpr]:
    """A function that calls itself as long as the first block says so."""
    blocks = op.bodies.blocks
    if len(blocks) != 2:
        raise UserError(f"while_loop has {len(blocks)} blocks, not two")
    carried = op.values("loop_vars")

    def going(values: Sequence[GraphExpr]) -> GraphExpr:
        (found,) = op.bodies.inline(blocks[0], values)
        return op.builder.truth(op.builder.reshape(found, ()))

    def turn(number: GraphExpr, values: list[GraphExpr]) -> Turn:
        results, captured = op.bodies.closed(blocks[1], values)
        condition, more = op.bodies.closed(blocks[0], results)
        again = op.builder.truth(op.builder.reshape(condition[0], ()))
        return Turn(again, results, [], [*captured, *more])

    loop = Loop(f"loop_{op.name}", None, going(carried), carried, turn)
    return build_loop(op.builder, op.bodies.functions, loop)[0]


@operation("classify")
def classify(op: Operation) -> Sequence[GraphExpr]:
    """The class of the greatest probability, and the probabilities."""
    probabilities = op.value("probabilities")
    count = 1
    for size in sizes_of(probabilities):
        if not isinstance(size, int):
            raise UnsupportedError("classes whose number only a run knows")
        count *= size
    flat = op.builder.reshape(probabilities, (count,))
    best = op.call("argmax", flat, axis=0)
    classes = op.arguments.get("classes")
    if isinstance(classes, list):
        labels: GraphExpr = op.builder.constant(np.array([str(item) for item in classes], dtype=object), "string")
    else:
        labels = op.value("classes")
    if sizes_of(labels) != (count,) or rank_of(labels) != 1:
        raise UserError(f"there are {count} probabilities and classes of shape {sizes_of(labels)}")
    return [op.call("take", labels, best, axis=0), flat]


@operation("read_state", "write_state", "coreml_update_state")
def state(op: Operation) -> Sequence[GraphExpr]:
    """States that a model keeps between calls are refused."""
    raise UnsupportedError(
        "a model that keeps state between calls",
        hint="convert it with the state as an input and an output, and hand it on from call to call",
    )
