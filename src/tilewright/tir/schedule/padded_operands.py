"""What stands past the ends of padded operands, so that what is computed there changes nothing (for pad_einsum)."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.build import add, cast, const, maximum, minimum, mul, sub
from tilewright.ir.expr import (
    Add,
    Call,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mod,
    Mul,
    PrimExpr,
    Sub,
    Var,
    const_value,
)
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, transform, uses_any
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.schedule.reducer import MatchedReducer, is_neutral, match_reducer, starts_at_identity
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, BufferStore, IterKind

_FOLDED = {Add: add, Sub: sub, Mul: mul, Max: maximum, Min: minimum}


def padded_operands(
    state: ScheduleState, block: Block, extents: Mapping[Var, PrimExpr], what: str
) -> dict[BufferLoad, PrimExpr]:
    """The elements that a block reads, and what is to stand past their ends when iterators get other extents."""
    source, matched = _source(state, block, what)
    loads = list(dict.fromkeys(item for item in pre_order(source) if isinstance(item, BufferLoad)))
    iters = {item.var for item in block.iters}
    store = block.body
    assert isinstance(store, BufferStore)
    # Elsewhere than along padded iterators, operands may be read anywhere.
    moved = [item.var for item in block.iters if extents[item.var] is not item.domain.extent]
    for buffer, indices, free in (*((x.buffer, x.indices, True) for x in loads), (store.buffer, store.indices, False)):
        plain = (type(index) is Var and index in iters for index in indices)
        if any(not ok and not (free and not uses_any(at, moved)) for ok, at in zip(plain, indices, strict=True)):
            state.fail(f"{what}: an index of {buffer.name} is not one iterator", block)
    _require_harmless(state, block, source, what)
    outside = {load: _outside(load, source, matched, block) for load in loads}
    for entry in block.iters:
        if extents[entry.var] is entry.domain.extent or entry.kind is not IterKind.REDUCE:
            continue
        moving = {load: value for load, value in outside.items() if entry.var in load.indices}
        if matched is None or not _changes_nothing(matched, block, _folded(source, moving)):
            state.fail(
                f"{what}: what block {block.name} combines past the end of the reduction iterator {entry.var.name} is "
                "not certainly what changes nothing",
                block,
                "zero times infinity is not zero: pad only reductions that all factors share, of elements that are "
                "multiplied, or of which the greatest or least is taken",
            )
    return outside


def _source(state: ScheduleState, block: Block, what: str) -> tuple[PrimExpr, MatchedReducer | None]:
    """What each instance of a block computes (and combines)."""
    if not isinstance(block.body, BufferStore):
        state.fail(f"{what}: block {block.name} does not store one value", block)
    if block.init is None and not block.is_reduction:
        return block.body.value, None
    matched = match_reducer(block)
    if matched is None or len(matched.results) != 1:
        state.fail(f"{what}: what block {block.name} combines is not recognised", block)
    constant = isinstance(block.init, BufferStore) and isinstance(block.init.value, (IntImm, FloatImm))
    if not constant or not starts_at_identity(block, matched):
        state.fail(f"{what}: block {block.name} does not start at a constant that changes nothing", block)
    return matched.sources[0], matched


def _require_harmless(state: ScheduleState, block: Block, source: PrimExpr, what: str) -> None:
    """It is computed of the values past the ends too: that must be possible."""
    for item in pre_order(source):
        if isinstance(item, Call) and not is_pure(item):
            state.fail(f"{what}: block {block.name} calls {item.name}, which may do more than give a value", block)
        if isinstance(item, (Div, Mod, FloorDiv, FloorMod)) and not item.dtype.is_float and not const_value(item.b):
            state.fail(f"{what}: block {block.name} divides by what may be zero past the ends", block)


def _outside(load: BufferLoad, source: PrimExpr, matched: MatchedReducer | None, block: Block) -> PrimExpr:
    """Zero; where the elements themselves are combined, what the combination starts at."""
    if matched is not None and source is load and isinstance(block.init, BufferStore):
        return block.init.value
    return const(0, load.dtype)


def _changes_nothing(matched: MatchedReducer, block: Block, value: PrimExpr) -> bool:
    """Whether combining with a value certainly leaves what is there."""
    if is_neutral(matched.results[0], value):
        return True
    # A greatest or least value that starts at this very value stays.
    chooses = isinstance(matched.results[0], (Max, Min))
    return chooses and isinstance(block.init, BufferStore) and value is block.init.value


def _folded(source: PrimExpr, values: Mapping[BufferLoad, PrimExpr]) -> PrimExpr:
    """An expression with elements replaced by constants and folded, as far as that is exact."""

    def visit(item: Node) -> Node | None:
        if isinstance(item, BufferLoad):
            return values.get(item)
        if isinstance(item, Mul) and not item.dtype.is_float and 0 in (const_value(item.a), const_value(item.b)):
            return const(0, item.dtype)
        if isinstance(item, Call):
            return const(0, item.dtype) if _vanishes(item) else None
        if isinstance(item, Cast) and isinstance(item.value, (IntImm, FloatImm)):
            return cast(item.value, item.dtype)
        fold = _FOLDED.get(type(item))  # type: ignore[arg-type]
        if fold is not None and isinstance(item, (Add, Sub, Mul, Max, Min)):
            constant = isinstance(item.a, (IntImm, FloatImm)) and isinstance(item.b, (IntImm, FloatImm))
            return fold(item.a, item.b) if constant else None
        return None

    return transform(source, visit)


def _vanishes(call: Call) -> bool:
    """Whether a call of constants that may be zero is zero: products of words, and bits that meet or are counted."""
    zeros = [const_value(arg) == 0 for arg in call.args]
    return (any(zeros) and call.name in ("dot4", "bitwise_and")) or (
        all(zeros) and call.name in ("bitwise_xor", "popcount")
    )
