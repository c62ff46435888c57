"""Whether a program may write a result over one of its inputs: the two are then the same memory.

It may if each element of the result is computed from the same element of that input and no other of it, and nothing
reads the element once it is written:

    B[i] = max(A[i] + C[i // 4], 0)         B over A: yes        B over C: no, C[0] is read again for B[1]
    B[i] = A[n - 1 - i]                     no: B[0] is written before A[0] is read for B[n - 1]

`could_share` reads the plain program, before it is scheduled, to find out what is worth asking. A schedule may still
read an element twice (tiles that overlap, a reduction into the result), so `may_share` decides on the lowered program,
exactly: the elements that its stores reach are counted.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.index import statements
from tilewright.tir.analysis.index_values import NotAnIndex, Numbers, evaluate
from tilewright.tir.analysis.linear import linear
from tilewright.tir.buffer import Buffer, BufferLoad, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, IterKind, LetStmt, SeqStmt, Stmt, While

IN_PLACE: Final = "in_place"
"""The attribute of a function that lists pairs of parameters (an input and a result) that may be the same memory."""
_MOST_ELEMENTS = 1 << 24
"""Results of more elements, or runs of them, are not counted: the index of their one store must show it."""

_MOST_TRIED = 4
"""Loops that run more often than this for each element certainly store some element twice, or hardly ever store."""

Pair = tuple[int, int]


def in_place_pairs(func: PrimFunc) -> tuple[Pair, ...]:
    """The pairs that a function's attribute lists."""
    pairs = func.attributes.get(IN_PLACE, ())
    assert isinstance(pairs, (tuple, list))
    return tuple((source, result) for source, result in pairs)


def with_in_place(func: PrimFunc, pairs: tuple[Pair, ...]) -> PrimFunc:
    """A function whose attribute lists these pairs."""
    others = {name: value for name, value in func.attributes.items() if name != IN_PLACE}
    return func.replace(attributes={**others, IN_PLACE: pairs} if pairs else others)


def could_share(func: PrimFunc, pair: Pair) -> bool:
    """Whether an unscheduled program computes each element of a result from the same element of an input only."""
    source, result = _buffers(func, pair)
    if source.static_shape is None or source.shape != result.shape or not _alike(source, result):
        return False
    derived = {source}
    for block in statements(func.body):
        if not isinstance(block, Block) or block is func.body:
            continue
        loads = [item for item in pre_order(block) if isinstance(item, BufferLoad) and item.buffer in derived]
        if not loads:
            continue
        stores = _last_stores(block.body)
        if not stores or not all(_is_pointwise(block, store) for store in stores):
            return False
        first = stores[0]
        if any(load.indices != first.indices or load.buffer.shape != first.buffer.shape for load in loads):
            return False
        derived.update(store.buffer for store in stores)
    return result in derived


def _last_stores(stmt: Stmt) -> list[BufferStore]:
    """The stores of a statement that computes all values before it stores the first; none for any other."""
    while isinstance(stmt, LetStmt):
        stmt = stmt.body
    stores = [item for item in (stmt.stmts if isinstance(stmt, SeqStmt) else (stmt,)) if isinstance(item, BufferStore)]
    is_all = len(stores) == (len(stmt.stmts) if isinstance(stmt, SeqStmt) else 1)
    return stores if is_all else []


def _buffers(func: PrimFunc, pair: Pair) -> tuple[Buffer, Buffer]:
    source, result = func.params[pair[0]], func.params[pair[1]]
    if not isinstance(source, Buffer) or not isinstance(result, Buffer):
        raise CompilerBug(f"{func.name}: the parameters {pair} are not both buffers")
    return source, result


def _alike(source: Buffer, result: Buffer) -> bool:
    """Whether elements of the same index lie at the same place in memory."""
    return source.dtype.itemsize == result.dtype.itemsize and not source.strides and not result.strides


def _is_pointwise(block: Block, store: BufferStore) -> bool:
    """Whether a block stores one element an iteration, at the place that its iterators name."""
    own = tuple(item.var for item in block.iters)
    spatial = all(item.kind is IterKind.SPATIAL for item in block.iters)
    return spatial and store.indices == own and block.init is None


def may_share(func: PrimFunc, pair: Pair) -> bool:
    """Whether a lowered program is right when a result is the same memory as an input.

    Every read of the input must be part of a store to the result at the same index, and no element may be stored twice.
    """
    source, result = _buffers(func, pair)
    shape = result.static_shape
    if shape is None or source.static_shape != shape or not _alike(source, result):
        return False
    if not _reads_where_it_writes(func.body, source, result):
        return False
    run = _run_length(func.body, result)
    size = -(-math.prod(shape) // run)
    if size > _MOST_ELEMENTS:
        return _has_own_places(func.body, result)
    try:
        return _Writes(result, size, run).are_distinct(func.body)
    except (_Unknown, NotAnIndex):
        return False


def _has_own_places(body: Stmt, result: Buffer) -> bool:
    """Whether a buffer has one store, whose index is another one in each iteration of the loops around it.

    So is `1024 * i + 4 * j + k` for j below 256 and k below 4: no step is as long as all shorter ones together.
    """
    stores = [item for item in statements(body) if isinstance(item, BufferStore) and item.buffer is result]
    if len(stores) != 1:
        return False
    around = [item for item in statements(body) if isinstance(item, For) and stores[0] in statements(item)]
    (index,) = stores[0].indices
    lanes = index.lanes if isinstance(index, e.Ramp) else 1
    form = linear(index.base if isinstance(index, e.Ramp) else index)
    extents = {item.var: item.extent.value for item in around if isinstance(item.extent, e.IntImm)}
    steps = sorted((abs(step), extents.get(term, 0)) for term, step in form.terms.items() if isinstance(term, Var))
    known = len(steps) == len(form.terms) == len(extents) == len(around)
    if not known or (isinstance(index, e.Ramp) and const_value(index.stride) != 1):
        return False
    reach = lanes
    for step, extent in steps:
        if step < reach:
            return False
        reach += step * (extent - 1)
    return True


def _run_length(body: Stmt, result: Buffer) -> int:
    """Elements that stores write together, or not at all: runs that all begin at a multiple of their length.

    Where vectors of 16 are stored side by side, a sixteenth of the numbers tells what is written twice.
    """
    run = 0
    for item in statements(body):
        if isinstance(item, IfThenElse) and item.condition.dtype.lanes > 1:
            return 1
        if isinstance(item, BufferStore) and item.buffer is result:
            (index,) = item.indices
            if not isinstance(index, e.Ramp) or const_value(index.stride) != 1:
                return 1
            form = linear(index.base)
            run = math.gcd(run, index.lanes, form.constant, *form.terms.values())
    return max(1, run)


def _reads_where_it_writes(body: Stmt, source: Buffer, result: Buffer) -> bool:
    for stmt in statements(body):
        if isinstance(stmt, Block):
            raise CompilerBug("a program with blocks is not lowered")
        if isinstance(stmt, While) and any(_is_access(item, source, result) for item in pre_order(stmt)):
            return False
        allowed: tuple[PrimExpr, ...] = ()
        if isinstance(stmt, BufferStore):
            if stmt.buffer is source or any(_touches(index, source, result) for index in stmt.indices):
                return False
            allowed = stmt.indices if stmt.buffer is result else ()
        if isinstance(stmt, LetStmt):
            # The value is computed before all that is in the body: there it may be stored over what it was made of.
            inside = [item for item in _last_stores(stmt.body) if item.buffer is result]
            allowed = inside[0].indices if inside else ()
        for root in stmt.children():
            if isinstance(root, PrimExpr) and not _is_harmless(root, source, result, allowed):
                return False
    return True


def _is_harmless(root: PrimExpr, source: Buffer, result: Buffer, allowed: tuple[PrimExpr, ...]) -> bool:
    """Whether an expression reads the input at the index that is written (if any) only, and never the result."""
    for item in pre_order(root) if _touches(root, source, result) else ():
        if isinstance(item, BufferLoad) and item.buffer in (source, result):
            if item.buffer is result or item.indices != allowed:
                return False
        elif isinstance(item, e.Call) and not is_pure(item) and _touches(item, source, result):
            # An address in a call may be read or written through, whatever its index.
            return False
    return True


def _touches(root: PrimExpr, *buffers: Buffer) -> bool:
    return any(load.buffer in buffers for load in loads_in(root))


def _is_access(item: Node, *buffers: Buffer) -> bool:
    return isinstance(item, (BufferLoad, BufferStore)) and item.buffer in buffers


def _reads_memory(root: PrimExpr) -> bool:
    return any(isinstance(item, (BufferLoad, e.Call)) for item in pre_order(root))


class _Unknown(Exception):
    """The elements that a program stores cannot be told without running it."""


class _Writes:
    """Counts the elements of a buffer that a program stores, or the runs of several that it stores together.

    Values are arrays: the last axis is that of vector lanes, each loop around is an axis further left, the outermost
    the last but one. An axis along which a value does not vary has length 1 or is missing, as numpy's rules have it.
    """

    def __init__(self, buffer: Buffer, size: int, run: int) -> None:
        self.buffer = buffer
        self.size = size
        self.run = run
        self.extents: list[int] = []
        self.values: dict[Var, Numbers] = {}
        self.conditions: list[Numbers] = []
        self.seen = np.zeros(size, np.bool_)
        self.total = 0

    def are_distinct(self, body: Stmt) -> bool:
        """Whether no element is stored twice."""
        self.visit(body)
        return self.total == int(np.count_nonzero(self.seen))

    def visit(self, stmt: Stmt) -> None:
        """Count the stores in a statement."""
        if not any(isinstance(item, BufferStore) and item.buffer is self.buffer for item in statements(stmt)):
            return
        match stmt:
            case SeqStmt():
                for item in stmt.stmts:
                    self.visit(item)
            case Allocate():
                self.visit(stmt.body)
            case LetStmt():
                if stmt.value.dtype.is_integer and not _reads_memory(stmt.value):
                    self.values[stmt.var] = self.value(stmt.value)
                self.visit(stmt.body)
            case For():
                self.loop(stmt)
            case IfThenElse():
                condition = self.value(stmt.condition)
                self.under(condition, stmt.then_body)
                if stmt.else_body is not None:
                    self.under(np.logical_not(condition), stmt.else_body)
            case BufferStore():
                self.store(stmt)
            case _:
                raise CompilerBug(f"no store is known in a {type(stmt).__name__}")

    def loop(self, loop: For) -> None:
        """One more axis."""
        if not isinstance(loop.min, e.IntImm) or not isinstance(loop.extent, e.IntImm):
            raise _Unknown
        numbers = np.arange(loop.min.value, loop.min.value + loop.extent.value)
        self.values[loop.var] = numbers.reshape((-1, *([1] * (len(self.extents) + 1))))
        self.extents.append(loop.extent.value)
        if math.prod(self.extents) > _MOST_TRIED * self.size:
            raise _Unknown
        self.visit(loop.body)
        self.extents.pop()

    def under(self, condition: Numbers, body: Stmt) -> None:
        """A statement where a condition holds."""
        self.conditions.append(condition)
        self.visit(body)
        self.conditions.pop()

    def store(self, stmt: BufferStore) -> None:
        """The elements, or runs, that one store reaches."""
        (index,) = stmt.indices
        shape = (*reversed(self.extents), index.dtype.lanes // self.run)
        runs = np.ones((1,), np.bool_)
        for condition in self.conditions:
            runs = np.logical_and(runs, condition)
        if isinstance(index, e.Ramp) and self.run > 1:
            numbers = self.value(index.base) // self.run + np.arange(shape[-1])
        else:
            numbers = self.value(index)
        places = np.broadcast_to(numbers, shape)[np.broadcast_to(runs, shape)]
        self.total += places.size
        if self.total > self.size or (places.size and not 0 <= int(places.min()) <= int(places.max()) < self.size):
            raise _Unknown
        self.seen[places] = True

    def value(self, expr: PrimExpr) -> Numbers:
        """An index or condition in all iterations of the loops around."""
        return evaluate(expr, self.values)
