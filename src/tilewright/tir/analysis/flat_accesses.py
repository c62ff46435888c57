"""Accesses to one buffer in a statement without blocks: where they are, under which loops and conditions, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tilewright.arith.analyzer import Analyzer, conjuncts
from tilewright.arith.region import touched
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import all_of
from tilewright.ir.expr import LE, LT, TRUE, ZERO, Call, IntImm, PrimExpr, Range, StringImm, Var, is_const_int
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, made_of, pre_order
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.lanes import in_lane, lanes_of
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.stmt import (
    Allocate,
    Assert,
    Block,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    LoopKind,
    SeqStmt,
    Stmt,
    While,
)

Step = tuple[Stmt, int]
"""A statement on a path and the number of its child that the path goes into."""


_IN_ORDER: Final = (LoopKind.SERIAL, LoopKind.UNROLLED)
"""Loops whose iterations may leave values to later ones."""
_ADDRESSES: Final = frozenset(("access_ptr", "element_distance"))
"""Functions that take the addresses of their operands, which they do not read themselves."""
_NO_STATEMENT: Final = SeqStmt(())


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: its indices, and the path of statements from the root down to it."""

    indices: tuple[PrimExpr, ...]
    is_store: bool
    path: tuple[Step, ...]

    def loops_below(self, depth: int) -> dict[Var, Range]:
        """The loops on the path from a depth on, as domains of their variables."""
        return {stmt.var: Range(stmt.min, stmt.extent) for stmt, _ in self.path[depth:] if isinstance(stmt, For)}

    def guards_below(self, depth: int) -> list[PrimExpr]:
        """The conditions that hold where the access runs, from a depth on."""
        return [stmt.condition for stmt, child in self.path[depth:] if isinstance(stmt, IfThenElse) and child == 0]

    def may_not_run_below(self, depth: int) -> bool:
        """Whether the path goes, from a depth on, where no guard tells: through an `else`, or into a while loop."""
        return any(
            isinstance(stmt, While) or (isinstance(stmt, IfThenElse) and child == 1)
            for stmt, child in self.path[depth:]
        )

    def box(self, depth: int, analyzer: Analyzer, guarded: bool = True) -> list[Range | None]:
        """The region touched while the loops from a depth on run (where the guards hold, if `guarded`).

        None stands for an index that is not known.
        """
        predicate = all_of(self.guards_below(depth)) if guarded else TRUE
        box = touched(self.indices, self.loops_below(depth), analyzer, predicate)
        return box if not self._is_repeated() else [item if self._is_steady(item) else None for item in box]

    def _is_repeated(self) -> bool:
        return any(isinstance(stmt, While) for stmt, _ in self.path)

    def _is_steady(self, item: Range | None) -> bool:
        """Whether a range is the same in every iteration of the while loops around: nothing of it is read or bound."""
        bound = [stmt.var for stmt, _ in self.path if isinstance(stmt, LetStmt)]
        parts = () if item is None else (item.min, item.extent)
        return not any(isinstance(node, BufferLoad) or node in bound for part in parts for node in pre_order(part))


class Addresses:
    """What expressions read themselves, and what calls touch through addresses: looked at once for each of them.

    The same two corners have the same box, with the same variables: what an analyzer finds out about it is known again.
    """

    def __init__(self) -> None:
        self._read: dict[PrimExpr, tuple[BufferLoad, ...]] = {}
        self._pointers: dict[PrimExpr, tuple[Call, ...]] = {}
        self._boxes: dict[tuple[BufferLoad, BufferLoad], tuple[tuple[PrimExpr, ...], tuple[Step, ...]]] = {}
        self._simplify = Analyzer().simplify

    def read(self, expr: PrimExpr) -> tuple[BufferLoad, ...]:
        """The loads of an expression but for those that only say where an address is."""
        if _ADDRESSES.isdisjoint(made_of(expr)):
            return loads_in(expr)
        known = self._read.get(expr)
        if known is None:
            addressed: set[PrimExpr] = set()
            found: list[BufferLoad] = []
            for item in pre_order(expr):
                if isinstance(item, Call) and item.name in _ADDRESSES:
                    addressed.update(item.args)
                elif isinstance(item, BufferLoad) and item not in addressed:
                    found.append(item)
            known = self._read[expr] = tuple(found)
        return known

    def pointers(self, expr: PrimExpr) -> tuple[Call, ...]:
        """The addresses of boxes in an expression."""
        if "access_ptr" not in made_of(expr):
            return ()
        known = self._pointers.get(expr)
        if known is None:
            calls = [item for item in pre_order(expr) if isinstance(item, Call) and item.name == "access_ptr"]
            known = self._pointers[expr] = tuple(calls)
        return known

    def box(self, first: BufferLoad, last: BufferLoad) -> tuple[tuple[PrimExpr, ...], tuple[Step, ...]]:
        """The indices of a box between two corners, and the loops that run from one to the other."""
        known = self._boxes.get((first, last))
        if known is None:
            known = self._boxes[first, last] = self._box(first, last)
        return known

    def _box(self, first: BufferLoad, last: BufferLoad) -> tuple[tuple[PrimExpr, ...], tuple[Step, ...]]:
        indices: list[PrimExpr] = []
        steps: list[Step] = []
        for low, high in zip(first.indices, last.indices, strict=True):
            extent = self._simplify(high - low + 1)
            if is_const_int(extent, 1):
                indices.append(low)
                continue
            var = Var("at")
            indices.append(low + var)
            steps.append((For(var, ZERO, extent, LoopKind.SERIAL, _NO_STATEMENT), 0))
        return tuple(indices), tuple(steps)


def accesses_of(buffer: Buffer, root: Stmt, addresses: Addresses) -> list[Access]:
    """All accesses to a buffer, in the order they run (a store's loads come before it)."""
    accesses: list[Access] = []
    _Collector(buffer, addresses, accesses).collect(root, ())
    return accesses


def touches(buffer: Buffer, root: Stmt | PrimExpr) -> bool:
    """Whether anything below accesses a buffer."""
    if isinstance(root, PrimExpr):
        return any(load.buffer is buffer for load in loads_in(root))
    return buffer in _accessed(root)


_NO_BUFFERS: Final[frozenset[Node]] = frozenset()


def _accessed(stmt: Stmt) -> frozenset[Node]:
    """The buffers that are accessed below a statement, which keeps them."""
    try:
        return stmt.buffers
    except AttributeError:
        pass
    known = frozenset((stmt.buffer,)) if isinstance(stmt, BufferStore) else _NO_BUFFERS
    for child in stmt.children():
        if isinstance(child, Stmt):
            below = _accessed(child)
        elif isinstance(child, PrimExpr):
            # Most expressions of a statement are indices and ends of loops, which read nothing.
            below = frozenset([load.buffer for load in loads_in(child)]) if depends_on_memory(child) else _NO_BUFFERS
        else:
            below = frozenset([load.buffer for expr in find_all(child, PrimExpr) for load in loads_in(expr)])
        # Mostly one holds the other: one set then serves both.
        if below is not known and not below <= known:
            known = below if known <= below else known | below
    stmt.buffers = known
    return known


class _Collector:
    """Collects the accesses to a buffer."""

    def __init__(self, buffer: Buffer, addresses: Addresses, accesses: list[Access]) -> None:
        self._buffer = buffer
        self._addresses = addresses
        self._accesses = accesses

    def collect(self, stmt: Stmt, path: tuple[Step, ...]) -> None:
        """Go through a statement at the end of a path."""
        if self._buffer not in _accessed(stmt):
            return
        match stmt:
            case SeqStmt():
                for number, item in enumerate(stmt.stmts):
                    self.collect(item, (*path, (stmt, number)))
            case For():
                self._loads((stmt.min, stmt.extent), (*path, (stmt, -1)))
                self.collect(stmt.body, (*path, (stmt, 0)))
            case BufferStore():
                self._loads((*stmt.indices, stmt.value), (*path, (stmt, 0)))
                if stmt.buffer is self._buffer:
                    self._accesses.append(_lanes_as_loop(stmt.indices, True, (*path, (stmt, 1))))
            case IfThenElse():
                self._loads((stmt.condition,), (*path, (stmt, -1)))
                self.collect(stmt.then_body, (*path, (stmt, 0)))
                if stmt.else_body is not None:
                    self.collect(stmt.else_body, (*path, (stmt, 1)))
            case While():
                self._loads((stmt.condition,), (*path, (stmt, -1)))
                self.collect(stmt.body, (*path, (stmt, 0)))
            case LetStmt():
                self._loads((stmt.value,), (*path, (stmt, -1)))
                self.collect(stmt.body, (*path, (stmt, 0)))
            case Allocate():
                self.collect(stmt.body, (*path, (stmt, 0)))
            case Evaluate():
                self._loads((stmt.value,), (*path, (stmt, 0)))
                self._pointers(stmt, path)
            case Assert():
                self._loads((stmt.condition,), (*path, (stmt, 0)))
            case Block() | _:
                raise CompilerBug(f"accesses of a {type(stmt).__name__}: blocks are lowered first")

    def _loads(self, exprs: tuple[PrimExpr, ...], path: tuple[Step, ...]) -> None:
        for expr in exprs:
            for load in self._addresses.read(expr):
                if load.buffer is self._buffer:
                    self._accesses.append(_lanes_as_loop(load.indices, False, path))

    def _pointers(self, stmt: Evaluate, path: tuple[Step, ...]) -> None:
        """What an extern call touches through addresses: every element between two corners; reads before writes."""
        pointers = self._addresses.pointers(stmt.value)
        for letter in "rw":
            for item in pointers:
                mode, first, last = item.args
                assert isinstance(mode, StringImm) and isinstance(first, BufferLoad) and isinstance(last, BufferLoad)
                if first.buffer is self._buffer and letter in mode.value:
                    indices, steps = self._addresses.box(first, last)
                    self._accesses.append(Access(indices, letter == "w", (*path, *steps, (stmt, 0))))


def _lanes_as_loop(indices: tuple[PrimExpr, ...], is_store: bool, path: tuple[Step, ...]) -> Access:
    """An access; the lanes of vector indices are iterations of a loop of its own."""
    lanes = lanes_of(indices)
    if lanes == 1:
        return Access(indices, is_store, path)
    var = Var("lane")
    parts = [in_lane(index, var) for index in indices]
    plain = tuple(index if part is None else part for index, part in zip(indices, parts, strict=True))
    stmt, child = path[-1]
    loop = For(var, ZERO, IntImm(lanes), LoopKind.SERIAL, stmt)
    return Access(plain, is_store, (*path[:-1], (loop, 0), (stmt, child)))


def may_cross(buffer: Buffer, loop: For, analyzer: Analyzer, addresses: Addresses) -> bool:
    """Whether an iteration of a loop may read what an earlier one wrote into a buffer (or what was there before).

    It does not if every load certainly follows a store to its elements in the same iteration. Then no value crosses
    between iterations of a loop further inside either, as far as all accesses are in that loop: the store is in one
    iteration of all the loops around both. The analyzer must know the loop's variable.
    """
    carried = loop.var if loop.kind in _IN_ORDER else None
    return not are_written_first(accesses_of(buffer, loop.body, addresses), analyzer, carried)


def are_written_first(accesses: Sequence[Access], analyzer: Analyzer, carried: Var | None = None) -> bool:
    """Whether every load among the accesses of one statement is certainly preceded by a store to its elements.

    `carried` is the variable of a loop around whose iterations run in order: one may leave a value to the next.
    """
    written = _Written(analyzer)
    earlier: list[Access] = []
    for (_, is_store), group in groupby(accesses, lambda access: (access.path, access.is_store)):
        if is_store:
            earlier += group
            continue
        # Loads of one statement mostly read what one store wrote: they are asked about together.
        loads = list(group)
        if any(_covers(store, loads, written, carried) for store in earlier):
            continue
        if not all(any(_covers(store, [load], written, carried) for store in earlier) for load in loads):
            return False
    return True


class _Written:
    """What stores certainly write, each asked once for all the loads that it comes before."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self._boxes: dict[tuple[int, int], list[Range | None] | None] = {}

    def box(self, store: Access, depth: int) -> list[Range | None] | None:
        """The region that a store fills while the loops from a depth on run; None if some of it may stay as it was."""
        key = id(store), depth
        if key not in self._boxes:
            self._boxes[key] = self._box(store, depth)
        return self._boxes[key]

    def _box(self, store: Access, depth: int) -> list[Range | None] | None:
        if store.may_not_run_below(depth) or not _is_dense(store, depth, self.analyzer):
            return None
        with self.analyzer.scope():
            for var, domain in store.loops_below(0).items():
                self.analyzer.bind(var, domain)
            return store.box(depth, self.analyzer)


def _covers(store: Access, loads: Sequence[Access], written: _Written, carried: Var | None) -> bool:
    """Whether a store certainly comes before loads of one statement, and reaches all that they read."""
    load = loads[0]
    depth = 0
    for ours, theirs in zip(store.path, load.path, strict=False):
        if ours[0] is not theirs[0] or ours[1] != theirs[1]:
            break
        depth += 1
    if depth >= len(store.path) or depth >= len(load.path):
        return False
    if not isinstance(store.path[depth][0], SeqStmt):
        # Not one after the other: the two branches of a condition, or a store and its own loads.
        return False
    box = written.box(store, depth)
    if box is None:
        return False
    analyzer, shared = written.analyzer, load.guards_below(depth)
    with analyzer.scope():
        for access in (store, load):
            for var, domain in access.loops_below(0).items():
                analyzer.bind(var, domain)
        read = [load.box(depth, analyzer) for load in loads]
        # Only where the load runs must there be a value.
        with analyzer.assume(*shared):
            if not all(analyzer.prove(part) for part in _open_conditions(store, depth, shared, carried, analyzer)):
                return False
            return all(
                w is not None and r is not None and _covers_range(w, r, analyzer)
                for part in read
                for w, r in zip(box, part, strict=True)
            )


def _open_conditions(
    store: Access, depth: int, shared: list[PrimExpr], carried: Var | None, analyzer: Analyzer
) -> list[PrimExpr]:
    """The conditions of a store that must be shown to hold where the load runs.

    A bound on an index of the store (`4 * i + j < n`, where `j` runs below) cuts the box off. One that only speaks of
    loops around whose iterations run in any order, or of symbols, may leave an iteration without a store, but then no
    other has one for it. In a serial loop an earlier iteration may have.
    """
    known = {part for guard in shared for part in conjuncts(guard)}
    loops = set(store.loops_below(depth))
    indexed = {var for index in store.indices for var in analyzer.variables_of(index)} & loops
    serial = {stmt.var for stmt, _ in store.path[:depth] if isinstance(stmt, For) and stmt.kind in _IN_ORDER}
    serial |= set() if carried is None else {carried}
    open_conditions = []
    for part in (part for guard in store.guards_below(depth) for part in conjuncts(guard)):
        mentioned = set(analyzer.variables_of(part))
        moving = mentioned & loops
        cuts = bool(moving) and moving <= indexed
        if part not in known and not (isinstance(part, (LT, LE)) and (cuts or not mentioned & serial)):
            open_conditions.append(part)
    return open_conditions


def _covers_range(a: Range, b: Range, analyzer: Analyzer) -> bool:
    if a.min is b.min and a.extent is b.extent:
        return True
    starts = analyzer.prove(a.min <= b.min)
    return starts and analyzer.prove(b.min + b.extent <= a.min + a.extent)


def _is_dense(store: Access, depth: int, analyzer: Analyzer) -> bool:
    """Whether a store reaches every element of its box: as many instances as the box has elements."""
    domains = store.loops_below(depth)
    box = touched(store.indices, domains, analyzer)
    volume: PrimExpr | None = None
    for item in box:
        if item is None:
            return False
        volume = item.extent if volume is None else volume * item.extent
    count: PrimExpr | None = None
    for var, domain in domains.items():
        if any(var in analyzer.variables_of(index) for index in store.indices):
            count = domain.extent if count is None else count * domain.extent
    if count is None:
        return True
    return volume is not None and analyzer.prove_equal(volume, count)
