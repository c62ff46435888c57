"""The state of a schedule: the current program, its index, what is known about its variables, and edits of the tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn, TypeVar, cast, overload

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.simplify import depends_on_memory
from tilewright.ir.build import logical_and
from tilewright.ir.expr import TRUE, Add, FloorDiv, FloorMod, PrimExpr, Range, Sub, Var, const_value
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order, substitute, variables, variables_in
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.bindings import visits_domains
from tilewright.tir.analysis.index import ProgramIndex, child_statements, statements
from tilewright.tir.analysis.match_intrin import intrinsic_mismatch
from tilewright.tir.analysis.reduction_order import last_step_conflict
from tilewright.tir.annotations import LAST_STEP, TENSOR_INTRIN, TENSOR_INTRIN_RESET
from tilewright.tir.buffer import Buffer, loads_in
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.stmt import Allocate, Block, BlockIter, For, IfThenElse, LetStmt, SeqStmt, Stmt, seq

N = TypeVar("N", bound=Node)


class ScheduleState:
    """One program on its way; primitives look at `index` and end with `commit` or `replace`."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self._index: ProgramIndex | None = None
        self._index_before: ProgramIndex | None = None
        self._analyzer: Analyzer | None = None
        self._known: set[Var] = set()
        self._bound: ProgramIndex | None = None
        self._origin: ProgramIndex | None = None
        self._regular: dict[str, bool] = {}
        self._tensorized: dict[str, Block] = {}
        self._has_last_steps = False

    @property
    def index(self) -> ProgramIndex:
        """The structure of the current program."""
        if self._index is None:
            self._index = ProgramIndex(self.func, self._index_before)
            self._index_before = None
            self._origin = self._origin or self._index
        return self._index

    @property
    def origin(self) -> PrimFunc:
        """The program that the schedule started from."""
        return self.index.func if self._origin is None else self._origin.func

    def is_regular(self, name: str) -> bool:
        """Whether a block's loops visit its iterators' domains, all of them and nothing else.

        Primitives keep this, so it is asked of the program that the schedule started from; blocks that primitives
        make inherit it (`inherit`). Guards on a regular block only keep iterators in their domains.
        """
        if name not in self._regular:
            index = self.index if self._origin is None else self._origin
            self._regular[name] = name in index.blocks and visits_domains(index, index.blocks[name], self.analyzer)
        return self._regular[name]

    def inherit(self, new: str, old: str) -> None:
        """A block made by a primitive from another one visits its domains as that one does."""
        self._regular[new] = self.is_regular(old)

    def mark_regular(self, name: str) -> None:
        """A block made by a primitive with loops of its own visits its domains."""
        self._regular[name] = True

    def mark_partial(self, name: str) -> None:
        """A block whose loops, within its scope, visit only a part of its domains."""
        self._regular[name] = False

    def adopt(self, other: ScheduleState) -> None:
        """Take over what a trial copy of this state has found out about blocks."""
        self._regular = dict(other._regular)

    def copy(self) -> ScheduleState:
        """An independent state of the same program."""
        other = self.bare()
        other._index = self._index
        if self._analyzer is not None:
            other._analyzer = self._analyzer.copy()
            other._known, other._bound = set(self._known), self._bound
        return other

    def bare(self) -> ScheduleState:
        """A copy without what can be found out again from the program."""
        other = ScheduleState(self.func)
        other._origin = self._origin
        other._regular = dict(self._regular)
        other._tensorized = dict(self._tensorized)
        other._has_last_steps = self._has_last_steps
        return other

    def prepare(self) -> None:
        """Find out now what copies would each find out."""
        self._bound = None
        _ = self.analyzer

    @property
    def analyzer(self) -> Analyzer:
        """What is known about the loop variables of the current program.

        A surviving loop keeps its variable and its range (a primitive that changes the range says so: `forget`), so the
        analyzer lives as long as the schedule and only learns about new loops.
        """
        if self._analyzer is None:
            self._analyzer = Analyzer()
            bind = self._analyzer.introduce
        else:
            bind = self._analyzer.bind
        if self._bound is not self.index:
            self._bound = self.index
            for var, loop in self.index.loops.items():
                if var not in self._known:
                    self._known.add(var)
                    bind(var, Range(loop.min, loop.extent))
        return self._analyzer

    def learn(self, var: Var, domain: Range) -> None:
        """Tell the analyzer about a variable that a primitive is about to introduce."""
        analyzer = self.analyzer
        self._known.add(var)
        analyzer.introduce(var, domain)

    def forget(self, var: Var) -> None:
        """A loop is about to get another range: what is known of its variable is found out anew."""
        self._known.discard(var)

    def fail(self, message: str, mark: For | Block | None = None, hint: str | None = None) -> NoReturn:
        """Raise a `ScheduleError` that shows the current program."""
        raise ScheduleError(message, func=self.func, mark=mark, hint=hint)

    def commit(self, func: PrimFunc) -> None:
        """Make a program the current one."""
        self._check_tensorized(func)
        if self._has_last_steps:
            self._check_last_steps(self.index_of(func))
        self.func = func
        self._index_before, self._index = self._index or self._index_before, None

    def commit_index(self, index: ProgramIndex) -> None:
        """Make an already indexed program the current one."""
        self._check_tensorized(index.func)
        if self._has_last_steps:
            self._check_last_steps(index)
        self.func = index.func
        self._index, self._index_before = index, None

    def index_of(self, func: PrimFunc) -> ProgramIndex:
        """The index of a program that the current one may become."""
        return ProgramIndex(func, self.index)

    def watch_tensorized(self, block: Block) -> None:
        """A block that an intrinsic computes must stay what the intrinsic computes."""
        self._tensorized[block.name] = block

    def watch(self, blocks: Iterable[Block]) -> None:
        """Of blocks that came from outside, see to it that what is said of them stays so."""
        for block in blocks:
            if TENSOR_INTRIN.is_on(block) or TENSOR_INTRIN_RESET.is_on(block):
                self.watch_tensorized(block)
            if LAST_STEP.is_on(block):
                self.watch_last_steps()

    def watch_last_steps(self) -> None:
        """From now on the last steps of reductions with an epilogue in place must stay last."""
        self._has_last_steps = True

    def _check_last_steps(self, index: ProgramIndex) -> None:
        for block in index.blocks.values():
            reason = last_step_conflict(index, block) if LAST_STEP.is_on(block) else None
            if reason is not None:
                self.fail(
                    f"the last step of the reduction of block {block.name} would no longer come last: {reason}",
                    self.index.blocks.get(block.name),
                    "fuse_reduction_epilogue comes after such changes of the loops",
                )

    def _check_tensorized(self, func: PrimFunc) -> None:
        if not self._tensorized:
            return
        tensorized: dict[str, Block] = {}
        for block in statements(func.body):
            if not isinstance(block, Block):
                continue
            reason = None if self._tensorized.get(block.name) is block else intrinsic_mismatch(block)
            if reason is not None:
                self.fail(
                    f"block {block.name} would no longer be what its tensor intrinsic computes: {reason}",
                    self.index.blocks.get(block.name),
                    "change loops and layouts before tensorize",
                )
            if TENSOR_INTRIN.is_on(block) or TENSOR_INTRIN_RESET.is_on(block):
                tensorized[block.name] = block
        self._tensorized = tensorized

    def edited(self, edits: Mapping[Stmt, Stmt | None], root_edit: Callable[[Block], Block] | None = None) -> PrimFunc:
        """The current function with statements replaced (None: removed), and then its root block edited."""
        body = edit_tree(self.index, edits)
        if root_edit is not None:
            body = root_edit(body)
        return self.func.replace(body=body)

    def replace(self, old: Stmt, new: Stmt) -> None:
        """Replace one statement and commit."""
        self.commit(self.edited({old: new}))

    def relabel(self, old: For | Block, new: For | Block) -> None:
        """Replace a loop or a block by one with the same variable or name and the same inside, and commit."""
        path: list[tuple[Stmt, Stmt]] = [(old, new)]
        for above in self.index.ancestors(old):
            path.append((above, _with_child(above, *path[-1])))
        index = self.index.with_changed(self.func.replace(body=path[-1][1]), path)
        self.commit_index(index)

    def fresh_block_name(self, base: str) -> str:
        """A block name that is not in use."""
        return unique_name(base, self.index.blocks)

    def fresh_buffer_name(self, base: str) -> str:
        """A buffer name that no parameter or allocation of the function has."""
        taken = {buffer.name for buffer in self.func.buffers}
        for stmt in statements(self.index.root):
            if isinstance(stmt, Block):
                taken.update(buffer.name for buffer in stmt.allocations)
        return unique_name(base, taken)

    def is_parameter(self, buffer: Buffer) -> bool:
        """Whether a buffer is visible outside the function."""
        return any(param is buffer for param in self.func.params)


def require_closed_blocks(func: PrimFunc) -> None:
    """The inside of a block may speak of loops only through its iterators: primitives change loops, not insides."""

    def visit(stmt: Stmt, loops: tuple[Var, ...], hidden: frozenset[Var], block: Block) -> None:
        if isinstance(stmt, Block):
            for item in (*stmt.iter_values, stmt.predicate):
                check(item, hidden, block)
            block, loops, hidden = stmt, (), hidden.union(loops)
            for region in (*stmt.reads, *stmt.writes):
                check(region, hidden, block)
        elif isinstance(stmt, For):
            check(stmt.min, hidden, block)
            check(stmt.extent, hidden, block)
            loops = (*loops, stmt.var)
        elif isinstance(stmt, IfThenElse):
            check(stmt.condition, hidden, block)
        elif isinstance(stmt, LetStmt):
            check(stmt.value, hidden, block)
        children = child_statements(stmt)
        if not children:
            check(stmt, hidden, block)
        for child in children:
            visit(child, loops, hidden, block)

    def check(root: Node, hidden: frozenset[Var], block: Block) -> None:
        if not isinstance(root, PrimExpr):
            for child in root.children() if hidden else ():
                check(child, hidden, block)
            return
        for item in () if hidden.isdisjoint(variables_in(root)) else variables(root):
            if item in hidden:
                raise ScheduleError(
                    f"block {block.name} uses the loop variable {item.name} inside",
                    func=func,
                    mark=block,
                    hint="bind the loop to an iterator of the block and use that",
                )

    visit(func.root, (), frozenset(), func.root)


def unique_name(base: str, taken: Mapping[str, object] | set[str]) -> str:
    """`base`, or `base_1`, `base_2`, ...: the first that is not taken."""
    if base not in taken:
        return base
    number = 1
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"


def with_children(stmt: Stmt, children: list[Stmt | None]) -> Stmt | None:
    """A statement with new children (None: gone); None when nothing is left of it."""
    if isinstance(stmt, SeqStmt):
        left = [child for child in children if child is not None]
        return seq(*left) if left else None
    if isinstance(stmt, Block):
        body = children[-1]
        if body is None:
            return None
        if stmt.init is None:
            return stmt.replace(body=body)
        return stmt.replace(init=children[0], body=body)
    if isinstance(stmt, IfThenElse):
        other = children[1] if stmt.else_body is not None else None
        if children[0] is None:
            if other is None:
                return None
            raise CompilerBug("the first side of a condition was removed")
        return stmt.replace(then_body=children[0], else_body=other)
    if isinstance(stmt, (For, LetStmt, Allocate)):
        return None if children[0] is None else stmt.replace(body=children[0])
    raise CompilerBug(f"{type(stmt).__name__} has no children")


def edit_tree(index: ProgramIndex, edits: Mapping[Stmt, Stmt | None]) -> Block:
    """The program's root with statements replaced or removed; only the paths to them are rebuilt.

    Loops left empty disappear. Edited statements must not be inside one another.
    """
    root = _edit_one(index, *next(iter(edits.items()))) if len(edits) == 1 else _edit_several(index, edits)
    if not isinstance(root, Block):
        raise CompilerBug("nothing is left of the program")
    return root


def _edit_one(index: ProgramIndex, old: Stmt, new: Stmt | None) -> Stmt | None:
    for above in index.ancestors(old):
        new = _with_child(above, old, new)
        old = above
    return new


@overload
def _with_child(above: Stmt, old: Stmt, new: Stmt) -> Stmt: ...
@overload
def _with_child(above: Stmt, old: Stmt, new: None) -> Stmt | None: ...
@overload
def _with_child(above: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None: ...
def _with_child(above: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """A statement with one child replaced."""
    if new is not None and isinstance(above, (For, Block)) and above.body is old:
        return above.replace(body=new)
    return with_children(above, [new if child is old else child for child in child_statements(above)])


def _edit_several(index: ProgramIndex, edits: Mapping[Stmt, Stmt | None]) -> Stmt | None:
    by_id = {id(stmt): new for stmt, new in edits.items()}
    touched: set[int] = set()
    for stmt in edits:
        for above in index.ancestors(stmt):
            if id(above) in touched:
                break
            touched.add(id(above))

    def visit(stmt: Stmt) -> Stmt | None:
        if id(stmt) in by_id:
            return by_id[id(stmt)]
        if id(stmt) not in touched:
            return stmt
        return with_children(stmt, [visit(child) for child in child_statements(stmt)])

    return visit(index.root)


def with_allocations(func: PrimFunc, owner: str, buffers: Sequence[Buffer]) -> PrimFunc:
    """A function with more buffers allocated in a block."""
    root = func.root
    if root.name == owner:
        return func.replace(body=root.replace(allocations=(*root.allocations, *buffers)))
    index = ProgramIndex(func)
    block = index.blocks[owner]
    changed = block.replace(allocations=(*block.allocations, *buffers))
    return func.replace(body=edit_tree(index, {block: changed}))


def substitute_loops(
    stmt: Stmt, mapping: Mapping[Var, PrimExpr], simplify: Callable[[PrimExpr], PrimExpr] | None = None
) -> Stmt:
    """Replace loop variables by expressions outside the blocks' insides (a block's inside knows only its iterators)."""

    def on_expr(expr: PrimExpr) -> PrimExpr:
        new = substitute(expr, mapping)
        if new is expr or simplify is None:
            return new
        return simplify(new)

    def visit(item: Stmt) -> Stmt:
        if isinstance(item, For):
            body, low, extent = visit(item.body), on_expr(item.min), on_expr(item.extent)
            if body is item.body and low is item.min and extent is item.extent:
                return item
            return item.replace(min=low, extent=extent, body=body)
        if isinstance(item, Block):
            bound = bind_block(item, on_expr)
            if simplify is None or not any(_divides_sum(entry.value) for entry in bound.iters):
                return bound
            # Simplified, a sum of loops under a division falls apart in pieces that no longer look like one fused
            # loop taken apart: (i * 16 + j) // 2 % 5 is recognised, (i * 8 + j // 2) % 5 is not.
            old = [substitute(entry.value, mapping) for entry in item.iters]
            plain = tuple(with_value(entry, value) for entry, value in zip(bound.iters, old, strict=True))
            return bound.replace(iters=plain)
        if isinstance(item, SeqStmt):
            stmts = tuple(visit(child) for child in item.stmts)
            if all(a is b for a, b in zip(stmts, item.stmts, strict=True)):
                return item
            return item.replace(stmts=stmts)
        return _substitute_other(item, mapping, on_expr, visit)

    return visit(stmt)


def _substitute_other(
    item: Stmt,
    mapping: Mapping[Var, PrimExpr],
    on_expr: Callable[[PrimExpr], PrimExpr],
    visit: Callable[[Stmt], Stmt],
) -> Stmt:
    if isinstance(item, IfThenElse):
        other = None if item.else_body is None else visit(item.else_body)
        return item.replace(condition=on_expr(item.condition), then_body=visit(item.then_body), else_body=other)
    if isinstance(item, LetStmt):
        return item.replace(value=on_expr(item.value), body=visit(item.body))
    if isinstance(item, Allocate):
        return item.replace(body=visit(item.body))
    return substitute(item, mapping)


def _divides_sum(value: PrimExpr) -> bool:
    return any(isinstance(item, (FloorDiv, FloorMod)) and isinstance(item.a, (Add, Sub)) for item in pre_order(value))


def bind_block(block: Block, function: Callable[[PrimExpr], PrimExpr]) -> Block:
    """A block with its iterator values, domains that depend on loops, and its predicate rewritten."""
    iters = tuple(with_value(_with_domain(item, function), function(item.value)) for item in block.iters)
    predicate = block.predicate if block.predicate is TRUE else function(block.predicate)
    if predicate is block.predicate and all(a is b for a, b in zip(iters, block.iters, strict=True)):
        return block
    return block.replace(iters=iters, predicate=predicate)


def _with_domain(item: BlockIter, function: Callable[[PrimExpr], PrimExpr]) -> BlockIter:
    """A block iterator whose domain is rewritten (that of a triangular reduction speaks of a loop)."""
    low, extent = item.domain.min, item.domain.extent
    if const_value(low) is not None and const_value(extent) is not None:
        return item
    new_low, new_extent = function(low), function(extent)
    if new_low is low and new_extent is extent:
        return item
    return BlockIter(item.var, Range(new_low, new_extent), item.kind, item.value)


def with_value(item: BlockIter, value: PrimExpr) -> BlockIter:
    """A block iterator bound to another value."""
    return item if value is item.value else BlockIter(item.var, item.domain, item.kind, value)


def guard(stmt: Stmt, condition: PrimExpr) -> Stmt:
    """A statement whose work happens only where a condition on loops holds: blocks take it into their predicates."""
    if isinstance(stmt, Block):
        if loads_in(stmt.predicate):
            # What the predicate reads may exist only where the condition holds.
            return stmt.replace(predicate=logical_and(condition, stmt.predicate))
        return stmt.replace(predicate=logical_and(stmt.predicate, condition))
    children = child_statements(stmt)
    if not children:
        return IfThenElse(condition, stmt)
    result = with_children(stmt, [guard(child, condition) for child in children])
    assert result is not None
    return result


def replace_buffers(root: N, mapping: Mapping[Buffer, Buffer]) -> N:
    """A statement or region with buffers replaced everywhere: loads, stores, regions, allocations."""
    by_id = {id(old): new for old, new in mapping.items()}

    def visit(item: Node) -> Node | None:
        return by_id.get(id(item)) if isinstance(item, Buffer) else None

    return transform_users(root, mapping, visit)


def transform_users(root: N, buffers: Collection[Buffer], function: Callable[[Node], Node | None]) -> N:
    """Rewrite bottom-up as `transform` does, but leave out blocks and expressions that use none of some buffers."""
    done: dict[PrimExpr, Node] = {}

    def visit(item: Node) -> Node:
        if isinstance(item, PrimExpr):
            result = done.get(item)
            if result is None:
                reads = depends_on_memory(item) and any(load.buffer in buffers for load in loads_in(item))
                result = done[item] = rewritten(item) if reads else item
            return result
        return rewritten(item) if not isinstance(item, Block) or _uses(item, buffers) else item

    def rewritten(item: Node) -> Node:
        rebuilt = item.rebuild(visit)
        result = function(rebuilt)
        return rebuilt if result is None else result

    return cast(N, visit(root))


def _uses(block: Block, buffers: Collection[Buffer]) -> bool:
    """Whether a block has to do with any of some buffers, inside or in what is said of it."""
    if any(region.buffer in buffers for region in (*block.reads, *block.writes)):
        return True
    if any(buffer in buffers for buffer in block.allocations):
        return True
    # Of a block that only stands under other loops, the parts are what they were.
    parts = [block.body, block.predicate, *block.iters]
    if block.init is not None:
        parts.append(block.init)
    return any(buffer in buffers for part in parts for buffer in _buffers_in(part))


@lru_cache(maxsize=1 << 13)
def _buffers_in(node: Node) -> frozenset[Node]:
    """The buffers that occur in an expression or a statement."""
    if isinstance(node, Buffer):
        return frozenset((node,))
    if isinstance(node, PrimExpr):
        return frozenset([load.buffer for load in loads_in(node)])
    return frozenset().union(*map(_buffers_in, node.children()))
