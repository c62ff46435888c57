"""Simplification of whole programs: expressions under what their loops and conditions say, dead code, unit loops.

    for i in range(4):                         for j in range(8):
        for j in range(8):                         B[j] = A[j]
            if i * 8 + j < 32:           ->        ...
                B[(i * 8 + j) % 32 ...

A condition that is provably true or false disappears, a loop of one iteration becomes its body, a loop of none and a
branch never taken become nothing.
"""

from __future__ import annotations

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import ge, logical_not
from tilewright.ir.expr import (
    FALSE,
    LE,
    LT,
    TRUE,
    And,
    Broadcast,
    FloatImm,
    IntImm,
    PrimExpr,
    Ramp,
    Range,
    Select,
    Var,
    const_value,
)
from tilewright.ir.node import Node
from tilewright.tir.annotations import PRODUCERS
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.folding import fold_node
from tilewright.tir.rewrite.statements import NOTHING, StmtRewriter, inside_loop, is_nothing, substitute_stmt
from tilewright.tir.stmt import Allocate, Assert, For, IfThenElse, LetStmt, LoopKind, Stmt, While


def simplify_loops(func: PrimFunc) -> PrimFunc:
    """The function with its expressions simplified and its dead code dropped."""
    return func.replace(body=simplify_stmt(func.body, size_analyzer(func)))


def size_analyzer(func: PrimFunc) -> Analyzer:
    """An analyzer that knows what sizes are: never negative."""
    analyzer = Analyzer()
    for size in {size: None for buffer in func.buffers for size in buffer.shape if type(size) is Var}:
        analyzer.assume_always(ge(size, 0))
    return analyzer


def simplify_stmt(stmt: Stmt, analyzer: Analyzer | None = None) -> Stmt:
    """A statement simplified under what an analyzer already knows."""
    return _Simplify(analyzer or Analyzer()).stmt(stmt)


class _Simplify(StmtRewriter):
    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        # Simplified expressions, forgotten when an assumption comes or goes (they may depend on it).
        self._memo: dict[Node, PrimExpr] = {}

    def expr(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, (IntImm, FloatImm)):
            return expr
        done = self._memo.get(expr)
        if done is None:
            done = self._simplify(expr)
            self._memo[expr] = done
        return done

    def _simplify(self, expr: PrimExpr) -> PrimExpr:
        """Index arithmetic goes to the analyzer as a whole; float arithmetic only folds around its index parts."""
        if _is_index_like(expr):
            return self._analyzer.simplify(expr)
        if type(expr) is Select and expr.condition.dtype.is_scalar:
            condition = self.expr(expr.condition)
            if condition is TRUE:
                return self.expr(expr.a)
            if condition is FALSE:
                return self.expr(expr.b)
            chosen = self._under(condition, expr.a)
            other = self._under(logical_not(condition), expr.b)
            return chosen if chosen is other else Select(condition, chosen, other)
        rebuilt = expr.rebuild(self._child)
        folded = fold_node(rebuilt)
        return rebuilt if folded is None else folded

    def _child(self, item: Node) -> Node:
        return self.expr(item) if isinstance(item, PrimExpr) else item

    def _under(self, condition: PrimExpr, expr: PrimExpr) -> PrimExpr:
        if not _mentions_load_or_condition(expr):
            return self.expr(expr)
        saved, self._memo = self._memo, {}
        with self._analyzer.assume(condition):
            result = self.expr(expr)
        self._memo = saved
        return result

    def visit_for(self, loop: For) -> Stmt:
        low, extent = self.expr(loop.min), self.expr(loop.extent)
        if isinstance(extent, IntImm) and extent.value <= 0:
            return NOTHING
        # A loop whose copies other threads will make is there for them, even if it runs once (`specialize_warps`).
        is_kept = loop.kind is LoopKind.THREAD or PRODUCERS.is_on(loop)
        if isinstance(extent, IntImm) and extent.value == 1 and not is_kept:
            return self.stmt(substitute_stmt(loop.body, {loop.var: low}))
        loop = loop.replace(min=low, extent=extent)
        if isinstance(low, IntImm) and isinstance(extent, IntImm):
            self._analyzer.bind(loop.var, Range(low, extent))
            body = self.stmt(loop.body)
        else:
            # Inside, the analyzer knows that the loop runs at all; what follows from that ends with the loop.
            saved, self._memo = self._memo, {}
            with inside_loop(self._analyzer, loop):
                body = self.stmt(loop.body)
            self._memo = saved
        return NOTHING if is_nothing(body) else loop.replace(body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        value = self.expr(stmt.value)
        if isinstance(value, (IntImm, Var)):
            return self.stmt(substitute_stmt(stmt.body, {stmt.var: value}))
        body = self.stmt(stmt.body)
        return NOTHING if is_nothing(body) else stmt.replace(value=value, body=body)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        condition = self.expr(stmt.condition)
        lanes = _decided_lanes(condition)
        if condition is TRUE or lanes == {True}:
            return self.stmt(stmt.then_body)
        if condition is FALSE or lanes == {False}:
            return NOTHING if stmt.else_body is None else self.stmt(stmt.else_body)
        if condition.dtype.lanes > 1:
            return stmt.replace(condition=condition, then_body=self.stmt(stmt.then_body))
        then_body = self._branch(condition, stmt.then_body)
        else_body = None if stmt.else_body is None else self._branch(logical_not(condition), stmt.else_body)
        if else_body is not None and is_nothing(else_body):
            else_body = None
        if is_nothing(then_body):
            return NOTHING if else_body is None else IfThenElse(logical_not(condition), else_body)
        return stmt.replace(condition=condition, then_body=then_body, else_body=else_body)

    def _branch(self, condition: PrimExpr, body: Stmt) -> Stmt:
        saved, self._memo = self._memo, {}
        with self._analyzer.assume(condition):
            result = self.stmt(body)
        self._memo = saved
        return result

    def visit_while(self, stmt: While) -> Stmt:
        # The condition reads what the body changes: nothing is known in the body but what is known around the loop.
        return NOTHING if self.expr(stmt.condition) is FALSE else super().visit_while(stmt)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        body = self.stmt(stmt.body)
        return NOTHING if is_nothing(body) else stmt.replace(body=body)

    def visit_assert(self, stmt: Assert) -> Stmt:
        condition = self.expr(stmt.condition)
        return NOTHING if condition is TRUE else stmt.replace(condition=condition)


def _is_index_like(expr: PrimExpr) -> bool:
    """Integers and conditions over integers that come from loops and dimensions: what the analyzer understands.

    Values read from memory are data: their arithmetic wraps, while index arithmetic is taken not to overflow.
    """
    return expr.dtype.is_scalar and (expr.dtype.is_integer or expr.dtype.is_bool) and not depends_on_memory(expr)


def _mentions_load_or_condition(expr: PrimExpr) -> bool:
    stack: list[Node] = [expr]
    seen: set[Node] = set()
    while stack:
        item = stack.pop()
        if isinstance(item, (BufferLoad, Select, And)):
            return True
        if item not in seen:
            seen.add(item)
            stack.extend(item.children())
    return False


def _decided_lanes(condition: PrimExpr) -> set[bool]:
    """What lanes of a comparison with a ramp are, where all are known: those past a tail, say."""
    if not isinstance(condition, (LT, LE)):
        return set()
    ramp, limit = condition.a, condition.b
    if not isinstance(ramp, Ramp) or not isinstance(limit, Broadcast):
        return set()
    start, step, end = const_value(ramp.base), const_value(ramp.stride), const_value(limit.value)
    if start is None or step is None or end is None:
        return set()
    last = end - 1 if isinstance(condition, LT) else end
    return {start + lane * step <= last for lane in range(ramp.dtype.lanes)}
