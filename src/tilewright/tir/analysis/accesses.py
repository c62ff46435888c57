"""What a piece of a block reads and writes, as regions in terms of the variables that stay free.

One region for each distinct access: a point where the indices use only free variables, the touched box where inner
loops are involved, whole dimensions where an index is not known (it depends on data, or is read from what a while loop
changes). A reduction's reading of its own
accumulators is implied by its init and is not listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.region import touched
from tilewright.ir.expr import ONE, TRUE, PrimExpr, Ramp, Range, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.linear import mentions
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion, loads_in
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, LetStmt, Stmt, While

Access = tuple[Buffer, tuple[PrimExpr, ...]]


class _Collector:
    """Walks statements and expressions, keeping the loops and bindings that are around."""

    def __init__(self) -> None:
        self.domains: dict[Var, Range] = {}
        self.unknown: set[Var] = set()
        self.loads: dict[Access, None] = {}
        self.stores: dict[Access, None] = {}
        self.inner_reads: list[BufferRegion] = []
        self.inner_writes: list[BufferRegion] = []
        self.private: list[Buffer] = []
        """Buffers that are allocated inside."""
        self.repeats = False
        """Whether there is a while loop, whose iterations may differ in all that is read from memory."""
        self._expressions: set[PrimExpr] = set()
        """Those that were visited: parts of expressions are shared, and there may be many ways to each."""

    def analyzer(self) -> Analyzer:
        """An analyzer that knows the inner loops."""
        result = Analyzer()
        for var, domain in self.domains.items():
            result.bind(var, domain)
        return result

    def visit(self, item: Node) -> None:
        """Collect everything at and below a node."""
        if isinstance(item, PrimExpr):
            if item in self._expressions:
                return
            self._expressions.add(item)
        if isinstance(item, BufferLoad):
            self.loads.setdefault((item.buffer, item.indices))
        elif isinstance(item, BufferStore):
            self.stores.setdefault((item.buffer, item.indices))
        elif isinstance(item, For):
            self.domains[item.var] = Range(item.min, item.extent)
        elif isinstance(item, LetStmt):
            self.unknown.add(item.var)
        elif isinstance(item, Allocate):
            self.private.append(item.buffer)
        elif isinstance(item, While):
            self.repeats = True
        elif isinstance(item, Block):
            # The inside of a nested block is summed up by its regions, in terms of its iterators. Where a predicate
            # cuts some off, their values may leave the domains: those are what is sure.
            values: dict[Var, PrimExpr] = {}
            for inner in item.iters:
                self.domains[inner.var] = inner.domain
                self.visit(inner.value)
                if item.predicate is TRUE and not loads_in(inner.value):
                    values[inner.var] = inner.value
            self.visit(item.predicate)
            self.inner_reads.extend(substitute(region, values) for region in item.reads)
            self.inner_writes.extend(substitute(region, values) for region in item.writes)
            return
        for child in item.children():
            self.visit(child)


def _relax(ranges: Iterable[Range], buffer: Buffer, collector: _Collector) -> BufferRegion:
    result: list[Range] = []
    full = buffer.full_region().region
    for dimension, item in enumerate(ranges):
        if collector.unknown and (mentions(item.min, collector.unknown) or mentions(item.extent, collector.unknown)):
            result.append(full[dimension])
        elif collector.domains and (mentions(item.min, collector.domains) or mentions(item.extent, collector.domains)):
            analyzer = collector.analyzer()
            box = (
                None
                if mentions(item.extent, collector.domains)
                else touched((item.min,), collector.domains, analyzer)[0]
            )
            # The range of an inner loop may be what a definition inside says.
            if box is None or mentions(box.min, collector.unknown) or mentions(box.extent, collector.unknown):
                result.append(full[dimension])
            else:
                result.append(Range(box.min, analyzer.simplify(box.extent + item.extent - 1)))
        else:
            result.append(item)
    return BufferRegion(buffer, tuple(result))


def detect_accesses(body: Stmt, init: Stmt | None = None) -> tuple[tuple[BufferRegion, ...], tuple[BufferRegion, ...]]:
    """The regions that a block's body (and init) reads and writes, in order of first access."""
    collector = _Collector()
    collector.visit(body)
    if init is not None:
        collector.visit(init)
    writes = [_point(access, collector) for access in collector.stores]
    writes.extend(_relax(region.region, region.buffer, collector) for region in collector.inner_writes)
    reads = [_point(access, collector) for access in collector.loads]
    reads.extend(_relax(region.region, region.buffer, collector) for region in collector.inner_reads)
    if init is not None:
        own = {id(region.buffer) for region in writes}
        reads = [region for region in reads if id(region.buffer) not in own]
    if collector.repeats:
        changed = tuple(dict.fromkeys(region.buffer for region in writes))
        reads, writes = [_whole_where(r, changed) for r in reads], [_whole_where(r, changed) for r in writes]
    if collector.private:
        private = tuple(collector.private)
        reads, writes = list(_from_outside(reads, private)), list(_from_outside(writes, private))
    return _distinct(reads), _distinct(writes)


def _point(access: Access, collector: _Collector) -> BufferRegion:
    buffer, indices = access
    whole = buffer.full_region().region
    ranges = [_index_range(index, full) for index, full in zip(indices, whole, strict=True)]
    return _relax(ranges, buffer, collector)


def _index_range(index: PrimExpr, whole: Range) -> Range:
    if isinstance(index, Ramp):
        return Range(index.base, _lanes(index))
    return Range(index, ONE) if index.dtype.is_scalar else whole


def _lanes(index: Ramp) -> PrimExpr:
    """The extent that a vector index touches."""
    return (index.stride * (index.lanes - 1)) + 1


def _distinct(regions: list[BufferRegion]) -> tuple[BufferRegion, ...]:
    seen: dict[tuple[object, ...], BufferRegion] = {}
    for region in regions:
        key = (id(region.buffer), *(id(part) for item in region.region for part in (item.min, item.extent)))
        seen.setdefault(key, region)
    return tuple(seen.values())


def with_detected_accesses(block: Block) -> Block:
    """A block whose read and write regions are those of its body and init."""
    reads, writes = detect_accesses(block.body, block.init)
    if block.allocations:
        reads, writes = _from_outside(reads, block.allocations), _from_outside(writes, block.allocations)
    return block.replace(reads=reads, writes=writes)


def _from_outside(regions: Iterable[BufferRegion], private: tuple[Buffer, ...]) -> tuple[BufferRegion, ...]:
    """Regions as seen from outside a block: without its own buffers, whole where those hold the indices."""
    seen = [region for region in regions if not any(region.buffer is buffer for buffer in private)]
    return _distinct([_whole_where(region, private) for region in seen])


def _whole_where(region: BufferRegion, buffers: tuple[Buffer, ...]) -> BufferRegion:
    """A region with all of each dimension whose range is read from some buffers."""
    whole = region.buffer.full_region().region
    parts = [full if _reads_any(part, buffers) else part for part, full in zip(region.region, whole, strict=True)]
    return BufferRegion(region.buffer, tuple(parts))


def _reads_any(part: Range, buffers: tuple[Buffer, ...]) -> bool:
    loads = (*loads_in(part.min), *loads_in(part.extent))
    return any(load.buffer is buffer for load in loads for buffer in buffers)
