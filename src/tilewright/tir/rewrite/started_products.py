"""Products of warp groups with rows in registers that are started only, and waited for where something needs them.

    product(S, Q, K)                       start product(S, Q, K)
    product(O, P, V)                       start product(O, P, V)
    M = max(S)                  ->         wait for all but the last (S)
    P = round(exp2(S - M))                 M = max(S)
                                           wait for all (O, P)
                                           P = round(exp2(S - M))

A product goes on until a statement touches its sums, or writes its rows. Products that add to the same sums follow each
other without a wait. The wait names the registers of what it waits for, so that no use of them moves in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.expr import Call, IntImm, PrimExpr, StringImm
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, transform, uses_any
from tilewright.tir.analysis.flat_accesses import touches
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.machine import machine_call
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.row_instructions import is_fresh, started_product, wait_for_product
from tilewright.tir.stmt import BufferStore, Evaluate, For, LoopKind, Stmt
from tilewright.tir.warp_instructions import HELD


@dataclass(frozen=True, slots=True)
class StartedProducts:
    """Statements some of which are started products."""

    stmts: list[Stmt]
    places: list[int]
    """Where each of the statements of before is."""
    done: list[int]
    """The number of the statement after which each of them is complete."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A statement that is a product, or several one after the other that add to the same sums."""

    number: int
    call: Call
    count: int

    @property
    def sums(self) -> Buffer:
        """What it adds to."""
        return _buffer(self.call.args[0])

    @property
    def rows(self) -> Buffer:
        """Its operand in registers."""
        return _buffer(self.call.args[1])

    def adds_to(self, sums: Buffer) -> bool:
        """Whether it goes on with sums."""
        return self.sums is sums and (self.count > 1 or not is_fresh(self.call.name))


def started(stmts: Sequence[Stmt]) -> StartedProducts:
    """Statements with products that are complete when something needs them, and at the end."""
    result = StartedProducts([], [0] * len(stmts), [0] * len(stmts))
    written = {buffer for stmt in stmts if _product(0, stmt) is None for buffer in _written(stmt)}
    under_way: list[_Product] = []

    def wait_until(last: int) -> None:
        left = sum(item.count for item in under_way[last + 1 :])
        calls = {item.sums: item.call for item in under_way[: last + 1]}
        for call in calls.values():
            result.stmts.append(_wait(call, left, _buffer(call.args[1]) in written))
        for item in under_way[: last + 1]:
            result.done[item.number] = len(result.stmts) - 1
        del under_way[: last + 1]

    for number, stmt in enumerate(stmts):
        product = _product(number, stmt)
        needed = [n for n, item in enumerate(under_way) if _needs(stmt, product, item)]
        if needed:
            wait_until(needed[-1])
        result.places[number] = result.done[number] = len(result.stmts)
        if product is None:
            result.stmts.append(stmt)
        else:
            result.stmts.append(transform(stmt, _start))
            under_way.append(product)
    if under_way:
        wait_until(len(under_way) - 1)
    return result


def depend(a: Stmt, b: Stmt) -> bool:
    """Whether one of two statements writes a buffer that the other touches."""
    return any(touches(buffer, b) for buffer in _written(a)) or any(touches(buffer, a) for buffer in _written(b))


def _product(number: int, stmt: Stmt) -> _Product | None:
    """The product that a statement is."""
    count, loops = 1, []
    while isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED and isinstance(stmt.extent, IntImm):
        count *= stmt.extent.value
        loops.append(stmt.var)
        stmt = stmt.body
    if not isinstance(stmt, Evaluate) or not isinstance(stmt.value, Call) or HELD not in stmt.value.name:
        return None
    return None if uses_any(stmt.value.args[0], loops) else _Product(number, stmt.value, count)


def _needs(stmt: Stmt, product: _Product | None, earlier: _Product) -> bool:
    """Whether a statement comes after the end of a product."""
    if product is not None and product.adds_to(earlier.sums):
        return False
    return touches(earlier.sums, stmt) or earlier.rows in _written(stmt)


def _start(item: Node) -> Node | None:
    if not isinstance(item, Call) or HELD not in item.name:
        return None
    return machine_call(started_product(item.name), *item.args)


def _wait(call: Call, left: int, names_rows: bool) -> Stmt:
    """The wait for a product: all but so many that were started last are complete then."""
    pointers = call.args[: 2 if names_rows else 1]
    arguments = [Call("access_ptr", (StringImm("rw"), *_parts(item)), item.dtype) for item in pointers]
    return Evaluate(machine_call(wait_for_product(call.name, left, names_rows), *arguments))


def _parts(pointer: PrimExpr) -> tuple[PrimExpr, ...]:
    assert isinstance(pointer, Call)
    return pointer.args[1:]


def _buffer(pointer: PrimExpr) -> Buffer:
    """The buffer that an address is of."""
    assert isinstance(pointer, Call) and isinstance(pointer.args[1], BufferLoad)
    return pointer.args[1].buffer


def _written(stmt: Stmt) -> set[Buffer]:
    """The buffers that a statement writes."""
    found = {item.buffer for item in all_statements(stmt) if isinstance(item, BufferStore)}
    for item in pre_order(stmt):
        if isinstance(item, Call) and item.name == "access_ptr":
            mode = item.args[0]
            if not isinstance(mode, StringImm) or "w" in mode.value:
                found.add(_buffer(item))
    return found
