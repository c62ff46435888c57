"""Blocks disappear: iterators become their bound expressions, predicates become conditionals, init gets a place.

    for i, k in grid(4, 8):                          for i in range(4):
        with block("C"):                                 C[i] = 0.0
            vi, vk = spatial(4, i), reduce(8, k)   ->    for k in range(8):
            with init(): C[vi] = 0.0                         C[i] = C[i] + A[i, k]
            C[vi] = C[vi] + A[vi, vk]

The init of a reduction moves in front of the outermost loop that drives its reduce iterators, under copies of the
spatial loops inside it, when nothing else in that loop touches what it writes or writes what it reads. Where that
cannot be shown it stays in place, as `if <every reduce iterator at its start>`, and what is due where the reduction is
over nothing (`analysis/empty_reductions.py`) comes in front under a condition of its own. Allocations of a block become
`Allocate`. Loops that drive reduce iterators are annotated (`REDUCTION`): their sums may be reassociated, which nothing
else may.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.build import all_of, eq
from tilewright.ir.expr import TRUE, Call, PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, uses_any, variables
from tilewright.tir.analysis.empty_reductions import element_guards, empty_init, init_at_start, may_be_empty
from tilewright.tir.annotations import REDUCTION
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.rewrite.folding import fold
from tilewright.tir.rewrite.statements import StmtRewriter, fresh_copy, substitute_stmt
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, IfThenElse, IterKind, SeqStmt, Stmt, seq


def lower_blocks(func: PrimFunc) -> PrimFunc:
    """The function without blocks: loops, conditionals, allocations and stores only."""
    plan = _plan_inits(func.body)
    return func.replace(body=_LowerBlocks(plan).stmt(func.body))


@dataclass
class _InitPlan:
    """Where the inits go: statements in front of a loop (by its variable), and the blocks that are so relieved."""

    before_loop: dict[Var, list[Stmt]] = field(default_factory=dict)
    relieved: set[int] = field(default_factory=set)
    before_block: dict[int, Stmt] = field(default_factory=dict)
    """Inits of reductions over nothing that have no loops, by the identity of their blocks."""
    reducing: set[Var] = field(default_factory=set)
    """Variables of the loops that drive reduce iterators."""


class _LowerBlocks(StmtRewriter):
    def __init__(self, plan: _InitPlan) -> None:
        self._plan = plan

    def visit_for(self, loop: For) -> Stmt:
        lowered = super().visit_for(loop)
        assert isinstance(lowered, For)
        if loop.var in self._plan.reducing:
            lowered = REDUCTION.put(lowered, True)
        inits = self._plan.before_loop.get(loop.var)
        return lowered if inits is None else seq(*inits, lowered)

    def visit_block(self, block: Block) -> Stmt:
        mapping = {item.var: item.value for item in block.iters}
        body = substitute_stmt(self.stmt(block.body), mapping)
        if block.init is not None and id(block) not in self._plan.relieved:
            body = seq(_guarded(_at_reduction_start(block), substitute_stmt(self.stmt(block.init), mapping)), body)
        for buffer in reversed(block.allocations):
            body = Allocate(buffer, body)
        body = _guarded(fold(substitute(block.predicate, mapping)), body)
        due = self._plan.before_block.get(id(block))
        return body if due is None else seq(due, body)


def _guarded(condition: PrimExpr, body: Stmt) -> Stmt:
    return body if condition is TRUE else IfThenElse(condition, body)


def _at_reduction_start(block: Block) -> PrimExpr:
    reduce_iters = [item for item in block.iters if item.kind is IterKind.REDUCE]
    return all_of([fold(eq(item.value, item.domain.min)) for item in reduce_iters])


def _plan_inits(body: Stmt) -> _InitPlan:
    plan = _InitPlan()
    _find_reductions(body, [], plan)
    return plan


def _find_reductions(stmt: Stmt, path: list[Stmt], plan: _InitPlan) -> None:
    """Walk down with the path of statements from the innermost enclosing block on; plan each block's init."""
    if isinstance(stmt, Block):
        for item in stmt.iters:
            if item.kind is IterKind.REDUCE:
                plan.reducing.update(variables(item.value))
        if stmt.init is not None:
            empty = may_be_empty(stmt, path)
            place = _plan_init(stmt, path, plan, empty)
            if empty:
                _plan_empty_init(stmt, path, plan, place)
        # Inside a block its iterators are what counts: an inner block's init does not leave the outer block.
        _find_reductions(stmt.body, [], plan)
        return
    for child in stmt.children():
        if isinstance(child, Stmt):
            _find_reductions(child, [*path, stmt], plan)


def _plan_empty_init(block: Block, path: list[Stmt], plan: _InitPlan, place: For | None) -> None:
    """The init once more for where there are no steps, unless it stands in front of all of them (of `place`)."""
    planned = empty_init(block, path)
    if isinstance(planned, str) or planned.place is place:
        return
    init = planned.around(_LowerBlocks(_InitPlan()).stmt(init_at_start(block)))
    if isinstance(planned.place, Block):
        plan.before_block[id(block)] = init
    else:
        plan.before_loop.setdefault(planned.place.var, []).append(fresh_copy(init, {}))


def _plan_init(block: Block, path: list[Stmt], plan: _InitPlan, empty: bool) -> For | None:
    """The loop in front of which the init moves, None if it stays in place; `empty`: there may be no step at all."""
    reduce_iters = [item for item in block.iters if item.kind is IterKind.REDUCE]
    others = [item for item in block.iters if item.kind is not IterKind.REDUCE]
    position = next(
        (
            index
            for index, stmt in enumerate(path)
            if isinstance(stmt, For) and any(uses_any(item.value, [stmt.var]) for item in reduce_iters)
        ),
        None,
    )
    if position is None:
        return None
    inner = path[position:]
    if not all(isinstance(stmt, (For, SeqStmt)) for stmt in inner):
        return None
    loops = [stmt for stmt in inner if isinstance(stmt, For)]
    reducing = [loop for loop in loops if any(uses_any(item.value, [loop.var]) for item in reduce_iters)]
    spatial = [loop for loop in loops if loop not in reducing]
    reduce_vars = [loop.var for loop in reducing]
    if any(uses_any(item.value, reduce_vars) for item in others):
        return None
    if any(uses_any(bound, reduce_vars) for loop in spatial for bound in (loop.min, loop.extent)):
        return None
    start = {loop.var: loop.min for loop in reducing}
    if any(fold(eq(substitute(item.value, start), item.domain.min)) is not TRUE for item in reduce_iters):
        return None
    assert block.init is not None
    read = {item.buffer for item in pre_order(block.init) if isinstance(item, BufferLoad)}
    if _touched_beside(block, inner, _stored_buffers(block.init), read):
        return None
    values = {item.var: substitute(item.value, start) for item in block.iters}
    # The init of a tile holds blocks of its own.
    init = substitute_stmt(_LowerBlocks(_InitPlan()).stmt(block.init), values)
    predicate = all_of(element_guards(block, path)) if empty else block.predicate
    init = _guarded(fold(substitute(substitute(predicate, values), start)), init)
    for loop in reversed(spatial):
        init = loop.replace(body=init)
    if spatial:
        init = fresh_copy(init, {})
    outermost = reducing[0].var
    plan.before_loop.setdefault(outermost, []).append(init)
    plan.relieved.add(id(block))
    return reducing[0]


def _stored_buffers(stmt: Node) -> set[Buffer]:
    stored = {item.buffer for item in pre_order(stmt) if isinstance(item, BufferStore)}
    for item in pre_order(stmt):
        # An extern call writes through addresses.
        if isinstance(item, Call) and item.name == "access_ptr" and isinstance(item.args[1], BufferLoad):
            stored.add(item.args[1].buffer)
    return stored


def _touched_beside(block: Block, inner: list[Stmt], buffers: set[Buffer], read: set[Buffer]) -> bool:
    """Whether any other statement under the outermost reduce loop touches the buffers, or writes those `read`."""
    stack: list[Node] = [inner[0]]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if item is block or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (BufferStore, BufferLoad)) and item.buffer in buffers:
            return True
        if isinstance(item, (BufferStore, Call)) and _stored_buffers(item) & read:
            return True
        stack.extend(item.children())
    return False
