"""What a statement takes from outside: the arguments of a function that is made of it."""

from __future__ import annotations

from tilewright.ir.expr import Var
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, variables
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import Allocate, BufferStore, For, LetStmt, Stmt

Capture = Var | Buffer


def free_captures(stmt: Stmt) -> tuple[Capture, ...]:
    """Variables and buffers that a statement uses but does not define, by first use."""
    bound: set[Node] = set()
    used: dict[Capture, None] = {}
    for item in pre_order(stmt):
        match item:
            case For() | LetStmt():
                bound.add(item.var)
            case Allocate():
                bound.add(item.buffer)
                for dim in item.buffer.shape:
                    used.update(dict.fromkeys(variables(dim)))
            case BufferStore() | BufferLoad():
                used.setdefault(item.buffer)
            case Var():
                used.setdefault(item)
            case _:
                pass
    return tuple(item for item in used if item not in bound)
