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

from collections.abc import Iterator, Mapping, Sequence

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.linear import Linear
from tilewright.arith.simplify import depends_on_memory
from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.types import memory_type
from tilewright.ir.expr import FloorDiv, IntImm, PrimExpr, Ramp, Var
from tilewright.ir.visit import pre_order, substitute, uses_any, variables
from tilewright.tir.annotations import PREFETCH, PREFETCH_NEAR, Prefetch
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import BufferStore, For, Stmt

LINE_BYTES = 64
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
    for name, prefetch in prefetches.items():
        access = _first_access(loops, name)
        if access is None:
            continue
        if all(item in c.variables for index in access.indices for item in variables(index)):
            runs = [prefetch.start + run * prefetch.stride for run in range(prefetch.runs)]
            _fetch_next(c, loops, access, prefetch.elements, runs, locality)


def _first_access(loops: Sequence[For], name: str) -> BufferLoad | BufferStore | None:
    """The first use of a buffer in the innermost loop that uses it, as loops further inside begin."""
    for loop in reversed(loops):
        for item in _accesses(loop.body):
            if item.buffer.name == name:
                below = [stmt for stmt in all_statements(loop.body) if isinstance(stmt, For)]
                inner: dict[Var, PrimExpr] = {stmt.var: stmt.min for stmt in below}
                for around in loops:
                    inner.pop(around.var, None)
                return item.replace(indices=tuple(substitute(index, inner) for index in item.indices))
    return None


def _accesses(root: Stmt) -> Iterator[BufferLoad | BufferStore]:
    """Loads and stores in the order of the text, a store before what it loads."""
    for stmt in all_statements(root):
        if isinstance(stmt, BufferStore):
            yield stmt
        for part in stmt.children():
            if isinstance(part, PrimExpr) and depends_on_memory(part):
                yield from (item for item in pre_order(part) if isinstance(item, BufferLoad))


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
