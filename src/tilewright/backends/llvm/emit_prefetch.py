"""Prefetch instructions for loops that ask for them: while some of a buffer is used, what comes next is fetched.

A loop with the annotation `PREFETCH: {"W": n}` works on n consecutive elements of W at a time, usually several times
over (a panel of weights, once for each block of rows). The iterations then fetch the n elements after those, a line or
a few each, or several the same line, so that memory is read at an even pace behind the arithmetic:

    for p:  for r in range(R):  for k in range(K):              W[p * n + k * 32 ...] used
                                    prefetch W[p * n + n + (r * K + k) * (n / (R * K))]

`{"W": [n, m]}` fetches n elements from the m-th on instead: rows of an image that windows slide over. `[n, m, r, s]`
fetches r such runs, s elements apart: the rows of a tile. The loop itself may not use the buffer at all: what is
stored, or read, after it can be fetched while it runs. What is fetched goes to the second cache level; by the
annotation `PREFETCH_NEAR`, to the first: what the kernel has made itself is in the second already.

Hardware follows a slow stream only a few lines ahead; arithmetic then waits for memory at each new panel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.arith.simplify import depends_on_memory
from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.types import memory_type
from tilewright.ir.expr import FloorDiv, IntImm, PrimExpr, Ramp, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import substitute, uses_any, variables
from tilewright.target.target import LINE_BYTES
from tilewright.tir.annotations import PREFETCH, PREFETCH_NEAR, Prefetch
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.rewrite.statements import inner_statements
from tilewright.tir.stmt import BufferStore, For, Stmt

_MOST_A_STEP = 8
"""More lines than these an iteration would crowd out the loads that are needed now."""


_TURNS = 4
"""Iterations of a loop of unknown length that fetch all between them. In one of them memory could not keep the pace."""
_LOCALITY = {PREFETCH: 2, PREFETCH_NEAR: 3}
"""What LLVM calls the cache level to fetch into: 3 is the first."""


def emit_prefetches(c: FunctionContext, loops: Sequence[For]) -> None:
    """Fetch ahead at the start of the body of the innermost of some nested loops, as its annotations say."""
    for note, locality in _LOCALITY.items():
        _fetch_all(c, loops, note.of(loops[-1]) or {}, locality)


def _fetch_all(c: FunctionContext, loops: Sequence[For], prefetches: Mapping[str, Prefetch], locality: int) -> None:
    accesses = first_accesses(loops, prefetches) if prefetches else {}
    for name, prefetch in prefetches.items():
        access = accesses.get(name)
        if access is None:
            continue
        if all(item in c.variables for index in access.indices for item in variables(index)):
            runs = [prefetch.start + run * prefetch.stride for run in range(prefetch.runs)]
            _fetch_next(c, loops, access, prefetch.elements, runs, locality)


def first_accesses(loops: Sequence[For], names: Collection[str]) -> dict[str, BufferLoad | BufferStore]:
    """The first use of each of some buffers in the innermost loop that uses it, as loops further inside begin.

    Every statement is looked at once at most: what an inner loop does not use is sought around it alone.
    """
    first: dict[str, BufferLoad | BufferStore] = {}
    around = {loop.var for loop in loops}
    seen: set[Node] = set()
    searched: For | None = None
    for loop in reversed(loops):
        begins: dict[Var, PrimExpr] = {}
        stack: list[Stmt] = [loop.body]
        while stack and len(first) < len(names):
            stmt = stack.pop()
            if stmt is searched:
                continue
            if isinstance(stmt, For) and stmt.var not in around:
                begins[stmt.var] = stmt.min
            for item in _accesses(stmt, seen):
                name = item.buffer.name
                if name in names and name not in first:
                    first[name] = item.replace(indices=tuple(substitute(index, begins) for index in item.indices))
            stack.extend(reversed(inner_statements(stmt)))
        searched = loop
    return first


def _accesses(stmt: Stmt, seen: set[Node]) -> Iterator[BufferLoad | BufferStore]:
    """The store that a statement is, then what it loads, in the order of the text, without what was seen before."""
    if isinstance(stmt, BufferStore):
        yield stmt
    stack: list[Node] = [part for part in reversed(stmt.children()) if isinstance(part, PrimExpr)]
    while stack:
        item = stack.pop()
        # Most of an expression are indices and constants, which load nothing and know it.
        if item in seen or not isinstance(item, PrimExpr) or not depends_on_memory(item):
            continue
        seen.add(item)
        if isinstance(item, BufferLoad):
            yield item
        stack.extend(reversed(item.children()))


def _fetch_next(
    c: FunctionContext,
    loops: Sequence[For],
    access: BufferLoad | BufferStore,
    length: int,
    runs: Sequence[int],
    locality: int,
) -> None:
    lines = next_lines(c.analyzer, loops, access, length, runs[0])
    if lines is None:
        return
    position, count = lines
    kind = memory_type(access.buffer.dtype.element)
    declared = c.module.declare("llvm.prefetch.p0", "void", "ptr, i32 immarg, i32 immarg, i32 immarg")
    first = c.op(f"getelementptr {kind}, ptr {c.pointer(access.buffer)}, i64 {c.value(position)}", "p")
    for distance in (run - runs[0] + number * _line(access.buffer) for run in runs for number in range(count)):
        place = first if not distance else c.op(f"getelementptr {kind}, ptr {first}, i64 {distance}", "p")
        # To be read or written, in a cache level, as data.
        written = int(isinstance(access, BufferStore))
        c.do(f"call void {declared}(ptr {place}, i32 {written}, i32 {locality}, i32 1)")


def next_lines(
    analyzer: Analyzer, loops: Sequence[For], access: BufferLoad | BufferStore, length: int, ahead: int
) -> tuple[PrimExpr, int] | None:
    """Where an iteration of nested loops has to fetch, and how many lines, so that together they fetch all of `length`.

    What they fetch begins `ahead` elements after the first that they use.
    None where the loops have too few iterations for that, or the index cannot be followed.
    """
    (index,) = access.indices
    if isinstance(index, Ramp):
        index = index.base
    if not index.dtype.is_scalar:
        return None
    line = _line(access.buffer)
    lines = -(-length // line)
    counter, steps, start = _walk(analyzer, loops, index, length)
    count = -(-lines // steps)
    if count > _MOST_A_STEP:
        return None
    # With steps to spare several fetch the same line: running further ahead would drive out what is in use.
    distance = count * line if count > 1 else -(-length // steps)
    return analyzer.simplify(start + counter * distance + ahead), count


def _line(buffer: Buffer) -> int:
    return max(1, LINE_BYTES // buffer.dtype.itemsize)


def _walk(analyzer: Analyzer, loops: Sequence[For], index: PrimExpr, length: int) -> tuple[PrimExpr, int, PrimExpr]:
    """(how far the loops inside a panel are, how many steps they have, the first element of the panel)."""
    counter: PrimExpr = IntImm(0)
    steps = 1
    start = index
    for loop in reversed(loops):
        form = analyzer.form(index)
        if not isinstance(loop.extent, IntImm):
            if not _moves(form, loop, length):
                # A few iterations fetch all of it, and so do the next few.
                counter = counter + (loop.var - loop.min) % _TURNS * steps
                steps *= _TURNS
                start = substitute(start, {loop.var: loop.min})
            break
        if _moves(form, loop, length):
            divided = _quotient(form, loop)
            if divided is None:
                break
            # The panel and a loop inside it were fused: the rest of the division counts the steps of that loop.
            counter = counter + (loop.var % divided) * steps
            steps *= divided
            break
        counter = counter + (loop.var - loop.min) * steps
        steps *= loop.extent.value
        start = substitute(start, {loop.var: loop.min})
    return counter, steps, start


def _moves(form: Linear, loop: For, length: int) -> bool:
    """Whether the loop goes from panel to panel: a step of it is not within the panel."""
    for term, factor in form.terms.items():
        if term is loop.var:
            return abs(factor) >= length
        if uses_any(term, [loop.var]):
            return True
    return False


def _quotient(form: Linear, loop: For) -> int | None:
    """The divisor, where the index uses the loop variable divided only."""
    divisor: int | None = None
    for term in form.terms:
        if not uses_any(term, [loop.var]):
            continue
        if not isinstance(term, FloorDiv) or term.a is not loop.var or not isinstance(term.b, IntImm):
            return None
        divisor = term.b.value
    return divisor
