"""Statements of the loop-level IR. Meaning: `docs/semantics.md`.

Conventions every pass keeps: each `For` has a variable of its own (a loop is identified by its variable), block names
are unique within a function (a block is identified by its name), block iterator variables are unique.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from tilewright.ir.expr import TRUE, PrimExpr, Range, Var
from tilewright.ir.node import Node, node
from tilewright.support.errors import CompilerBug
from tilewright.support.span import Span
from tilewright.tir.buffer import Buffer, BufferRegion

Annotations = dict[str, object]
"""Free-form notes on loops, blocks and functions: strings, numbers, lists and expressions."""


class Stmt(Node):
    """Base of statements. A statement may carry a span (not part of its structure).

    `buffers` holds the buffers accessed below, once they were asked for (`analysis/flat_accesses.py`).
    """

    __slots__ = ("buffers", "span")
    side_data: ClassVar[tuple[str, ...]] = ("buffers", "span")
    holds_nodes: ClassVar[bool] = True
    buffers: frozenset[Node]
    span: Span | None

    def _post_init(self) -> None:
        self.span = None

    def copy_side_data(self, other: Node) -> None:
        """Keep the span on rebuilt statements."""
        if isinstance(other, Stmt):
            other.span = self.span


class LoopKind(StrEnum):
    """How the iterations of a loop run."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    THREAD = "thread"
    VTHREAD = "vthread"


class IterKind(StrEnum):
    """What a block iterator promises."""

    SPATIAL = "spatial"
    REDUCE = "reduce"
    OPAQUE = "opaque"


@node()
class For(Stmt):
    """`for var in [min, min + extent)`. `thread` names the hardware axis of a THREAD loop (`blockIdx.x`, ...)."""

    var: Var
    min: PrimExpr
    extent: PrimExpr
    kind: LoopKind
    body: Stmt
    thread: str | None = None
    annotations: Annotations = {}  # noqa: RUF012  (never mutated)


@node()
class BlockIter(Node):
    """One iterator of a block: a variable over a domain, bound at this place to `value` (an expression of loops)."""

    var: Var
    domain: Range
    kind: IterKind
    value: PrimExpr


@node()
class Block(Stmt):
    """A unit of computation under a loop nest, with an isolated interface.

    For each setting of the enclosing loops where `predicate` holds, the iterators take their bound values and the
    body runs once. `reads` and `writes` are regions in terms of the iterator variables. `init` (reductions) runs
    before the body when every reduce iterator is at the start of its domain. `allocations` live while the block runs.
    """

    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    iters: tuple[BlockIter, ...]
    reads: tuple[BufferRegion, ...]
    writes: tuple[BufferRegion, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: PrimExpr = TRUE
    allocations: tuple[Buffer, ...] = ()
    annotations: Annotations = {}  # noqa: RUF012  (never mutated)

    @property
    def iter_values(self) -> tuple[PrimExpr, ...]:
        """The expressions that the iterators are bound to."""
        return tuple(item.value for item in self.iters)

    @property
    def is_reduction(self) -> bool:
        """Whether any iterator reduces."""
        return any(item.kind is IterKind.REDUCE for item in self.iters)


@node()
class SeqStmt(Stmt):
    """Statements one after another."""

    stmts: tuple[Stmt, ...]


@node()
class BufferStore(Stmt):
    """Store a value to an element (or, with a vector index, to the elements) of a buffer."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    value: PrimExpr

    def _post_init(self) -> None:
        self.span = None
        if len(self.indices) != len(self.buffer.shape):
            raise CompilerBug(f"store to {self.buffer.name} with {len(self.indices)} indices")
        if self.value.dtype.element is not self.buffer.dtype.element:
            raise CompilerBug(f"store of {self.value.dtype} to {self.buffer.name} of {self.buffer.dtype}")


@node()
class LetStmt(Stmt):
    """Bind a variable to a value for a body."""

    var: Var
    value: PrimExpr
    body: Stmt


@node()
class IfThenElse(Stmt):
    """Run one of two statements."""

    condition: PrimExpr
    then_body: Stmt
    else_body: Stmt | None = None


@node()
class While(Stmt):
    """Run a statement again and again; the condition is evaluated before each time, and ends the loop when it is false.

    How often that is, nobody knows: analyses take the loop as one opaque piece, and it holds no blocks.
    """

    condition: PrimExpr
    body: Stmt


@node()
class Allocate(Stmt):
    """A buffer that lives for a body (after blocks are lowered)."""

    buffer: Buffer
    body: Stmt


@node()
class Evaluate(Stmt):
    """Evaluate an expression for its effect (a call)."""

    value: PrimExpr


@node()
class Assert(Stmt):
    """Stop the function with an error if the condition is false."""

    condition: PrimExpr
    message: str


def seq(*stmts: Stmt) -> Stmt:
    """Statements in sequence, nested sequences flattened; a single one stays itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, SeqStmt) else (stmt,))
    return flat[0] if len(flat) == 1 else SeqStmt(tuple(flat))
