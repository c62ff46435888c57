"""Parsing of expressions: Python syntax to scalar expressions, with nothing folded or simplified.

Numbers written in the source stay Python numbers until an operand, a buffer or a context gives them a type; arithmetic
on them happens while parsing. Everything else becomes exactly the node that the printer wrote.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

import numpy as np

from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, INDEX, DataType, promote
from tilewright.ir.expr import IntImm, PrimExpr, Range
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir.buffer import Buffer, BufferLoad, BufferRegion
from tilewright.tir.script.names import DTYPE_NAMES
from tilewright.tir.script.source import Source

Value = object
"""What an expression of a script may be while parsing: a number, text, tuple, data type, expression or buffer."""

_BINARY: Final[dict[type[ast.operator], tuple[type[e.BinaryExpr], Callable[..., object]]]] = {
    ast.Add: (e.Add, operator.add),
    ast.Sub: (e.Sub, operator.sub),
    ast.Mult: (e.Mul, operator.mul),
    ast.Div: (e.Div, operator.truediv),
    ast.FloorDiv: (e.FloorDiv, operator.floordiv),
    ast.Mod: (e.FloorMod, operator.mod),
}
_BITS: Final[dict[type[ast.operator], tuple[str, Callable[..., object]]]] = {
    ast.BitAnd: ("bitwise_and", operator.and_),
    ast.BitOr: ("bitwise_or", operator.or_),
    ast.BitXor: ("bitwise_xor", operator.xor),
    ast.LShift: ("shift_left", operator.lshift),
    ast.RShift: ("shift_right", operator.rshift),
}
_COMPARE: Final[dict[type[ast.cmpop], tuple[type[e.CompareExpr], bool, Callable[..., object]]]] = {
    ast.Eq: (e.EQ, False, operator.eq),
    ast.NotEq: (e.NE, False, operator.ne),
    ast.Lt: (e.LT, False, operator.lt),
    ast.LtE: (e.LE, False, operator.le),
    ast.Gt: (e.LT, True, operator.gt),
    ast.GtE: (e.LE, True, operator.ge),
}


def is_number(value: Value) -> bool:
    """Whether a value is a Python number (or bool) that has no type yet."""
    return isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))


class Scope:
    """Names in force: a chain of suites, and beneath them the constants around the script."""

    def __init__(self, constants: Mapping[str, object]) -> None:
        self.frames: list[dict[str, Value]] = [{}]
        self.constants = constants

    def push(self) -> None:
        """Enter a suite."""
        self.frames.append({})

    def pop(self) -> None:
        """Leave a suite."""
        self.frames.pop()

    def find(self, name: str) -> tuple[bool, Value]:
        """Whether a name is bound by the script or around it, and to what."""
        for frame in reversed(self.frames):
            if name in frame:
                return True, frame[name]
        if name in self.constants:
            return True, self.constants[name]
        return False, None

    def bound_outside(self, name: str) -> bool:
        """Whether an enclosing suite of the same function binds a name."""
        return any(name in frame for frame in self.frames[:-1])

    def bind(self, name: str, value: Value) -> None:
        """Bind a name in the present suite."""
        self.frames[-1][name] = value


class ExprParser:
    """Parses the expressions of one script."""

    def __init__(self, source: Source, constants: Mapping[str, object]) -> None:
        self.source = source
        self.scope = Scope(constants)

    # ---------------------------------------------------------------- typed results

    def typed(self, node: ast.expr, dtype: DataType | None = None) -> PrimExpr:
        """An expression; a number takes `dtype`, or the default of its kind (int64, float32, bool)."""
        return self.to_expr(self.value(node), node, dtype)

    def to_expr(self, value: Value, node: ast.AST, dtype: DataType | None = None) -> PrimExpr:
        """A value of the parser as an expression."""
        if isinstance(value, PrimExpr):
            return value
        if is_number(value):
            assert isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))
            try:
                return literal(value, dtype)
            except UserError as error:
                raise self.source.error(node, error.message, error.hint) from None
        convert = getattr(value, "as_prim_expr", None)
        if callable(convert):
            result = convert()
            assert isinstance(result, PrimExpr)
            return result
        raise self.source.error(node, f"a value is expected here, not {describe(value)}")

    def condition(self, node: ast.expr) -> PrimExpr:
        """A bool expression."""
        return self.as_condition(self.value(node), node)

    def as_condition(self, value: Value, node: ast.expr) -> PrimExpr:
        """A value as a bool expression."""
        result = self.to_expr(value, node)
        if not result.dtype.is_bool:
            raise self.source.error(node, f"a condition must be bool, not {result.dtype}", "compare it, e.g. `x != 0`")
        return result

    def dtype(self, node: ast.expr) -> DataType:
        """A data type: a string, a type name, or a constant that holds one."""
        if isinstance(node, ast.Name) and node.id in DTYPE_NAMES and not self.scope.find(node.id)[0]:
            return DataType.of(node.id)
        value = self.value(node)
        if isinstance(value, (DataType, str, type, np.dtype)):
            try:
                return DataType.of(value)
            except UserError as error:
                raise self.source.error(node, error.message, error.hint) from None
        raise self.source.error(node, f"a data type is expected here, not {describe(value)}")

    def text(self, node: ast.expr) -> str:
        """A string."""
        value = self.value(node)
        if not isinstance(value, str):
            raise self.source.error(node, f"a string is expected here, not {describe(value)}")
        return value

    def integer(self, node: ast.expr) -> int:
        """A whole number known while parsing."""
        value = self.value(node)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return int(value)
        raise self.source.error(node, f"a whole number is expected here, not {describe(value)}")

    def dims(self, node: ast.expr) -> tuple[PrimExpr, ...]:
        """A shape: a tuple or list of dimensions, or a single one."""
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self.typed(item, INDEX) for item in node.elts)
        value = self.value(node)
        if isinstance(value, (tuple, list)):
            return tuple(self.to_expr(item, node, INDEX) for item in value)
        return (self.to_expr(value, node, INDEX),)

    # ---------------------------------------------------------------- accesses

    def indices(self, node: ast.expr) -> tuple[PrimExpr, ...]:
        """The indices between brackets."""
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        indices: list[PrimExpr] = []
        for item in items:
            if isinstance(item, ast.Slice):
                raise self.source.error(item, "a slice is no index", "slices stand in reads(...) and writes(...)")
            index = self.typed(item, INDEX)
            if not index.dtype.is_integer:
                raise self.source.error(item, f"an index must be an integer, not {index.dtype}", "convert it: int64(x)")
            indices.append(index)
        return tuple(indices)

    def buffer(self, node: ast.expr) -> Buffer:
        """A buffer by name."""
        value = self.value(node)
        if not isinstance(value, Buffer):
            raise self.source.error(node, f"a buffer is expected here, not {describe(value)}")
        return value

    def check_rank(self, node: ast.AST, buffer: Buffer, count: int) -> None:
        """Complain about the wrong number of indices."""
        if count != buffer.ndim:
            raise self.source.error(
                node, f"buffer {buffer.name} has {buffer.ndim} dimensions, it is indexed with {count}"
            )

    def region(self, node: ast.expr) -> BufferRegion:
        """A region `A[i, lo:hi]`, or a whole buffer `A`."""
        if isinstance(node, ast.Name):
            return self.buffer(node).full_region()
        if not isinstance(node, ast.Subscript):
            raise self.source.error(node, "a region of a buffer is expected here, e.g. A[i, 0:4]")
        buffer = self.buffer(node.value)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        self.check_rank(node, buffer, len(items))
        return BufferRegion(buffer, tuple(self._range(item) for item in items))

    def _range(self, node: ast.expr) -> Range:
        if not isinstance(node, ast.Slice):
            return Range(self.typed(node, INDEX), e.ONE)
        if node.step is not None or node.lower is None or node.upper is None:
            raise self.source.error(node, "a region needs both bounds and no step, e.g. 0:4")
        low, high = self.value(node.lower), self.value(node.upper)
        if is_number(low) and is_number(high):
            first, last = self.to_expr(low, node.lower, INDEX), self.to_expr(high, node.upper, INDEX)
            return Range(first, build.sub(last, first))
        first, end = self.to_expr(low, node.lower, INDEX), self.to_expr(high, node.upper, INDEX)
        if e.is_const_int(first, 0):
            return Range(first, end)
        if isinstance(end, e.Add) and end.a is first:
            return Range(first, end.b)
        return Range(first, build.sub(end, first))

    # ---------------------------------------------------------------- the tree

    def value(self, node: ast.expr) -> Value:
        """What an expression of the source is."""
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise self.source.error(node, f"a script has no {type(node).__name__}")
        try:
            return handler(self, node)
        except (CompilerBug, UserError) as error:
            if isinstance(error, UserError) and error.where:
                raise
            message = error.message if isinstance(error, UserError) else str(error.args[0])
            raise self.source.error(node, message, getattr(error, "hint", None)) from None

    def _constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, (bytes, complex)) or node.value is Ellipsis:
            raise self.source.error(node, f"a script has no constants such as {node.value!r}")
        return node.value

    def _name(self, node: ast.Name) -> Value:
        known, value = self.scope.find(node.id)
        if known:
            return value
        if node.id in DTYPE_NAMES:
            return DataType.of(node.id)
        raise self.source.error(node, f"the name {node.id} is not defined")

    def _tuple(self, node: ast.Tuple) -> Value:
        return tuple(self.value(item) for item in node.elts)

    def _list(self, node: ast.List) -> Value:
        return [self.value(item) for item in node.elts]

    def _dict(self, node: ast.Dict) -> Value:
        result: dict[object, object] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                raise self.source.error(node, "a script has no ** in dictionaries")
            result[self.value(key)] = self.value(item)
        return result

    def _attribute(self, node: ast.Attribute) -> Value:
        value = self.value(node.value)
        if isinstance(value, Buffer) and node.attr in ("shape", "dtype", "strides", "scope"):
            return getattr(value, node.attr)
        if isinstance(value, PrimExpr) and node.attr == "dtype":
            return value.dtype
        if isinstance(value, ModuleType) or (isinstance(value, type) and hasattr(value, node.attr)):
            attribute: object = getattr(value, node.attr, None)
            if is_number(attribute) or isinstance(attribute, (str, tuple, DataType, PrimExpr, Buffer, type)):
                return attribute
        raise self.source.error(node, f"{describe(value)} has no attribute {node.attr} that a script can use")

    def _subscript(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        if isinstance(value, Buffer):
            if isinstance(node.slice, ast.Tuple) and not node.slice.elts:
                self.check_rank(node, value, 0)
                return BufferLoad(value, ())
            indices = self.indices(node.slice)
            self.check_rank(node, value, len(indices))
            return BufferLoad(value, indices)
        if isinstance(value, (tuple, list, str, dict)):
            index = self.value(node.slice)
            try:
                return value[index]  # type: ignore[call-overload, index]
            except (IndexError, KeyError, TypeError):
                raise self.source.error(node, f"{value!r} has no item {index!r}") from None
        raise self.source.error(node, f"{describe(value)} cannot be indexed")

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        kind = type(node.op)
        python = _BINARY[kind][1] if kind in _BINARY else _BITS[kind][1] if kind in _BITS else None
        if kind is ast.Pow:
            python = operator.pow
        if python is not None and plain(left) and plain(right):
            try:
                return python(left, right)
            except (ArithmeticError, TypeError) as error:
                raise self.source.error(node, str(error)) from None
        if kind in _BITS:
            a, b = self.pair(node, left, right)
            return _bits(_BITS[kind][0], a, b)
        if kind not in _BINARY:
            raise self.source.error(node, f"a script has no operator {kind.__name__}", "use pow(x, y) for powers")
        return self.arithmetic(node, _BINARY[kind][0], left, right)

    def arithmetic(self, node: ast.AST, kind: type[e.BinaryExpr], left: Value, right: Value) -> PrimExpr:
        """An arithmetic node of two operands brought to one type."""
        a, b = self.pair(node, left, right)
        if kind is e.Div and not a.dtype.is_float:
            raise self.source.error(
                node, f"`/` divides floats, not {a.dtype}", "use //, truncdiv(a, b), or convert with float32(x)"
            )
        if a.dtype.is_float and kind in (e.FloorDiv, e.FloorMod):
            return build.floordiv(a, b) if kind is e.FloorDiv else build.floormod(a, b)
        if a.dtype.is_bool:
            raise self.source.error(node, "arithmetic on bool values", "convert them: int64(x)")
        return kind(a, b)  # type: ignore[call-arg]

    def pair(self, node: ast.AST, left: Value, right: Value) -> tuple[PrimExpr, PrimExpr]:
        """Two operands of one type: numbers take the type of the other side, mixed types are promoted."""
        if not isinstance(left, PrimExpr) and not is_number(left):
            left = self.to_expr(left, node)
        if not isinstance(right, PrimExpr) and not is_number(right):
            right = self.to_expr(right, node)
        if isinstance(left, PrimExpr) and not isinstance(right, PrimExpr):
            return self._with_number(node, left, right)
        if isinstance(right, PrimExpr) and not isinstance(left, PrimExpr):
            b, a = self._with_number(node, right, left)
            return a, b
        if not isinstance(left, PrimExpr) or not isinstance(right, PrimExpr):
            kind = FLOAT32 if isinstance(left, float) or isinstance(right, float) else None
            return self.to_expr(left, node, kind), self.to_expr(right, node, kind)
        if left.dtype is right.dtype:
            return left, right
        target = promote(left.dtype, right.dtype)
        return convert(left, target), convert(right, target)

    def _with_number(self, node: ast.AST, typed: PrimExpr, number: Value) -> tuple[PrimExpr, PrimExpr]:
        dtype = typed.dtype
        if isinstance(number, (float, np.floating)) and not dtype.is_float:
            dtype = FLOAT32.with_lanes(dtype.lanes)
            typed = convert(typed, dtype)
        elif dtype.is_bool and not isinstance(number, (bool, np.bool_)):
            dtype = INDEX.with_lanes(dtype.lanes)
            typed = convert(typed, dtype)
        constant = self.to_expr(number, node, dtype.element)
        return typed, constant if dtype.is_scalar else e.Broadcast(constant, dtype.lanes)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(value, bool):
                return not value
            return e.Not(self.as_condition(value, node.operand))
        if plain(value):
            table: dict[type, Callable[..., object]] = {
                ast.USub: operator.neg,
                ast.UAdd: operator.pos,
                ast.Invert: operator.invert,
            }
            return table[type(node.op)](value)
        expr = self.to_expr(value, node)
        if isinstance(node.op, ast.UAdd):
            return expr
        return build.neg(expr) if isinstance(node.op, ast.USub) else build.bitwise_not(expr)

    def _boolean(self, node: ast.BoolOp) -> Value:
        kind: type[e.BinaryExpr] = e.And if isinstance(node.op, ast.And) else e.Or
        values = [self.value(item) for item in node.values]
        if all(isinstance(value, bool) for value in values):
            return all(values) if kind is e.And else any(values)
        result: PrimExpr | None = None
        for value, item in zip(values, node.values, strict=True):
            expr = self.as_condition(value, item)
            result = expr if result is None else kind(result, expr)  # type: ignore[call-arg]
        return result

    def _comparison(self, node: ast.Compare) -> Value:
        values = [self.value(item) for item in (node.left, *node.comparators)]
        result: Value = None
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in _COMPARE:
                raise self.source.error(node, f"a script has no comparison {type(op).__name__}")
            kind, swap, python = _COMPARE[type(op)]
            part: Value
            if _static(left) and _static(right):
                part = python(left, right)
            else:
                a, b = self.pair(node, left, right)
                part = kind(b, a) if swap else kind(a, b)  # type: ignore[call-arg]
            if result is None:
                result = part
            elif isinstance(result, bool) and isinstance(part, bool):
                result = result and part
            else:
                result = e.And(self.to_expr(result, node), self.to_expr(part, node))
        return result

    def _ternary(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        if isinstance(test, (bool, np.bool_)):
            return self.value(node.body if test else node.orelse)
        condition = self.as_condition(test, node.test)
        a, b = self.pair(node, self.value(node.body), self.value(node.orelse))
        return e.Select(condition, a, b)

    def call(self, node: ast.Call) -> Value:
        """What a call is; the parser of calls knows them."""
        raise self.source.error(node, "no call can stand here")


def _call(parser: ExprParser, node: ast.Call) -> Value:
    return parser.call(node)


_HANDLERS: Final[dict[type, Callable[..., Value]]] = {
    ast.Constant: ExprParser._constant,
    ast.Name: ExprParser._name,
    ast.Tuple: ExprParser._tuple,
    ast.List: ExprParser._list,
    ast.Dict: ExprParser._dict,
    ast.Attribute: ExprParser._attribute,
    ast.Subscript: ExprParser._subscript,
    ast.BinOp: ExprParser._binary,
    ast.UnaryOp: ExprParser._unary,
    ast.BoolOp: ExprParser._boolean,
    ast.Compare: ExprParser._comparison,
    ast.IfExp: ExprParser._ternary,
    ast.Call: _call,
}


def literal(value: bool | int | float | np.bool_ | np.integer | np.floating, dtype: DataType | None) -> PrimExpr:
    """A number as a constant of a type; a `UserError` if it does not fit."""
    if dtype is not None and dtype.is_integer and isinstance(value, (int, np.integer)):
        return IntImm(int(value), dtype)
    if dtype is not None and dtype.is_bool and not isinstance(value, (bool, np.bool_)):
        raise UserError(f"{value} is not a bool", hint="write True or False, or compare")
    return build.const(value.item() if isinstance(value, np.generic) else value, dtype)


def plain(value: Value) -> bool:
    """Whether Python itself can compute with a value while parsing."""
    return is_number(value) or isinstance(value, (str, tuple, list))


def _static(value: Value) -> bool:
    return value is None or plain(value) or isinstance(value, DataType)


def convert(expr: PrimExpr, dtype: DataType) -> PrimExpr:
    """An expression brought to a type, its single lane repeated if need be."""
    if expr.dtype.lanes != dtype.lanes:
        if expr.dtype.lanes != 1:
            raise UserError(f"vectors of {expr.dtype.lanes} and {dtype.lanes} lanes do not mix")
        expr = e.Broadcast(expr, dtype.lanes)
    return expr if expr.dtype is dtype else e.Cast(expr, dtype)


def _bits(name: str, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    table = {
        "bitwise_and": build.bitwise_and,
        "bitwise_or": build.bitwise_or,
        "bitwise_xor": build.bitwise_xor,
        "shift_left": build.shift_left,
        "shift_right": build.shift_right,
    }
    return table[name](a, b)


def describe(value: Value) -> str:
    """A value of the parser, for messages."""
    if isinstance(value, Buffer):
        return f"buffer {value.name}"
    if isinstance(value, PrimExpr):
        return f"a value of type {value.dtype}"
    return repr(value)
