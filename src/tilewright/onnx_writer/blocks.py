"""Names of what is written: a block for each graph of an ONNX model, and for each place where a function is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, If, Let
from tilewright.graph.ir.traverse import post_order
from tilewright.ir import expr as scalar

Named: TypeAlias = "str | tuple[Named, ...]"
"""The name of a value, or the names of the items of a tuple."""


@dataclass(eq=False)
class Block:
    """Values that have names: those of this block, then those of what is around it.

    A graph inside another one has nodes of its own, a function that is written where it is called those of its caller.
    """

    outer: Block | None = None
    nodes: list[Any] = field(default_factory=list)
    names: dict[int, Named] = field(default_factory=dict)
    """By the identity of expressions."""
    sizes: dict[scalar.PrimExpr, str] = field(default_factory=dict)
    origins: dict[scalar.Var, tuple[str, int]] = field(default_factory=dict)
    """Where symbols have their values from: a tensor by name, and its axis."""
    is_function: bool = False
    """Whether it is what a function does at one place: its symbols have other values at another."""

    def around(self) -> Iterator[Block]:
        """This block, then those around it."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.outer

    def name_of(self, item: GraphExpr) -> Named | None:
        """The name of a value, if it has one here."""
        return next((block.names[id(item)] for block in self.around() if id(item) in block.names), None)


def tail_call(function: Function) -> tuple[If, Call, bool] | None:
    """The choice that ends a loop, the call by which its function goes on, and whether that is the first branch.

    None for a function that calls itself nowhere; one that does so elsewhere than in tail position gives no such form.
    """
    body = function.body
    calls = [item for item in post_order(body) if isinstance(item, Call) and _calls(item, function)]
    if not calls:
        return None
    if isinstance(body, If) and len(calls) == 1:
        for branch, first in ((body.then_value, True), (body.else_value, False)):
            last = branch
            while isinstance(last, Let):
                last = last.body
            if last is calls[0]:
                return body, calls[0], first
    return None


def calls_itself(function: Function) -> bool:
    """Whether a function calls itself."""
    return any(isinstance(item, Call) and _calls(item, function) for item in post_order(function.body))


def _calls(item: Call, function: Function) -> bool:
    return isinstance(item.callee, GlobalVar) and item.callee.name == function.name
