"""Parsing of statements: suites, assignments, loops, blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tilewright.arith.simplify import depends_on_memory
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import PrimExpr, Range, Var
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir import stmt as s
from tilewright.tir.analysis.accesses import with_detected_accesses
from tilewright.tir.buffer import Buffer, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.inline_call import inlined
from tilewright.tir.script.names import LOOP_WORDS
from tilewright.tir.script.parse_calls import CallParser
from tilewright.tir.script.parse_expr import Value
from tilewright.tir.script.source import Source
from tilewright.tir.stmt import Block, BlockIter, For, IterKind, LoopKind, Stmt

_ITERATORS: Final = {"spatial": IterKind.SPATIAL, "reduce": IterKind.REDUCE, "opaque": IterKind.OPAQUE}
_LOOP_KEYWORDS: Final = ("start", "dtype", "annotations", "thread")
_BUFFER_KEYWORDS: Final = ("dtype", "scope", "strides", "offset", "alignment")


@dataclass(slots=True)
class BlockFrame:
    """What has been read of the block being parsed."""

    iters: list[BlockIter] = field(default_factory=list)
    reads: tuple[BufferRegion, ...] | None = None
    writes: tuple[BufferRegion, ...] | None = None
    predicate: PrimExpr = e.TRUE
    annotations: dict[str, object] = field(default_factory=dict)
    allocations: list[Buffer] = field(default_factory=list)
    init: Stmt | None = None
    implicit: bool = False


class StatementParser(CallParser):
    """Parses the statements of a function."""

    def __init__(self, source: Source, constants: Mapping[str, object]) -> None:
        super().__init__(source, constants)
        self.blocks: list[BlockFrame] = []
        self.block_names: set[str] = {"root"}
        self.attributes: dict[str, object] = {}
        self._whiles = 0

    def new_buffer(self, call: ast.Call, name: str) -> Buffer:
        """A buffer from the arguments (shape, dtype, scope, ...) of a declaration."""
        self.arguments(call, 1, 3, _BUFFER_KEYWORDS)
        strides, offset = self.keyword(call, "strides"), self.keyword(call, "offset")
        dtype_node = call.args[1] if len(call.args) > 1 else self.keyword(call, "dtype")
        scope_node = call.args[2] if len(call.args) > 2 else self.keyword(call, "scope")
        alignment = self.keyword(call, "alignment")
        return Buffer(
            name,
            self.dims(call.args[0]),
            self.dtype(dtype_node) if dtype_node is not None else DataType.of("float32"),
            self.text(scope_node) if scope_node is not None else "global",
            self.dims(strides) if strides is not None else (),
            self.typed(offset, INDEX) if offset is not None else e.ZERO,
            self.integer(alignment) if alignment is not None else 0,
        )

    # ---------------------------------------------------------------- suites

    def suite(self, nodes: list[ast.stmt]) -> Stmt:
        """The statement that a list of lines makes."""
        return _join(self._lines(nodes))

    def _nested(self, nodes: list[ast.stmt]) -> Stmt:
        self.scope.push()
        body = self.suite(nodes)
        self.scope.pop()
        return body

    def _lines(self, nodes: list[ast.stmt]) -> list[Stmt]:
        statements: list[Stmt] = []
        # A definition holds for the rest of its suite: what stands before it waits here.
        waiting: list[tuple[list[Stmt], Callable[[Stmt], Stmt], ast.stmt]] = []
        for node in nodes:
            wrapper = self._binding(node)
            if wrapper is not None:
                waiting.append((statements, wrapper, node))
                statements = []
                continue
            result = self._located(node)
            if result is not None:
                if result.span is None:
                    result.span = self.source.span(node)
                # A call is as many statements as its function has.
                is_call = isinstance(node, ast.Expr) and isinstance(result, s.SeqStmt)
                statements.extend(result.stmts if is_call and isinstance(result, s.SeqStmt) else [result])
        while waiting:
            before, wrapper, node = waiting.pop()
            statement = wrapper(_join(statements))
            statement.span = self.source.span(node)
            statements = [*before, statement]
        return statements

    def _located(self, node: ast.stmt) -> Stmt | None:
        try:
            handler = _HANDLERS.get(type(node))
            if handler is None:
                raise self.source.error(node, f"a script has no statement {type(node).__name__}")
            return handler(self, node)
        except (UserError, CompilerBug) as error:
            if isinstance(error, UserError) and error.where:
                raise
            message = error.message if isinstance(error, UserError) else str(error.args[0])
            raise self.source.error(node, message, getattr(error, "hint", None)) from None

    def bind_new(self, node: ast.AST, name: str, value: Value) -> None:
        """Bind a name in the present suite, unless an enclosing one binds it."""
        if self.scope.bound_outside(name):
            raise self.source.error(
                node,
                f"{name} is already bound outside this suite; a value assigned here would be lost after it",
                "keep it in a buffer: x = alloc_buffer((1,), dtype), x[0] = ...",
            )
        self.scope.bind(name, value)

    def _binding(self, node: ast.stmt) -> Callable[[Stmt], Stmt] | None:
        """For `x = <scalar>` and `B = allocate(...)`: what to put around the rest of the suite."""
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            operation = ast.BinOp(left=ast.Name(id=node.target.id, ctx=ast.Load()), op=node.op, right=node.value)
            for part in (operation, operation.left):
                ast.copy_location(part, node)
            return self._define(node, node.target.id, self.value(operation))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            dtype = self.dtype(node.annotation)
            value = self.typed(node.value, dtype)
            return self._define(node, node.target.id, value if value.dtype is dtype else e.Cast(value, dtype))
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return None
        name = node.targets[0].id
        call = node.value if isinstance(node.value, ast.Call) else None
        word = self.callee(call) if call is not None else ""
        if call is not None and word == "allocate":
            buffer = self.new_buffer(call, name)
            self.bind_new(node, name, buffer)
            return lambda body: s.Allocate(buffer, body)
        if word in _ASSIGNED or word in _ITERATORS or word in self.assigned_words():
            return None
        return self._define(node, name, self.value(node.value))

    def assigned_words(self) -> frozenset[str]:
        """Further words whose result is assigned to a name by a statement of its own."""
        return frozenset()

    def _define(self, node: ast.stmt, name: str, value: Value) -> Callable[[Stmt], Stmt] | None:
        if not isinstance(value, PrimExpr) or isinstance(value, (Var, e.StringImm)):
            # Numbers, types, shapes, buffers: known while parsing.
            self.bind_new(node, name, value)
            return None
        var = Var(name, value.dtype)
        self.bind_new(node, name, var)
        bound: PrimExpr = value
        return lambda body: s.LetStmt(var, bound, body)

    # ---------------------------------------------------------------- assignments

    def _assign(self, node: ast.Assign) -> Stmt | None:
        if len(node.targets) != 1:
            raise self.source.error(node, "assign to one target at a time")
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return self._store(target, self.value(node.value), node.value)
        if isinstance(target, ast.Tuple):
            self._assign_many(target, node.value)
            return None
        if not isinstance(target, ast.Name):
            raise self.source.error(target, "a script assigns to names and buffer elements")
        if isinstance(node.value, ast.Call):
            self.assign_call(node, target.id, node.value)
        return None

    def assign_call(self, node: ast.AST, name: str, call: ast.Call) -> None:
        """`x = word(...)` for words that make neither a value nor a statement."""
        word = self.callee(call)
        if word in _ITERATORS:
            self._iterator(name, call)
        elif word == "alias":
            self.arguments(call, 1)
            self.bind_new(node, name, self.typed(call.args[0]))
        elif word == "alloc_buffer":
            buffer = self.new_buffer(call, name)
            self.bind_new(node, name, buffer)
            self.blocks[-1].allocations.append(buffer)
        elif word == "free_buffer":
            self.bind_new(node, name, self.new_buffer(call, name))
        elif word == "var":
            self.arguments(call, 0, 1, ("dtype",))
            dtype = self.keyword(call, "dtype")
            hint = self.text(call.args[0]) if call.args else name
            self.bind_new(node, name, Var(hint, self.dtype(dtype) if dtype is not None else INDEX))

    def _assign_many(self, target: ast.Tuple, value: ast.expr) -> None:
        names = [item.id for item in target.elts if isinstance(item, ast.Name)]
        if len(names) != len(target.elts):
            raise self.source.error(target, "a tuple of names is expected here")
        parts = value.elts if isinstance(value, ast.Tuple) else None
        if parts is not None and len(parts) == len(names):
            for name, part in zip(names, parts, strict=True):
                if isinstance(part, ast.Call) and (self.callee(part) in _ITERATORS or self.callee(part) in _ASSIGNED):
                    self.assign_call(part, name, part)
                else:
                    self._bind_static(part, name, self.value(part))
            return
        assigned = self.value(value)
        if not isinstance(assigned, (tuple, list)) or len(assigned) != len(names):
            raise self.source.error(value, f"{len(names)} values are expected here")
        for name, item in zip(names, assigned, strict=True):
            self._bind_static(value, name, item)

    def _bind_static(self, node: ast.AST, name: str, value: Value) -> None:
        if isinstance(value, PrimExpr) and not isinstance(value, (Var, e.IntImm, e.FloatImm)):
            raise self.source.error(node, "define scalar values one at a time: x = ...")
        self.bind_new(node, name, value)

    def _store(self, target: ast.Subscript, value: Value, node: ast.AST) -> Stmt:
        buffer = self.buffer(target.value)
        empty = isinstance(target.slice, ast.Tuple) and not target.slice.elts
        indices = () if empty else self.indices(target.slice)
        self.check_rank(target, buffer, len(indices))
        element = buffer.dtype.element
        expr = self.to_expr(value, node, element)
        if expr.dtype.element is not element:
            raise self.source.error(
                node,
                f"a {expr.dtype} is stored to buffer {buffer.name} of {buffer.dtype}",
                f"convert it: {element}(...)",
            )
        lanes = max([index.dtype.lanes for index in indices], default=1) * buffer.dtype.lanes
        if expr.dtype.lanes != lanes:
            if expr.dtype.lanes != 1:
                raise self.source.error(node, f"{expr.dtype.lanes} lanes are stored to {lanes} places")
            expr = e.Broadcast(expr, lanes)
        return s.BufferStore(buffer, indices, expr)

    def _augmented(self, node: ast.AugAssign) -> Stmt | None:
        if not isinstance(node.target, ast.Subscript):
            raise self.source.error(node.target, "a script assigns to names and buffer elements")
        load = ast.Subscript(value=node.target.value, slice=node.target.slice, ctx=ast.Load())
        operation = ast.BinOp(left=load, op=node.op, right=node.value)
        for part in (load, operation):
            ast.copy_location(part, node)
        return self._store(node.target, self.value(operation), node.value)

    # ---------------------------------------------------------------- control flow

    def _for(self, node: ast.For) -> Stmt:
        if node.orelse:
            raise self.source.error(node, "a loop of a script has no else")
        if not isinstance(node.iter, ast.Call):
            raise self.source.error(node.iter, "a loop runs over range(...), grid(...), parallel(...) and the like")
        call = node.iter
        word = self.callee(call)
        if word == "grid":
            return self._grid(node, call)
        if not isinstance(node.target, ast.Name):
            raise self.source.error(node.target, "one loop variable is expected here")
        var, make = self.loop(node.target, call, word)
        return make(self._loop_body(node, {node.target.id: var}))

    def _loop_body(self, node: ast.For, variables: dict[str, Var]) -> Stmt:
        self.scope.push()
        for name, var in variables.items():
            if self.scope.bound_outside(name):
                raise self.source.error(node.target, f"the loop variable {name} is already bound outside the loop")
            self.scope.bind(name, var)
        body = self.suite(node.body)
        self.scope.pop()
        return body

    def _grid(self, node: ast.For, call: ast.Call) -> Stmt:
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = [item.id for item in targets if isinstance(item, ast.Name)]
        if len(names) != len(targets) or len(set(names)) != len(names):
            raise self.source.error(node.target, "distinct loop variables are expected here")
        if call.keywords or len(call.args) != len(names):
            raise self.source.error(call, f"grid has {len(call.args)} extents for {len(names)} loop variables")
        extents = [self.typed(item, INDEX) for item in call.args]
        variables = {name: Var(name, INDEX) for name in names}
        body = self._loop_body(node, variables)
        for name, extent in reversed(list(zip(names, extents, strict=True))):
            body = For(variables[name], e.ZERO, extent, LoopKind.SERIAL, body)
            body.span = self.source.span(node)
        return body

    def loop(self, target: ast.Name, call: ast.Call, word: str) -> tuple[Var, Callable[[Stmt], Stmt]]:
        """The variable of a loop, and what makes the loop of a body."""
        kind = LOOP_WORDS.get(word)
        if kind is None:
            raise self.source.error(
                call, f"a loop cannot run over {word}(...)", f"one of grid, {', '.join(LOOP_WORDS)}"
            )
        thread_node = self.keyword(call, "thread")
        args = list(call.args)
        if kind is LoopKind.THREAD:
            self.arguments(call, 1, 3, _LOOP_KEYWORDS)
            thread_node = args.pop(0)
        self.arguments(call, 1, 3, _LOOP_KEYWORDS)
        if not args or len(args) > 2:
            raise self.source.error(call, f"{word} takes an extent, or a start and an end")
        dtype_node = self.keyword(call, "dtype")
        dtype = self.dtype(dtype_node) if dtype_node is not None else INDEX
        start_node = self.keyword(call, "start")
        low: PrimExpr = self.typed(start_node, dtype) if start_node is not None else e.IntImm(0, dtype)
        extent = self.typed(args[-1], dtype)
        if len(args) == 2:
            low = self.typed(args[0], dtype)
            extent = build.sub(extent, low)
        for bound in (low, extent):
            if not bound.dtype.is_integer:
                raise self.source.error(call, f"the bounds of a loop are integers, not {bound.dtype}")
        var = Var(target.id, dtype)
        thread = self.text(thread_node) if thread_node is not None else None
        annotations = self.annotations(self.keyword(call, "annotations"))
        return var, lambda body: For(var, low, extent, kind, body, thread, annotations)

    def annotations(self, node: ast.expr | None) -> dict[str, object]:
        """A dictionary of notes."""
        if node is None:
            return {}
        value = self.value(node)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.source.error(node, "a dictionary with names as keys is expected here")
        return value

    def _if(self, node: ast.If) -> Stmt | None:
        test = self.value(node.test)
        if isinstance(test, bool):
            # Known while parsing: only the chosen side is part of the program.
            chosen = node.body if test else node.orelse
            return self._nested(chosen) if chosen else None
        condition = self.as_condition(test, node.test)
        then_body = self._nested(node.body)
        else_body = self._nested(node.orelse) if node.orelse else None
        return s.IfThenElse(condition, then_body, else_body)

    def _while(self, node: ast.While) -> Stmt | None:
        if node.orelse:
            raise self.source.error(node, "a loop of a script has no else")
        condition = self.condition(node.test)
        if condition is e.FALSE:
            return None
        if not depends_on_memory(condition):
            raise self.source.error(
                node.test,
                "nothing in this loop can change its condition, which reads no buffer: once begun, it would never end",
                "keep what decides in a buffer: x = alloc_buffer((1,), dtype), while x[0] < ...",
            )
        self._whiles += 1
        body = self._nested(node.body)
        self._whiles -= 1
        return s.While(condition, body)

    def _leave(self, node: ast.Break | ast.Continue) -> None:
        word = "break" if isinstance(node, ast.Break) else "continue"
        raise self.source.error(
            node, f"a script has no {word}", "make it part of the condition of a while loop, or of an if"
        )

    def _assert(self, node: ast.Assert) -> Stmt:
        message = self.text(node.msg) if node.msg is not None else ast.unparse(node.test)
        return s.Assert(self.condition(node.test), message)

    def _pass(self, node: ast.Pass) -> None:
        return None

    def _return(self, node: ast.Return) -> None:
        raise self.source.error(node, "a script returns nothing: results are stored to buffers")

    # ---------------------------------------------------------------- calls as statements

    def _expression(self, node: ast.Expr) -> Stmt | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        if not isinstance(node.value, ast.Call):
            raise self.source.error(node, "an expression alone does nothing")
        call = node.value
        word = self.callee(call)
        if word in ("reads", "writes", "where", "annotations"):
            self._block_header(word, call)
            return None
        if word == "attributes":
            self.arguments(call, 1)
            self.attributes = self.annotations(call.args[0])
            return None
        if word == "symbolic":
            return None
        known, callee = self.scope.find(word) if isinstance(call.func, ast.Name) else (False, None)
        if known and isinstance(callee, PrimFunc):
            return self._call(call, callee)
        if word == "evaluate":
            self.arguments(call, 1)
            return s.Evaluate(self.typed(call.args[0]))
        return s.Evaluate(self.typed(call))

    def _call(self, node: ast.Call, callee: PrimFunc) -> Stmt:
        """The statements of another script function, in place of a call."""
        if node.keywords:
            raise self.source.error(node, f"the arguments of {callee.name} are given by position")
        if any(not frame.implicit for frame in self.blocks):
            raise self.source.error(node, f"{callee.name} cannot be called inside a block", "call it between blocks")
        if self._whiles:
            raise self.source.error(node, f"{callee.name} cannot be called inside a while loop")
        args: list[Buffer | PrimExpr] = []
        for param, item in zip(callee.params, node.args, strict=False):
            value = self.value(item)
            args.append(value if isinstance(value, Buffer) else self.typed(item, getattr(param, "dtype", None)))
        args += [self.typed(item) for item in node.args[len(args) :]]
        body, allocated = inlined(callee, args, self.block_names)
        self.blocks[-1].allocations.extend(allocated)
        return body

    def _frame(self, node: ast.AST, word: str) -> BlockFrame:
        frame = self.blocks[-1]
        if frame.implicit:
            raise self.source.error(node, f"{word} stands inside `with block(...)`")
        return frame

    def _block_header(self, word: str, call: ast.Call) -> None:
        frame = self._frame(call, word)
        if word == "where":
            self.arguments(call, 1)
            frame.predicate = self.condition(call.args[0])
        elif word == "annotations":
            self.arguments(call, 1)
            frame.annotations = self.annotations(call.args[0])
        elif word == "reads":
            frame.reads = tuple(self.region(item) for item in call.args)
        else:
            frame.writes = tuple(self.region(item) for item in call.args)

    def _iterator(self, name: str, call: ast.Call) -> None:
        word = self.callee(call)
        frame = self._frame(call, word)
        self.arguments(call, 2, 2, ("start", "dtype"))
        dtype_node, start_node = self.keyword(call, "dtype"), self.keyword(call, "start")
        dtype = self.dtype(dtype_node) if dtype_node is not None else INDEX
        low = self.typed(start_node, dtype) if start_node is not None else e.IntImm(0, dtype)
        extent, value = self.typed(call.args[0], dtype), self.typed(call.args[1], dtype)
        var = Var(name, dtype)
        frame.iters.append(BlockIter(var, Range(low, extent), _ITERATORS[word], value))
        self.bind_new(call, name, var)

    # ---------------------------------------------------------------- with

    def _with(self, node: ast.With) -> Stmt | None:
        if len(node.items) != 1 or not isinstance(node.items[0].context_expr, ast.Call):
            raise self.source.error(node, "a script has `with block(...)`, init(), let(...), allocate(...), sequence()")
        call = node.items[0].context_expr
        variable = node.items[0].optional_vars
        word = self.callee(call)
        if word == "block":
            return self._block(node, call)
        if word == "init":
            self._frame(node, "init").init = self._nested(node.body)
            return None
        if word == "sequence":
            self.scope.push()
            items = self._lines(node.body)
            self.scope.pop()
            return s.SeqStmt(tuple(items))
        if word not in ("let", "allocate") or not isinstance(variable, ast.Name):
            raise self.source.error(node, f"a script has no `with {word}(...)` of this form")
        self.scope.push()
        if word == "let":
            self.arguments(call, 1)
            value = self.typed(call.args[0])
            var = Var(variable.id, value.dtype)
            self.bind_new(node, variable.id, var)
            result: Stmt = s.LetStmt(var, value, self.suite(node.body))
        else:
            buffer = self.new_buffer(call, variable.id)
            self.bind_new(node, variable.id, buffer)
            result = s.Allocate(buffer, self.suite(node.body))
        self.scope.pop()
        return result

    def _block(self, node: ast.With, call: ast.Call) -> Stmt:
        self.arguments(call, 1)
        if self._whiles:
            raise self.source.error(node, "a while loop holds no blocks", "put the whole loop into a block instead")
        name = self.text(call.args[0])
        self.block_names.add(name)
        frame = BlockFrame()
        self.blocks.append(frame)
        body = self._nested(node.body)
        self.blocks.pop()
        block = Block(
            name,
            tuple(frame.iters),
            frame.reads or (),
            frame.writes or (),
            body,
            frame.init,
            frame.predicate,
            tuple(frame.allocations),
            frame.annotations,
        )
        block.span = self.source.span(node)
        is_root = name == "root" and not frame.iters
        if (frame.reads is None or frame.writes is None) and not is_root:
            detected = with_detected_accesses(block)
            block = block.replace(
                reads=detected.reads if frame.reads is None else block.reads,
                writes=detected.writes if frame.writes is None else block.writes,
            )
        return block


_ASSIGNED: Final = frozenset(["alias", "alloc_buffer", "free_buffer", "var"])
_HANDLERS: Final[dict[type, Callable[..., Stmt | None]]] = {
    ast.Assign: StatementParser._assign,
    ast.AugAssign: StatementParser._augmented,
    ast.For: StatementParser._for,
    ast.If: StatementParser._if,
    ast.While: StatementParser._while,
    ast.Break: StatementParser._leave,
    ast.Continue: StatementParser._leave,
    ast.Assert: StatementParser._assert,
    ast.Pass: StatementParser._pass,
    ast.Return: StatementParser._return,
    ast.Expr: StatementParser._expression,
    ast.With: StatementParser._with,
}


def _join(items: list[Stmt]) -> Stmt:
    return items[0] if len(items) == 1 else s.SeqStmt(tuple(items))
