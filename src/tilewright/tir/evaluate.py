"""Scalar expressions as Python source, for the interpreter; `evaluate` runs a single one.

A vector expression becomes the source of its lane `lane`, so that selection, loads and short-circuit operators are lazy
lane by lane. Integer operations that cannot leave their type's range (by constant bounds) are not wrapped, and indices
that cannot leave their dimension are not checked; all others are. Integers of variables alone are computed as far
out of loops as these are known (`Regions`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir import machine, numbers
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.numbers import Array, InterpreterError, Scalar
from tilewright.tir.regions import Regions
from tilewright.tir.value_bounds import Bounds, type_range

_ARITHMETIC: Final[dict[type, str]] = {e.Add: "+", e.Sub: "-", e.Mul: "*", e.FloorDiv: "//", e.FloorMod: "%"}
_COMPARE: Final[dict[type, str]] = {e.EQ: "==", e.NE: "!=", e.LT: "<", e.LE: "<="}
_BITWISE: Final = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_BIT_COUNTS: Final = {"popcount": intrinsics.popcount_int, "clz": intrinsics.clz_int}
_PART_DEPTH = 40
"""Depth of nesting at which a part of an expression moves to a function (Python's parser has a limit)."""
_EACH_LANE = "[lane]"
"""The end of a source that is a whole vector, of which a lane is taken."""
_SHARE_SIZE = 6
"""Sub-expressions of at least this many nodes that occur more than once are computed once a statement."""
_INTEGER_OPERATORS: Final = (e.Add, e.Sub, e.Mul, e.FloorDiv, e.FloorMod, e.Min, e.Max, e.Select, e.Cast)
_TRUTH_OPERATORS: Final = (e.EQ, e.NE, e.LT, e.LE, e.And, e.Or, e.Not)
_ALWAYS_DEFINED: Final = frozenset(_INTEGER_OPERATORS + _TRUTH_OPERATORS)
"""What has a value, of integers that have one (divisors are constants), and may be computed before it is needed."""


class Names:
    """Unique Python names for variables and buffers, and what they stand for."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._count = 0
        self.shown: dict[str, str] = {}

    def of(self, item: Var | Buffer) -> str:
        """The Python name of a variable or buffer."""
        name = self._names.get(item)
        if name is None:
            name = self.fresh("".join(c if c.isascii() and c.isalnum() else "_" for c in item.name))
            self._names[item] = name
            if isinstance(item, Var):
                self.shown[name] = item.name
        return name

    def renew(self, item: Var) -> str:
        """A name for a variable that is bound once more: values of the old name may still be in use."""
        self._names.pop(item, None)
        return self.of(item)

    def known(self, item: object) -> bool:
        """Whether a variable or buffer has a name."""
        return item in self._names

    def fresh(self, hint: str) -> str:
        """A name that nothing else has."""
        self._count += 1
        return f"v_{hint}_{self._count}"


def _children_first(roots: Iterable[PrimExpr]) -> tuple[list[PrimExpr], dict[PrimExpr, int]]:
    """The expressions below roots, each once and after its parts, and how many times each occurs."""
    order: list[PrimExpr] = []
    counts: dict[PrimExpr, int] = {}
    stack: list[tuple[PrimExpr, bool]] = [(root, False) for root in roots]
    while stack:
        expr, expanded = stack.pop()
        if expanded:
            order.append(expr)
            continue
        counts[expr] = counts.get(expr, 0) + 1
        if counts[expr] == 1:
            stack.append((expr, True))
            stack.extend((child, False) for child in expr.children() if isinstance(child, PrimExpr))
    return order, counts


class ExprCompiler:
    """Turns expressions into Python source; collects the constants and functions that the source needs."""

    def __init__(self, check_bounds: bool = True) -> None:
        self.check_bounds = check_bounds
        self.bounds = Bounds()
        self.names = Names()
        self.constants: dict[str, object] = {}
        self.shapes: dict[Buffer, tuple[str | int, ...]] = {}
        self.prelude: list[str] = []
        """Function definitions that the expression just compiled needs before it."""
        self.regions = Regions()
        self._levels: dict[PrimExpr, int] = {}
        """The region in which the value of an integer expression is known, if it always has one."""
        self._level = 0
        """The region that source is made for."""
        self._named: dict[object, str] = {}
        self._by_value: dict[object, str] = {}
        self._shared: dict[PrimExpr, str] = {}
        self._parts: dict[PrimExpr, str] = {}
        # Above 0 while the source being made has a `lane` of its own, which functions outside cannot see.
        self._isolated = 0

    # ---------------------------------------------------------------- constants

    def constant(self, key: object, value: object) -> str:
        """The name of a constant that the generated function finds among its locals."""
        name = self._by_value.get(key)
        if name is None:
            name = f"k{len(self.constants)}"
            self._by_value[key] = name
            self.constants[name] = value
        return name

    def function(self, name: str) -> str:
        """The name of a function of `numbers`."""
        return self.constant(("function", name), getattr(numbers, name))

    # ---------------------------------------------------------------- statements ask here

    def start(self, roots: Iterable[PrimExpr]) -> list[str]:
        """Begin a statement with these expressions; gives the names of shared results, to be set to None before it.

        Large parts that occur more than once, and parts nested too deeply for Python's parser, become functions in
        the prelude, inner ones first (so that nothing here recurses deeply either).
        """
        self._shared, self._parts, self._named, self._levels, self.prelude = {}, {}, {}, {}, []
        self._level = self.regions.level
        order, counts = _children_first(roots)
        sizes: dict[PrimExpr, int] = {}
        depths: dict[PrimExpr, int] = {}
        for expr in order:
            below = [child for child in expr.children() if isinstance(child, PrimExpr)]
            sizes[expr] = min(1 + sum(sizes[child] for child in below), 1 << 20)
            depths[expr] = 1 + max([depths[child] for child in below], default=0)
            level = self._find_level(expr, below)
            is_shared = counts[expr] > 1 and sizes[expr] >= _SHARE_SIZE and not isinstance(expr, e.Ramp)
            if level is not None and (is_shared or depths[expr] >= _PART_DEPTH):
                self._once(expr, level, functools.partial(self._node, expr, 0))
                depths[expr] = 0
            elif is_shared:
                self._define_shared(expr)
                depths[expr] = 0
            elif depths[expr] >= _PART_DEPTH:
                self._define_part(expr)
                depths[expr] = 0
            elif depths[expr] == _PART_DEPTH // 2 and expr.dtype.is_integer:
                # Bounds of the inner half are then known, so that asking for those of the whole stays shallow.
                self.bounds.of(expr)
        return list(self._shared.values())

    def _find_level(self, expr: PrimExpr, below: Sequence[PrimExpr]) -> int | None:
        """The innermost region of the variables of an integer that always has a value; None for other expressions."""
        level = None
        if not expr.dtype.is_scalar or not (expr.dtype.is_integer or expr.dtype.is_bool):
            return None
        if isinstance(expr, Var):
            level = self.regions.bound.get(expr)
        elif isinstance(expr, e.IntImm):
            level = 0
        elif type(expr) in _ALWAYS_DEFINED and self._levels.keys() >= set(below):
            may_fail = isinstance(expr, (e.FloorDiv, e.FloorMod)) and not const_value(expr.b)
            level = None if may_fail else max(self._levels[child] for child in below)
        if level is not None:
            self._levels[expr] = level
        return level

    def level_of(self, expr: PrimExpr) -> int:
        """The region in which the value of an expression that was begun with is known."""
        return self._levels.get(expr, self.regions.level)

    def at_level(self, expr: PrimExpr, level: int) -> str:
        """The source of an expression in a region outside of this one, in which its value is known."""
        before, self._level = self._level, level
        source = self._node(expr, 0)
        self._level = before
        return source

    def _once(self, key: object, level: int, source: Callable[[], str]) -> str:
        """The name of a value that always exists, computed in its region before what is in there now."""
        names = self._named if level == self.regions.level else self.regions.names(level)
        name = names.get(key)
        if name is None:
            before, self._level = self._level, level
            text, name = source(), self.names.fresh("n")
            self._level = before
            names[key] = name
            if names is self._named:
                self.prelude.append(f"{name} = {text}")
            else:
                self.regions.insert(level, f"{name} = {text}")
        return name

    def _define_shared(self, expr: PrimExpr) -> None:
        # Each use tests whether the function has run: it runs at most once, and not at all when no use is reached.
        name = f"s{len(self._shared)}"
        body = self._node(expr, 0)
        self._shared[expr] = name
        self.prelude.append(f"def {name}_():\n nonlocal {name}\n {name} = {body}\n return {name}")

    def _define_part(self, expr: PrimExpr) -> None:
        name = self.names.fresh("part")
        body = self._node(expr, 0)
        self._parts[expr] = name
        self.prelude.append(f"def {name}():\n return {body}")

    def scalar(self, expr: PrimExpr) -> str:
        """The source of a scalar expression, or of lane `lane` of a vector."""
        return self._visit(expr, 0)

    def vector(self, expr: PrimExpr) -> str:
        """The source of a vector as a list of its lanes."""
        self._isolated += 1
        source = self._visit(expr, 1)
        self._isolated -= 1
        if _is_whole(expr):
            # Once for all lanes, however deeply such calls are nested.
            return source.removesuffix(_EACH_LANE)
        return f"[{source} for lane in range({expr.dtype.lanes})]"

    def index(self, buffer: Buffer, indices: tuple[PrimExpr, ...], depth: int = 0) -> str:
        """The source of the place of an element in the list that holds a buffer."""
        shape = self.shapes.get(buffer)
        if shape is None:
            raise UserError(f"buffer {buffer.name} is used where it is not declared")
        inner = buffer.dtype.lanes
        levels = [self._levels.get(index, -1) for index in indices]
        if len(indices) > 1 and inner == 1 and min(levels) >= 0 and self._is_inside(indices, shape):
            # Mostly asked for once more, by the load or store of a sum.
            source = functools.partial(self._place, buffer, indices, shape, depth)
            return self._once((shape, indices), max(levels), source)
        return self._place(buffer, indices, shape, depth)

    def _is_inside(self, indices: tuple[PrimExpr, ...], shape: tuple[str | int, ...]) -> bool:
        """Whether indices cannot leave a constant shape."""
        return all(
            isinstance(dim, int) and (not self.check_bounds or (low >= 0 and high < dim))
            for dim, (low, high) in zip(shape, map(self.bounds.of, indices), strict=True)
        )

    def _place(self, buffer: Buffer, indices: tuple[PrimExpr, ...], shape: tuple[str | int, ...], depth: int) -> str:
        lanes = max([index.dtype.lanes for index in indices], default=1)
        inner = buffer.dtype.lanes
        text = ""
        for axis, index in enumerate(indices):
            if inner > 1 and lanes > 1:
                # Lane l of the result is element lane l // inner of the index.
                self._isolated += 1
                source = f"(lambda lane: {self._visit(index, depth + 1)})(lane // {inner})"
                self._isolated -= 1
            else:
                source = self._visit(index, depth + 1)
            source = self._checked(buffer, axis, index, shape[axis], source)
            text = source if not text else f"({text}) * {shape[axis]} + {source}"
        if not text:
            text = "0"
        return text if inner == 1 else f"({text}) * {inner} + lane % {inner}"

    def _checked(self, buffer: Buffer, axis: int, index: PrimExpr, dim: str | int, source: str) -> str:
        low, high = self.bounds.of(index)
        if not self.check_bounds or (isinstance(dim, int) and low >= 0 and high < dim):
            return source
        name = self.names.fresh("i")
        fail = self.constant(("out_of_bounds", id(buffer), axis), _out_of_bounds(buffer.name, axis))
        return f"({name} if 0 <= ({name} := {source}) < {dim} else {fail}({name}, {dim}))"

    # ---------------------------------------------------------------- expressions

    def _visit(self, expr: PrimExpr, depth: int) -> str:
        level = self._levels.get(expr)
        if level is not None and expr in self._named:
            return self._named[expr]
        if level is not None and level < self._level and expr.children():
            return self._once(expr, level, functools.partial(self._node, expr, depth))
        if self._isolated == 0:
            name = self._shared.get(expr)
            if name is not None:
                return f"({name} if {name} is not None else {name}_())"
            name = self._parts.get(expr)
            if name is not None:
                return f"{name}()"
        return self._node(expr, depth)

    def _node(self, expr: PrimExpr, depth: int) -> str:
        handler = _HANDLERS.get(type(expr))
        if handler is None:
            raise CompilerBug(f"the interpreter does not know the expression {type(expr).__name__}")
        return handler(self, expr, depth + 1)

    def _var(self, expr: Var, depth: int) -> str:
        if not self.names.known(expr):
            raise UserError(f"variable {expr.name} is used where it is not defined")
        name = self.names.of(expr)
        return name if expr.dtype.is_scalar else f"{name}{_EACH_LANE}"

    def _int(self, expr: e.IntImm, depth: int) -> str:
        if expr.dtype.is_bool:
            return "True" if expr.value else "False"
        return str(expr.value) if expr.value >= 0 else f"({expr.value})"

    def _float(self, expr: e.FloatImm, depth: int) -> str:
        return self.constant(expr, numbers.to_scalar(expr.value, expr.dtype))

    def _string(self, expr: e.StringImm, depth: int) -> str:
        return repr(expr.value)

    def _ramp(self, expr: e.Ramp, depth: int) -> str:
        base, stride = self._visit(expr.base, depth), self._visit(expr.stride, depth)
        return self._wrap(f"{base} + lane * {stride}", expr.dtype, self.bounds.of(expr) != type_range(expr.dtype))

    def _broadcast(self, expr: e.Broadcast, depth: int) -> str:
        return self._visit(expr.value, depth)

    def _wrap(self, source: str, dtype: DataType, fits: bool) -> str:
        if fits:
            return f"({source})"
        bits = dtype.bits
        mask = (1 << bits) - 1
        if dtype.is_uint:
            return f"(({source}) & {mask})"
        half = 1 << (bits - 1)
        return f"((({source}) + {half} & {mask}) - {half})"

    def _round(self, source: str, dtype: DataType) -> str:
        rounder = numbers.rounder_of(dtype.element.name)
        return f"({source})" if rounder is None else f"{self.constant(rounder, rounder)}({source})"

    def _binary(self, expr: e.BinaryExpr, depth: int) -> str:
        a, b = self._visit(expr.a, depth), self._visit(expr.b, depth)
        dtype = expr.dtype
        if dtype.is_integer:
            if isinstance(expr, (e.Add, e.Sub, e.Mul)):
                low, high = self.bounds.exact(expr)
                least, greatest = type_range(dtype)
                return self._wrap(f"{a} {_ARITHMETIC[type(expr)]} {b}", dtype, least <= low and high <= greatest)
            if isinstance(expr, (e.FloorDiv, e.FloorMod)):
                overflow = isinstance(expr, e.FloorDiv) and dtype.is_int and self.bounds.of(expr.b)[0] < 0
                return self._wrap(f"{a} {_ARITHMETIC[type(expr)]} {b}", dtype, not overflow)
            name = "truncdiv" if isinstance(expr, e.Div) else "truncmod"
            return self._wrap(f"{self.function(name)}({a}, {b})", dtype, isinstance(expr, e.Mod) or dtype.is_uint)
        if dtype.is_float:
            if isinstance(expr, e.Mod):
                return self._round(f"{self.constant(np.fmod, np.fmod)}({a}, {b})", dtype)
            symbol = "/" if isinstance(expr, e.Div) else _ARITHMETIC.get(type(expr))
            if symbol is not None and not isinstance(expr, (e.FloorDiv, e.FloorMod)):
                return self._round(f"{a} {symbol} {b}", dtype)
        raise CompilerBug(f"{type(expr).__name__} of {dtype}")

    def _extreme(self, expr: e.Min | e.Max, depth: int) -> str:
        a, b = self._visit(expr.a, depth), self._visit(expr.b, depth)
        least = isinstance(expr, e.Min)
        if expr.dtype.is_float:
            return f"{self.function('float_min' if least else 'float_max')}({a}, {b})"
        return f"{'min' if least else 'max'}({a}, {b})"

    def _compare(self, expr: e.CompareExpr, depth: int) -> str:
        return f"({self._visit(expr.a, depth)} {_COMPARE[type(expr)]} {self._visit(expr.b, depth)})"

    def _logical(self, expr: e.And | e.Or, depth: int) -> str:
        word = "and" if isinstance(expr, e.And) else "or"
        return f"({self._visit(expr.a, depth)} {word} {self._visit(expr.b, depth)})"

    def _not(self, expr: e.Not, depth: int) -> str:
        return f"(not {self._visit(expr.a, depth)})"

    def _select(self, expr: e.Select, depth: int) -> str:
        test = self._visit(expr.condition, depth)
        return f"({self._visit(expr.a, depth)} if {test} else {self._visit(expr.b, depth)})"

    def _load(self, expr: BufferLoad, depth: int) -> str:
        # The name comes from the table of shapes: an undeclared buffer is reported there.
        place = self.index(expr.buffer, expr.indices, depth)
        return f"{self.names.of(expr.buffer)}[{place}]"

    def _cast(self, expr: e.Cast, depth: int) -> str:
        return self.convert(self._visit(expr.value, depth), expr.value, expr.dtype)

    def convert(self, source: str, value: PrimExpr, dtype: DataType) -> str:
        """The source of a value converted to a type (its lanes apart)."""
        origin, target = value.dtype.element, dtype.element
        if origin is target:
            return source
        if target.is_bool:
            return f"({source} != 0)"
        if target.is_integer:
            if origin.is_float:
                low, high = type_range(target)
                return f"{self.function('float_to_int')}({source}, {low}, {high})"
            if origin.is_bool:
                return f"int({source})"
            (low, high), (least, greatest) = self.bounds.of(value), type_range(target)
            return self._wrap(source, target, least <= low and high <= greatest)
        if target.is_float:
            return self._convert_to_float(source, origin, target)
        raise CompilerBug(f"conversion from {origin} to {target}")

    def _convert_to_float(self, source: str, origin: DataType, target: DataType) -> str:
        if target.name == "float64":
            return f"{self.function('f64')}({source})"
        if target.name == "float16":
            return f"{self.function('f16' if origin.is_float else 'int_to_f16')}({source})"
        if origin.name == "float16" and target.name == "float32":
            # A product is several times as quick as a conversion.
            return f"({source} * {self.constant('one', numbers.f32(1))})"
        single = origin.name == "float32" or numbers.rounder_of(origin.name) is not None
        wide = source if single else f"{self.function('f32' if origin.is_float else 'int_to_f32')}({source})"
        return wide if target.name == "float32" else self._round(wide, target)

    # ---------------------------------------------------------------- calls

    def _call(self, expr: e.Call, depth: int) -> str:
        name, dtype = expr.name, expr.dtype
        if name == "call_extern":
            return self._extern(expr, depth)
        if name == "reinterpret":
            return self._reinterpret(expr, depth)
        if name in ("access_ptr", "element_distance"):
            return self._address(expr, depth)
        if name in machine.table:
            return self._machine(expr, depth)
        args = [self._visit(arg, depth) for arg in expr.args]
        intrinsic = intrinsics.table.get(name)
        if intrinsic is None or (intrinsic.arity is not None and len(args) != intrinsic.arity):
            raise UnsupportedError(f"the interpreter does not know the intrinsic {name} of {len(args)} arguments")
        bits = dtype.bits
        if name == "likely":
            return args[0]
        if name == "fma":
            return self._narrow(f"{self.function('fused')}({', '.join(args)}, {bits})", dtype)
        if name in _BIT_COUNTS:
            function = self.constant(name, _BIT_COUNTS[name])
            return self._wrap(f"{function}({args[0]}, {bits})", dtype, bits > 8)
        if name in ("shift_left", "shift_right"):
            symbol = "<<" if name == "shift_left" else ">>"
            return self._wrap(f"{args[0]} {symbol} ({args[1]} & {bits - 1})", dtype, name == "shift_right")
        if name == "bitwise_not":
            return self._wrap(f"~{args[0]}", dtype, dtype.is_int)
        if name.startswith("bitwise_"):
            return f"({args[0]} {_BITWISE[name]} {args[1]})"
        if name == "abs" and dtype.is_integer:
            return self._wrap(f"abs({args[0]})", dtype, False)
        if intrinsic.reference is None:
            raise UnsupportedError(f"the interpreter cannot run the intrinsic {name}")
        function = self.constant(("reference", name), intrinsic.reference)
        if not expr.args[0].dtype.is_float:
            return f"{function}({', '.join(args)})"
        wide = self.function("f64")
        source = f"{function}({', '.join(f'{wide}({arg})' for arg in args)})"
        return source if dtype.is_bool else self._narrow(source, dtype)

    def _narrow(self, source: str, dtype: DataType) -> str:
        """A float64 rounded to a type."""
        return self._convert_to_float(source, DataType.of("float64"), dtype.element)

    def _reinterpret(self, expr: e.Call, depth: int) -> str:
        value = expr.args[0]
        if value.dtype.lanes == expr.dtype.lanes:
            source, origin, target = self._visit(value, depth), value.dtype.element, expr.dtype.element
            if origin.bits == target.bits and not (origin.is_bool or target.is_bool):
                # The bits of an integer are at hand, and floats of the same bits mostly known.
                bits = f"({source} & {(1 << origin.bits) - 1})"
                if origin.is_float:
                    bits = f"{self.function('bits_of')}({source}, {self.constant(origin, origin)})"
                known = f"{self.function('from_bits')}({bits}, {self.constant(target, target)})"
                return known if target.is_float else self._wrap(bits, target, False)
        else:
            source = self.vector(value) if value.dtype.lanes > 1 else self._visit(value, depth)
            origin, target = value.dtype, expr.dtype
        first, second = self.constant(origin, origin), self.constant(target, target)
        call = f"{self.function('reinterpret')}({source}, {first}, {second})"
        return f"{call}{_EACH_LANE}" if target.lanes > 1 else call

    def _address(self, expr: e.Call, depth: int) -> str:
        """A pointer to an element, or the distance between two."""
        first, second = expr.args[-2:]
        if not isinstance(first, BufferLoad) or not isinstance(second, BufferLoad):
            raise CompilerBug(f"{expr.name} of something that is not an element")
        start = self.index(first.buffer, first.indices, depth)
        if expr.name == "element_distance":
            return f"({self.index(second.buffer, second.indices, depth)} - ({start}))"
        return f"{self.function('Pointer')}({self.names.of(first.buffer)}, {start})"

    def _machine(self, expr: e.Call, depth: int) -> str:
        """An instruction of a processor: its reference, on whole vectors."""
        args = [self.vector(a) if a.dtype.lanes > 1 else self._visit(a, depth) for a in expr.args]
        call = f"{self.constant(('machine', expr.name), machine.table[expr.name].reference)}({', '.join(args)})"
        return f"{call}{_EACH_LANE}" if expr.dtype.lanes > 1 else call

    def _extern(self, expr: e.Call, depth: int) -> str:
        symbol = expr.args[0]
        if not isinstance(symbol, e.StringImm):
            raise CompilerBug("call_extern without a name")
        args = [self.vector(a) if a.dtype.lanes > 1 else self._visit(a, depth) for a in expr.args[1:]]
        call = f"externs[{symbol.value!r}]({', '.join(args)})"
        convert = self.constant(("to", expr.dtype), lambda value: numbers.to_scalar(value, expr.dtype))
        return f"{convert}({call})"


def _is_whole(expr: PrimExpr) -> bool:
    """Whether the source of a vector computes all its lanes, of which one is taken at the end."""
    if not isinstance(expr, e.Call):
        return isinstance(expr, Var)
    if expr.name == "reinterpret":
        return isinstance(expr.args[0], PrimExpr) and expr.args[0].dtype.lanes != expr.dtype.lanes
    return expr.name in machine.table


_HANDLERS: Final[dict[type, Callable[[ExprCompiler, Any, int], str]]] = {
    Var: ExprCompiler._var,
    e.IntImm: ExprCompiler._int,
    e.FloatImm: ExprCompiler._float,
    e.StringImm: ExprCompiler._string,
    e.Cast: ExprCompiler._cast,
    **dict.fromkeys((*_ARITHMETIC, e.Div, e.Mod), ExprCompiler._binary),
    **dict.fromkeys(_COMPARE, ExprCompiler._compare),
    e.Min: ExprCompiler._extreme,
    e.Max: ExprCompiler._extreme,
    e.And: ExprCompiler._logical,
    e.Or: ExprCompiler._logical,
    e.Not: ExprCompiler._not,
    e.Select: ExprCompiler._select,
    e.Ramp: ExprCompiler._ramp,
    e.Broadcast: ExprCompiler._broadcast,
    e.Call: ExprCompiler._call,
    BufferLoad: ExprCompiler._load,
}


def _out_of_bounds(buffer: str, axis: int) -> Callable[[int, int], int]:
    def fail(index: int, extent: int) -> int:
        raise InterpreterError(f"buffer {buffer} is indexed with {index} in dimension {axis} of extent {extent}")

    return fail


def evaluate(
    expr: PrimExpr,
    variables: Mapping[Var, int | float | bool] | None = None,
    buffers: Mapping[Buffer, Array] | None = None,
) -> Scalar:
    """The value of an expression under values of its variables and contents of its buffers.

    An int, a bool or a numpy float scalar; a list of these for a vector. bfloat16 and small floats come as float32.
    """
    compiler = ExprCompiler()
    scope: dict[str, object] = {"externs": {}, "lane": 0}
    for var, value in (variables or {}).items():
        scope[compiler.names.of(var)] = numbers.to_scalar(value, var.dtype)
    for buffer, array in (buffers or {}).items():
        compiler.shapes[buffer] = tuple(array.shape)
        scope[compiler.names.of(buffer)] = numbers.to_list(array, buffer.dtype)
    shared = compiler.start([expr])
    body = compiler.scalar(expr)
    lines = [f"def run({', '.join(scope)}):"]
    lines += [f" {name} = None" for name in shared]
    for item in compiler.prelude:
        lines += [f" {line}" for line in item.split("\n")]
    lines.append(f" return {body}")
    namespace: dict[str, Any] = dict(compiler.constants)
    exec("\n".join(lines), namespace)
    run = namespace["run"]
    with np.errstate(all="ignore"):
        try:
            if expr.dtype.lanes == 1:
                return _plain(run(**scope), expr.dtype)
            return [_plain(run(**{**scope, "lane": lane}), expr.dtype) for lane in range(expr.dtype.lanes)]
        except ZeroDivisionError:
            raise InterpreterError("integer division by zero") from None


def _plain(value: Scalar, dtype: DataType) -> Scalar:
    return bool(value) if dtype.is_bool else value
