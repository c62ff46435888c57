"""Converters of control flow: `if` and `case`, and loops.

A loop that counts, as `jax.lax.scan` and `fori_loop` become, is taken apart first: what is only written row by row is
collected, and a short one is spelled out. The others are functions that call themselves (`core/loops.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.core.branches import choice
from tilewright.frontend.core.builder import evaluate, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.loops import Loop, Turn, build_loop, captured, stack
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part
from tilewright.frontend.stablehlo.counting import Counting, count_of
from tilewright.frontend.stablehlo.elementwise import truth
from tilewright.frontend.stablehlo.inline import inlined
from tilewright.frontend.stablehlo.program import Block, Operation, Value
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError

_MOST_SPELLED = 64
"""The most turns of a loop that are spelled out."""
_MOST_OPERATIONS = 4096
"""The most operations of all turns that are spelled out."""


# Branches


@converter("if", of_complex="taken")
def branch(b: StableBuilder, operation: Operation, condition: GraphExpr) -> list[Any]:
    """One of two regions."""
    known = evaluate(condition)
    if known is not None:
        return b.run_block(operation.regions[0 if known.all() else 1], [])
    return _choice(b, truth(b, condition), [lambda at=at: b.run_block(operation.regions[at], []) for at in (0, 1)])  # type: ignore[misc]


@converter("case", of_complex="taken")
def case(b: StableBuilder, operation: Operation, index: GraphExpr) -> list[Any]:
    """One of several regions; the last for any number that none has."""
    count = len(operation.regions)
    known = evaluate(index)
    if known is not None:
        number = int(known)
        return b.run_block(operation.regions[number if 0 <= number < count else count - 1], [])

    def rest(at: int) -> list[Any]:
        if at == count - 1:
            return b.run_block(operation.regions[at], [])
        here = b.compare("equal", b.reshape(index, ()), at)
        return _choice(b, here, [lambda: b.run_block(operation.regions[at], []), lambda: rest(at + 1)])

    return rest(0)


def _choice(b: StableBuilder, condition: GraphExpr, sides: Sequence[Callable[[], list[Any]]]) -> list[Any]:
    """Values of which only those of the chosen side are computed."""
    shapes: list[list[bool]] = []

    def built(side: Callable[[], list[Any]]) -> list[GraphExpr]:
        values = side()
        shapes.append([isinstance(value, Complex) for value in values])
        return flat_parts(values)

    parts = choice(b, condition, (lambda: built(sides[0]), lambda: built(sides[1])), "the operation")
    return with_pairs(parts, shapes[0])


def flat_parts(values: Sequence[Any]) -> list[GraphExpr]:
    """The tensors of values, complex ones as two."""
    parts: list[GraphExpr] = []
    for value in values:
        if not isinstance(value, (GraphExpr, Complex)):
            raise UnsupportedError("control flow over tuples or tokens", hint="carry tensors")
        parts.extend(each_part(value))
    return parts


def with_pairs(parts: Sequence[GraphExpr], pairs: Sequence[bool]) -> list[Any]:
    """Values from their tensors: two of them where one is complex."""
    rest = iter(parts)
    return [Complex(next(rest), next(rest)) if is_pair else next(rest) for is_pair in pairs]


# Loops


@dataclass(slots=True)
class _While:
    """A loop before it is built: what it carries, and values from outside that it sees."""

    going: Block
    body: Block
    carried: list[Tensor]
    outside: list[Value] = field(default_factory=list)


@converter("while", of_complex="taken")
def loop(b: StableBuilder, operation: Operation, *operands: Any) -> list[Any]:
    """Turns of a region as long as another one says so."""
    going, body = (inlined(region, b.definitions) for region in operation.regions)
    flat_parts(operands)
    made = _While(going, body, list(operands), _outside([going, body], b))
    counting = count_of(b, going, body, operands)
    if counting is not None and counting.turns <= 0:
        return list(operands)
    if counting is not None and _is_short(counting, body):
        return _spelled_out(b, made, counting)
    return _repeated(b, made, counting)


def _is_short(counting: Counting, body: Block) -> bool:
    return counting.turns <= _MOST_SPELLED and counting.turns * operations_in(body) <= _MOST_OPERATIONS


def operations_in(block: Block) -> int:
    """The operations of a block and its regions."""
    return sum(1 + sum(operations_in(inner) for inner in operation.regions) for operation in block.operations)


def _outside(blocks: Sequence[Block], b: StableBuilder) -> list[Value]:
    """The values that blocks use and do not make."""
    made: set[Value] = set()
    used: dict[Value, None] = {}

    def look(block: Block) -> None:
        made.update(block.arguments)
        for operation in block.operations:
            used.update(dict.fromkeys(operation.operands))
            made.update(operation.results)
            for inner in operation.regions:
                look(inner)

    for block in blocks:
        look(block)
    return [value for value in used if value not in made]


def _spelled_out(b: StableBuilder, loop: _While, counting: Counting) -> list[Any]:
    """Each turn by itself; rows that are written are put together at the end."""
    values = list(loop.carried)
    rows: dict[int, list[Tensor]] = {written.place: [] for written in counting.written}
    spec = loop.body.arguments[counting.place].tensor
    for turn in range(counting.turns):
        values[counting.place] = b.scalar(counting.start + turn * counting.step, spec.dtype)
        results = b.run_block(loop.body, values)
        for written in counting.written:
            rows[written.place].append(b.lookup(written.row))
        values = [values[at] if at in rows else value for at, value in enumerate(results)]
    values[counting.place] = b.scalar(counting.start + counting.turns * counting.step, spec.dtype)
    for written in counting.written:
        column = rows[written.place][:: -1 if written.is_backward else 1]
        values[written.place] = _each(column, lambda parts: b.concatenate(parts, 0))
    return values


def _each(values: Sequence[Tensor], join: Callable[[list[GraphExpr]], GraphExpr]) -> Tensor:
    """Tensors joined, complex ones part by part."""
    columns = [list(column) for column in zip(*(each_part(value) for value in values), strict=True)]
    parts = [join(column) for column in columns]
    return Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _repeated(b: StableBuilder, loop: _While, counting: Counting | None) -> list[Any]:
    """A function that calls itself."""
    written = counting.written if counting is not None else []
    gone = {item.place for item in written}
    if counting is not None:
        gone.add(counting.place)
    kept = [at for at in range(len(loop.carried)) if at not in gone]
    pairs = [isinstance(loop.carried[at], Complex) for at in kept]
    start = flat_parts([loop.carried[at] for at in kept])

    def arguments(number: GraphExpr | None, states: Sequence[GraphExpr]) -> list[Any]:
        values: list[Any] = list(loop.carried)
        for at, value in zip(kept, with_pairs(states, pairs), strict=True):
            values[at] = value
        if counting is not None and number is not None:
            values[counting.place] = counting.value(b, number)
        return values

    def run(number: GraphExpr, states: list[GraphExpr]) -> Turn:
        captures: list[tuple[GraphExpr, Var]] = []
        before = [(value, b.lookup(value)) for value in loop.outside]
        try:
            for value, outer in before:
                b.redefine(value, _seen(outer, captures))
            values = arguments(number, states)
            results = b.run_block(loop.body, values)
            rows = flat_parts([b.lookup(item.row) for item in written])
            carried = flat_parts([results[at] for at in kept])
            going = None if counting is not None else _test(b, loop.going, results)
            return Turn(going, carried, rows, captures)
        finally:
            for value, outer in before:
                b.redefine(value, outer)

    limit = b.scalar(counting.turns, INT64) if counting is not None else None
    going = None if counting is not None else _test(b, loop.going, loop.carried)
    made = Loop(_name(b), limit, going, start, run)
    finished, collected = build_loop(b, b.functions, made)
    results = arguments(None, finished)
    if counting is not None:
        spec = loop.body.arguments[counting.place].tensor
        results[counting.place] = b.scalar(counting.start + counting.turns * counting.step, spec.dtype)
        _put_rows(b, results, counting, collected, loop, made.name)
    return results


def _put_rows(
    b: StableBuilder, results: list[Any], counting: Counting, collected: list[GraphExpr], loop: _While, name: str
) -> None:
    """The rows that turns wrote, one after the other."""
    rest = iter(collected)
    for item in counting.written:
        parts: list[GraphExpr] = []
        for at in range(len(each_part(loop.carried[item.place]))):
            rows = stack(b, next(rest), counting.turns, 0, f"{name}_{item.place}_{at}")
            sizes = sizes_of(rows)
            whole = b.reshape(rows, (counting.turns, *sizes[2:]))
            parts.append(b.flip(whole, (0,)) if item.is_backward else whole)
        results[item.place] = Complex(parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _seen(outer: Any, captures: list[tuple[GraphExpr, Var]]) -> Any:
    """A value from outside as the body sees it."""
    if isinstance(outer, Complex):
        return Complex(*(captured(part, captures) for part in outer.parts))
    return captured(outer, captures) if isinstance(outer, GraphExpr) else outer


def _test(b: StableBuilder, going: Block, values: Sequence[Any]) -> GraphExpr:
    (found,) = b.run_block(going, values)
    return truth(b, found)


def _name(b: StableBuilder) -> str:
    """A name that no other loop of the program has."""
    b.loops += 1
    return f"loop_{b.loops - 1}"
