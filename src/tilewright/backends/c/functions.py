"""Lowered functions as C: statements, memory, parallel loops, and the functions around them (`docs/abi.md`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from tilewright.backends.c.dialect import BIT_COUNTS, INCLUDES, RUNTIME, CSource
from tilewright.codegen.c.expressions import Expressions
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.c.statements import CStatements
from tilewright.codegen.captures import Capture, free_captures
from tilewright.codegen.statements import element_count
from tilewright.codegen.symbols import check_symbols
from tilewright.ir.dtype import HANDLE, INDEX, INT32, DataType
from tilewright.ir.expr import ONE, ZERO, Call, IntImm, PrimExpr, Ramp, Range, StringImm, Var
from tilewright.ir.visit import pre_order, substitute
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.target.target import Target
from tilewright.tir.analysis.frames import frame_allocations, stack_buffers
from tilewright.tir.analysis.in_place import in_place_pairs
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Allocate, Assert, BufferStore, Evaluate, For, IfThenElse, LetStmt, LoopKind, Stmt, seq

_FAILED_ASSERT, _OUT_OF_MEMORY = 1, 2


def emit_source(funcs: Sequence[PrimFunc], target: Target) -> str:
    """One C file of lowered functions."""
    check_symbols(func.name for func in funcs)
    helpers = Helpers(CSource())
    functions: list[str] = []
    for func in funcs:
        function = CFunction(func.name, helpers, functions, overlapping_parameters(func))
        parameters = [function.parameter(param) for param in func.params]
        # The symbol is given apart: C has words (`int`, `main`, `exp`) that may be names of functions here.
        head = f"int32_t tw_{func.name}({', '.join(parameters) or 'void'})"
        text = function.text(head, func.body, partial(function.statement, func.body))
        functions.append(f'{head} __asm__("{func.name}");\n{text}')
        functions.append(_packed(func))
    return "\n".join([INCLUDES + RUNTIME + BIT_COUNTS, helpers.text(), *functions])


def overlapping_parameters(func: PrimFunc) -> set[Capture]:
    """Parameters that may be the same memory as others."""
    return {func.params[number] for pair in in_place_pairs(func) for number in pair}


def _packed(func: PrimFunc) -> str:
    """The function that takes one slot of 8 bytes a parameter."""
    dialect = CSource()
    arguments: list[str] = []
    for number, param in enumerate(func.params):
        slot = f"slots[{number}]"
        if isinstance(param, Buffer):
            slot = f"({dialect.memory_type(param.dtype)}*){slot}"
        elif param.dtype.is_float and param.dtype.bits >= 32:
            bits = DataType.of(f"int{param.dtype.bits}")
            slot = dialect.bits(f"({dialect.types[bits.name]}){slot}", bits, param.dtype)
        arguments.append(slot)
    return (
        f"int32_t {func.name}__packed(const int64_t* slots) {{\n  return tw_{func.name}({', '.join(arguments)});\n}}\n"
    )


class CFunction(CStatements):
    """One C function being emitted. It returns a status; all ways out pass its end, which gives memory back."""

    dialect: ClassVar[type[CSource]] = CSource
    alignment: ClassVar[int] = 64
    """Of arrays on the stack, in bytes."""

    def __init__(self, name: str, helpers: Helpers, functions: list[str], overlapping: set[Capture]) -> None:
        super().__init__(Expressions(self.dialect(), helpers))
        self._name = name
        self._helpers = helpers
        self._functions = functions
        """The functions before this one; bodies of parallel loops are added to them."""
        self._overlapping = overlapping
        """Parameters that may be the same memory as others."""
        self._is_parallel_body = False
        self._on_stack: set[Buffer] = set()
        self._heap = 0
        self._exits = False
        self._lane_variables: dict[int, Var] = {}

    def parameter(self, param: Capture) -> str:
        """The declaration of a parameter."""
        if isinstance(param, Var):
            return self.scalar_parameter(param)
        alone = "" if param in self._overlapping else "restrict "
        return f"{self.values.dialect.memory_type(param.dtype)}* {alone}{self.values.name(param)}"

    def text(self, head: str, frame: Stmt, body: Callable[[], None]) -> str:
        """The text of the function; memory of the statement `frame` lives in it."""
        self._on_stack = stack_buffers(frame_allocations(frame, self._is_parallel_body))
        body()
        lines = [f"{head} {{", "  int32_t tw_code = 0;"]
        lines += [f"  void* tw_memory{number} = 0;" for number in range(self._heap)]
        lines += [*self.values.lines, *(["tw_exit:"] if self._exits else [])]
        lines += [f"  tw_free(tw_memory{number});" for number in range(self._heap)]
        return "\n".join([*lines, "  return tw_code;", "}", ""])

    def leave_if(self, condition: str, code: int | None = None) -> None:
        """Leave the function where a condition holds, with a status that is given or there already."""
        self._exits = True
        status = "" if code is None else f"tw_code = {code}; "
        self.values.line(f"if ({condition}) {{ {status}goto tw_exit; }}")

    # ---------------------------------------------------------------- statements

    def statement(self, stmt: Stmt) -> None:
        """Emit a statement."""
        if isinstance(stmt, Assert):
            self.values.start(stmt.condition)
            self.leave_if(f"!{self.values.value(stmt.condition)}", _FAILED_ASSERT)
        elif isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL and not self._is_parallel_body:
            self._parallel(stmt)
        elif isinstance(stmt, LetStmt) and stmt.value.dtype.lanes > 1:
            # A vector that is given a name is an array.
            lanes = self._array(stmt.var.name, stmt.value.dtype)
            store = BufferStore(lanes.buffer, lanes.indices, stmt.value)
            self.statement(Allocate(lanes.buffer, seq(store, substitute(stmt.body, {stmt.var: lanes}))))
        elif isinstance(stmt, Allocate) and stmt.buffer not in self._on_stack:
            self.allocate_on_heap(stmt)
        else:
            super().statement(stmt)

    def store(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """Emit a store; one of a vector is a loop over its lanes, which compilers make a vector of again."""
        count = stmt.value.dtype.lanes
        if count == 1:
            super().store(stmt, mask)
            return
        if not is_lane_by_lane(stmt, mask):
            self._store_after(stmt, mask)
            return
        lane = self._lane_variables.setdefault(count, Var("lane", INDEX))
        index = self.lanes.of(stmt.indices[0], lane)
        one: Stmt = BufferStore(stmt.buffer, (index,), self.lanes.of(stmt.value, lane))
        if mask is not None:
            one = IfThenElse(self.lanes.of(mask, lane), one)
        self.statement(For(lane, ZERO, IntImm(count), LoopKind.SERIAL, one))

    def _store_after(self, stmt: BufferStore, mask: PrimExpr | None) -> None:
        """A store whose lanes are all computed, into arrays, before any is stored."""
        steps: list[Stmt] = []
        arrays: list[Buffer] = []

        def held(expr: PrimExpr, under: PrimExpr | None) -> BufferLoad:
            lanes = self._array("lanes", expr.dtype)
            arrays.append(lanes.buffer)
            step = BufferStore(lanes.buffer, lanes.indices, expr)
            steps.append(step if under is None else IfThenElse(under, step))
            return lanes

        condition = None if mask is None else held(mask, None)
        last: Stmt = BufferStore(stmt.buffer, (held(stmt.indices[0], condition),), held(stmt.value, condition))
        body = seq(*steps, last if condition is None else IfThenElse(condition, last))
        for array in arrays:
            body = Allocate(array, body)
        self.statement(body)

    def evaluate(self, stmt: Evaluate) -> None:
        """A call of a function outside; an int32 is its status."""
        value = stmt.value
        if not isinstance(value, Call) or value.name != "call_extern":
            raise UnsupportedError(f"C functions do not call for an effect: {value}")
        name, *arguments = value.args
        assert isinstance(name, StringImm)
        c, texts = self.values, self.arguments(arguments)
        types = ["void*" if arg.dtype is HANDLE else c.dialect.register_type(arg.dtype) for arg in arguments]
        result = c.dialect.register_type(value.dtype)
        self._helpers.texts.setdefault(name.value, f"{result} {name.value}({', '.join(types) or 'void'});")
        call = f"{name.value}({', '.join(texts)});"
        if value.dtype is INT32:
            c.line(f"tw_code = {call}")
            self.leave_if("tw_code")
        else:
            c.line(call)

    def barrier(self, scope: str) -> None:
        """There are no threads that could meet."""
        raise CompilerBug(f"a barrier of {scope} memory came to the code generator for CPUs")

    # ---------------------------------------------------------------- memory

    def may_overlap(self, a: Buffer, b: Buffer) -> bool:
        """Whether two buffers may be the same memory."""
        return a in self._overlapping and b in self._overlapping

    def allocate(self, buffer: Buffer) -> None:
        """An array on the stack."""
        element = self.values.dialect.memory_type(buffer.dtype)
        self.values.line(f"_Alignas({self.alignment}) {element} {self.values.name(buffer)}[{element_count(buffer)}];")

    def _array(self, name: str, dtype: DataType) -> BufferLoad:
        """A vector in an array of its own."""
        buffer = make_buffer(name, (dtype.lanes,), dtype.element, scope="local")
        self._on_stack.add(buffer)
        return BufferLoad(buffer, (Ramp(ZERO, ONE, dtype.lanes),))

    def allocate_on_heap(self, stmt: Allocate) -> None:
        """Memory that the runtime gives, and takes back behind the statement."""
        c = self.values
        size: PrimExpr = IntImm(stmt.buffer.dtype.itemsize)
        for dim in stmt.buffer.shape:
            size = size * dim
        c.start(size)
        element, place = c.dialect.memory_type(stmt.buffer.dtype), f"tw_memory{self._heap}"
        self._heap += 1
        c.line(f"{place} = tw_alloc({c.full(size)});")
        self.leave_if(f"!{place}", _OUT_OF_MEMORY)
        c.line("{")
        c.depth += 1
        c.line(f"{element}* restrict {c.name(stmt.buffer)} = {place};")
        self.statement(stmt.body)
        c.depth -= 1
        c.line("}")
        c.line(f"tw_free({place});")
        c.line(f"{place} = 0;")

    # ---------------------------------------------------------------- parallel loops

    def _parallel(self, loop: For) -> None:
        """The body becomes a function of a part of the iterations, which finds what it needs in a record."""
        c, captured = self.values, free_captures(loop)
        name = f"{self._name}__parallel{len(self._functions)}"
        body = CFunction(name, self._helpers, self._functions, self._overlapping)
        body._is_parallel_body = True
        fields = [body.parameter(item) for item in captured]
        names = [field.rpartition(" ")[2] for field in fields]
        inner = body.values
        inner.lines[:0] = [
            f"  {field} = ((const struct {name}*)tw_record)->{item};" for field, item in zip(fields, names, strict=True)
        ]

        def part() -> None:
            inner.start(loop.min)
            inner.decide(loop.var, narrow=False)
            i, first = inner.name(loop.var), "" if loop.min is ZERO else f"{inner.full(loop.min)} + "
            inner.line(f"for (int64_t {i} = {first}tw_begin; {i} < {first}tw_end; ++{i}) {{")
            with inner.analyzer.scope():
                inner.analyzer.bind(loop.var, Range(loop.min, loop.extent))
                body.inside(lambda: body.statement(loop.body))
            inner.line("}")

        head = f"static int32_t {name}_part(void* tw_record, int64_t tw_begin, int64_t tw_end)"
        text = body.text(head, loop.body, part)
        members = " ".join(f"{field.replace('restrict ', '').replace('const ', '')};" for field in fields)
        self._functions.append(f"struct {name} {{ {members or 'char none;'} }};\n{text}")
        c.start(loop.extent)
        values = [c.to_memory(c.name(item), item.dtype) if isinstance(item, Var) else c.name(item) for item in captured]
        c.line(f"struct {name} {name} = {{{', '.join(values) or '0'}}};")
        c.line(f"tw_code = tw_parallel({name}_part, &{name}, {c.full(loop.extent)});")
        self.leave_if("tw_code")


def is_lane_by_lane(stmt: BufferStore, mask: PrimExpr | None) -> bool:
    """Whether no lane of a store reads what another one stores."""
    index = stmt.indices[0]
    parts = [stmt.value, index] if mask is None else [stmt.value, index, mask]
    loads = [item for part in parts for item in pre_order(part) if isinstance(item, BufferLoad)]
    places = [load.indices[0] for load in loads if load.buffer is stmt.buffer]
    distinct = isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value != 0
    return not places or (distinct and all(place is index for place in places))
