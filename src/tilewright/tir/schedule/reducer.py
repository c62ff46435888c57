"""Recognising what a reduction block combines: accumulators, new values, combination, identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.ir.expr import Add, And, Call, FloatImm, IntImm, Max, Min, Mul, Or, PrimExpr, Select, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import Block, BufferStore, LetStmt, SeqStmt, Stmt, seq

_COMMUTATIVE: Final = (Add, Mul, Min, Max, And, Or)
_NUMBERS: Final = (IntImm, FloatImm)
_COMMUTATIVE_CALLS: Final = ("bitwise_and", "bitwise_or", "bitwise_xor")


@dataclass(frozen=True, slots=True)
class MatchedReducer:
    """A reduction: `results[n]`, in terms of `accumulators` and `sources`, is stored to accumulator n."""

    accumulators: tuple[BufferLoad, ...]
    sources: tuple[PrimExpr, ...]
    results: tuple[PrimExpr, ...]
    stores: tuple[BufferStore, ...]

    def combined(self, left: Sequence[PrimExpr], right: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        """What values in the place of the accumulators and values in the place of the sources combine to."""
        swap = {id(old): new for old, new in zip(self.accumulators, left, strict=True)}
        swap.update((id(old), new) for old, new in zip(self.sources, right, strict=True))
        return tuple(_replaced(result, swap) for result in self.results)


def combining_body(targets: Sequence[BufferLoad], results: Sequence[PrimExpr]) -> Stmt:
    """Stores of results to their places; of several, all are computed before any is stored."""
    if len(targets) == 1:
        return BufferStore(targets[0].buffer, targets[0].indices, results[0])
    held = [Var(f"{target.buffer.name}_next", target.dtype) for target in targets]
    body = seq(*(BufferStore(t.buffer, t.indices, value) for t, value in zip(targets, held, strict=True)))
    for var, value in zip(reversed(held), reversed(results), strict=True):
        body = LetStmt(var, value, body)
    return body


def _replaced(expr: PrimExpr, swap: Mapping[int, PrimExpr]) -> PrimExpr:
    """An expression with whole parts replaced, top down (a part inside a replaced part is not looked at)."""
    replacement = swap.get(id(expr))
    if replacement is not None:
        return replacement

    def visit(item: Node) -> Node:
        return _replaced(item, swap) if isinstance(item, PrimExpr) else item

    return expr.rebuild(visit)


def _stores(body: Stmt) -> list[BufferStore] | None:
    """The stores of a body that is stores only."""
    if isinstance(body, BufferStore):
        return [body]
    if isinstance(body, SeqStmt) and all(isinstance(stmt, BufferStore) for stmt in body.stmts):
        return [stmt for stmt in body.stmts if isinstance(stmt, BufferStore)]
    return None


def match_reducer(block: Block) -> MatchedReducer | None:
    """The reduction that a block performs: one combined value, or several through bindings; None if unknown."""
    values: dict[Var, PrimExpr] = {}
    body = block.body
    while isinstance(body, LetStmt):
        values[body.var] = body.value
        body = body.body
    stores = _stores(body)
    if stores is None or (values and len(values) != len(stores)):
        return None
    accumulators = tuple(BufferLoad(store.buffer, store.indices) for store in stores)
    results: list[PrimExpr] = []
    for store in stores:
        value = store.value
        if values:
            if not isinstance(value, Var) or value not in values:
                return None
            value = values[value]
        results.append(value)
    sources: tuple[PrimExpr, ...] | None
    if len(stores) == 1:
        sources = _single_source(results[0], accumulators[0])
    elif values:
        sources = _tuple_sources(results, accumulators)
    else:
        sources = None
    if sources is None:
        return None
    return MatchedReducer(accumulators, sources, tuple(results), tuple(stores))


def starts_at_identity(block: Block, matched: MatchedReducer) -> bool:
    """Whether a reduction begins at what changes nothing, so that parts of it may each begin there.

    A sum that begins at an addend does not. Least and greatest values may begin anywhere: once or often is the same.
    """
    result, init = matched.results[0], block.init
    if len(matched.results) > 1 or (not isinstance(result, (Add, Mul)) and not _is_exclusive_or(result)):
        return True
    return isinstance(init, BufferStore) and is_neutral(result, init.value)


def is_neutral(result: PrimExpr, value: PrimExpr) -> bool:
    """Whether a combination with a value changes nothing: zero for sums, one for products."""
    if not isinstance(result, (Add, Mul)) and not _is_exclusive_or(result):
        return False
    return isinstance(value, _NUMBERS) and value.value == (1 if isinstance(result, Mul) else 0)


def _is_exclusive_or(expr: PrimExpr) -> bool:
    return isinstance(expr, Call) and expr.name == "bitwise_xor"


def _mentions_any(expr: PrimExpr, loads: Sequence[BufferLoad]) -> bool:
    buffers = {id(load.buffer) for load in loads}
    return any(isinstance(item, BufferLoad) and id(item.buffer) in buffers for item in pre_order(expr))


def _single_source(result: PrimExpr, accumulator: BufferLoad) -> tuple[PrimExpr] | None:
    if isinstance(result, _COMMUTATIVE):
        left, right = result.a, result.b
    elif isinstance(result, Call) and result.name in _COMMUTATIVE_CALLS:
        left, right = result.args
    else:
        return None
    if right is accumulator:
        left, right = right, left
    if left is not accumulator or _mentions_any(right, [accumulator]):
        return None
    return (right,)


def _tuple_sources(results: Sequence[PrimExpr], accumulators: tuple[BufferLoad, ...]) -> tuple[PrimExpr, ...] | None:
    """The new values of a tuple reduction: where a result can be taken from the new side, what it is taken from.

    Every part of a result that is free of accumulators must be one of them (or a constant), so that partial results
    can stand in their place.
    """
    sources: list[PrimExpr] = []
    for result, accumulator in zip(results, accumulators, strict=True):
        side = _new_side(result, accumulator, accumulators)
        if side is None:
            return None
        sources.append(side)
    known = {id(source) for source in sources}
    if len(known) != len(sources) or any(isinstance(source, _NUMBERS) for source in sources):
        return None
    if any(not _made_of(result, accumulators, known) for result in results):
        return None
    return tuple(sources)


def _new_side(result: PrimExpr, accumulator: BufferLoad, all_of: Sequence[BufferLoad]) -> PrimExpr | None:
    sides: tuple[PrimExpr, PrimExpr]
    if isinstance(result, (Select, *_COMMUTATIVE)):
        sides = (result.a, result.b)
    else:
        return None
    for kept, new in (sides, sides[::-1]):
        if kept is accumulator and not _mentions_any(new, all_of):
            return new
    return None


def _made_of(expr: PrimExpr, accumulators: Sequence[BufferLoad], sources: set[int]) -> bool:
    """Whether an expression consists of accumulators, sources and constants only."""
    if id(expr) in sources or any(expr is load for load in accumulators):
        return True
    if isinstance(expr, (Var, BufferLoad)):
        return False
    return all(_made_of(child, accumulators, sources) for child in expr.children() if isinstance(child, PrimExpr))
