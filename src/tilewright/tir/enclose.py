"""Statements that stand outside of blocks get blocks of their own, so that programs without blocks can be built.

    for i in range(8):                       for i in range(8):
        for j in range(i):                       for j in range(i):
            C[i] = C[i] + A[i, j]      ->            with block("C"):
                                                         vi, vj = spatial(8, i), opaque(i, j)
                                                         C[vi] = C[vi] + A[vi, vj]

Every loop becomes an iterator that promises no more than can be shown: spatial where different iterations write
different elements and read nothing that others write, opaque (the order stays) otherwise. A loop that the program
itself runs in parallel promises independence: its iterator is spatial, and whoever builds the program proves it
(`schedule/legality.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import PrimExpr, Range, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import find_all, substitute, transform
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.analysis.dependence import iteration_conflict
from tilewright.tir.analysis.index import ProgramIndex, child_statements, statements
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import (
    Allocate,
    Block,
    BlockIter,
    BufferStore,
    For,
    IfThenElse,
    IterKind,
    LetStmt,
    LoopKind,
    SeqStmt,
    Stmt,
)

IN_ORDER: Final = (LoopKind.SERIAL, LoopKind.UNROLLED)
"""Kinds of loops that run their iterations one after another."""


def is_bare(func: PrimFunc) -> bool:
    """Whether a function has no root block: it was written without blocks, or its blocks were lowered."""
    return not isinstance(func.body, Block)


def enclose(func: PrimFunc) -> PrimFunc:
    """The function with a root block, and with a block around every statement that is in none."""
    body, allocations = func.body, []
    while isinstance(body, Allocate):
        allocations.append(body.buffer)
        body = body.body
    if not isinstance(body, Block) or body.name != "root" or body.iters or allocations:
        body = Block("root", (), (), (), body, allocations=tuple(allocations))
    names = {item.name for item in statements(body) if isinstance(item, Block)}
    return func.replace(body=body.replace(body=Encloser(names, func.params).inside(body.body)))


class Encloser:
    """Puts statements in blocks; `kinds` are what loops are already known to promise."""

    def __init__(
        self, names: set[str], params: Sequence[Buffer | Var], kinds: Mapping[Var, IterKind] | None = None
    ) -> None:
        self._names = names
        self._params = tuple(params)
        self._kinds = kinds

    def inside(self, stmt: Stmt, loops: tuple[For, ...] = ()) -> Stmt:
        """A statement of a scope with blocks around the parts that are in none; `loops` are those around it there."""
        if isinstance(stmt, For):
            return stmt.replace(body=self.inside(stmt.body, (*loops, stmt)))
        if isinstance(stmt, SeqStmt):
            return stmt.replace(stmts=tuple(self.inside(item, loops) for item in stmt.stmts))
        if isinstance(stmt, Block):
            return transform(stmt, self._scope)
        if any(isinstance(item, Block) for item in statements(stmt)):
            return self._around_children(stmt, loops)
        return self._block(stmt, loops)

    def _scope(self, item: Node) -> Node | None:
        """A block that was written with statements inside keeps them as they are, but for loops run in parallel."""
        if isinstance(item, Block) and runs_loose_in_parallel(item.body):
            return item.replace(body=self.inside(item.body))
        return None

    def _around_children(self, stmt: Stmt, loops: tuple[For, ...]) -> Stmt:
        """A condition, definition or allocation that stays where it is, with blocks inside."""
        if isinstance(stmt, IfThenElse):
            other = None if stmt.else_body is None else self.inside(stmt.else_body, loops)
            return stmt.replace(then_body=self.inside(stmt.then_body, loops), else_body=other)
        assert isinstance(stmt, (LetStmt, Allocate))
        return stmt.replace(body=self.inside(stmt.body, loops))

    def _block(self, stmt: Stmt, loops: tuple[For, ...]) -> Block:
        iters: list[BlockIter] = []
        mapping: dict[Var, PrimExpr] = {}
        for loop in loops:
            var = Var(f"v_{loop.var.name}", loop.var.dtype)
            iters.append(BlockIter(var, Range(loop.min, loop.extent), IterKind.SPATIAL, loop.var))
            mapping[loop.var] = var
        name = self._name(stmt)
        body = substitute(stmt, mapping)
        if any(isinstance(item, For) and item.kind not in IN_ORDER for item in statements(body)):
            # Loops inside that run in parallel are proven independent by their blocks.
            body = self._inside_of(body)
        block = with_detected_accesses(Block(name, tuple(iters), (), (), body))
        kinds = [self._kinds.get(loop.var, IterKind.OPAQUE) for loop in loops] if self._kinds is not None else None
        kinds = self._honest_kinds(block, loops) if kinds is None else kinds
        iters = [item.replace(kind=kind) for item, kind in zip(block.iters, kinds, strict=True)]
        block = block.replace(iters=tuple(iters))
        block.span = stmt.span
        return block

    def _inside_of(self, stmt: Stmt) -> Stmt:
        """The statements that a condition, a definition or an allocation holds, in blocks where they are in loops."""
        if isinstance(stmt, (LetStmt, Allocate)):
            return stmt.replace(body=self._inside_of(stmt.body))
        if isinstance(stmt, IfThenElse):
            other = None if stmt.else_body is None else self._inside_of(stmt.else_body)
            return stmt.replace(then_body=self._inside_of(stmt.then_body), else_body=other)
        if isinstance(stmt, SeqStmt):
            return stmt.replace(stmts=tuple(self._inside_of(item) for item in stmt.stmts))
        return self.inside(stmt)

    def _honest_kinds(self, block: Block, loops: tuple[For, ...]) -> list[IterKind]:
        """What the loops around a block can promise: the block alone under its loops decides."""
        alone: Stmt = block
        for loop in reversed(loops):
            alone = loop.replace(body=alone)
        index = ProgramIndex(PrimFunc("alone", self._params, Block("root", (), (), (), alone)))
        analyzer = Analyzer()
        for loop in loops:
            analyzer.bind(loop.var, Range(loop.min, loop.extent))

        def kind(var: Var) -> IterKind:
            loop = index.loops[var]
            promised = loop.kind not in IN_ORDER
            independent = promised or iteration_conflict(index, loop, analyzer, private=False) is None
            return IterKind.SPATIAL if independent else IterKind.OPAQUE

        return [kind(loop.var) for loop in loops]

    def _name(self, stmt: Stmt) -> str:
        stores = find_all(stmt, BufferStore)
        base = name = stores[0].buffer.name if stores else "statement"
        number = 0
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name


def runs_loose_in_parallel(stmt: Stmt) -> bool:
    """Whether a loop of a scope runs statements in parallel that are in no block."""
    if isinstance(stmt, Block):
        return False
    if isinstance(stmt, For) and stmt.kind not in IN_ORDER and _is_loose(stmt.body):
        return True
    return any(runs_loose_in_parallel(child) for child in child_statements(stmt))


def _is_loose(stmt: Stmt) -> bool:
    """Whether something below a statement is in no block of its scope."""
    if isinstance(stmt, Block):
        return False
    children = child_statements(stmt)
    return any(_is_loose(child) for child in children) if children else True
