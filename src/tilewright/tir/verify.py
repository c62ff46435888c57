"""The verifier: well-formedness of loop-level functions, by named stages of lowering.

| stage | contract, on top of what holds at every stage |
|---|---|
| `scheduled` | the body is a root block; block names are unique; accesses are inside the declared regions |
| `blocks_lowered` | no blocks are left |
| `flattened` | and every buffer has one dimension, no strides and no offset |
| `vectorized` | and no vectorized loops are left |
| `cpu_ready` | and no unrolled, virtual or hardware thread loops are left |

At every stage: variables and buffers are declared around their use; each loop, definition and block iterator has a
variable of its own; types, lanes and ranks agree; sequences are flat; constants fit their types; calls of known
intrinsics have the right arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build, intrinsics
from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.function import IRModule
from tilewright.ir.node import Node
from tilewright.ir.passes import Program, register_stage
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, For, LoopKind, Stmt

STAGES: Final = ("scheduled", "blocks_lowered", "flattened", "vectorized", "cpu_ready")
"""Stages in the order in which lowering reaches them."""


def verify(func: PrimFunc, stage: str = "scheduled") -> None:
    """Raise a `CompilerBug` that lists every way in which a function breaks the contract of a stage."""
    violated = violations(func, stage)
    if violated:
        raise CompilerBug(_report(func, stage, violated))


def verify_written(func: PrimFunc, stage: str = "scheduled") -> None:
    """The same for a function that a user wrote: a `UserError`."""
    violated = violations(func, stage)
    if violated:
        raise UserError(_report(func, stage, violated), where=str(func.span) if func.span else None)


def violations(func: PrimFunc, stage: str = "scheduled") -> list[str]:
    """Every way in which a function breaks the contract of a stage, each with its place."""
    if stage not in STAGES:
        raise UserError(f"there is no stage {stage!r}", hint=f"one of {', '.join(STAGES)}")
    checker = _Checker(STAGES.index(stage))
    checker.function(func)
    return checker.found


def _report(func: PrimFunc, stage: str, violated: Sequence[str]) -> str:
    count = f"{len(violated)} violation{'s' if len(violated) > 1 else ''}"
    lines = "\n".join(f"  - {item}" for item in violated[:20])
    more = f"\n  ... and {len(violated) - 20} more" if len(violated) > 20 else ""
    return f"function {func.name} is not well formed at stage {stage} ({count}):\n{lines}{more}"


class _Checker:
    """Walks a function with the names in scope, collecting violations."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.whiles = 0
        self.found: list[str] = []
        self.scope: set[Var | Buffer] = set()
        self.bound: set[Var] = set()
        self.block_names: set[str] = set()
        self.path: list[str] = []
        self.blocks: list[tuple[Block, set[Buffer], Analyzer]] = []

    def _say(self, text: str, stmt: Stmt | None = None) -> None:
        place = " / ".join(self.path) or "the signature"
        span = f" ({stmt.span})" if stmt is not None and stmt.span is not None else ""
        self.found.append(f"{text}, in {place}{span}")

    # ---------------------------------------------------------------- functions

    def function(self, func: PrimFunc) -> None:
        """Check a whole function."""
        for param in func.params:
            if param in self.scope:
                self._say(f"parameter {param.name} is given twice")
            self.scope.add(param)
        for dim in func.symbolic_dims():
            self.scope.add(dim)
        for buffer in func.buffers:
            self._declared(buffer)
        if self.level == 0:
            body = func.body
            if not isinstance(body, Block) or body.name != "root" or body.iters:
                self._say("the body is not a root block without iterators")
        self._stmt(func.body)

    def _declared(self, buffer: Buffer) -> None:
        for expr in (*buffer.shape, *buffer.strides, buffer.offset):
            self._expr(expr, None)
            if not expr.dtype.is_integer or not expr.dtype.is_scalar:
                self._say(f"a dimension of buffer {buffer.name} is a {expr.dtype}")
        if self.level >= 2 and (buffer.ndim != 1 or buffer.strides or not e.is_const_int(buffer.offset, 0)):
            self._say(f"buffer {buffer.name} has {buffer.ndim} dimensions, strides or an offset after flattening")

    # ---------------------------------------------------------------- expressions

    def _expr(self, root: PrimExpr, stmt: Stmt | None) -> None:
        addressed: set[BufferLoad] = set()
        for item in pre_order(root):
            # Most nodes have nothing to check.
            check = _EXPR_CHECKS.get(type(item))
            if check is None or item in addressed:
                continue
            if isinstance(item, e.Call) and item.name in _ADDRESSES:
                addressed.update(arg for arg in item.args if isinstance(arg, BufferLoad))
            check(self, item, stmt)

    def _variable(self, item: Var, stmt: Stmt | None) -> None:
        if item not in self.scope:
            self._say(f"variable {item.name} is used where it is not defined", stmt)

    def _load(self, item: BufferLoad, stmt: Stmt | None) -> None:
        self._access(item.buffer, item.indices, stmt, writes=False)

    def _logic(self, item: e.And | e.Or | e.Not, stmt: Stmt | None) -> None:
        if not item.a.dtype.is_bool:
            self._say(f"{type(item).__name__} of {item.a.dtype}", stmt)

    def _division(self, item: e.FloorDiv | e.FloorMod, stmt: Stmt | None) -> None:
        if not item.dtype.is_integer:
            self._say(f"{type(item).__name__} of {item.dtype}", stmt)

    def _pointer(self, item: e.Call, stmt: Stmt | None) -> None:
        """An address: its elements are accessed as its mode says, not read here."""
        mode = item.args[0].value if isinstance(item.args[0], e.StringImm) else ""
        for load in item.args[-2:]:
            if not isinstance(load, BufferLoad):
                self._say(f"{item.name} of something that is not an element", stmt)
                continue
            for index in load.indices:
                self._expr(index, stmt)
            for letter in mode:
                self._access(load.buffer, load.indices, stmt, writes=letter == "w")

    def _constant(self, item: e.FloatImm, stmt: Stmt | None) -> None:
        rounded = build.const(item.value, item.dtype)
        if rounded is not item and not math.isnan(item.value):
            self._say(f"the constant {item.value!r} is not a {item.dtype}", stmt)

    def _call(self, item: e.Call, stmt: Stmt | None) -> None:
        if item.name in _ADDRESSES:
            self._pointer(item, stmt)
            return
        intrinsic = intrinsics.table.get(item.name)
        if intrinsic is None:
            # A back end may know it; if none does, the code generator says so to the user.
            return
        if intrinsic.arity is not None and intrinsic.arity != len(item.args):
            self._say(f"{item.name} with {len(item.args)} arguments", stmt)
            return
        types = tuple(arg.dtype for arg in item.args)
        wrong = [dtype for dtype in types if not intrinsic.accepts_type(dtype)]
        if wrong:
            self._say(f"{item.name} of {wrong[0]}", stmt)
        elif intrinsic.result_type(types) not in (None, item.dtype):
            self._say(f"{item.name} of {types[0]} with the result type {item.dtype}", stmt)

    def _vector(self, item: e.Ramp | e.Broadcast, stmt: Stmt | None) -> None:
        parts = (item.base, item.stride) if isinstance(item, e.Ramp) else (item.value,)
        if item.lanes < 2 or any(not part.dtype.is_scalar for part in parts):
            self._say(f"{type(item).__name__} of {item.lanes} lanes over {parts[0].dtype}", stmt)
        elif isinstance(item, e.Ramp) and item.base.dtype is not item.stride.dtype:
            self._say(f"Ramp with base {item.base.dtype} and stride {item.stride.dtype}", stmt)

    def _integer(self, root: PrimExpr, what: str, stmt: Stmt | None) -> None:
        self._expr(root, stmt)
        if not root.dtype.is_integer or not root.dtype.is_scalar:
            self._say(f"{what} is a {root.dtype}", stmt)

    def _condition(self, root: PrimExpr, what: str, stmt: Stmt | None) -> None:
        self._expr(root, stmt)
        if not root.dtype.is_bool or not root.dtype.is_scalar:
            self._say(f"{what} is a {root.dtype}", stmt)

    # ---------------------------------------------------------------- accesses

    def _access(self, buffer: Buffer, indices: tuple[PrimExpr, ...], stmt: Stmt | None, *, writes: bool) -> None:
        if buffer not in self.scope:
            self._say(f"buffer {buffer.name} is used where it is not declared", stmt)
        if self.level >= 2 and len(indices) != 1:
            self._say(f"buffer {buffer.name} is indexed with {len(indices)} dimensions after flattening", stmt)
        lanes = {index.dtype.lanes for index in indices if not index.dtype.is_scalar}
        if len(lanes) > 1:
            self._say(f"buffer {buffer.name} is indexed with vectors of different lanes", stmt)
        for block, private, analyzer in self.blocks[-1:]:
            if buffer in private or (block.name == "root" and not block.iters):
                continue
            regions = [region for region in (block.writes if writes else block.reads) if region.buffer is buffer]
            if not writes and not regions and block.init is not None:
                # A reduction reads its own accumulator.
                regions = [region for region in block.writes if region.buffer is buffer]
            word = "writes" if writes else "reads"
            if not regions:
                self._say(f"block {block.name} {word} buffer {buffer.name}, which its {word} do not list", stmt)
            elif all(_outside(indices, region, analyzer) for region in regions):
                self._say(f"block {block.name} {word} {buffer.name} outside the regions that it lists", stmt)

    # ---------------------------------------------------------------- statements

    def _bind(self, var: Var, what: str, stmt: Stmt) -> None:
        if var in self.bound:
            self._say(f"{what} {var.name} is bound twice", stmt)
        self.bound.add(var)
        self.scope.add(var)

    def _inside(self, label: str, names: Iterable[Var | Buffer], body: Stmt) -> None:
        names = list(names)
        self.path.append(label)
        self._stmt(body)
        self.path.pop()
        self.scope.difference_update(names)

    def _stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, For):
            self._for(stmt)
        elif isinstance(stmt, Block):
            self._block(stmt)
        elif isinstance(stmt, s.SeqStmt):
            for item in stmt.stmts:
                if isinstance(item, s.SeqStmt):
                    self._say("a sequence inside a sequence", stmt)
                self._stmt(item)
        elif isinstance(stmt, s.BufferStore):
            self._store(stmt)
        elif isinstance(stmt, s.LetStmt):
            self._expr(stmt.value, stmt)
            if stmt.var.dtype is not stmt.value.dtype:
                self._say(f"variable {stmt.var.name} of {stmt.var.dtype} is defined as a {stmt.value.dtype}", stmt)
            self._bind(stmt.var, "variable", stmt)
            self._inside(f"let {stmt.var.name}", [stmt.var], stmt.body)
        elif isinstance(stmt, s.IfThenElse):
            if stmt.condition.dtype.is_scalar or self.level < STAGES.index("vectorized"):
                self._condition(stmt.condition, "the condition of an if", stmt)
            else:
                self._mask(stmt)
            self._stmt(stmt.then_body)
            if stmt.else_body is not None:
                self._stmt(stmt.else_body)
        elif isinstance(stmt, s.While):
            self._condition(stmt.condition, "the condition of a while", stmt)
            self.whiles += 1
            self._inside("while", (), stmt.body)
            self.whiles -= 1
        elif isinstance(stmt, s.Allocate):
            self._allocated(stmt.buffer, stmt)
            for _, private, _ in self.blocks:
                private.add(stmt.buffer)
            self._inside(f"allocate {stmt.buffer.name}", [stmt.buffer], stmt.body)
        elif isinstance(stmt, s.Evaluate):
            self._expr(stmt.value, stmt)
        elif isinstance(stmt, s.Assert):
            self._condition(stmt.condition, "an asserted condition", stmt)
        else:
            self._say(f"an unknown statement {type(stmt).__name__}")

    def _mask(self, stmt: s.IfThenElse) -> None:
        """A vector condition guards the lanes of a single store."""
        self._expr(stmt.condition, stmt)
        store = stmt.then_body
        if not stmt.condition.dtype.is_bool:
            self._say(f"the condition of an if is a {stmt.condition.dtype}", stmt)
        elif not isinstance(store, s.BufferStore) or stmt.else_body is not None:
            self._say("a vector condition guards more than a single store", stmt)
        elif store.value.dtype.lanes != stmt.condition.dtype.lanes:
            self._say(f"a condition of {stmt.condition.dtype.lanes} lanes guards a store of others", stmt)

    def _allocated(self, buffer: Buffer, stmt: Stmt) -> None:
        self._declared(buffer)
        if buffer in self.scope:
            self._say(f"buffer {buffer.name} is declared twice", stmt)
        self.scope.add(buffer)

    def _store(self, stmt: s.BufferStore) -> None:
        for index in stmt.indices:
            self._expr(index, stmt)
            if not index.dtype.is_integer:
                self._say(f"an index of buffer {stmt.buffer.name} is a {index.dtype}", stmt)
        self._expr(stmt.value, stmt)
        places = max([index.dtype.lanes for index in stmt.indices], default=1) * stmt.buffer.dtype.lanes
        if stmt.value.dtype.lanes != places:
            self._say(f"{stmt.value.dtype.lanes} lanes are stored to {places} places of {stmt.buffer.name}", stmt)
        self._access(stmt.buffer, stmt.indices, stmt, writes=True)

    def _for(self, loop: For) -> None:
        self._integer(loop.min, f"the start of loop {loop.var.name}", loop)
        self._integer(loop.extent, f"the extent of loop {loop.var.name}", loop)
        if not (loop.var.dtype is loop.min.dtype is loop.extent.dtype):
            types = f"{loop.var.dtype}, {loop.min.dtype}, {loop.extent.dtype}"
            self._say(f"loop {loop.var.name} has variable, start and extent of types {types}", loop)
        if (loop.kind is LoopKind.THREAD) != (loop.thread is not None):
            self._say(f"loop {loop.var.name} is {loop.kind.value} with thread axis {loop.thread}", loop)
        gone = _GONE.get(loop.kind)
        if gone is not None and self.level >= gone:
            self._say(f"loop {loop.var.name} is still {loop.kind.value}", loop)
        self._bind(loop.var, "loop variable", loop)
        for _, _, analyzer in self.blocks[-1:]:
            analyzer.bind(loop.var, e.Range(loop.min, loop.extent))
        self._inside(f"for {loop.var.name}", [loop.var], loop.body)

    def _block(self, block: Block) -> None:
        if self.level >= 1:
            self._say(f"block {block.name} is left after lowering", block)
        if self.whiles:
            self._say(f"block {block.name} stands inside a while loop", block)
        if block.name in self.block_names:
            self._say(f"two blocks are named {block.name}", block)
        self.block_names.add(block.name)
        analyzer = Analyzer()
        for item in block.iters:
            self._integer(item.value, f"the value of iterator {item.var.name}", block)
            self._integer(item.domain.min, f"the domain of iterator {item.var.name}", block)
            self._integer(item.domain.extent, f"the domain of iterator {item.var.name}", block)
            if item.var.dtype is not item.value.dtype:
                self._say(f"iterator {item.var.name} of {item.var.dtype} is bound to a {item.value.dtype}", block)
        self._condition(block.predicate, f"the predicate of block {block.name}", block)
        for item in block.iters:
            self._bind(item.var, "block iterator", block)
            analyzer.bind(item.var, item.domain)
        names: list[Var | Buffer] = [item.var for item in block.iters]
        self.path.append(f"block {block.name}")
        for region in (*block.reads, *block.writes):
            if region.buffer not in self.scope and region.buffer not in block.allocations:
                self._say(f"a region of buffer {region.buffer.name}, which is not declared", block)
            for span in region.region:
                self._expr(span.min, block)
                self._expr(span.extent, block)
        for buffer in block.allocations:
            self._allocated(buffer, block)
            names.append(buffer)
            for _, private, _ in self.blocks:
                private.add(buffer)
        self.blocks.append((block, set(block.allocations), analyzer))
        if block.init is not None:
            self._stmt(block.init)
        self._stmt(block.body)
        self.blocks.pop()
        self.path.pop()
        self.scope.difference_update(names)


_ADDRESSES: Final = ("access_ptr", "element_distance")
"""Calls whose arguments are elements that are not read."""

_EXPR_CHECKS: Final[dict[type[Node], Callable[..., None]]] = {
    Var: _Checker._variable,
    BufferLoad: _Checker._load,
    e.FloatImm: _Checker._constant,
    e.Call: _Checker._call,
    e.And: _Checker._logic,
    e.Or: _Checker._logic,
    e.Not: _Checker._logic,
    e.FloorDiv: _Checker._division,
    e.FloorMod: _Checker._division,
    e.Ramp: _Checker._vector,
    e.Broadcast: _Checker._vector,
}
"""What is checked of an expression, by its class; the others are right by how they are made."""

_GONE: Final[dict[LoopKind, int]] = {
    LoopKind.VECTORIZED: STAGES.index("vectorized"),
    LoopKind.UNROLLED: STAGES.index("cpu_ready"),
    LoopKind.THREAD: STAGES.index("cpu_ready"),
    LoopKind.VTHREAD: STAGES.index("cpu_ready"),
}
"""Loop kinds, and the stage from which on they may not occur."""


def _outside(indices: tuple[PrimExpr, ...], region: BufferRegion, analyzer: Analyzer) -> bool:
    """Whether an access is certainly not inside a region."""
    for index, span in zip(indices, region.region, strict=True):
        if index is span.min or not index.dtype.is_scalar:
            continue
        if analyzer.prove(index < span.min) or analyzer.prove(index >= span.min + span.extent):
            return True
    return False


def _verify_program(program: Program, stage: str) -> None:
    functions = program.functions.values() if isinstance(program, IRModule) else [program]
    for function in functions:
        if isinstance(function, PrimFunc):
            verify(function, stage)


for _stage in STAGES:
    register_stage(_stage, partial(_verify_program, stage=_stage))
