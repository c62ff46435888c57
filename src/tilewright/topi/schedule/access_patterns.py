"""How a stage walks through memory: what templates for CPUs and GPUs ask of elementwise stages."""

from __future__ import annotations

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import ZERO, Call, FloorDiv, FloorMod, PrimExpr, Var, const_value
from tilewright.ir.visit import find_all, pre_order, uses_any
from tilewright.tir.analysis.byte_lookups import is_byte_lookup
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Block, BlockIter, BufferStore


def crossed_axis(block: Block, rank: int) -> int | None:
    """The place of the axis along which memory is read, where that is not the axis along which it is written."""
    crossed = _crossed(block, rank)
    return None if crossed is None else crossed[0]


def crossed_source(block: Block, rank: int) -> Buffer | None:
    """The buffer that is read along that axis."""
    crossed = _crossed(block, rank)
    return None if crossed is None else crossed[1]


def _crossed(block: Block, rank: int) -> tuple[int, Buffer] | None:
    own = [item.var for item in block.iters]
    if len(own) != rank or len(own) < 2 or not isinstance(block.body, BufferStore):
        return None
    for item in pre_order(block.body.value):
        if not isinstance(item, BufferLoad) or len(item.indices) < 2:
            continue
        *others, last = item.indices
        if last is not own[-1] and last in own[:-1] and any(uses_any(index, own[-1:]) for index in others):
            return next(n for n, var in enumerate(own) if var is last), item.buffer
    return None


def moves_only(block: Block) -> bool:
    """Whether a stage stores what it reads as it is."""
    return isinstance(block.body, BufferStore) and isinstance(block.body.value, BufferLoad)


def gathers(block: Block, lane: Var) -> bool:
    """Whether a stage reads elements whose places along an iterator are in no order that its index alone tells."""
    return any(
        any(uses_any(term, [lane]) for term in linear(index).terms if term is not lane)
        for item in find_all(block.body, BufferLoad)
        for index in item.indices
        if uses_any(index, [lane])
    )


def mostly_divides(block: Block, along: Var) -> bool:
    """Whether a stage reads where quotients by open sizes tell, which are of no vectors, and calls no functions."""
    lanes = [item.var for item in block.iters if item.value is along]

    def divides(item: PrimExpr) -> bool:
        divisions = (*find_all(item, FloorDiv), *find_all(item, FloorMod))
        return any(const_value(part.b) is None and uses_any(part.a, lanes) for part in divisions)

    for load in find_all(block.body, BufferLoad):
        place: PrimExpr = ZERO
        for size, index in zip(load.buffer.shape, load.indices, strict=True):
            place = place * size + index
        # A place in rows that are put in a row is a quotient and a remainder, which together are in order.
        if divides(place) and divides(Analyzer().simplify(place)):
            return not find_all(block.body, Call)
    return False


def same_indices(block: Block) -> bool:
    """Whether every access is at the block's own iterators, in order: then memory is walked straight through.

    Not that of buffers whose rows are shorter, as those of data that is padded at its end.
    """
    if not isinstance(block.body, BufferStore):
        return False
    own, shape = tuple(item.var for item in block.iters), block.body.buffer.shape
    if tuple(block.body.indices) != own:
        return False
    loads = [item for item in pre_order(block.body.value) if isinstance(item, BufferLoad)]
    return all(tuple(item.indices) == own and item.buffer.shape[1:] == shape[1:] for item in loads)


def are_contiguous(block: Block, outer: BlockIter, inner: BlockIter) -> bool:
    """Whether all that two axes of one kind access is walked through both in order, as if they were one.

    Where a table is looked up is no order: bytes that say it are read as they lie.
    """
    if outer.kind is not inner.kind or not all(const_value(item.domain.extent) for item in (outer, inner)):
        return False
    pair = [outer.var, inner.var]
    accesses: list[BufferLoad | BufferStore] = [*find_all(block.body, BufferLoad), *find_all(block.body, BufferStore)]
    for item in accesses:
        indices, shape = item.indices, item.buffer.shape
        used = [n for n, index in enumerate(indices) if uses_any(index, pair)]
        if not used or (isinstance(item, BufferLoad) and is_byte_lookup(item)):
            continue
        if len(used) != 2 or used[1] != used[0] + 1 or item.buffer.strides:
            return False
        if [indices[n] for n in used] != pair or shape[used[1]] is not inner.domain.extent:
            return False
    return True
