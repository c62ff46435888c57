"""Scalar expressions as WGSL text, with the meaning of `docs/semantics.md`.

Selections that read memory become `if`s, others `select`, which computes both sides: no operation of WGSL traps.
Indices are `i32` where bounds prove that nothing overflows; where they do not, sums and products that only address
memory are still computed in 32 bits, since what overflows in them does not change their lowest bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tilewright.backends.webgpu.convert import WgslConversions, from_bits, wrapped
from tilewright.backends.webgpu.intrinsics import INTRINSICS
from tilewright.backends.webgpu.types import LONG, float_text, integer_text, is_packed, register_type
from tilewright.codegen.braces import OPERATORS
from tilewright.codegen.operators import Division, IntrinsicRule
from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr
from tilewright.tir.buffer import Buffer, BufferLoad

_LONG_FUNCTIONS: Final[dict[type, str]] = {e.Add: "tw_add", e.Sub: "tw_sub", e.Mul: "tw_mul"}
_LONG_COMPARISONS: Final[dict[type, str]] = {
    e.EQ: "all({a} == {b})",
    e.NE: "any({a} != {b})",
    e.LT: "tw_less_{kind}({a}, {b})",
    e.LE: "(!tw_less_{kind}({b}, {a}))",
}


class WgslExpressions(WgslConversions):
    """Expressions of one kernel.

    `storage` are the buffers in storage, with whether they are atomic; `single` those of a thread whose elements are a
    variable each.
    """

    language = "WebGPU"
    addresses_in_32_bits: ClassVar[bool] = True
    intrinsics: ClassVar[Mapping[str, IntrinsicRule]] = INTRINSICS

    def __init__(self, storage: dict[Buffer, bool], single: frozenset[Buffer] = frozenset()) -> None:
        super().__init__()
        self.storage = storage
        self.single = single

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
        if buffer in self.single:
            return f"{self.name(buffer)}{index.removesuffix('i')}"
        return f"{self.name(buffer)}[{index}]"

    def integer_constant(self, value: int, dtype: DataType) -> str:
        """An integer constant."""
        return integer_text(value, dtype)

    def float_constant(self, value: float, dtype: DataType) -> str:
        """A float constant."""
        register_type(dtype)
        return float_text(value)

    def load(self, expr: BufferLoad) -> str:
        """An element; small ones are taken out of their word."""
        buffer, index = expr.buffer, self.index(expr.indices[0])
        element = self.element(buffer, index)
        if buffer not in self.storage or not is_packed(buffer.dtype):
            return element
        word = f"atomicLoad(&{element})" if self.storage[buffer] else element
        return from_bits(f"tw_{'byte' if buffer.dtype.itemsize == 1 else 'short'}({word}, {index})", buffer.dtype)

    def load_word(self, first: BufferLoad) -> str | None:
        """A word of storage, as it is."""
        buffer = first.buffer
        if buffer not in self.storage or not is_packed(buffer.dtype):
            return None
        word = self.element(buffer, self.index(first.indices[0]))
        return f"bitcast<i32>({f'atomicLoad(&{word})' if self.storage[buffer] else word})"

    def calculate(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An operator, or a function of pairs of words."""
        if register_type(dtype) == LONG:
            return f"{_LONG_FUNCTIONS[kind]}({a}, {b})"
        return f"({a} {'/' if kind is e.Div else OPERATORS[kind]} {b})"

    def wrapping(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """Integers of 32 and 64 bits wrap by themselves."""
        return wrapped(self.calculate(kind, a, b, dtype), dtype)

    def float_remainder(self, a: str, b: str, dtype: DataType) -> str:
        """A function: `%` of floats is not exact."""
        return f"tw_fmod({a}, {b})"

    def has_division(self, dtype: DataType) -> bool:
        """Not of pairs of words."""
        return register_type(dtype) != LONG

    def divide_naturals(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """An operator."""
        return f"({a} {division.sign} {b})"

    def divide(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """A function."""
        register = register_type(dtype)
        name = f"{'floor' if division.floors and dtype.is_int else ''}{'div' if division.quotient else 'mod'}"
        return wrapped(f"tw_{name}_{dtype.name if register == LONG else register}({a}, {b})", dtype)

    def extreme(self, lesser: bool, a: str, b: str, dtype: DataType) -> str:
        """A builtin function for integers, one of our own that keeps NaN for floats."""
        name = "min" if lesser else "max"
        if dtype.is_float:
            return f"tw_{name}_float({a}, {b})"
        return f"tw_{name}_{dtype.name}({a}, {b})" if register_type(dtype) == LONG else f"{name}({a}, {b})"

    def compare(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An operator, or a function of pairs of words."""
        if register_type(dtype) == LONG:
            return _LONG_COMPARISONS[kind].format(a=a, b=b, kind=dtype.name)
        if dtype.is_bool and kind in (e.LT, e.LE):
            return self.connect(kind is e.LT, f"!{a}", b)
        if dtype.is_float and kind is e.NE:
            # Compilers make of `!=` a comparison that is false with a NaN.
            return f"(!({a} == {b}))"
        return f"({a} {OPERATORS[kind]} {b})"
