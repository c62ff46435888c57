"""Scalar expressions as WGSL text, with the meaning of `docs/semantics.md`.

Selections that read memory become `if`s, others `select`, which computes both sides: no operation of WGSL traps.
Indices are `i32` where bounds prove that nothing overflows; where they do not, sums and products that only address
memory are still computed in 32 bits, since what overflows in them does not change their lowest bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.codegen.braces import OPERATORS, BracedValues, logical_text, not_text, variable_text
from tilewright.codegen.operators import by_family
from tilewright.codegen.wgsl.convert import convert, from_bits, wrapped
from tilewright.codegen.wgsl.intrinsics import call
from tilewright.codegen.wgsl.types import LONG, float_text, integer_text, is_packed, register_type
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, INT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import Buffer, BufferLoad

_LONG_FUNCTIONS: Final[dict[type, str]] = {e.Add: "tw_add", e.Sub: "tw_sub", e.Mul: "tw_mul"}
_DIVISIONS: Final[dict[type, str]] = {e.Div: "div", e.Mod: "mod", e.FloorDiv: "floordiv", e.FloorMod: "floormod"}


class WgslExpressions(BracedValues):
    """Expressions of one kernel. `storage` are the buffers in storage, with whether they are atomic."""

    def __init__(self, storage: dict[Buffer, bool]) -> None:
        super().__init__()
        self.storage = storage

    def emit(self, expr: PrimExpr) -> str:
        """The text of an expression that was not met before."""
        handler = _DISPATCH.get(type(expr))
        if handler is None:
            raise UnsupportedError(f"WebGPU kernels have no {type(expr).__name__}")
        return handler(self, expr)

    def declare_global(self, buffer: Buffer, prefix: str) -> str:
        """The name of a buffer that is declared outside functions, where kernels must not meet."""
        self._names[buffer] = f"{prefix}_{self.name(buffer)}"
        return self._names[buffer]

    def constant(self, kind: str, name: str, text: str) -> str:
        """The declaration of a constant."""
        return f"let {name}: {kind} = {text};"

    def variable(self, kind: str, name: str) -> str:
        """The declaration of a variable that is given its value later."""
        return f"var {name}: {kind};"

    def needs_branch(self, expr: PrimExpr) -> bool:
        """Whether an expression that is not always computed must stand in a branch of its own: if it reads memory."""
        return any(isinstance(item, BufferLoad) for item in pre_order(expr))

    def type_of(self, expr: PrimExpr) -> str:
        """The WGSL type of an expression's text."""
        return "i32" if self.is_narrow(expr) else register_type(expr.dtype)

    def full(self, expr: PrimExpr) -> str:
        """The text of a value in its own type: indices in 64 bits."""
        text = self.value(expr)
        return f"tw_long({text})" if self.is_narrow(expr) else text

    def pair(self, a: PrimExpr, b: PrimExpr) -> tuple[str, str, DataType]:
        """Two operands of one type, and that type."""
        if self.is_narrow(a) and self.is_narrow(b):
            return self.value(a), self.value(b), INT32
        return self.full(a), self.full(b), a.dtype

    def index(self, expr: PrimExpr) -> str:
        """The text of an index as an `i32`: the lowest bits where it is wider."""
        return self.value(expr) if self.is_narrow(expr) else self.value(e.Cast(expr, INT32))

    def element(self, buffer: Buffer, index: str) -> str:
        """The place of an element, of a whole word of small elements."""
        if buffer in self.storage and is_packed(buffer.dtype):
            return f"{self.name(buffer)}[u32({index}) >> {2 if buffer.dtype.itemsize == 1 else 1}u]"
        return f"{self.name(buffer)}[{index}]"


def _integer(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.IntImm)
    return integer_text(expr.value, INT32 if c.is_narrow(expr) else expr.dtype)


def _float(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.FloatImm)
    register_type(expr.dtype)
    return float_text(expr.value)


def _load(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, BufferLoad)
    buffer, index = expr.buffer, c.index(expr.indices[0])
    if buffer not in c.storage or not is_packed(buffer.dtype):
        return c.element(buffer, index)
    word = c.element(buffer, index)
    word = f"atomicLoad(&{word})" if c.storage[buffer] else word
    return from_bits(f"tw_{'byte' if buffer.dtype.itemsize == 1 else 'short'}({word}, {index})", buffer.dtype)


def _arithmetic(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    operator, dtype = OPERATORS[type(expr)], expr.dtype
    if dtype.is_float:
        if dtype.bits == 16:
            raise CompilerBug(f"{dtype} arithmetic reached the code generator")
        return f"({c.value(expr.a)} {operator} {c.value(expr.b)})"
    if c.is_narrow(expr):
        return f"({c.value(expr.a)} {operator} {c.value(expr.b)})"
    a, b = c.full(expr.a), c.full(expr.b)
    if register_type(dtype) == LONG:
        return f"{_LONG_FUNCTIONS[type(expr)]}({a}, {b})"
    return wrapped(f"({a} {operator} {b})", dtype)


def _division(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    kind = type(expr)
    if expr.dtype.is_float:
        a, b = c.value(expr.a), c.value(expr.b)
        return f"tw_fmod({a}, {b})" if kind is e.Mod else f"({a} / {b})"
    a, b, dtype = c.pair(expr.a, expr.b)
    operator = "/" if kind in (e.FloorDiv, e.Div) else "%"
    register = register_type(dtype)
    if register == "i32" and expr.dtype is INDEX:
        # Bounds are of indices only: data is unbounded.
        low, divisor = c.analyzer.lower_bound(expr.a), c.analyzer.lower_bound(expr.b)
        plain = low is not None and low >= 0 and divisor is not None and divisor > 0
    else:
        plain = register == "u32" and isinstance(expr.b, e.IntImm) and expr.b.value > 0
    if plain:
        text = f"({a} {operator} {b})"
    else:
        name = _DIVISIONS[kind].removeprefix("floor") if dtype.is_uint else _DIVISIONS[kind]
        text = wrapped(f"tw_{name}_{dtype.name if register == LONG else register}({a}, {b})", dtype)
    # A quotient of ints that is not an int itself: the bounds of the least integer by -1.
    return f"tw_long({text})" if expr.dtype is INDEX and dtype is INT32 and not c.is_narrow(expr) else text


def _extreme(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    lesser = isinstance(expr, e.Min)
    a, b, dtype = c.pair(expr.a, expr.b)
    name = "min" if lesser else "max"
    if dtype.is_bool:
        text = f"({a} {'&&' if lesser else '||'} {b})"
    elif dtype.is_float:
        text = f"tw_{name}_float({a}, {b})"
    else:
        text = f"tw_{name}_{dtype.name}({a}, {b})" if register_type(dtype) == LONG else f"{name}({a}, {b})"
    return f"tw_long({text})" if expr.dtype is INDEX and dtype is INT32 and not c.is_narrow(expr) else text


def _compare(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.CompareExpr)
    a, b, dtype = c.pair(expr.a, expr.b)
    kind = type(expr)
    if register_type(dtype) == LONG:
        if kind is e.EQ:
            return f"all({a} == {b})"
        if kind is e.NE:
            return f"any({a} != {b})"
        less = f"tw_less_{dtype.name}"
        return f"{less}({a}, {b})" if kind is e.LT else f"(!{less}({b}, {a}))"
    if dtype.is_bool and kind in (e.LT, e.LE):
        return f"(!{a} {'&&' if kind is e.LT else '||'} {b})"
    if dtype.is_float and kind is e.NE:
        # Compilers make of `!=` a comparison that is false with a NaN.
        return f"(!({a} == {b}))"
    return f"({a} {OPERATORS[kind]} {b})"


def _select(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Select)
    condition = c.value(expr.condition)
    narrow = c.is_narrow(expr)

    def side(item: PrimExpr) -> str:
        return c.value(item) if narrow else c.full(item)

    if c.needs_branch(expr.a) or c.needs_branch(expr.b):
        return c.choice(condition, c.type_of(expr), lambda: side(expr.a), lambda: side(expr.b))
    return f"select({side(expr.b)}, {side(expr.a)}, {condition})"


def _cast(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Cast)
    inner, target = expr.value, expr.dtype
    if target is INT32 and inner.dtype is INDEX and not c.is_narrow(inner):
        if isinstance(inner, (e.Add, e.Sub, e.Mul)):
            return f"({c.index(inner.a)} {OPERATORS[type(inner)]} {c.index(inner.b)})"
        if isinstance(inner, e.IntImm):
            low = inner.value & 0xFFFFFFFF
            return integer_text(low - (1 << 32) if low >> 31 else low, INT32)
    if c.is_narrow(expr):
        return convert(c.value(inner), INT32 if c.is_narrow(inner) else inner.dtype, INT32)
    return convert(c.value(inner), INT32 if c.is_narrow(inner) else inner.dtype, target)


def _call(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Call)
    return call(expr, [c.full(arg) for arg in expr.args])


_DISPATCH: Final[dict[type, Callable[[WgslExpressions, PrimExpr], str]]] = {
    Var: variable_text,
    e.IntImm: _integer,
    e.FloatImm: _float,
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_extreme, compare=_compare, logical=logical_text),
    e.Not: not_text,
    e.Select: _select,
    e.Cast: _cast,
    e.Call: _call,
    BufferLoad: _load,
}
