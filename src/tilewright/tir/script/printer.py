"""The script printer: loop-level functions, modules and fragments as valid Python text that parses back the same.

print(to_script(func))
print(to_script(func, mark={loop_var: "does not divide"}))    # a comment on the line of that loop
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.function import ExternFunc, IRModule
from tilewright.ir.node import Node
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.tir import stmt as s
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.names import LOOP_WORDS, NameTable, identifier, quoted
from tilewright.tir.script.print_expr import ExprPrinter
from tilewright.tir.stmt import Block, For, LoopKind, Stmt

Mark = Mapping[Node | str, str]
"""Statements, variables or block names, and what to say on their lines."""

_WIDTH = 110
_WORD_OF_KIND: Final = {kind: word for word, kind in LOOP_WORDS.items() if word != "serial"}


def to_script(value: object, mark: Mark | None = None) -> str:
    """The script text of a function, a module, or (for people) a statement or expression."""
    if isinstance(value, IRModule):
        return _module(value)
    if isinstance(value, PrimFunc):
        return "\n".join(_FunctionPrinter(mark or {}).function(value))
    printer = _FunctionPrinter(mark or {})
    if isinstance(value, Stmt):
        for item in _unbound(value, ()):
            printer.names.of(item)
        printer.suite(value)
        return "\n".join(printer.lines)
    if isinstance(value, PrimExpr):
        lines = printer.exprs.aliases([value])
        return "\n".join([*lines, printer.exprs.text(value, INDEX)])
    if isinstance(value, BufferRegion):
        return printer.exprs.region(value)
    if isinstance(value, Buffer):
        return f"{printer.names.of(value)}: {printer.annotation(value)}"
    raise UnsupportedError(f"a {type(value).__name__} has no script form")


def _module(module: IRModule) -> str:
    if module.types:
        raise UnsupportedError("type definitions have no loop-level script form")
    parts: list[str] = []
    if module.attributes:
        parts.append(f"attributes = {_FunctionPrinter({}).literal(module.attributes)}")
    for key, function in module.functions.items():
        if isinstance(function, ExternFunc):
            parts.append(f"{identifier(key)} = extern_function({quoted(function.name)}, {quoted(key)})")
        elif isinstance(function, PrimFunc):
            parts.append("\n".join(_FunctionPrinter({}).function(function, key)))
        else:
            raise UnsupportedError(f"function {key} is a {type(function).__name__}: it has no loop-level script form")
    body = "\n\n".join(parts) or "pass"
    indented = "\n".join(f"    {line}" if line else "" for line in body.split("\n"))
    return f"@script.module\nclass Module:\n{indented}"


class _FunctionPrinter:
    """Prints one function (or a fragment)."""

    def __init__(self, mark: Mark) -> None:
        self.names = NameTable()
        self.exprs = ExprPrinter(self.names)
        self.lines: list[str] = []
        self.depth = 0
        self.mark = mark

    # ---------------------------------------------------------------- lines

    def emit(self, text: str, *marked: Node | str) -> None:
        """A line at the present depth, with a comment if any of the given things is marked."""
        notes = [self.mark[item] for item in marked if item in self.mark] if self.mark else []
        comment = f"  # <-- {'; '.join(notes)}" if notes else ""
        self.lines.append("    " * self.depth + text + comment)

    def _prepare(self, *roots: PrimExpr) -> None:
        for line in self.exprs.aliases(roots):
            self.emit(line)

    # ---------------------------------------------------------------- functions

    def function(self, func: PrimFunc, key: str | None = None) -> list[str]:
        """The lines of a function; `key` is its name in a module where that differs."""
        implicit = _implicit_root(func.body)
        name = identifier(func.name, "f")
        options = [f"name={quoted(func.name)}"] if name != func.name else []
        if key is not None and key != func.name:
            options.append(f"key={quoted(key)}")
        if not implicit and _looks_rooted(func.body):
            options.append("root_block=False")
        self.emit(f"@script.function({', '.join(options)})" if options else "@script.function")
        params = [self._param(param) for param in func.params]
        line = f"def {name}({', '.join(params)}):"
        if len(line) <= _WIDTH:
            self.emit(line)
        else:
            self.emit(f"def {name}(")
            for param in params:
                self.emit(f"    {param},")
            self.emit("):")
        self.depth += 1
        self._free(func)
        if func.attributes:
            self.emit(f"attributes({self.literal(func.attributes)})")
        if implicit:
            assert isinstance(func.body, Block)
            if self.mark.get(func.body) or self.mark.get(func.body.name):
                self.emit("# the root block", func.body, func.body.name)
            self._allocations(func.body.allocations)
            self.suite(func.body.body)
        else:
            self.suite(func.body)
        self.depth -= 1
        return self.lines

    def _param(self, param: Buffer | Var) -> str:
        if isinstance(param, Buffer):
            return f"{self.names.of(param)}: {self.annotation(param)}"
        dtype = str(param.dtype) if param.dtype.is_scalar else f'"{param.dtype}"'
        return f"{self.names.of(param)}: {dtype}"

    def annotation(self, buffer: Buffer) -> str:
        """The type annotation of a buffer parameter."""
        options = self._options(buffer)
        shape = self.exprs.shape(buffer.shape)
        if options:
            return f'Buffer({shape}, "{buffer.dtype}"{options})'
        return f'Buffer[{shape}, "{buffer.dtype}"]'

    def _options(self, buffer: Buffer) -> str:
        parts = []
        if buffer.scope != "global":
            parts.append(f"scope={quoted(buffer.scope)}")
        if buffer.strides:
            parts.append(f"strides={self.exprs.shape(buffer.strides)}")
        if buffer.offset is not e.ZERO:
            parts.append(f"offset={self.exprs.index(buffer.offset)}")
        if buffer.alignment:
            parts.append(f"alignment={buffer.alignment}")
        return "".join(f", {part}" for part in parts)

    def _free(self, func: PrimFunc) -> None:
        """Declare what the function uses but does not bind, besides index-typed dimensions of its parameters."""
        unbound = _unbound(func.body, func.params)
        dims = set(func.symbolic_dims())
        variables = [item for item in unbound if isinstance(item, Var)]
        odd = [var for var in variables if var not in dims or var.dtype is not INDEX]
        if odd:
            types = ", ".join(f'{self.names.of(var)}="{var.dtype}"' for var in odd)
            self.emit(f"symbolic({types})")
        for buffer in (item for item in unbound if isinstance(item, Buffer)):
            self.emit(f"{self.names.of(buffer)} = free_buffer({self._declaration(buffer)})")

    def _declaration(self, buffer: Buffer) -> str:
        return f'{self.exprs.shape(buffer.shape)}, "{buffer.dtype}"{self._options(buffer)}'

    def _allocations(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self.emit(f"{self.names.of(buffer)} = alloc_buffer({self._declaration(buffer)})", buffer)

    # ---------------------------------------------------------------- annotation values

    def literal(self, value: object) -> str:
        """An annotation value as a Python literal; expressions are wrapped in `expr(...)`."""
        if isinstance(value, PrimExpr):
            return f"expr({self.exprs.text(value)})"
        if isinstance(value, Buffer):
            return self.names.of(value)
        if isinstance(value, DataType):
            return f"dtype({quoted(str(value))})"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        if isinstance(value, str):
            return quoted(value)
        if isinstance(value, (tuple, list)):
            inner = ", ".join(self.literal(item) for item in value)
            if isinstance(value, list):
                return f"[{inner}]"
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.literal(k)}: {self.literal(v)}' for k, v in value.items())}}}"
        raise UnsupportedError(f"an annotation of type {type(value).__name__} has no script form")

    # ---------------------------------------------------------------- statements

    def suite(self, statement: Stmt) -> None:
        """The lines of a body."""
        while True:
            inside = False
            if isinstance(statement, s.SeqStmt) and len(statement.stmts) != 1:
                if not statement.stmts:
                    self.emit("pass", statement)
                    return
                for item in statement.stmts[:-1]:
                    self._stmt(item)
                statement, inside = statement.stmts[-1], True
            body = self._binding(statement)
            if body is None:
                if inside or not isinstance(statement, s.SeqStmt):
                    self._stmt(statement)
                else:
                    self._sequence(statement)
                return
            statement = body

    def _binding(self, statement: Stmt) -> Stmt | None:
        """Print a definition that holds for the rest of its suite, and give that rest."""
        self.exprs.forget_aliases()
        if isinstance(statement, s.LetStmt) and not isinstance(statement.value, Var):
            # (`x = y` would be a second name for y, not a new variable.)
            self._prepare(statement.value)
            value = self.exprs.text(statement.value)
            self.emit(f"{self.names.of(statement.var)} = {value}", statement, statement.var)
            return statement.body
        if isinstance(statement, s.Allocate):
            declaration = self._declaration(statement.buffer)
            self.emit(f"{self.names.of(statement.buffer)} = allocate({declaration})", statement, statement.buffer)
            return statement.body
        return None

    def _indented(self, statement: Stmt) -> None:
        self.depth += 1
        self.names.push()
        self.suite(statement)
        self.names.pop()
        self.depth -= 1

    def _stmt(self, statement: Stmt) -> None:
        self.exprs.forget_aliases()
        handler = _HANDLERS.get(type(statement))
        if handler is None:
            raise UnsupportedError(f"a statement {type(statement).__name__} has no script form")
        self.names.push()
        handler(self, statement)
        self.names.pop()

    def _sequence(self, statement: s.SeqStmt) -> None:
        # Reached for a sequence directly inside another, or one that holds a single statement.
        self.emit("with sequence():", statement)
        self.depth += 1
        if len(statement.stmts) == 1 and self._binding_alone(statement.stmts[0]):
            pass
        elif len(statement.stmts) == 1:
            self._stmt(statement.stmts[0])
        else:
            self.suite(statement)
        self.depth -= 1

    def _binding_alone(self, statement: Stmt) -> bool:
        body = self._binding(statement)
        if body is not None:
            self.suite(body)
        return body is not None

    def _store(self, statement: s.BufferStore) -> None:
        self._prepare(*statement.indices, statement.value)
        place = f"{self.names.of(statement.buffer)}[{self.exprs.indices(statement.indices)}]"
        value = self.exprs.text(statement.value, statement.buffer.dtype)
        self.emit(f"{place} = {value}", statement, statement.buffer)

    def _let(self, statement: s.LetStmt) -> None:
        self._prepare(statement.value)
        value = self.exprs.text(statement.value)
        self.emit(f"with let({value}) as {self.names.of(statement.var)}:", statement, statement.var)
        self._indented(statement.body)

    def _allocate(self, statement: s.Allocate) -> None:
        name, declaration = self.names.of(statement.buffer), self._declaration(statement.buffer)
        self.emit(f"with allocate({declaration}) as {name}:", statement, statement.buffer)
        self._indented(statement.body)

    def _if(self, statement: s.IfThenElse) -> None:
        self._prepare(statement.condition)
        self.emit(f"if {self.exprs.text(statement.condition)}:", statement)
        self._indented(statement.then_body)
        if statement.else_body is not None:
            self.emit("else:")
            self._indented(statement.else_body)

    def _while(self, statement: s.While) -> None:
        self._prepare(statement.condition)
        self.emit(f"while {self.exprs.text(statement.condition)}:", statement)
        self._indented(statement.body)

    def _assert(self, statement: s.Assert) -> None:
        self._prepare(statement.condition)
        self.emit(f"assert {self.exprs.text(statement.condition)}, {quoted(statement.message)}", statement)

    def _evaluate(self, statement: s.Evaluate) -> None:
        self._prepare(statement.value)
        self.emit(f"evaluate({self.exprs.text(statement.value)})", statement)

    def _for(self, loop: For) -> None:
        nest = self._grid(loop)
        if len(nest) > 1:
            names = ", ".join(self.names.of(item.var) for item in nest)
            extents = ", ".join(self.exprs.index(item.extent) for item in nest)
            self.emit(f"for {names} in grid({extents}):")
            self._indented(nest[-1].body)
            return
        self._prepare(loop.min, loop.extent)
        parts = [quoted(loop.thread or "")] if loop.kind is LoopKind.THREAD else []
        word = _WORD_OF_KIND[loop.kind]
        dtype = loop.var.dtype
        parts.append(self.exprs.text(loop.extent, dtype))
        if not (isinstance(loop.min, e.IntImm) and loop.min.value == 0 and loop.min.dtype is dtype):
            parts.append(f"start={self.exprs.text(loop.min, dtype)}")
        if dtype is not INDEX:
            parts.append(f'dtype="{dtype}"')
        if loop.thread is not None and loop.kind is not LoopKind.THREAD:
            parts.append(f"thread={quoted(loop.thread)}")
        if loop.annotations:
            parts.append(f"annotations={self.literal(loop.annotations)}")
        if word == "range" and len(parts) > 1:
            word = "serial"
        self.emit(f"for {self.names.of(loop.var)} in {word}({', '.join(parts)}):", loop, loop.var)
        self._indented(loop.body)

    def _grid(self, loop: For) -> list[For]:
        """The perfect nest of plain loops that starts here and prints on one line."""
        nest: list[For] = []
        item: Stmt = loop
        inner: set[Node] = set()
        while isinstance(item, For) and item.kind is LoopKind.SERIAL and item.thread is None and not item.annotations:
            marked = item in self.mark or item.var in self.mark
            if marked or item.min is not e.ZERO or item.var.dtype is not INDEX:
                break
            parts = list(pre_order(item.extent))
            if len(parts) > 20 or any(part in inner for part in parts):
                break
            inner.add(item.var)
            nest.append(item)
            item = item.body
        return nest

    # ---------------------------------------------------------------- blocks

    def _block(self, block: Block) -> None:
        self.emit(f"with block({quoted(block.name)}):", block, block.name)
        self.depth += 1
        self._iterators(block)
        if not e.is_const_int(block.predicate, 1) or not block.predicate.dtype.is_bool:
            self._prepare(block.predicate)
            self.emit(f"where({self.exprs.text(block.predicate)})")
        for word, regions in (("reads", block.reads), ("writes", block.writes)):
            self._prepare(*(bound for region in regions for item in region.region for bound in (item.min, item.extent)))
            self.emit(f"{word}({', '.join(self.exprs.region(region) for region in regions)})")
        if block.annotations:
            self.emit(f"annotations({self.literal(block.annotations)})")
        self._allocations(block.allocations)
        if block.init is not None:
            self.emit("with init():", block.init)
            self._indented(block.init)
        self.suite(block.body)
        self.depth -= 1

    def _iterators(self, block: Block) -> None:
        if not block.iters:
            return
        bounds = [bound for item in block.iters for bound in (item.domain.min, item.domain.extent, item.value)]
        self._prepare(*bounds)
        names = [self.names.of(item.var) for item in block.iters]
        values = [self._iterator(item) for item in block.iters]
        line = f"{', '.join(names)} = {', '.join(values)}"
        if len(line) + 4 * self.depth <= _WIDTH and not any(item.var in self.mark for item in block.iters):
            self.emit(line)
            return
        for name, value, item in zip(names, values, block.iters, strict=True):
            self.emit(f"{name} = {value}", item.var)

    def _iterator(self, item: s.BlockIter) -> str:
        dtype = item.var.dtype
        parts = [self.exprs.text(item.domain.extent, dtype), self.exprs.text(item.value, dtype)]
        low = item.domain.min
        if not (isinstance(low, e.IntImm) and low.value == 0 and low.dtype is dtype):
            parts.append(f"start={self.exprs.text(low, dtype)}")
        if dtype is not INDEX:
            parts.append(f'dtype="{dtype}"')
        return f"{item.kind.value}({', '.join(parts)})"


_HANDLERS: Final[dict[type, Callable[[_FunctionPrinter, Any], None]]] = {
    s.SeqStmt: _FunctionPrinter._sequence,
    s.BufferStore: _FunctionPrinter._store,
    s.LetStmt: _FunctionPrinter._let,
    s.Allocate: _FunctionPrinter._allocate,
    s.IfThenElse: _FunctionPrinter._if,
    s.While: _FunctionPrinter._while,
    s.Assert: _FunctionPrinter._assert,
    s.Evaluate: _FunctionPrinter._evaluate,
    For: _FunctionPrinter._for,
    Block: _FunctionPrinter._block,
}


def _contains_block(statement: Stmt) -> bool:
    return any(isinstance(item, Block) for item in pre_order(statement))


def _implicit_root(body: Stmt) -> bool:
    """Whether the body is a plain root block that can go without saying."""
    if not isinstance(body, Block) or body.name != "root" or body.iters or body.reads or body.writes:
        return False
    if body.init is not None or body.annotations or body.predicate is not e.TRUE:
        return False
    inner = body.body
    if isinstance(inner, Block) and inner.name == "root":
        return False
    return bool(body.allocations) or _contains_block(inner)


def _looks_rooted(body: Stmt) -> bool:
    """Whether the parser would put a root block around this body, which has none."""
    return not (isinstance(body, Block) and body.name == "root") and _contains_block(body)


def _unbound(body: Stmt, params: tuple[Buffer | Var, ...]) -> list[Var | Buffer]:
    """Variables and buffers that are used but not bound or declared, in order of use."""
    bound: set[Var | Buffer] = set(params)
    used: dict[Var | Buffer, None] = {}

    def note(item: Node) -> None:
        if isinstance(item, (Var, Buffer)) and item not in used:
            used[item] = None
            if isinstance(item, Buffer):
                for expr in (*item.shape, *item.strides, item.offset):
                    for part in pre_order(expr):
                        note(part)

    for param in params:
        note(param)
    for item in pre_order(body):
        note(item)
        if isinstance(item, (BufferLoad, BufferRegion, s.BufferStore)):
            note(item.buffer)
        elif isinstance(item, (For, s.LetStmt, s.BlockIter)):
            bound.add(item.var)
        elif isinstance(item, s.Allocate):
            bound.add(item.buffer)
            note(item.buffer)
        elif isinstance(item, Block):
            bound.update(item.allocations)
            for buffer in item.allocations:
                note(buffer)
    return [item for item in used if item not in bound]
