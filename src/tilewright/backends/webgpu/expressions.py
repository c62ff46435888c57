"""Scalar expressions as WGSL text, with the meaning of `docs/semantics.md`.

Selections that read memory become `if`s, others `select`, which computes both sides: no operation of WGSL traps.
Indices are `i32` where bounds prove that nothing overflows; where they do not, sums and products that only address
memory are still computed in 32 bits, since what overflows in them does not change their lowest bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.backends.webgpu.convert import convert, from_bits, wrapped
from tilewright.backends.webgpu.intrinsics import call
from tilewright.backends.webgpu.types import LONG, float_text, integer_text, is_packed, register_type
from tilewright.codegen.braces import OPERATORS, BracedValues, not_text, variable_text
from tilewright.codegen.operators import by_family
from tilewright.codegen.values import logical_value, select_value
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, INT32
from tilewright.ir.expr import PrimExpr, Var
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

    def type_of(self, expr: PrimExpr) -> str:
        """The WGSL type of an expression's text."""
        return "i32" if self.is_narrow(expr) else register_type(expr.dtype)

    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return f"tw_long({text})"

    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values, both of which are computed."""
        return f"select({b}, {a}, {condition})"

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
        plain = c.divides_naturals(expr.a, expr.b)
    else:
        plain = register == "u32" and isinstance(expr.b, e.IntImm) and expr.b.value > 0
    if plain:
        text = f"({a} {operator} {b})"
    else:
        name = _DIVISIONS[kind].removeprefix("floor") if dtype.is_uint else _DIVISIONS[kind]
        text = wrapped(f"tw_{name}_{dtype.name if register == LONG else register}({a}, {b})", dtype)
    return c.widened(expr, text, dtype)


def _extreme(c: WgslExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    lesser = isinstance(expr, e.Min)
    a, b, dtype = c.pair(expr.a, expr.b)
    name = "min" if lesser else "max"
    if dtype.is_bool:
        text = c.connect(lesser, a, b)
    elif dtype.is_float:
        text = f"tw_{name}_float({a}, {b})"
    else:
        text = f"tw_{name}_{dtype.name}({a}, {b})" if register_type(dtype) == LONG else f"{name}({a}, {b})"
    return c.widened(expr, text, dtype)


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
        return c.connect(kind is e.LT, f"!{a}", b)
    if dtype.is_float and kind is e.NE:
        # Compilers make of `!=` a comparison that is false with a NaN.
        return f"(!({a} == {b}))"
    return f"({a} {OPERATORS[kind]} {b})"


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
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_extreme, compare=_compare, logical=logical_value),
    e.Not: not_text,
    e.Select: select_value,
    e.Cast: _cast,
    e.Call: _call,
    BufferLoad: _load,
}
