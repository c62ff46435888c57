"""Dependences between the blocks of a scope: producers, consumers, and whether a read finds what it needs.

The central notion is *cover*: while the loops around both a writer and a reader stand still, the writer fills every
element that the reader then reads. A program whose reads are covered may have those loops reordered, run in parallel,
or the buffer shrunk to one iteration's part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.expr import TRUE, ZERO, PrimExpr, Range, Var, const_value
from tilewright.ir.visit import pre_order, substitute, variables
from tilewright.tir.analysis.bindings import conjuncts, exact_box, region_tells_apart
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import linear, mentions
from tilewright.tir.analysis.regions import Box, joined, not_negative, relax, within
from tilewright.tir.annotations import INDEPENDENT
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For, IterKind, LetStmt, LoopKind, SeqStmt


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why iterations of a loop depend on one another, or why a read may miss what it needs; and the block at fault."""

    reason: str
    block: Block


def producers(index: ProgramIndex, block: Block) -> list[Block]:
    """The other blocks of the scope that write what a block reads, in program order."""
    scope = index.scope(block)
    writers = {id(writer) for region in block.reads for writer in scope.writers_of(region.buffer)}
    return [item for item in scope.blocks if id(item) in writers and item is not block]


def consumers(index: ProgramIndex, block: Block) -> list[Block]:
    """The other blocks of the scope that read what a block writes, in program order."""
    scope = index.scope(block)
    readers = {id(reader) for region in block.writes for reader in scope.readers_of(region.buffer)}
    return [item for item in scope.blocks if id(item) in readers and item is not block]


def reads_own_output(block: Block) -> bool:
    """Whether a block reads a buffer that it writes (beyond what its init implies)."""
    written = {id(region.buffer) for region in block.writes}
    return any(id(region.buffer) in written for region in block.reads)


def _inner_loops(index: ProgramIndex, block: Block, fixed: For | None) -> list[For] | None:
    """The loops between a fixed loop and a block; None if something other than loops and sequences is between."""
    path = index.path(block)
    if fixed is not None:
        place = next(n for n, item in enumerate(path) if item is fixed)
        path = path[place + 1 :]
    if not all(isinstance(item, (For, SeqStmt)) for item in path):
        return None
    return [item for item in path if isinstance(item, For)]


def covered(index: ProgramIndex, writer: Block, reader: Block, buffer: Buffer, fixed: For, analyzer: Analyzer) -> bool:
    """Whether, in one iteration of `fixed`, the writer fills all of a buffer that the reader reads."""
    writing = _inner_loops(index, writer, fixed)
    if writing is None:
        return False
    if _touches_alike(index, (writer, writer.writes), (reader, reader.reads), buffer, fixed, analyzer):
        return True
    given = conjuncts(reader.predicate)
    regions = [region for region in writer.writes if region.buffer is buffer]
    together = joined(regions) if len(regions) > 1 else None
    if together is not None:
        regions.append(together)
    boxes = [exact_box(writer, region, writing, analyzer, given) for region in regions]
    reading = index.loops_between(fixed, reader)
    read_boxes = [box for _, box in relax(reader, [r for r in reader.reads if r.buffer is buffer], reading, analyzer)]
    parts = [box for box in boxes if box is not None]
    return any(all(_box_within(part, box, buffer, analyzer) for part in read_boxes) for box in parts)


def _box_within(inner: Box, outer: Box, buffer: Buffer, analyzer: Analyzer) -> bool:
    """Whether a box, as far as it lies in the buffer, is inside another."""
    for dimension, item in enumerate(outer):
        whole = Range(ZERO, buffer.shape[dimension])
        if not within(whole, item, analyzer) and not within(inner[dimension], item, analyzer):
            return False
    return True


def _disjoint(a: Box, b: Box, analyzer: Analyzer) -> bool:
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            continue
        after = linear(y.min).minus(linear(x.min)).minus(linear(x.extent))
        before = linear(x.min).minus(linear(y.min)).minus(linear(y.extent))
        if not_negative(after, analyzer) or not_negative(before, analyzer):
            return True
    return False


def moved_flow_conflict(
    old: ProgramIndex,
    new: ProgramIndex,
    name: str,
    analyzer: Analyzer,
    readers_before: Sequence[str] = (),
    proven: str | None = None,
    writes_for: Mapping[str, str] = MappingProxyType({}),
) -> Conflict | None:
    """Whether a block of a changed program may miss what it, or `readers_before` for it, read in the old one.

    A pair of writer and reader whose order and common loops are as they were needs no proof, nor does one that is
    deeper inside its common loops than it was and never touches the same elements while those stand still (a
    recurrence: one reads the row before the one that the other writes). Otherwise the writer must come first, as it
    did, write each element once, and cover the reads while the common loops stand still, in both programs. The writer
    `proven` needs no proof: the caller has it. `writes_for` says of new blocks in whose place they write, at the same
    times, what they write.
    """
    reader = new.blocks[name]
    known = [old.blocks[item] for item in readers_before or [name] if item in old.blocks]
    scope = new.scope(reader)
    for buffer in dict.fromkeys(region.buffer for region in reader.reads):
        for writer in scope.writers_of(buffer):
            if writer is reader or writer.name == proven:
                continue
            origin = old.blocks.get(writes_for.get(writer.name, writer.name))
            pairs: list[tuple[Block, Block] | None] = []
            if origin is not None:
                pairs.extend((origin, item) for item in known if _flows(origin, item, buffer))
            for pair in pairs or [None]:
                conflict = _pair_conflict(old, pair, new, (writer, reader), buffer, analyzer)
                if conflict is not None:
                    return conflict
    return None


def _pair_conflict(
    old: ProgramIndex,
    pair: tuple[Block, Block] | None,
    new: ProgramIndex,
    moved: tuple[Block, Block],
    buffer: Buffer,
    analyzer: Analyzer,
) -> Conflict | None:
    """What `moved_flow_conflict` asks of a writer and a reader, as they were (if they were) and as they are."""
    writer, reader = moved
    first = new.position(writer) < new.position(reader)
    common = new.common_loops(writer, reader)
    still = {loop.var for loop in common}
    places = [(new, writer, common)]
    if pair is not None:
        if (old.position(pair[0]) < old.position(pair[1])) != first:
            side = "after" if first else "before"
            return Conflict(f"it would run {side} block {writer.name}, which writes {buffer.name}", reader)
        loops, kept = [loop.var for loop in common], old.common_loops(*pair)
        names = [loop.var for loop in kept]
        still = still.intersection(names)
        places.append((old, pair[0], kept))
        if names == loops:
            return None
        deeper = names == loops[: len(names)]
        if kept and deeper:
            regions = [(writer, region) for region in writer.writes if region.buffer is buffer]
            reads = [region for region in reader.reads if region.buffer is buffer]
            if apart(new, common[len(kept) - 1], reader, reads, regions, analyzer):
                return None
        if first and not deeper and not covered(old, *pair, buffer, kept[-1], analyzer):
            return _not_written(pair[1], buffer, kept[-1], pair[0])
    if not first:
        return Conflict(f"it would run before block {writer.name}, which writes {buffer.name}", reader)
    if common and not covered(new, writer, reader, buffer, common[-1], analyzer):
        return _not_written(reader, buffer, common[-1], writer)
    once = all(writes_once(writer, region, still) for region in writer.writes if region.buffer is buffer)
    if not once and not all(_iterations_write_apart(*place, buffer, still) for place in places):
        return Conflict(
            f"several instances of block {writer.name} may write the same element of {buffer.name}, and block "
            f"{reader.name} would read what another of them wrote",
            reader,
        )
    return None


def _not_written(reader: Block, buffer: Buffer, loop: For, writer: Block) -> Conflict:
    return Conflict(
        f"what block {reader.name} reads of {buffer.name} in one iteration of loop {loop.var.name} is not certainly "
        f"all written by block {writer.name} in that iteration",
        reader,
    )


def _iterations_write_apart(
    index: ProgramIndex, writer: Block, around: Sequence[For], buffer: Buffer, still: Collection[Var]
) -> bool:
    """Whether different iterations of loops around a writer, but for those that stand still, write other elements."""
    loops = index.loops_above(writer)
    regions = [region for region in writer.writes if region.buffer is buffer]
    return all(
        region_tells_apart(writer, region, loop, loops[depth:], loops[:depth])
        for depth, loop in enumerate(loops[: len(around)])
        if loop.var not in still
        for region in regions
    )


def writes_once(block: Block, region: BufferRegion, still: Collection[Var]) -> bool:
    """Whether different instances of a block certainly write different elements, while some loops stand still.

    The steps of a reduction are one instance.
    """
    moving = [
        item
        for item in block.iters
        if item.kind is not IterKind.REDUCE and not _variables_of(item.value).issubset(still)
    ]
    iters = {item.var for item in moving}
    plain = [item.min for item in region.region if type(item.min) is Var and const_value(item.extent) == 1]
    if iters.issubset(plain):
        return True
    loops = [For(item.var, item.domain.min, item.domain.extent, LoopKind.SERIAL, block) for item in moving]
    free = block.replace(iters=tuple(BlockIter(item.var, item.domain, item.kind, item.var) for item in block.iters))
    free = free.replace(predicate=TRUE)
    return all(region_tells_apart(free, region, loop, loops, ()) for loop in loops)


def _variables_of(value: PrimExpr) -> frozenset[Var]:
    return frozenset(variables(value))


def _flows(writer: Block, reader: Block, buffer: Buffer) -> bool:
    """Whether one block writes a buffer that the other reads."""
    written = any(region.buffer is buffer for region in writer.writes)
    return written and any(region.buffer is buffer for region in reader.reads)


def iteration_conflict(
    index: ProgramIndex, loop: For, analyzer: Analyzer, private: bool, scheduled: bool = False
) -> Conflict | None:
    """Why the iterations of a loop cannot run at the same time; None if they can.

    With `private`, an intermediate buffer whose accesses are all inside the loop and covered in each iteration may be
    written by several iterations: each can have its own copy. A loop may carry the promise (`INDEPENDENT`) that its
    iterations do not meet where data decide what is written. In a program that a schedule has made (`scheduled`), what
    an iteration reads of its own buffers was proven to be written there when the writer was moved: such a buffer, all
    inside the loop and written first, is not looked at again (its regions may have become too involved for that). Nor
    is one in memory that blocks or threads of a device have to themselves.
    """
    blocks = index.blocks_under(loop)
    for block in blocks:
        for item in block.iters:
            if item.kind is not IterKind.SPATIAL and mentions(item.value, {loop.var}):
                return Conflict(f"block {block.name} uses it for the {item.kind.value} iterator {item.var.name}", block)
    written: dict[Buffer, list[tuple[Block, BufferRegion]]] = {}
    for block in blocks:
        for region in block.writes:
            written.setdefault(region.buffer, []).append((block, region))
    promised = bool(INDEPENDENT.of(loop))
    for buffer, writers in written.items():
        if promised and any(places_from_data(block, buffer) for block, _ in writers):
            continue
        is_trusted = scheduled or (loop.kind is LoopKind.THREAD and buffer.scope != "global")
        if is_trusted and private and is_private(index, loop, buffer) and _is_written_first(blocks, buffer):
            continue
        conflict = _buffer_conflict(index, loop, buffer, writers, blocks, analyzer, private)
        if conflict is not None:
            return conflict
    return None


def places_from_data(block: Block, buffer: Buffer) -> bool:
    """Whether a block writes a buffer at indices that are read from memory."""
    bound = {item.var for item in pre_order(block.body) if isinstance(item, LetStmt)}
    stores = [item for item in pre_order(block.body) if isinstance(item, BufferStore) and item.buffer is buffer]
    parts = (part for store in stores for index in store.indices for part in pre_order(index))
    return any(isinstance(part, BufferLoad) or part in bound for part in parts)


def _buffer_conflict(
    index: ProgramIndex,
    loop: For,
    buffer: Buffer,
    writers: Sequence[tuple[Block, BufferRegion]],
    blocks: Sequence[Block],
    analyzer: Analyzer,
    private: bool,
) -> Conflict | None:
    first = writers[0][0]
    for block, region in writers:
        if block is not first and not (
            _written_within(index, first, block, buffer, loop, analyzer)
            or _keeps_to_itself(index, loop, (block, [region]), writers, analyzer)
        ):
            return Conflict(f"blocks {first.name} and {block.name} both write {buffer.name}", block)
        loops = [loop, *index.loops_between(loop, block)]
        if region_tells_apart(block, region, loop, loops, index.loops_above(loop)):
            continue
        if not private or not is_private(index, loop, buffer) or not _starts_afresh(index, loop, first, block):
            return Conflict(f"several iterations may write the same elements of {buffer.name}", block)
    for reader in blocks:
        reads = [region for region in reader.reads if region.buffer is buffer]
        if not reads or _same_element(reader, reads, buffer):
            continue
        if reader is not first and index.position(first) < index.position(reader):
            if covered(index, first, reader, buffer, loop, analyzer):
                continue
        elif _reads_elsewhere(index, loop, reader, reads, writers, analyzer):
            continue
        if _keeps_to_itself(index, loop, (reader, reads), writers, analyzer):
            continue
        return Conflict(f"block {reader.name} may read elements of {buffer.name} that another iteration writes", reader)
    return None


def _is_written_first(blocks: Sequence[Block], buffer: Buffer) -> bool:
    """Whether the first of some blocks, in program order, that touches a buffer writes it without reading it."""
    for block in blocks:
        if any(region.buffer is buffer for region in (*block.reads, *block.writes)):
            return not any(region.buffer is buffer for region in block.reads) and not reads_own_output(block)
    return False


def is_private(index: ProgramIndex, loop: For, buffer: Buffer) -> bool:
    """Whether a buffer is an intermediate of the function that only the inside of a loop touches."""
    if any(param is buffer for param in index.func.params):
        return False
    scope = index.scope(loop)
    users = (*scope.writers_of(buffer), *scope.readers_of(buffer))
    return all(index.is_under(block, loop) for block in users)


def _starts_afresh(index: ProgramIndex, loop: For, first: Block, block: Block) -> bool:
    """Whether a writer keeps nothing from one iteration of a loop to another."""
    if block is first and reads_own_output(block):
        return False
    outer = {item.var for item in index.loops_above(loop)}
    return not any(item.kind is not IterKind.SPATIAL and mentions(item.value, outer) for item in block.iters)


def _same_element(block: Block, reads: Sequence[BufferRegion], buffer: Buffer) -> bool:
    """Whether a block reads of a buffer just what it writes (an update in place)."""
    writes = [region for region in block.writes if region.buffer is buffer]

    def same(a: BufferRegion, b: BufferRegion) -> bool:
        pairs = zip(a.region, b.region, strict=True)
        return all(x.min is y.min and x.extent is y.extent for x, y in pairs)

    return bool(writes) and all(any(same(read, write) for write in writes) for read in reads)


def _written_within(
    index: ProgramIndex, first: Block, other: Block, buffer: Buffer, loop: For, analyzer: Analyzer
) -> bool:
    """Whether a later writer stays, in each iteration, inside what the first one wrote in it."""
    loops = _inner_loops(index, first, loop)
    if loops is None:
        return False
    if _touches_alike(index, (first, first.writes), (other, other.writes), buffer, loop, analyzer):
        return True
    given = conjuncts(other.predicate)
    boxes = [exact_box(first, region, loops, analyzer, given) for region in first.writes if region.buffer is buffer]
    inner = index.loops_between(loop, other)
    regions = [region for region in other.writes if region.buffer is buffer]
    read_boxes = [box for _, box in relax(other, regions, inner, analyzer)]
    return any(
        box is not None and all(_box_within(want, box, buffer, analyzer) for want in read_boxes) for box in boxes
    )


def _touches_alike(
    index: ProgramIndex,
    first: tuple[Block, Sequence[BufferRegion]],
    other: tuple[Block, Sequence[BufferRegion]],
    buffer: Buffer,
    loop: For,
    analyzer: Analyzer,
) -> bool:
    """Whether a block touches, in each iteration of a loop, just what another does: the same places, in the same loops.

    That is how the start of a sum, its steps and the copy of its result lie under the loop over tiles, whatever guards
    say of the last tile. Hardly any arithmetic is needed to see it.
    """
    ours, theirs = ([item for item in regions if item.buffer is buffer] for _, regions in (first, other))
    if len(ours) != 1:
        return False
    place, guards, loops = _places(index, first[0], ours[0], loop)
    idle = [item for item in index.loops_between(loop, first[0]) if item not in loops]
    if not all((const_value(item.extent) or 0) > 0 for item in idle):
        return False
    for region in theirs:
        wanted, given, others = _places(index, other[0], region, loop)
        if [(item.min, item.extent) for item in loops] != [(item.min, item.extent) for item in others]:
            return False
        names: dict[Var, PrimExpr] = {b.var: a.var for a, b in zip(loops, others, strict=True)}
        if not set(guards) <= {substitute(item, names) for item in given}:
            return False
        for a, b in zip(place, (substitute(part, names) for part in wanted), strict=True):
            if a is not b and analyzer.simplify(a) is not analyzer.simplify(b):
                return False
    return bool(theirs)


def _places(
    index: ProgramIndex, block: Block, region: BufferRegion, loop: For
) -> tuple[list[PrimExpr], list[PrimExpr], list[For]]:
    """A region and the guards of its block in terms of loops, and the loops inside another that the region mentions."""
    values: dict[Var, PrimExpr] = {item.var: item.value for item in block.iters}
    place = [substitute(part, values) for item in region.region for part in (item.min, item.extent)]
    used = [item for item in index.loops_between(loop, block) if any(mentions(part, {item.var}) for part in place)]
    return place, conjuncts(block.predicate), used


def _reads_elsewhere(
    index: ProgramIndex,
    loop: For,
    reader: Block,
    reads: Sequence[BufferRegion],
    writers: Sequence[tuple[Block, BufferRegion]],
    analyzer: Analyzer,
) -> bool:
    """Whether what is read is, over all iterations of a loop, never what is written in it."""
    return _boxes_apart((reader, reads), writers, lambda block: [loop, *index.loops_between(loop, block)], analyzer)


def _keeps_to_itself(
    index: ProgramIndex,
    loop: For,
    reading: tuple[Block, Sequence[BufferRegion]],
    writers: Sequence[tuple[Block, BufferRegion]],
    analyzer: Analyzer,
) -> bool:
    """Whether what a block touches in one iteration of a loop is never what is written in another: they are apart.

    A line of an image for each iteration, say, whatever of it is read and written.
    """
    reader, reads = reading
    read_boxes = [box for _, box in relax(reader, reads, index.loops_between(loop, reader), analyzer)]
    for block, region in writers:
        (_, write_box) = relax(block, [region], index.loops_between(loop, block), analyzer)[0]
        if not all(_iterations_apart(box, write_box, loop.var) for box in read_boxes):
            return False
    return True


def _iterations_apart(a: Box, b: Box, var: Var) -> bool:
    """Whether some dimension of two boxes moves with a variable by at least what both span together."""
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            continue
        form, lengths = linear(x.min), (const_value(x.extent), const_value(y.extent))
        distance = linear(y.min).minus(form)
        step = form.terms.get(var, 0)
        # What is read from memory may be another number in each iteration.
        opaque = any(term is not var and (mentions(term, {var}) or depends_on_memory(term)) for term in form.terms)
        if opaque or distance.terms or lengths[0] is None or lengths[1] is None:
            continue
        span = max(lengths[0], distance.constant + lengths[1]) - min(0, distance.constant)
        if span <= abs(step):
            return True
    return False


def apart(
    index: ProgramIndex,
    fixed: For,
    reader: Block,
    reads: Sequence[BufferRegion],
    writers: Sequence[tuple[Block, BufferRegion]],
    analyzer: Analyzer,
) -> bool:
    """Whether what is read in one iteration of a loop is never what is written in that iteration."""
    return _boxes_apart((reader, reads), writers, lambda block: index.loops_between(fixed, block), analyzer)


def _boxes_apart(
    reading: tuple[Block, Sequence[BufferRegion]],
    writers: Sequence[tuple[Block, BufferRegion]],
    running: Callable[[Block], Sequence[For]],
    analyzer: Analyzer,
) -> bool:
    """Whether reads and writes touch no common element while the loops that `running` names run."""
    reader, reads = reading
    read_boxes = [box for _, box in relax(reader, reads, running(reader), analyzer)]
    for block, region in writers:
        (_, write_box) = relax(block, [region], running(block), analyzer)[0]
        if not all(_disjoint(box, write_box, analyzer) for box in read_boxes):
            return False
    return True
