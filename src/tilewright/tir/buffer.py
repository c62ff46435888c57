"""Buffers: typed multi-dimensional memory with a scope; loads from them; regions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import as_expr
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import ExprLike, IntImm, PrimExpr, Range, const_value
from tilewright.ir.node import Node, node
from tilewright.support.errors import CompilerBug, UserError


@node()
class Buffer(Node):
    """A piece of memory holding a tensor: unique by identity, its name is a printing hint (unique when printed).

    `shape` is in elements. `strides` (in elements, empty = row-major compact) and `offset` place elements in memory.
    `scope` says where it lives: `global`, `shared`, `warp`, `local` (registers), or an accelerator's own scope.
    `alignment` is the byte alignment of the first element that code may assume.
    """

    structural_unique: ClassVar[bool] = True
    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    shape: tuple[PrimExpr, ...]
    dtype: DataType
    scope: str = "global"
    strides: tuple[PrimExpr, ...] = ()
    offset: PrimExpr = IntImm(0, INDEX)
    alignment: int = 0

    def _post_init(self) -> None:
        if self.strides and len(self.strides) != len(self.shape):
            raise UserError(f"buffer {self.name}: {len(self.strides)} strides for {len(self.shape)} dimensions")

    def __repr__(self) -> str:
        dims = ", ".join(str(getattr(dim, "value", getattr(dim, "name", dim))) for dim in self.shape)
        place = "" if self.scope == "global" else f", {self.scope}"
        return f"Buffer({self.name}, ({dims}), {self.dtype}{place})"

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or None if a dimension is symbolic."""
        dims = [const_value(dim) for dim in self.shape]
        return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> BufferLoad:
        if not isinstance(indices, tuple):
            indices = (indices,)
        return BufferLoad(self, tuple(as_expr(i, INDEX) for i in indices))

    def full_region(self) -> BufferRegion:
        """The region that covers the whole buffer."""
        return BufferRegion(self, tuple(Range(IntImm(0, INDEX), dim) for dim in self.shape))

    def children(self) -> tuple[Node, ...]:
        """A buffer is a leaf of traversals: its shape is part of its declaration, not of each use."""
        return ()

    def rebuild(self, function: Callable[[Node], Node]) -> Self:
        """A buffer is unique by identity: rewriting passes replace whole buffers through a mapping."""
        return self


def make_buffer(
    name: str,
    shape: tuple[ExprLike, ...],
    dtype: DataType | str = "float32",
    scope: str = "global",
    strides: tuple[ExprLike, ...] = (),
    alignment: int = 0,
) -> Buffer:
    """A buffer from Python integers and strings."""
    return Buffer(
        name,
        tuple(as_expr(d, INDEX) for d in shape),
        DataType.of(dtype),
        scope,
        tuple(as_expr(d, INDEX) for d in strides),
        IntImm(0, INDEX),
        alignment,
    )


@node(interned=True)
class BufferLoad(PrimExpr):
    """The element of a buffer at indices. A vector index (last one) loads a vector."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    reads_memory = True

    def _post_init(self) -> None:
        if len(self.indices) != len(self.buffer.shape):
            raise UserError(
                f"buffer {self.buffer.name} has {len(self.buffer.shape)} dimensions, indexed with {len(self.indices)}"
            )
        lanes = max([index.dtype.lanes for index in self.indices], default=1)
        for index in self.indices:
            if not index.dtype.is_integer:
                raise UserError(f"buffer {self.buffer.name} is indexed with a {index.dtype}", hint="cast it to int64")
        self.dtype = self.buffer.dtype.with_lanes(self.buffer.dtype.lanes * lanes)


def loads_in(expr: PrimExpr) -> tuple[BufferLoad, ...]:
    """The loads in an expression, which keeps them, in the order of a walk from above."""
    try:
        return expr.loads  # type: ignore[return-value]
    except AttributeError:
        pass
    if not depends_on_memory(expr):
        return ()
    if type(expr) is BufferLoad and not any(map(depends_on_memory, expr.indices)):
        # A load that keeps itself would never be freed.
        return (expr,)
    found: list[BufferLoad] = []
    seen: set[Node] = set()
    stack: list[Node] = [expr]
    while stack:
        item = stack.pop()
        # Most of an expression are indices, which read nothing.
        if item in seen or (isinstance(item, PrimExpr) and not depends_on_memory(item)):
            continue
        seen.add(item)
        if type(item) is BufferLoad:
            found.append(item)
        stack.extend(item.children()[::-1])
    loads = tuple(found)
    if type(expr) is not BufferLoad:
        expr.loads = loads
    return loads


@node()
class BufferRegion(Node):
    """A box of a buffer: one range a dimension."""

    buffer: Buffer
    region: tuple[Range, ...]

    def _post_init(self) -> None:
        if len(self.region) != len(self.buffer.shape):
            raise CompilerBug(f"region of {len(self.region)} dimensions on buffer {self.buffer.name}")

    @staticmethod
    def point(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> BufferRegion:
        """The region of a single element."""
        return BufferRegion(buffer, tuple(Range(index, IntImm(1, INDEX)) for index in indices))
