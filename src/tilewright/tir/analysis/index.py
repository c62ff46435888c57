"""An index of a program's structure: parents, loops by variable, blocks by name, who reads and writes what.

It is built once for a version of a program (statements only: expressions are not walked) and never changed. A version
that came of another one by replacing statements shares all others with it: its index is the other's with what differs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from tilewright.ir.expr import Var
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import (
    Allocate,
    Block,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
)


def child_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly below one, in program order; a while loop is one piece, which nothing is moved into."""
    kind = type(stmt)
    if kind is For or kind is LetStmt or kind is Allocate:
        return (stmt.body,)  # type: ignore[attr-defined]
    if isinstance(stmt, Block):
        return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
    if isinstance(stmt, SeqStmt):
        return stmt.stmts
    if isinstance(stmt, IfThenElse):
        return (stmt.then_body,) if stmt.else_body is None else (stmt.then_body, stmt.else_body)
    return ()


def statements(root: Stmt) -> Iterator[Stmt]:
    """Every statement below and including the root, parents first, in program order."""
    stack = [root]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(reversed(child_statements(item)))


class ScopeInfo:
    """What happens directly in the scope of one block: its child blocks in order and their accesses to buffers."""

    def __init__(self, owner: Block) -> None:
        self.owner = owner
        self.blocks: list[Block] = []
        self.loose: list[Stmt] = []
        """Stores, calls and asserts that stand in no child block."""
        self.writers: dict[Buffer, list[Block]] = {}
        self.readers: dict[Buffer, list[Block]] = {}

    def add(self, block: Block) -> None:
        """Enter a child block."""
        self.blocks.append(block)
        for region in block.writes:
            self.writers.setdefault(region.buffer, []).append(block)
        for region in block.reads:
            self.readers.setdefault(region.buffer, []).append(block)

    def writers_of(self, buffer: Buffer) -> list[Block]:
        """Child blocks that write a buffer, in program order."""
        return self.writers.get(buffer, [])

    def readers_of(self, buffer: Buffer) -> list[Block]:
        """Child blocks that read a buffer, in program order (a reduction's reading of its own output is left out)."""
        return self.readers.get(buffer, [])


class ProgramIndex:
    """Parents, order, loops, blocks and scopes of one program.

    `before` is the index of a program that this one shares statements with: only the others are looked at.
    """

    def __init__(self, func: PrimFunc, before: ProgramIndex | None = None) -> None:
        if not isinstance(func.body, Block):
            raise CompilerBug(f"function {func.name} has no root block")
        self.func = func
        self.root: Block = func.body
        self.loops: dict[Var, For] = {}
        self.blocks: dict[str, Block] = {}
        """All blocks, in program order."""
        self._parents: dict[int, Stmt] = {}
        self._positions: dict[int, int] = {}
        self._scopes: dict[int, ScopeInfo] = {}
        if before is None:
            self._enter(statements(self.root))
        else:
            self._build_from(before)

    def _enter(self, found: Iterable[Stmt]) -> None:
        """Take in statements with those directly below them."""
        parents, loops, blocks = self._parents, self.loops, self.blocks
        for stmt in found:
            if isinstance(stmt, For):
                if stmt.var in loops:
                    raise CompilerBug(f"two loops share the variable {stmt.var.name}")
                loops[stmt.var] = stmt
            elif isinstance(stmt, Block):
                if stmt.name in blocks:
                    raise CompilerBug(f"two blocks are named {stmt.name}")
                blocks[stmt.name] = stmt
            for child in child_statements(stmt):
                parents[id(child)] = stmt

    def _build_from(self, before: ProgramIndex) -> None:
        # An object that is in both programs is there with everything below it.
        added, shared, order = _unlike(self.root, before._parents)
        removed, _, order_before = _unlike(before.root, shared)
        self._parents, self.loops = dict(before._parents), dict(before.loops)
        for stmt in removed:
            self._parents.pop(id(stmt), None)
            if isinstance(stmt, For):
                del self.loops[stmt.var]
        self._enter(added)
        if order == order_before:
            # New blocks are where those of the same names were.
            self.blocks = {**before.blocks, **self.blocks}
            self._scopes_from(before)
        else:
            self.blocks = _blocks_in_order(self.root)

    def with_changed(self, func: PrimFunc, path: Sequence[tuple[Stmt, Stmt]]) -> ProgramIndex:
        """The index of a program in which one statement and those above it were changed, and nothing below them.

        `path` has each of them as it was and as it is.
        """
        other = object.__new__(ProgramIndex)
        other.func, other.root = func, func.root
        other.loops, other.blocks, other._parents = dict(self.loops), dict(self.blocks), dict(self._parents)
        other._positions, other._scopes = {}, {}
        for old, new in path:
            other._parents.pop(id(old), None)
            if isinstance(new, For):
                other.loops[new.var] = new
            elif isinstance(new, Block):
                other.blocks[new.name] = new
        for _, new in path:
            for child in child_statements(new):
                other._parents[id(child)] = new
        other._scopes_from(self)
        return other

    def _scopes_from(self, before: ProgramIndex) -> None:
        """What is known about scopes whose blocks are still the same ones in the same order."""
        for scope in before._scopes.values():
            owner = self.blocks[scope.owner.name]
            if all(id(stmt) in self._parents for stmt in scope.loose):
                found = self._scopes[id(owner)] = ScopeInfo(owner)
                found.loose = scope.loose
                for block in scope.blocks:
                    found.add(self.blocks[block.name])

    def parent(self, stmt: Stmt) -> Stmt | None:
        """The statement directly above, None for the root."""
        return self._parents.get(id(stmt))

    def position(self, stmt: Stmt) -> int:
        """The place in program order (a statement comes before those inside it)."""
        if not self._positions:
            self._positions = {id(item): place for place, item in enumerate(statements(self.root))}
        return self._positions[id(stmt)]

    def ancestors(self, stmt: Stmt) -> Iterator[Stmt]:
        """The statements above one, innermost first, up to the root."""
        parent = self._parents.get(id(stmt))
        while parent is not None:
            yield parent
            parent = self._parents.get(id(parent))

    def scope_block(self, stmt: Stmt) -> Block:
        """The nearest block around a statement."""
        for item in self.ancestors(stmt):
            if isinstance(item, Block):
                return item
        raise CompilerBug("the root block is in no scope")

    def scope(self, stmt: Stmt) -> ScopeInfo:
        """What happens in the scope that a statement stands in."""
        return self.inside(self.scope_block(stmt))

    def inside(self, block: Block) -> ScopeInfo:
        """What happens directly in a block's own scope."""
        known = self._scopes.get(id(block))
        if known is None:
            known = self._scopes[id(block)] = _look_inside(block)
        return known

    def path(self, stmt: Stmt) -> list[Stmt]:
        """The statements between the scope's block and a statement (both left out), outermost first."""
        result: list[Stmt] = []
        for item in self.ancestors(stmt):
            if isinstance(item, Block):
                break
            result.append(item)
        result.reverse()
        return result

    def loops_above(self, stmt: Stmt) -> list[For]:
        """The loops around a statement within its scope, outermost first."""
        return [item for item in self.path(stmt) if isinstance(item, For)]

    def loops_between(self, outer: For | None, stmt: Stmt) -> list[For]:
        """The loops around a statement and strictly inside `outer` (all those of the scope for None)."""
        loops = self.loops_above(stmt)
        if outer is None:
            return loops
        for place, loop in enumerate(loops):
            if loop is outer:
                return loops[place + 1 :]
        raise CompilerBug(f"the loop {outer.var.name} is not around the statement")

    def is_under(self, stmt: Stmt, above: Stmt) -> bool:
        """Whether `stmt` stands (anywhere) inside `above`."""
        return any(item is above for item in self.ancestors(stmt))

    def common_loops(self, a: Stmt, b: Stmt) -> list[For]:
        """The loops around both statements of one scope, outermost first."""
        other = {id(loop) for loop in self.loops_above(b)}
        return [loop for loop in self.loops_above(a) if id(loop) in other]

    def blocks_under(self, stmt: Stmt) -> list[Block]:
        """The outermost blocks inside a statement, in program order."""
        result: list[Block] = []
        stack = list(reversed(child_statements(stmt)))
        while stack:
            item = stack.pop()
            if isinstance(item, Block):
                result.append(item)
            else:
                stack.extend(reversed(child_statements(item)))
        return result


_Order = list[tuple[str | int, str | None]]
"""Blocks by name and known statements by identity, in program order, each with the name of the block around it."""


def _unlike(root: Stmt, known: Container[int]) -> tuple[list[Stmt], set[int], _Order]:
    """The statements of a program whose objects are not known, parents first; the outermost ones that are known; and
    in which order blocks and those are. The root is never a known one."""
    unlike: list[Stmt] = []
    shared: set[int] = set()
    order: _Order = []
    stack: list[tuple[Stmt, str | None]] = [(root, None)]
    while stack:
        stmt, owner = stack.pop()
        number = id(stmt)
        if number in known and stmt is not root:
            shared.add(number)
            order.append((number, owner))
            continue
        unlike.append(stmt)
        if isinstance(stmt, Block):
            order.append((stmt.name, owner))
            owner = stmt.name
        for child in reversed(child_statements(stmt)):
            stack.append((child, owner))
    return unlike, shared, order


def _blocks_in_order(root: Stmt) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    for stmt in statements(root):
        if isinstance(stmt, Block):
            if stmt.name in blocks:
                raise CompilerBug(f"two blocks are named {stmt.name}")
            blocks[stmt.name] = stmt
    return blocks


def _look_inside(block: Block) -> ScopeInfo:
    """What happens directly in a block's own scope."""
    scope = ScopeInfo(block)
    stack = list(reversed(child_statements(block)))
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Block):
            scope.add(stmt)
            continue
        children = child_statements(stmt)
        if children:
            stack.extend(reversed(children))
        else:
            scope.loose.append(stmt)
    return scope
