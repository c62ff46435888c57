"""Loop-level functions: `PrimFunc`."""

from __future__ import annotations

from typing import ClassVar, Final

from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.function import BaseFunction
from tilewright.ir.node import Node, node
from tilewright.ir.visit import pre_order
from tilewright.support.span import Span
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Annotations, Block, Stmt

CONSTANTS: Final = "constant_params"
"""The attribute of a function that lists the numbers of parameters whose values are known at compile time."""


@node()
class PrimFunc(BaseFunction):
    """A function of buffers and scalars. It returns nothing: results go to buffer parameters.

    Before lowering the body is one root `Block` (named "root", no iterators) whose allocations hold the
    intermediate buffers. Symbolic dimensions of buffer parameters are free variables of the function; callers bind
    them from the actual shapes.
    """

    _slots: ClassVar[tuple[str, ...]] = ("span",)
    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt
    attributes: Annotations = {}  # noqa: RUF012  (never mutated)

    def _post_init(self) -> None:
        self.span: Span | None = None

    def copy_side_data(self, other: Node) -> None:
        """Keep the span on rebuilt functions."""
        if isinstance(other, PrimFunc):
            other.span = self.span

    def __repr__(self) -> str:
        """The signature; `print(function)` shows the whole text."""
        return f"PrimFunc({self.name}({', '.join(map(str, self.params))}))"

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffer parameters."""
        return tuple(param for param in self.params if isinstance(param, Buffer))

    @property
    def args(self) -> tuple[Buffer | Var, ...]:
        """The parameters, under the name the papers use."""
        return self.params

    def symbolic_dims(self) -> tuple[Var, ...]:
        """Variables in parameter shapes, strides and offsets that are not parameters themselves, by first use."""
        known = {param for param in self.params if isinstance(param, Var)}
        symbols: list[Var] = []
        for buffer in self.buffers:
            exprs: tuple[PrimExpr, ...] = (*buffer.shape, *buffer.strides, buffer.offset)
            for expr in exprs:
                for item in pre_order(expr):
                    if type(item) is Var and item not in known:
                        known.add(item)
                        symbols.append(item)
        return tuple(symbols)

    @property
    def root(self) -> Block:
        """The root block (before lowering)."""
        assert isinstance(self.body, Block)
        return self.body


def constant_buffers(func: PrimFunc) -> frozenset[Buffer]:
    """The parameters whose values are known at compile time: nothing ever writes them."""
    numbers = func.attributes.get(CONSTANTS, ())
    assert isinstance(numbers, (tuple, list))
    return frozenset(param for number in numbers if isinstance(param := func.params[number], Buffer))
