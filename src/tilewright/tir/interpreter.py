"""The reference interpreter of loop-level functions: slow, exact, checked. The meaning is `docs/semantics.md`.

    interpret(func, a, b, c)        # writes results into the arrays of output buffers

A function is turned into Python source once (kept while the function lives) and run on lists of scalars. It works
before and after every lowering pass: with blocks or without, multi-dimensional or flattened buffers, vectors or loops.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.ir import expr as e
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir import numbers
from tilewright.tir import stmt as s
from tilewright.tir.analysis.empty_reductions import empty_init, init_at_start, may_be_empty, reductions
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.evaluate import ExprCompiler, evaluate
from tilewright.tir.function import PrimFunc
from tilewright.tir.numbers import Array, InterpreterError
from tilewright.tir.stmt import Block, For, IterKind, LoopKind, Stmt
from tilewright.tir.value_bounds import Bounds, type_range

_FILE = "<tilewright interpreter>"
_LOOP_DEPTH = 14
"""Loops nested deeper than this move to a function: Python allows 20 nested blocks in one."""
_LARGEST_DIM = 1 << 48
"""No array has a dimension above this, so index arithmetic on symbolic dimensions needs no wrapping."""

Extern = Callable[..., object]


def interpret(
    func: PrimFunc,
    *arguments: Array | int | float | bool,
    check_bounds: bool = True,
    externs: Mapping[str, Extern] | None = None,
) -> None:
    """Run a function on arrays and scalars; results are written into the arrays given for its buffers.

    One argument a parameter, in order. Symbolic dimensions are taken from the shapes of the arrays; they may also be
    given as further integers (in the order of `func.symbolic_dims()`), which a flattened function needs. An array may
    have any shape of the right number of elements if the shape of the buffer is otherwise known. bfloat16 arrays are
    uint16 (or of ml_dtypes), those of small floats uint8.
    """
    program = _compiled(func, check_bounds)
    binding = _Binding(func, arguments)
    lists = [binding.list_of(param) if isinstance(param, Buffer) else binding.scalars[param] for param in func.params]
    dims = [binding.dims[var] for var in func.symbolic_dims()]
    with np.errstate(all="ignore"):
        try:
            program.run(*lists, *dims, externs=dict(externs or {}))
        except ZeroDivisionError as error:
            raise InterpreterError("integer division by zero", where=program.place(error.__traceback__)) from None
        except InterpreterError as error:
            where = error.where or program.place(error.__traceback__)
            raise InterpreterError(error.message, where=where, hint=error.hint) from None
        except KeyError as error:
            raise InterpreterError(
                f"the external function {error.args[0]!r} is not known",
                hint="pass it: interpret(..., externs={name: function})",
            ) from None
    binding.write_back(program.written)


class _Binding:
    """Arguments matched with parameters: dimensions, and one list for each piece of memory."""

    def __init__(self, func: PrimFunc, arguments: Sequence[Array | int | float | bool]) -> None:
        symbols = func.symbolic_dims()
        params = func.params
        if len(arguments) not in (len(params), len(params) + len(symbols)):
            extra = f" (and optionally {len(symbols)} dimensions)" if symbols else ""
            raise UserError(f"{func.name} takes {len(params)} arguments{extra}, {len(arguments)} were given")
        self.dims: dict[Var, int] = {}
        self.arrays: dict[Buffer, Array] = {}
        self._lists: dict[tuple[int, str, int], list[Any]] = {}
        for var, value in zip(symbols, arguments[len(params) :], strict=False):
            self.dims[var] = numbers.to_scalar(value, var.dtype)
        self.scalars: dict[Var, int | float | bool] = {}
        scalars = self.scalars
        for param, value in zip(params, arguments, strict=False):
            if isinstance(param, Var):
                if isinstance(value, np.ndarray) and value.ndim:
                    raise UserError(f"{func.name}: parameter {param.name} is a scalar, an array was given")
                scalars[param] = numbers.to_scalar(value[()] if isinstance(value, np.ndarray) else value, param.dtype)
            else:
                self.arrays[param] = _as_array(func, param, value)
        for buffer, array in self.arrays.items():
            self._bind_dims(buffer, array, known=set(scalars))
        missing = [var.name for var in symbols if var not in self.dims]
        if missing:
            raise UserError(
                f"{func.name}: the dimensions {', '.join(missing)} do not follow from the shapes of the arrays",
                hint="pass them as further integers after the arguments",
            )
        for buffer, array in self.arrays.items():
            self._check_shape(func, buffer, array, {**self.dims, **scalars})

    def _bind_dims(self, buffer: Buffer, array: Array, known: set[Var]) -> None:
        if array.ndim != buffer.ndim:
            return
        for dim, extent in zip(buffer.shape, array.shape, strict=True):
            if isinstance(dim, Var) and dim not in known:
                self.dims.setdefault(dim, extent)
        if buffer.strides:
            for stride, actual in zip(buffer.strides, array.strides, strict=True):
                if isinstance(stride, Var) and stride not in known:
                    self.dims.setdefault(stride, actual // array.itemsize)
        if isinstance(buffer.offset, Var) and buffer.offset not in known:
            self.dims.setdefault(buffer.offset, 0)

    def _check_shape(self, func: PrimFunc, buffer: Buffer, array: Array, values: dict[Var, Any]) -> None:
        expected = tuple(evaluate(dim, values) for dim in buffer.shape)
        count = int(np.prod(expected, dtype=np.int64)) * buffer.dtype.lanes
        if array.size != count or (array.ndim == len(expected) > 1 and array.shape != expected):
            raise UserError(f"{func.name}: buffer {buffer.name} has shape {expected}, the array has {array.shape}")

    def list_of(self, buffer: Buffer) -> list[Any]:
        """The list that holds a buffer's elements; arrays at the same place share one."""
        array = self.arrays[buffer]
        key = self._key(array)
        if key not in self._lists:
            self._lists[key] = numbers.to_list(array, buffer.dtype)
        return self._lists[key]

    @staticmethod
    def _key(array: Array) -> tuple[int, str, int]:
        return array.ctypes.data, array.dtype.str, array.size

    def write_back(self, written: set[Buffer]) -> None:
        """Copy the contents of written buffers into the arrays that were given."""
        for buffer, array in self.arrays.items():
            if buffer in written:
                flat = numbers.from_list(self._lists[self._key(array)], buffer.dtype)
                array[...] = flat.reshape(array.shape)


def _as_array(func: PrimFunc, buffer: Buffer, value: object) -> Array:
    if not isinstance(value, np.ndarray):
        raise UserError(f"{func.name}: parameter {buffer.name} is a buffer, {value!r} was given")
    storage = buffer.dtype.numpy()
    if value.dtype == storage:
        return value
    if value.dtype.name == buffer.dtype.element.name:
        return value.view(storage)
    raise UserError(
        f"{func.name}: buffer {buffer.name} holds {buffer.dtype}, an array of {value.dtype} was given",
        hint=f"convert it: array.astype({storage.name!r})",
    )


class _Program:
    """The generated function, and what is needed to explain its failures."""

    def __init__(self, func: PrimFunc, check_bounds: bool) -> None:
        compiler = _Compiler(check_bounds)
        source = compiler.function(func)
        self.written = compiler.written
        self.source = source
        self._statements = compiler.statements
        self._shown = compiler.exprs.names.shown
        self._name = func.name
        namespace: dict[str, Any] = dict(compiler.exprs.constants)
        exec(compile(source, _FILE, "exec"), namespace)
        self.run: Callable[..., None] = namespace["run"]

    def place(self, trace: TracebackType | None) -> str:
        """Where a failure happened: the function, the statement, and the values of the variables there."""
        values: dict[str, object] = {}
        statement: Stmt | None = None
        for frame, line in traceback.walk_tb(trace):
            if frame.f_code.co_filename == _FILE:
                statement = self._statements.get(line, statement)
                for name, value in frame.f_locals.items():
                    if name in self._shown:
                        values[name] = value
        parts = [self._name]
        if statement is not None:
            parts.append(f"{statement.span}" if statement.span else _describe(statement))
        if values:
            parts.append("with " + ", ".join(f"{self._shown[name]} = {value}" for name, value in values.items()))
        return ", ".join(parts)


def _describe(statement: Stmt) -> str:
    if isinstance(statement, s.BufferStore):
        return f"the store to {statement.buffer.name}"
    if isinstance(statement, Block):
        return f"block {statement.name}"
    return f"a statement {type(statement).__name__}"


_programs: Final[dict[bool, WeakKeyDictionary[PrimFunc, _Program]]] = {
    True: WeakKeyDictionary(),
    False: WeakKeyDictionary(),
}


def _compiled(func: PrimFunc, check_bounds: bool) -> _Program:
    table = _programs[check_bounds]
    program = table.get(func)
    if program is None:
        program = table[func] = _Program(func, check_bounds)
    return program


class _Compiler:
    """Statements to Python source."""

    def __init__(self, check_bounds: bool) -> None:
        self.exprs = ExprCompiler(check_bounds)
        self.regions = self.exprs.regions
        self.statements: dict[int, Stmt] = {}
        self.written: set[Buffer] = set()
        self._loops = 0
        self._in_group = False
        self._barriers: dict[Stmt, bool] = {}
        self._empty_inits: dict[int, list[Stmt]] = {}
        """Inits of reductions over nothing, by the identity of the loop or block in front of which they are due."""

    @property
    def _bounds(self) -> Bounds:
        return self.exprs.bounds

    # ---------------------------------------------------------------- functions

    def function(self, func: PrimFunc) -> str:
        """The source of a function."""
        dims = func.symbolic_dims()
        for dim in dims:
            self._bounds.bind(dim, (0, _LARGEST_DIM) if dim.dtype.bits == 64 else None)
            self.regions.bind(dim)
        for param in func.params:
            if isinstance(param, Var):
                self.regions.bind(param)
        arguments = [self.exprs.names.of(param) for param in (*func.params, *dims)]
        for buffer in func.buffers:
            self._declare(buffer, 1)
        self._plan_empty_inits(func.body)
        self._stmt(func.body, 1)
        loads = [f" {name} = {name}_" for name in self.exprs.constants]
        lines = self.regions.lines
        self.statements = {number: stmt for number, (_, stmt) in enumerate(lines, len(loads) + 2) if stmt is not None}
        body = [line for line, _ in lines] or [" pass"]
        header = f"def run({', '.join([*arguments, 'externs'])}):"
        # Constants are locals of the function: the fastest names in Python.
        self.exprs.constants = {f"{name}_": value for name, value in self.exprs.constants.items()}
        return "\n".join([header, *loads, *body])

    def _emit(self, depth: int, text: str, statement: Stmt | None = None) -> None:
        for line in text.split("\n"):
            self.regions.lines.append((" " * depth + line, statement))

    def _declare(self, buffer: Buffer, depth: int) -> None:
        """Make the shape of a buffer known; symbolic dimensions become local variables."""
        shape: list[str | int] = []
        for dim in buffer.shape:
            value = const_value(dim)
            if value is not None:
                shape.append(value)
                continue
            name = self.exprs.names.fresh("dim")
            self._prepare([dim], depth, None)
            text = self.exprs.scalar(dim)
            self._flush(depth)
            self._emit(depth, f"{name} = {text}")
            shape.append(name)
        self.exprs.shapes[buffer] = tuple(shape)

    def _prepare(self, roots: Sequence[PrimExpr], depth: int, statement: Stmt | None) -> None:
        names = self.exprs.start(roots)
        if names:
            self._emit(depth, f"{' = '.join(names)} = None", statement)

    def _flush(self, depth: int) -> None:
        for item in self.exprs.prelude:
            self._emit(depth, item)
        self.exprs.prelude = []

    def _value(self, expr: PrimExpr, depth: int, statement: Stmt | None) -> str:
        """The source of a scalar expression, with what it needs emitted before it."""
        self._prepare([expr], depth, statement)
        text = self.exprs.scalar(expr)
        self._flush(depth)
        return text

    def _plan_empty_inits(self, body: Stmt) -> None:
        for block, path in reductions(body):
            if not may_be_empty(block, path):
                continue
            init = empty_init(block, path)
            if not isinstance(init, str):
                due = init.around(init_at_start(block))
                self._empty_inits.setdefault(id(init.place), []).append(due)

    # ---------------------------------------------------------------- statements

    def _stmt(self, statement: Stmt, depth: int) -> None:
        for init in self._empty_inits.get(id(statement), ()):
            self._stmt(init, depth)
        handler = _HANDLERS.get(type(statement))
        if handler is None:
            raise CompilerBug(f"the interpreter does not know the statement {type(statement).__name__}")
        handler(self, statement, depth)

    def _suite(self, statement: Stmt, depth: int) -> None:
        header = self.regions.lines[-1]
        self._stmt(statement, depth)
        if self.regions.lines[-1] is header:
            self._emit(depth, "pass")

    def _seq(self, statement: s.SeqStmt, depth: int) -> None:
        for item in statement.stmts:
            self._stmt(item, depth)

    def _store(self, statement: s.BufferStore, depth: int, mask: PrimExpr | None = None) -> None:
        buffer, lanes = statement.buffer, statement.value.dtype.lanes
        self.written.add(buffer)
        places = max([index.dtype.lanes for index in statement.indices], default=1) * buffer.dtype.lanes
        if lanes != places:
            raise CompilerBug(f"store of {lanes} lanes to {places} places of {buffer.name}")
        roots = (*statement.indices, statement.value)
        if lanes == 1:
            self._prepare(roots, depth, statement)
            value, place = self.exprs.scalar(statement.value), self.exprs.index(buffer, statement.indices)
            self._flush(depth)
            self._emit(depth, f"{self.exprs.names.of(buffer)}[{place}] = {value}", statement)
            return
        # All lanes are computed before any is stored, as one vector operation does.
        pairs = self.exprs.names.fresh("pairs")
        self._emit(depth, f"{pairs} = []")
        self.regions.enter(depth)
        self._emit(depth, f"for lane in range({lanes}):")
        inner = depth + 1
        if mask is not None:
            self._emit(inner, f"if {self._value(mask, inner, statement)}:", statement)
            inner += 1
        self._prepare(roots, inner, statement)
        value, place = self.exprs.scalar(statement.value), self.exprs.index(buffer, statement.indices)
        self._flush(inner)
        self._emit(inner, f"{pairs}.append(({place}, {value}))", statement)
        self.regions.leave()
        self._emit(depth, f"for place, value in {pairs}:")
        self._emit(depth + 1, f"{self.exprs.names.of(buffer)}[place] = value", statement)

    def _let(self, statement: s.LetStmt, depth: int) -> None:
        value = statement.value
        lanes = value.dtype.lanes
        name = self.exprs.names.of(statement.var)
        if lanes == 1:
            self._emit(depth, f"{name} = {self._value(value, depth, statement)}", statement)
            bounded = value.dtype.is_integer or value.dtype.is_bool
            self._bounds.bind(statement.var, self._bounds.of(value) if bounded else None)
            self.regions.bind(statement.var)
        else:
            items = self.exprs.names.fresh("items")
            self._emit(depth, f"{items} = []")
            self._emit(depth, f"for lane in range({lanes}):")
            self._emit(depth + 1, f"{items}.append({self._value(value, depth + 1, statement)})", statement)
            self._emit(depth, f"{name} = {items}")
        self._stmt(statement.body, depth)

    def _if(self, statement: s.IfThenElse, depth: int) -> None:
        if statement.condition.dtype.lanes > 1:
            self._masked(statement, depth)
            return
        condition = self._value(statement.condition, depth, statement)
        self.regions.enter(depth)
        self._emit(depth, f"if {condition}:", statement)
        self._suite(statement.then_body, depth + 1)
        line = self.regions.leave()
        if statement.else_body is not None:
            self.regions.enter(depth, line)
            self._emit(depth, "else:")
            self._suite(statement.else_body, depth + 1)
            self.regions.leave()

    def _masked(self, statement: s.IfThenElse, depth: int) -> None:
        """A vector condition: the one store under it happens in the lanes where it holds."""
        store = statement.then_body
        if not isinstance(store, s.BufferStore) or statement.else_body is not None:
            raise CompilerBug("a vector condition guards a single store and has no else")
        if store.value.dtype.lanes != statement.condition.dtype.lanes:
            raise CompilerBug("a vector condition has the lanes of the store under it")
        self._store(store, depth, statement.condition)

    def _assert(self, statement: s.Assert, depth: int) -> None:
        test = self._value(statement.condition, depth, statement)
        fail = self.exprs.constant(("assert", statement), _failure(statement.message))
        self._emit(depth, f"if not {test}: {fail}()", statement)

    def _evaluate(self, statement: s.Evaluate, depth: int) -> None:
        value = statement.value
        if isinstance(value, e.Call) and value.name == "barrier":
            if self._in_group:
                self._emit(depth, f"yield 'barrier {id(statement)}'", statement)
            return
        for item in pre_order(value):
            if isinstance(item, e.Call) and item.name == "access_ptr" and isinstance(item.args[1], BufferLoad):
                self.written.add(item.args[1].buffer)
        if value.dtype.lanes > 1:
            self._emit(depth, f"for lane in range({value.dtype.lanes}):")
            self._emit(depth + 1, self._value(value, depth + 1, statement), statement)
            return
        self._emit(depth, self._value(value, depth, statement), statement)

    def _allocate(self, statement: s.Allocate, depth: int) -> None:
        self._new_buffer(statement.buffer, depth, statement)
        self._stmt(statement.body, depth)

    def _new_buffer(self, buffer: Buffer, depth: int, statement: Stmt) -> None:
        self._declare(buffer, depth)
        size = " * ".join(str(dim) for dim in (*self.exprs.shapes[buffer], buffer.dtype.lanes))
        fill = self.exprs.constant(("poison", buffer.dtype), numbers.poison(buffer.dtype))
        self._emit(depth, f"{self.exprs.names.of(buffer)} = [{fill}] * ({size})", statement)

    # ---------------------------------------------------------------- loops

    def _has_barrier(self, statement: Stmt) -> bool:
        known = self._barriers.get(statement)
        if known is None:
            known = any(isinstance(item, e.Call) and item.name == "barrier" for item in pre_order(statement))
            self._barriers[statement] = known
        return known

    def _for(self, loop: For, depth: int) -> None:
        group = loop.kind is LoopKind.VTHREAD or (loop.thread or "").startswith(("threadIdx", "clusterIdx"))
        if group and self._has_barrier(loop):
            self._threads(loop, depth)
            return
        if self._loops >= _LOOP_DEPTH:
            self._outlined(loop, depth)
            return
        iterations = self._iterations(loop, depth)
        self.regions.enter(depth)
        self.regions.bind(loop.var)
        self._emit(depth, f"for {self.exprs.names.of(loop.var)} in {iterations}:", loop)
        self._loops += 1
        self._suite(loop.body, depth + 1)
        self._loops -= 1
        self.regions.leave()

    def _while(self, loop: s.While, depth: int) -> None:
        if self._loops >= _LOOP_DEPTH:
            self._outlined(loop, depth)
            return
        # What the condition needs is computed anew each time.
        self.regions.enter(depth)
        self._emit(depth, "while True:", loop)
        self._emit(depth + 1, f"if not {self._value(loop.condition, depth + 1, loop)}: break", loop)
        self._loops += 1
        self._stmt(loop.body, depth + 1)
        self._loops -= 1
        self.regions.leave()

    def _iterations(self, loop: For, depth: int) -> str:
        """The source of the values of a loop's variable; its bounds become known."""
        extent = self._value(loop.extent, depth, loop)
        start = const_value(loop.min)
        text = f"range({extent})"
        if start != 0:
            low = self.exprs.names.fresh("low")
            self._emit(depth, f"{low} = {self._value(loop.min, depth, loop)}", loop)
            text = f"range({low}, {low} + {extent})"
        (least, _), (_, greatest) = self._bounds.of(loop.min), self._bounds.of(loop.min)
        _, longest = self._bounds.of(loop.extent)
        whole = type_range(loop.var.dtype)
        high = greatest + longest - 1
        fits = whole[0] <= least and least <= high <= whole[1]
        self._bounds.bind(loop.var, (least, high) if fits else None)
        return text

    def _outlined(self, loop: For | s.While, depth: int) -> None:
        name = self.exprs.names.fresh("loop")
        generator = self._in_group and self._has_barrier(loop)
        self.regions.enter(depth)
        self._emit(depth, f"def {name}():")
        before, self._loops = self._loops, 0
        self._stmt(loop, depth + 1)
        self._loops = before
        self.regions.leave()
        self._emit(depth, f"yield from {name}()" if generator else f"{name}()", loop)

    def _threads(self, loop: For, depth: int) -> None:
        """Threads that meet at barriers: generators, run from barrier to barrier."""
        iterations = self._iterations(loop, depth)
        name = self.exprs.names.fresh("thread")
        outer_group, outer_loops = self._in_group, self._loops
        self._in_group, self._loops = True, 0
        self.regions.enter(depth)
        self.regions.bind(loop.var)
        self._emit(depth, f"def {name}({self.exprs.names.of(loop.var)}):")
        self._suite(loop.body, depth + 1)
        self.regions.leave()
        self._in_group, self._loops = outer_group, outer_loops
        run = f"{self.exprs.function('lockstep')}([{name}(i) for i in {iterations}])"
        self._emit(depth, f"yield from {run}" if outer_group else f"for _ in {run}: pass", loop)

    # ---------------------------------------------------------------- blocks

    def _block(self, block: Block, depth: int) -> None:
        # The predicate comes first: where it does not hold, the values of the iterators may not exist.
        guarded = not e.is_const_int(block.predicate, 1)
        if guarded:
            test = self._value(block.predicate, depth, block)
            self.regions.enter(depth)
            self._emit(depth, f"if {test}:\n pass", block)
            depth += 1
        for item in block.iters:
            self._iterator(item, depth, block)
        for item in block.iters:
            self._check_domain(block, item, depth)
        for buffer in block.allocations:
            self._new_buffer(buffer, depth, block)
        if block.init is not None:
            starts = [
                f"{self.exprs.names.of(item.var)} == {self._value(item.domain.min, depth, block)}"
                for item in block.iters
                if item.kind is IterKind.REDUCE
            ]
            self.regions.enter(depth)
            self._emit(depth, f"if {' and '.join(starts) or 'True'}:", block)
            self._suite(block.init, depth + 1)
            self.regions.leave()
        self._stmt(block.body, depth)
        if guarded:
            self.regions.leave()

    def _iterator(self, item: s.BlockIter, depth: int, block: Block) -> None:
        """Give an iterator its value, outside of the loops that it does not depend on."""
        self._prepare([item.value], depth, block)
        level, name = self.exprs.level_of(item.value), self.exprs.names.renew(item.var)
        if level < self.regions.level:
            self.regions.insert(level, f"{name} = {self.exprs.at_level(item.value, level)}")
        else:
            text = self.exprs.scalar(item.value)
            self._flush(depth)
            self._emit(depth, f"{name} = {text}", block)
        self.regions.bind(item.var, level)
        self._bounds.bind(item.var, self._bounds.of(item.value))

    def _check_domain(self, block: Block, item: s.BlockIter, depth: int) -> None:
        low, high = self._bounds.of(item.var)
        start, extent = const_value(item.domain.min), const_value(item.domain.extent)
        if start is not None and extent is not None:
            self._bounds.bind(item.var, (start, start + extent - 1) if extent > 0 else (low, high))
            if start <= low and high < start + extent:
                return
        name = self.exprs.names.of(item.var)
        first = self._value(item.domain.min, depth, block)
        count = self._value(item.domain.extent, depth, block)
        fail = self.exprs.constant(("domain", block, item.var), _outside_domain(block.name, item.var.name))
        self._emit(depth, f"if not 0 <= {name} - {first} < {count}: {fail}({name}, {first}, {count})", block)


_HANDLERS: Final[dict[type, Callable[[_Compiler, Any, int], None]]] = {
    For: _Compiler._for,
    Block: _Compiler._block,
    s.SeqStmt: _Compiler._seq,
    s.BufferStore: _Compiler._store,
    s.LetStmt: _Compiler._let,
    s.IfThenElse: _Compiler._if,
    s.While: _Compiler._while,
    s.Allocate: _Compiler._allocate,
    s.Evaluate: _Compiler._evaluate,
    s.Assert: _Compiler._assert,
}


def _failure(message: str) -> Callable[[], None]:
    def fail() -> None:
        raise InterpreterError(f"assertion failed: {message}")

    return fail


def _outside_domain(block: str, iterator: str) -> Callable[[int, int, int], None]:
    def fail(value: int, start: int, extent: int) -> None:
        raise InterpreterError(
            f"iterator {iterator} of block {block} is bound to {value}, outside its domain [{start}, {start + extent})"
        )

    return fail
