"""What every lowering pass shares: a statement rewriter with one overridable method a kind, and fresh copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final

from tilewright.arith.analyzer import Analyzer, Scope
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Range, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import made_of, variables_in
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import loads_in
from tilewright.tir.stmt import (
    Allocate,
    Assert,
    Block,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
    seq,
)

NOTHING = SeqStmt(())
"""The statement that does nothing."""


def is_nothing(stmt: Stmt) -> bool:
    """Whether a statement does nothing at all."""
    return isinstance(stmt, SeqStmt) and all(is_nothing(item) for item in stmt.stmts)


def inner_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside a statement."""
    match stmt:
        case SeqStmt():
            return stmt.stmts
        case For() | LetStmt() | Allocate() | While():
            return (stmt.body,)
        case IfThenElse():
            return (stmt.then_body,) if stmt.else_body is None else (stmt.then_body, stmt.else_body)
        case Block():
            return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
        case _:
            return ()


def all_statements(root: Stmt) -> Iterator[Stmt]:
    """Every statement below and including the root, parents first; expressions are not entered."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        yield stmt
        stack.extend(reversed(inner_statements(stmt)))


def inside_loop(analyzer: Analyzer, loop: For) -> Scope:
    """A `with` block in which an analyzer knows the range of a loop's variable.

    It must end with the loop: inside, the analyzer also knows that the loop runs at least once.
    """
    scope = analyzer.scope()
    analyzer.bind(loop.var, Range(loop.min, loop.extent))
    return scope


class StmtRewriter:
    """Rewrites statements top-down: override the method of a kind; the rest is rebuilt around it.

    `expr` sees every expression of a statement (a whole tree, not each node); a statement that does not change is
    returned itself, so passes that find nothing to do keep the program as it is.
    """

    _handlers: ClassVar[dict[type, Callable[[Any, Any], Stmt]]]

    def __init_subclass__(cls) -> None:
        cls._handlers = {kind: getattr(cls, name) for kind, name in _METHODS.items()}

    def stmt(self, stmt: Stmt) -> Stmt:
        """The rewritten statement."""
        handler = self._handlers.get(type(stmt))
        if handler is None:
            raise CompilerBug(f"no lowering knows the statement {type(stmt).__name__}")
        return handler(self, stmt)

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The rewritten expression."""
        return expr

    def exprs(self, exprs: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """Several expressions, rewritten."""
        if len(exprs) == 1:
            # The indices of flat buffers.
            only = self.expr(exprs[0])
            return exprs if only is exprs[0] else (only,)
        result = [self.expr(item) for item in exprs]
        for old, new in zip(exprs, result, strict=True):
            if old is not new:
                return tuple(result)
        return exprs

    def visit_for(self, loop: For) -> Stmt:
        """A loop."""
        low, extent, body = self.expr(loop.min), self.expr(loop.extent), self.stmt(loop.body)
        if low is loop.min and extent is loop.extent and body is loop.body:
            return loop
        return loop.replace(min=low, extent=extent, body=body)

    def visit_block(self, block: Block) -> Stmt:
        """A block; lowering removes blocks first, so most passes never see one."""
        body = self.stmt(block.body)
        init = None if block.init is None else self.stmt(block.init)
        predicate = self.expr(block.predicate)
        if body is block.body and init is block.init and predicate is block.predicate:
            return block
        return block.replace(body=body, init=init, predicate=predicate)

    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """A sequence; what becomes nothing is dropped."""
        items = [self.stmt(item) for item in stmt.stmts]
        for old, new in zip(stmt.stmts, items, strict=True):
            if old is not new:
                return seq(*[item for item in items if not is_nothing(item)])
        return stmt

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """A store."""
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        if indices is stmt.indices and value is stmt.value:
            return stmt
        return stmt.replace(indices=indices, value=value)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A binding of a variable."""
        value, body = self.expr(stmt.value), self.stmt(stmt.body)
        if value is stmt.value and body is stmt.body:
            return stmt
        return stmt.replace(value=value, body=body)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """A conditional."""
        condition = self.expr(stmt.condition)
        then_body = self.stmt(stmt.then_body)
        else_body = None if stmt.else_body is None else self.stmt(stmt.else_body)
        if condition is stmt.condition and then_body is stmt.then_body and else_body is stmt.else_body:
            return stmt
        return stmt.replace(condition=condition, then_body=then_body, else_body=else_body)

    def visit_while(self, stmt: While) -> Stmt:
        """A loop with a condition."""
        condition, body = self.expr(stmt.condition), self.stmt(stmt.body)
        if condition is stmt.condition and body is stmt.body:
            return stmt
        return stmt.replace(condition=condition, body=body)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """An allocation."""
        body = self.stmt(stmt.body)
        return stmt if body is stmt.body else stmt.replace(body=body)

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """A call for its effect."""
        value = self.expr(stmt.value)
        return stmt if value is stmt.value else stmt.replace(value=value)

    def visit_assert(self, stmt: Assert) -> Stmt:
        """An assertion."""
        condition = self.expr(stmt.condition)
        return stmt if condition is stmt.condition else stmt.replace(condition=condition)


_METHODS: Final[dict[type, str]] = {
    For: "visit_for",
    Block: "visit_block",
    SeqStmt: "visit_seq",
    BufferStore: "visit_store",
    LetStmt: "visit_let",
    IfThenElse: "visit_if",
    While: "visit_while",
    Allocate: "visit_allocate",
    Evaluate: "visit_evaluate",
    Assert: "visit_assert",
}
StmtRewriter.__init_subclass__()


class ExprRewriter:
    """Rewrites expressions bottom-up with a memo that lives as long as the rewriter (nodes are interned).

    `concerns` says of the types and functions that an expression is made of (`made_of`) whether any of them is one that
    the function changes something about: expressions without such are not looked into. `of_memory` says that it changes
    nothing but loads and calls.
    """

    def __init__(
        self,
        function: Callable[[PrimExpr], PrimExpr | None],
        concerns: Callable[[frozenset[DataType | str]], bool] | None = None,
        *,
        of_memory: bool = False,
    ) -> None:
        self._function = function
        self._of_memory = of_memory
        self._concerns = None if concerns is None else cache(concerns)
        self._memo: dict[Node, PrimExpr] = {}

    def __call__(self, expr: PrimExpr) -> PrimExpr:
        """The rewritten expression."""
        result = self._visit(expr)
        assert isinstance(result, PrimExpr)
        return result

    def _visit(self, item: Node) -> Node:
        done = self._memo.get(item)
        if done is None:
            if not isinstance(item, PrimExpr):
                return item
            if self._of_memory and not depends_on_memory(item):
                return item
            if self._concerns is not None and not self._concerns(made_of(item)):
                return item
            rebuilt = item.rebuild(self._visit)
            done = self._function(rebuilt)
            if done is None:
                done = rebuilt
            self._memo[item] = done
        return done


class Replacement:
    """Replaces variables, and the buffers of loads, in expressions. What is replaced may grow."""

    def __init__(self, values: Mapping[Var, PrimExpr]) -> None:
        self.values: dict[Node, Node] = dict[Node, Node](values.items())
        """What replaces variables and buffers."""
        self._buffers: set[Node] = set()
        self._memo: dict[Node, Node] = {}

    def bind(self, old: Node, new: Node) -> None:
        """Replace a variable or a buffer from here on."""
        self.values[old] = new
        if not isinstance(old, PrimExpr):
            self._buffers.add(old)
        # Expressions seen so far lie outside the scope of a new variable, but interned ones may recur in it.
        self._memo = {}

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The expression with what it mentions replaced."""
        result = self.visit(expr)
        assert isinstance(result, PrimExpr)
        return result

    def visit(self, item: Node) -> Node:
        """What an expression, a part of one, or a buffer becomes."""
        done = self._memo.get(item)
        if done is None:
            done = self._memo[item] = self._replaced(item)
        return done

    def _replaced(self, item: Node) -> Node:
        if not isinstance(item, PrimExpr) or type(item) is Var:
            return self.values.get(item, item)
        # Most expressions mention nothing that is replaced, and know it.
        if self.values.keys().isdisjoint(variables_in(item)) and not (self._buffers and depends_on_memory(item)):
            return item
        return item.rebuild(self.visit)

    def mentioned(self, item: Node) -> tuple[Node, ...]:
        """What is replaced in an expression."""
        if not isinstance(item, PrimExpr):
            return (item,) if item in self._buffers else ()
        variables = [var for var in variables_in(item) if var in self.values]
        if not self._buffers or not depends_on_memory(item):
            return tuple(variables)
        return (*variables, *dict.fromkeys(load.buffer for load in loads_in(item) if load.buffer in self._buffers))


class FreshCopy(StmtRewriter):
    """Copies statements so that the copy binds variables and buffers of its own, with some variables replaced."""

    def __init__(self, replacement: Replacement) -> None:
        self.replacement = replacement
        self.expr = replacement.expr  # type: ignore[method-assign]

    def _bind(self, var: Var) -> Var:
        fresh = Var(var.name, var.dtype)
        self.replacement.bind(var, fresh)
        return fresh

    def visit_for(self, loop: For) -> Stmt:
        """A loop with a variable of its own."""
        low, extent = self.expr(loop.min), self.expr(loop.extent)
        var = self._bind(loop.var)
        return loop.replace(var=var, min=low, extent=extent, body=self.stmt(loop.body))

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A binding with a variable of its own."""
        value = self.expr(stmt.value)
        var = self._bind(stmt.var)
        return stmt.replace(var=var, value=value, body=self.stmt(stmt.body))

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """An allocation of a buffer of its own."""
        old = stmt.buffer
        fresh = old.replace(shape=self.exprs(old.shape), strides=self.exprs(old.strides), offset=self.expr(old.offset))
        self.replacement.bind(old, fresh)
        return stmt.replace(buffer=fresh, body=self.stmt(stmt.body))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """A store, to the copy's own buffer where it has one."""
        buffer = self.replacement.visit(stmt.buffer)
        return stmt.replace(buffer=buffer, indices=self.exprs(stmt.indices), value=self.expr(stmt.value))


def fresh_copy(stmt: Stmt, mapping: Mapping[Var, PrimExpr]) -> Stmt:
    """A copy of a statement (without blocks) with variables replaced and every bound variable and buffer renewed."""
    return FreshCopy(Replacement(mapping)).stmt(stmt)


class _Substitution(StmtRewriter):
    def __init__(self, mapping: Mapping[Var, PrimExpr]) -> None:
        self.expr = Replacement(mapping).expr  # type: ignore[method-assign]


def substitute_stmt(stmt: Stmt, mapping: Mapping[Var, PrimExpr]) -> Stmt:
    """A statement with free variables replaced (its own bound variables and buffers stay the same objects)."""
    return _Substitution(mapping).stmt(stmt) if mapping else stmt
