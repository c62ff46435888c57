"""Loops that count: how many turns there are, and which carried values are written row by row.

`jax.lax.scan` becomes a loop that carries a counter, and a tensor for each of its outputs of which every turn replaces
one row. Such a tensor need not be carried (and copied) from turn to turn: its rows are collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.program import Block, Dense, Operation, TensorSpec, Value
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64, DataType


@dataclass(frozen=True, slots=True)
class Written:
    """A carried tensor of which turn number i writes row i (`is_backward`: counted from the last) and nothing else."""

    place: int
    row: Value
    """What a turn writes: one row, as a tensor whose first dimension is 1."""
    is_backward: bool


@dataclass(frozen=True, slots=True)
class Counting:
    """A loop whose carried value at `place` counts."""

    place: int
    start: int
    step: int
    turns: int
    dtype: DataType
    written: list[Written]

    def value(self, b: StableBuilder, number: GraphExpr) -> GraphExpr:
        """The counter in a turn by its number."""
        scaled = number if self.step == 1 else b.multiply(number, self.step)
        moved = scaled if self.start == 0 else b.add(scaled, self.start)
        return b.cast(b.cast(moved, INT64), self.dtype)


def count_of(b: StableBuilder, going: Block, body: Block, operands: Sequence[Any]) -> Counting | None:
    """How a loop counts; None if it does not, or the number of turns is not known."""
    place, limit, is_below = _limit(b, going) or (None, 0, False)
    if place is None:
        return None
    makers = {result: operation for operation in body.operations for result in operation.results}
    known = _Known(b, body, makers)
    step = _step(known, body, place)
    start = _whole_number(operands[place])
    spec = body.arguments[place].spec
    if step is None or start is None or not isinstance(spec, TensorSpec) or not spec.dtype.is_integer:
        return None
    if is_below and step > 0:
        turns = max(0, -(-(limit - start) // step))
    elif not is_below and step < 0:
        turns = max(0, -(-(start - limit) // -step))
    else:
        return None
    last = start + turns * step
    if not spec.dtype.min_value() <= last <= spec.dtype.max_value():
        return None
    written = _rows(known, body, place, turns) if start == 0 and step == 1 else []
    return Counting(place, start, step, turns, spec.dtype, written)


def _limit(b: StableBuilder, going: Block) -> tuple[int, int, bool] | None:
    """The counter that a condition compares with a number, that number, and whether it must be below it."""
    plain = [operation for operation in going.operations if operation.short not in ("constant", "return")]
    if len(plain) != 1 or plain[0].short != "compare" or going.results != plain[0].results:
        return None
    makers = {result: operation for operation in going.operations for result in operation.results}
    known = _Known(b, going, makers)
    first, second = plain[0].operands
    direction = plain[0].attributes.get("comparison_direction")
    if first not in going.arguments:
        first, second = second, first
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(str(direction))
    number = known.number(second)
    if first not in going.arguments or number is None:
        return None
    match direction:
        case "LT":
            return going.arguments.index(first), number, True
        case "LE":
            return going.arguments.index(first), number + 1, True
        case "GT":
            return going.arguments.index(first), number, False
        case "GE":
            return going.arguments.index(first), number - 1, False
    return None


def _whole_number(value: Any) -> int | None:
    known = evaluate(value) if isinstance(value, GraphExpr) else None
    return int(known.reshape(-1)[0]) if known is not None and known.size == 1 and known.dtype.kind in "iu" else None


class _Known:
    """What the operations of a block make."""

    def __init__(self, b: StableBuilder, block: Block, makers: dict[Value, Operation]) -> None:
        self.b, self.block, self.makers = b, block, makers

    def number(self, value: Value) -> int | None:
        """A whole number that is known while importing."""
        maker = self.makers.get(value)
        if maker is None:
            return None if value in self.block.arguments else _whole_number(self.b.lookup(value))
        if maker.short in ("convert", "reshape", "broadcast_in_dim"):
            return self.number(maker.operands[0])
        literal = maker.attributes.get("value") if maker.short == "constant" else None
        if isinstance(literal, Dense) and literal.data.size == 1 and literal.data.dtype.kind in "iu":
            return int(literal.data.reshape(-1)[0])
        return None

    def linear(self, value: Value, counter: Value) -> tuple[int, int] | None:
        """(factor, shift) of a value that is factor * counter + shift."""
        if value is counter:
            return 1, 0
        number = self.number(value)
        if number is not None:
            return 0, number
        maker = self.makers.get(value)
        if maker is None:
            return None
        if maker.short in ("convert", "reshape"):
            return self.linear(maker.operands[0], counter)
        if maker.short not in ("add", "subtract"):
            return None
        parts = [self.linear(item, counter) for item in maker.operands]
        if parts[0] is None or parts[1] is None:
            return None
        sign = 1 if maker.short == "add" else -1
        return parts[0][0] + sign * parts[1][0], parts[0][1] + sign * parts[1][1]


def _step(known: _Known, body: Block, place: int) -> int | None:
    """By how much each turn moves the counter."""
    found = known.linear(body.results[place], body.arguments[place])
    return found[1] if found is not None and found[0] == 1 and found[1] != 0 else None


def _rows(known: _Known, body: Block, counter: int, turns: int) -> list[Written]:
    """The carried values of which each turn writes one row, and that nothing else looks at."""
    uses = _uses(body)
    found: list[Written] = []
    for place, argument in enumerate(body.arguments):
        result = body.results[place]
        maker = known.makers.get(result)
        if maker is None or maker.short != "dynamic_update_slice" or maker.operands[0] is not argument:
            continue
        if uses.get(argument) != 1 or uses.get(result) != 1:
            continue
        row = _whole_row(known, maker, body.arguments[counter], turns)
        if row is not None:
            found.append(Written(place, maker.operands[1], row < 0))
    return found


def _whole_row(known: _Known, update: Operation, counter: Value, turns: int) -> int | None:
    """1 if a turn writes the row of its number, -1 if that counted from the last; None if it does anything else."""
    data, part, *starts = update.operands
    if not isinstance(data.spec, TensorSpec) or not isinstance(part.spec, TensorSpec) or not starts:
        return None
    if data.spec.shape[:1] != (turns,) or part.spec.shape != (1, *data.spec.shape[1:]):
        return None
    place = known.linear(starts[0], counter)
    if place not in ((1, 0), (-1, turns - 1)):
        return None
    # Along the other dimensions the row is as long as the data: it is moved to their beginning, wherever it starts.
    return place[0]


def _uses(body: Block) -> dict[Value, int]:
    """How often values are used in a block and its regions."""
    counts: dict[Value, int] = {}

    def look(block: Block) -> None:
        for operation in block.operations:
            for value in operation.operands:
                counts[value] = counts.get(value, 0) + 1
            for inner in operation.regions:
                look(inner)

    look(body)
    return counts
