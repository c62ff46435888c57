"""One graph function (or closure) -> the code of one function of the machine.

The values of a block are done in turns: all kernels that can run, as one segment; then what the machine itself does
with their results (calls, branches, host functions, data), which may make further kernels ready, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ir.expr import (
    Call,
    Constant,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Match,
    Pattern,
    Tuple,
    TupleGet,
    TuplePattern,
    Var,
    VarPattern,
)
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.scopes import Scope
from tilewright.graph.views import is_view, view_offset
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.ir.visit import variables
from tilewright.lower.segment import tensor_dims
from tilewright.lower.symbols import SymbolTable
from tilewright.lower.vm.analysis import Analysis, host_call, is_kernel, is_leaf
from tilewright.lower.vm.assembler import Assembler, Label
from tilewright.lower.vm.carve import Carved, carve
from tilewright.lower.vm.tables import Tables
from tilewright.runtime.vm.program import ANY, BIND, EQUAL, Opcode, VmFunction
from tilewright.support.errors import CompilerBug, UnsupportedError

Environment = dict[tuple[int, int], int]
"""Registers of values: (identity of the expression, number of the result; -1: the value as a whole)."""

_WHOLE = -1


class _SlotNames(SymbolTable):
    """Symbols under the numbers that they have in one function."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[Symbol, int] = {}

    def slot(self, symbol: Symbol) -> int:
        """The number of a symbol."""
        return self.slots.setdefault(symbol, len(self.slots))

    def name(self, symbol: Symbol) -> str:
        """As the bytecode names it."""
        return f"s{self.slot(symbol)}"


class Closures:
    """Which functions of the program are the closures and globals of a module."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.globals: dict[str, int] = {}
        self.captured: dict[int, tuple[int, list[GraphExpr], list[Symbol]]] = {}
        self.constructors: dict[int, int] = {}

    def constructor(self, item: ConstructorRef) -> int:
        """A function that builds data: a constructor used as a value."""
        constructor = item.constructor
        number = self.constructors.get(id(constructor))
        if number is None:
            number = self.constructors[id(constructor)] = self.tables.reserve()
            count = len(constructor.fields_types)
            code = Assembler(count)
            result = code.register()
            code.emit(Opcode.DATA, result, self.tables.constructor(constructor), tuple(range(count)))
            code.emit(Opcode.RETURN, result)
            made = code.finish()
            self.tables.functions[number] = VmFunction(constructor.name, 0, count, 0, code.registers, 0, made)
        return number


class FunctionLowering:
    """The code of one function; `captured` come before its parameters, in registers and among the symbols."""

    def __init__(
        self,
        analysis: Analysis,
        function: Function,
        body: Scope,
        closures: Closures,
        captured: Sequence[GraphExpr] = (),
        symbols: Sequence[Symbol] = (),
    ) -> None:
        self.analysis = analysis
        self.function = function
        self.body = body
        self.closures = closures
        self.tables = closures.tables
        self.captured = captured
        self.code = Assembler(len(captured) + len(function.params))
        self.names = _SlotNames()
        self.bound: dict[Symbol, None] = dict.fromkeys(symbols)
        self.captured_symbols = [self.names.slot(symbol) for symbol in symbols]
        self.environment: Environment = {}
        for register, item in enumerate((*captured, *function.params)):
            self.environment[(id(item), _WHOLE)] = register

    def lower(self, label: str, is_entry: bool) -> VmFunction:
        """The finished function."""
        for param in self.function.params:
            register = self.environment[(id(param), _WHOLE)]
            # What users pass was checked before the program starts.
            checked = not is_entry and bool(self._symbols_in(param.type))
            self._match(register, param.type, f"the argument '{param.name}' of {label}", checked)
        root = self.analysis.value(self.function.body)
        self._block(self.body, root, None)
        code = self.code.finish()
        return VmFunction(
            label,
            len(self.captured),
            len(self.function.params),
            len(self.captured_symbols),
            self.code.registers,
            len(self.names.slots),
            code,
        )

    # Blocks

    def _block(self, block: Scope, root: GraphExpr, result: int | None) -> None:
        """Compute a block; its value goes to a register, or (None) is what the function gives back."""
        items = self.analysis.computed_in(block)
        last = root if result is None and self._ends(root) and self.analysis.block_of[id(root)] is block else None
        for turn in carve(self.analysis, block, [item for item in items if item is not last]):
            if turn.kernels:
                self._segment(turn)
            for item in turn.others:
                self._other(item)
        if result is not None:
            self.code.emit(Opcode.MOVE, result, self.register(root))
        elif last is None:
            self.code.emit(Opcode.RETURN, self.register(root))
        else:
            self._last(last)

    @staticmethod
    def _ends(item: GraphExpr) -> bool:
        """Whether a value in the last place of a function is done without coming back."""
        if isinstance(item, Call):
            builds = isinstance(item.callee, (Operator, ConstructorRef))
            return not (builds or is_kernel(item) or host_call(item) is not None)
        return isinstance(item, (If, Match))

    def _last(self, item: GraphExpr) -> None:
        if isinstance(item, If):
            self._if(item, None)
        elif isinstance(item, Match):
            self._match_data(item, None)
        else:
            assert isinstance(item, Call)
            direct = self._direct(item)
            if direct is not None:
                self.code.emit(Opcode.TAIL_CALL, *direct)
            else:
                self.code.emit(Opcode.TAIL_CLOSURE, self.register(item.callee), self._registers(item.args))

    def _other(self, item: GraphExpr) -> None:
        """What the machine itself does."""
        if isinstance(item, (Var, TupleGet)) or is_leaf(item) or is_view(item):
            return
        if isinstance(item, Tuple):
            self._define(item, Opcode.TUPLE, self._registers(item.items))
        elif isinstance(item, If):
            self._if(item, self._result(item))
            self._match_whole(item)
        elif isinstance(item, Match):
            self._match_data(item, self._result(item))
            self._match_whole(item)
        elif isinstance(item, Function):
            self._closure(item)
        elif isinstance(item, Call):
            self._call(item)
        else:
            raise CompilerBug(f"the machine cannot do a {type(item).__name__}")

    def _result(self, item: GraphExpr) -> int:
        register = self.code.register()
        self.environment[(id(item), _WHOLE)] = register
        return register

    def _define(self, item: GraphExpr, opcode: Opcode, *operands: object) -> int:
        # Operands are in registers already, so the result cannot be taken for one of them.
        register = self._result(item)
        self.code.emit(opcode, register, *operands)
        return register

    # Values in registers

    def _registers(self, items: Sequence[GraphExpr]) -> tuple[int, ...]:
        return tuple(self.register(item) for item in items)

    def register(self, item: GraphExpr) -> int:
        """The register of a value; constants, views and functions are made here."""
        item = self.analysis.value(item)
        register = self.environment.get((id(item), _WHOLE))
        if register is not None:
            return register
        if isinstance(item, Constant):
            return self._define(item, Opcode.CONSTANT, self.tables.constant(item))
        if isinstance(item, GlobalVar):
            return self._define(item, Opcode.CLOSURE, self.closures.globals[item.name], (), ())
        if isinstance(item, ConstructorRef):
            return self._define(item, Opcode.CLOSURE, self.closures.constructor(item), (), ())
        if isinstance(item, TupleGet):
            return self._tuple_get(item)
        if isinstance(item, Call) and is_view(item):
            return self._view(item)
        if isinstance(item, Function):
            return self._own_closure(item)
        parts = self._parts(item)
        if parts is not None:
            return self._define(item, Opcode.TUPLE, parts)
        raise CompilerBug(f"a {type(item).__name__} is needed before it is computed")

    def _parts(self, item: GraphExpr) -> tuple[int, ...] | None:
        """The registers of a result that is several values."""
        if not isinstance(item.type, TupleType):
            return None
        parts = [self.environment.get((id(item), number)) for number in range(len(item.type.items))]
        return None if any(part is None for part in parts) else tuple(part for part in parts if part is not None)

    def _tuple_get(self, item: TupleGet) -> int:
        whole = self.analysis.value(item.value)
        part = self.environment.get((id(whole), item.index))
        if part is not None:
            self.environment[(id(item), _WHOLE)] = part
            return part
        return self._define(item, Opcode.FIELD, self.register(whole), item.index)

    def _view(self, item: Call) -> int:
        base = self.register(item.args[0])
        if is_call_to(item, "checked"):
            return base
        kind = item.tensor_type
        offset = (view_offset(item) or 0) // max(kind.dtype.itemsize, 1)
        dims = tuple(self._extent(dim, item) for dim in tensor_dims(kind))
        return self._define(item, Opcode.VIEW, base, self.tables.extents.number(offset), dims)

    def _extent(self, dim: PrimExpr, item: GraphExpr) -> int:
        self._require(variables(dim), item)
        return self.tables.extents.number(self.names.extent(dim))

    def _require(self, symbols: Sequence[Symbol], item: GraphExpr) -> None:
        missing = [symbol.name for symbol in symbols if symbol not in self.bound]
        if missing:
            raise UnsupportedError(
                f"the size of '{', '.join(missing)}' is not known where it is needed",
                where=str(item.span) if item.span else self.function.name or None,
                hint="a symbol must be a dimension of a value that is there before",
            )

    # Segments

    def _segment(self, turn: Carved) -> None:
        function, inputs, outputs = turn.function(self.analysis)
        sources = self._registers(inputs)
        number, segment = self.tables.segment(function, len(outputs))
        self._require(segment.symbols, turn.kernels[0])
        results = tuple(self.code.register() for _ in outputs)
        for key, register in zip(outputs, results, strict=True):
            self.environment[key] = register
        symbols = tuple(self.names.slot(symbol) for symbol in segment.symbols)
        self.code.emit(Opcode.SEGMENT, number, sources, results, symbols)

    # Symbols

    @staticmethod
    def _symbols_in(kind: Type | None) -> list[Symbol]:
        if isinstance(kind, TupleType):
            return [symbol for item in kind.items for symbol in FunctionLowering._symbols_in(item)]
        return [symbol for dim in tensor_dims(kind) for symbol in variables(dim)]

    def _match_whole(self, item: GraphExpr) -> None:
        """Give values to symbols that a result brings along."""
        self._match(self.environment[(id(item), _WHOLE)], item.type, "a result", False)

    def _match(self, register: int, kind: Type | None, what: str, checked: bool) -> None:
        """Bind the symbols of a value's type that have no value yet; check the other dimensions if asked to."""
        if isinstance(kind, TupleType):
            for number, item in enumerate(kind.items):
                if checked or any(symbol not in self.bound for symbol in self._symbols_in(item)):
                    part = self.code.register()
                    self.code.emit(Opcode.FIELD, part, register, number)
                    self._match(part, item, what, checked)
            return
        if not isinstance(kind, TensorType) or kind.shape is None:
            return
        dims: list[tuple[int, int]] = []
        for dim in kind.shape:
            if isinstance(dim, Symbol) and dim not in self.bound:
                dims.append((BIND, self.names.slot(dim)))
                self.bound[dim] = None
            elif dim is not None and checked and all(symbol in self.bound for symbol in variables(dim)):
                dims.append((EQUAL, self.tables.extents.number(self.names.extent(dim))))
            else:
                dims.append((ANY, 0))
        if any(mode != ANY for mode, _ in dims):
            self.code.emit(Opcode.MATCH, register, tuple(dims), self.tables.texts.number(what))

    # Control flow

    def _branch(self, item: GraphExpr, position: int, root: GraphExpr, result: int | None) -> None:
        """Compute a branch; what it computes and learns is forgotten after it."""
        known = self._known()
        self._block(self.analysis.inside(item, position), self.analysis.value(root), result)
        self._forget(*known)

    def _known(self) -> tuple[int, int]:
        """How much is known now, for `_forget`."""
        return len(self.environment), len(self.bound)

    def _forget(self, environment: int, bound: int) -> None:
        """Forget what was learned since so much was known: values and symbols get their places once, in order."""
        while len(self.environment) > environment:
            self.environment.popitem()
        while len(self.bound) > bound:
            self.bound.popitem()

    def _if(self, item: If, result: int | None) -> None:
        condition = self.register(item.condition)
        self._prepare(item)
        other, end = Label(), Label()
        self.code.emit(Opcode.BRANCH, condition, other)
        self._branch(item, 1, item.then_value, result)
        if result is not None:
            self.code.emit(Opcode.JUMP, end)
        self.code.bind(other)
        self._branch(item, 2, item.else_value, result)
        self.code.bind(end)

    def _prepare(self, item: GraphExpr) -> None:
        """Put what several branches share into registers before them (views, parts of tuples)."""
        own = self.analysis.block_of[id(item)]
        for part in self.analysis.reaches(item, [own]):
            if isinstance(part, TupleGet) or is_view(part):
                self.register(part)

    def _match_data(self, item: Match, result: int | None) -> None:
        value = self.register(item.value)
        self._prepare(item)
        end = Label()
        for number, clause in enumerate(item.clauses, 1):
            following = Label()
            known = self._known()
            self._pattern(clause.pattern, value, following)
            self._branch(item, number, clause.body, result)
            self._forget(*known)
            if result is not None:
                self.code.emit(Opcode.JUMP, end)
            self.code.bind(following)
        where = f" ({item.span})" if item.span else ""
        self.code.emit(Opcode.FAIL, self.tables.texts.number(f"no clause of the match fits{where}"))
        self.code.bind(end)

    def _pattern(self, pattern: Pattern, register: int, following: Label) -> None:
        """Test a value; variables of the pattern get registers."""
        if isinstance(pattern, VarPattern):
            self.environment[(id(pattern.var), _WHOLE)] = register
            self._match(register, pattern.var.type, f"'{pattern.var.name}'", False)
        elif isinstance(pattern, (ConstructorPattern, TuplePattern)):
            if isinstance(pattern, ConstructorPattern):
                self.code.emit(Opcode.TAG, register, self.tables.constructor(pattern.constructor), following)
            for number, part in enumerate(pattern.patterns):
                if isinstance(part, (VarPattern, ConstructorPattern, TuplePattern)):
                    inner = self.code.register()
                    self.code.emit(Opcode.FIELD, inner, register, number)
                    self._pattern(part, inner, following)

    # Calls and closures

    def _call(self, item: Call) -> None:
        host = host_call(item)
        if host is not None:
            self._host(item, host)
            return
        if isinstance(item.callee, ConstructorRef):
            fields = self._registers(item.args)
            self._define(item, Opcode.DATA, self.tables.constructor(item.callee.constructor), fields)
            return
        if isinstance(item.callee, Operator):
            raise CompilerBug(f"the operator {item.callee.name} was not fused")
        direct = self._direct(item)
        if direct is not None:
            self._define(item, Opcode.CALL, *direct)
        else:
            callee, arguments = self.register(item.callee), self._registers(item.args)
            self._define(item, Opcode.CALL_CLOSURE, callee, arguments)
        self._match_whole(item)

    def _direct(self, item: Call) -> tuple[int, tuple[int, ...]] | None:
        """The function and arguments of a call whose callee is known."""
        callee = self.analysis.value(item.callee)
        if isinstance(callee, GlobalVar):
            return self.closures.globals[callee.name], self._registers(item.args)
        if callee is self.function and not self.captured_symbols:
            number = self.closures.captured[id(callee)][0]
            return number, (*range(len(self.captured)), *self._registers(item.args))
        return None

    def _host(self, item: Call, host: Call) -> None:
        if is_call_to(host, "shape.match"):
            # It says what the dimensions of a value are, which is what MATCH does.
            source = self.register(item.args[0])
            self.environment[(id(item), _WHOLE)] = source
            self._match(source, item.type, f"the value of {item.span}" if item.span else "a value", True)
            return
        kinds = item.type.items if isinstance(item.type, TupleType) else (item.type,)
        arguments = self._registers(item.args)
        results = tuple(self.code.register() for _ in kinds)
        where = str(item.span or host.span or "")
        self.code.emit(Opcode.HOST, self.tables.host(host, where), arguments, results)
        assert isinstance(host.callee, Operator)
        for number, (register, kind) in enumerate(zip(results, kinds, strict=True)):
            key = number if isinstance(item.type, TupleType) else _WHOLE
            self.environment[(id(item), key)] = register
            place = f" ({where})" if where else ""
            self._match(register, kind, f"the result of {host.callee.name}{place}", True)

    def _closure(self, item: Function) -> None:
        """A function value: lowered when it is met, with what it captures."""
        analysis = self.analysis
        inner = analysis.inside(item, 1)
        around = list(inner.around())
        captured = [
            part
            for part in analysis.reaches(item, around)
            if part is not item and part is not self.function and not is_leaf(part)
        ]
        if any(part is self.function for part in analysis.reaches(item, around)):
            self._own_closure(self.function)
            captured.append(self.function)
        symbols = [symbol for symbol in self._needed(item) if symbol in self.bound]
        number = self.tables.reserve()
        self.closures.captured[id(item)] = (number, captured, symbols)
        lowering = FunctionLowering(analysis, item, inner, self.closures, captured, symbols)
        label = f"{self.function.name or 'closure'}.{number}"
        self.tables.functions[number] = lowering.lower(label, is_entry=False)
        slots = tuple(self.names.slot(symbol) for symbol in symbols)
        self._define(item, Opcode.CLOSURE, number, self._registers(captured), slots)

    def _needed(self, item: Function) -> list[Symbol]:
        """The symbols that kernels and views inside a closure compute with."""
        needed: dict[Symbol, None] = {}
        stack = [self.analysis.value(item.body)]
        seen: set[int] = {id(item)}
        while stack:
            part = stack.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if is_kernel(part) or is_view(part):
                needed.update(dict.fromkeys(self.analysis.symbols(part)))
            stack.extend(child for child, _ in self.analysis.children(part))
        return list(needed)

    def _own_closure(self, item: Function) -> int:
        """A closure that names itself in its own body."""
        if item is not self.function or id(item) not in self.closures.captured:
            raise CompilerBug("a closure is needed before it is made")
        number, captured, _ = self.closures.captured[id(item)]
        registers = tuple(range(len(captured)))
        return self._define(item, Opcode.CLOSURE, number, registers, tuple(self.captured_symbols))
