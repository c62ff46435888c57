"""A program at other sizes: the same blocks over loops of other extents, for checks on small inputs.

for i in 512, k in 64: C[i] += A[i, k]   ->   for i in 6, k in 4: C[i] += A[i, k]        sizes: {i: 6, k: 4}

The program must be plain: iterators are loops, indices are iterators or 0, or iterators divided by a number, whose
dimensions are given a size of their own. Whatever is counted by one loop (the
dimensions of buffers, the loops of other blocks over them) then follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ir.build import const
from tilewright.ir.expr import TRUE, FloorDiv, PrimExpr, Range, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, transform
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BlockIter, BufferStore, For

_Counted = Var | tuple[Buffer, int]
"""What has an extent: a loop, an iterator, a dimension of a buffer."""


def resized(func: PrimFunc, sizes: Mapping[Var, int]) -> PrimFunc:
    """The program with other extents of some loops, by their variables, and of all that they count."""
    classes = _Classes()
    for first, second in _ties(func):
        classes.join(first, second)
    extents: dict[_Counted, int] = {}
    for var, size in sizes.items():
        if extents.setdefault(classes.find(var), size) != size:
            raise CompilerBug(f"the loop {var.name} counts what another one counts, and is to have another extent")

    def extent(counted: _Counted, old: PrimExpr) -> PrimExpr:
        size = extents.get(classes.find(counted))
        return old if size is None else const(size)

    buffers = {
        buffer: buffer.replace(shape=tuple(extent((buffer, axis), dim) for axis, dim in enumerate(buffer.shape)))
        for buffer in (*func.buffers, *func.root.allocations)
    }

    def visit(item: Node) -> Node | None:
        if isinstance(item, For):
            return item.replace(extent=extent(item.var, item.extent))
        if isinstance(item, BlockIter):
            return item.replace(domain=Range(item.domain.min, extent(item.var, item.domain.extent)))
        if isinstance(item, (BufferLoad, BufferStore, BufferRegion)):
            return item.replace(buffer=buffers[item.buffer])
        return None

    root = transform(func.root, visit)
    allocations = tuple(buffers[buffer] for buffer in root.allocations)
    params = tuple(buffers[param] if isinstance(param, Buffer) else param for param in func.params)
    return func.replace(params=params, body=root.replace(allocations=allocations))


class _Classes:
    """Which extents are the same, by what they count."""

    def __init__(self) -> None:
        self._above: dict[_Counted, _Counted] = {}

    def find(self, item: _Counted) -> _Counted:
        """The representative of an extent."""
        while item in self._above:
            item = self._above[item]
        return item

    def join(self, first: _Counted, second: _Counted) -> None:
        """Two extents that are the same."""
        first, second = self.find(first), self.find(second)
        if first != second:
            self._above[first] = second


def _ties(func: PrimFunc) -> Iterator[tuple[_Counted, _Counted]]:
    """Pairs of extents that are the same."""
    for block in find_all(func.root, Block):
        if block.predicate is not TRUE:
            raise CompilerBug(f"block {block.name} has a predicate: its program has one size only")
        for item in block.iters:
            if not isinstance(item.value, Var):
                raise CompilerBug(f"an iterator of block {block.name} is no loop: its program has one size only")
            yield item.var, item.value
    accesses: list[BufferLoad | BufferStore] = [*find_all(func.root, BufferLoad), *find_all(func.root, BufferStore)]
    for access in accesses:
        for axis, index in enumerate(access.indices):
            if isinstance(index, Var):
                yield index, (access.buffer, axis)
            elif const_value(index) != 0 and not (isinstance(index, FloorDiv) and isinstance(index.a, Var)):
                raise CompilerBug(f"an index of {access.buffer.name} is no iterator: its program has one size only")
