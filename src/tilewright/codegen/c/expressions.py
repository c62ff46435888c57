"""Scalar expressions as C text, with the meaning of `docs/semantics.md` where C's own differs.

Values that a statement uses more than once are computed once, into a constant. C's `?:`, `&&` and `||` are lazy as
selections and logic must be; a side that needs constants of its own and reads memory becomes an `if`.
Indices are computed in 32 bits where bounds prove that nothing overflows, in 64 bits otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tilewright.codegen.braces import OPERATORS
from tilewright.codegen.c.convert import CConversions
from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.c.intrinsics import INTRINSICS
from tilewright.codegen.operators import Division, IntrinsicRule
from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, INDEX, INT32, UINT8, DataType
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.passes.split_host_device import buffer_bytes

_LOW = INT32.min_value()
_WORD_BYTES = 4
_MOST_ZERO = 255
"""Zero points of bytes."""


class Expressions(CConversions):
    """Expressions of one kernel, emitted into lines of C."""

    intrinsics: ClassVar[Mapping[str, IntrinsicRule]] = INTRINSICS

    def integer_constant(self, value: int, dtype: DataType) -> str:
        """An integer constant of a type."""
        return integer_text(value, dtype, self.dialect)

    def float_constant(self, value: float, dtype: DataType) -> str:
        """A float constant."""
        return float_text(value, dtype, self.dialect)

    def cast_at_once(self, expr: e.Cast) -> str | None:
        """A byte of a thread's own as a float, or a float rounded to a byte, where that is better than casts."""
        return self._byte_value(expr) or self._rounded(expr)

    def _byte_value(self, expr: e.Cast) -> str | None:
        """The float of a byte in registers: bytes that were copied there as words."""
        load = expr.value
        if expr.dtype is not FLOAT32 or not isinstance(load, BufferLoad) or load.buffer.dtype is not UINT8:
            return None
        if load.buffer.scope != "local" or (buffer_bytes(load.buffer) or 1) % _WORD_BYTES:
            return None
        helper = self.helpers.byte_value()
        return None if helper is None else f"{helper}({self.name(load.buffer)}, {self.value(load.indices[0])})"

    def _rounded(self, expr: e.Cast) -> str | None:
        """A float rounded to a whole number (a constant added) and cast to a byte; None for any other cast."""
        value, zero = expr.value, 0
        shift = value.b if isinstance(value, e.Add) else None
        if isinstance(value, e.Add) and isinstance(shift, e.FloatImm) and float(shift.value).is_integer():
            value, zero = value.a, int(shift.value)
        if expr.dtype.bits != 8 or not expr.dtype.is_integer or abs(zero) > _MOST_ZERO:
            return None
        if not isinstance(value, e.Call) or value.name != "round" or value.dtype is not FLOAT32:
            return None
        helper = self.helpers.rounded_byte(expr.dtype, zero)
        return None if helper is None else f"{helper}({self.value(value.args[0])})"

    def load(self, expr: BufferLoad) -> str:
        """An element: of memory, of another thread's register, of another block."""
        buffer, index, scope = expr.buffer, expr.indices[0], expr.buffer.scope
        if scope == "warp":
            name = self.name(buffer)
            place = name if index is self.own_places[buffer] else self.dialect.shuffle(name, self.value(index))
        elif scope == "shared.cluster":
            block, index = self.part_of_cluster(buffer, index)
            helper = self.helpers.cluster_load(self.dialect.memory_type(buffer.dtype), 1)
            place = f"{helper}({self.name(buffer)} + {self.value(index)}, {self.value(block)})"
        else:
            place = f"{self.name(buffer)}[{self.value(index)}]"
        return self.from_memory(place, buffer.dtype)

    def load_word(self, first: BufferLoad) -> str | None:
        """A read through a pointer to words."""
        return self.dialect.load_word(f"{self.name(first.buffer)} + {self.value(first.indices[0])}")

    def calculate(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An operator."""
        return f"({a} {'/' if kind is e.Div else OPERATORS[kind]} {b})"

    def wrapping(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An operator on unsigned types: signed overflow means nothing in C."""
        unsigned = self.dialect.types[f"uint{max(32, dtype.bits)}"]
        return f"(({self.dialect.register_type(dtype)})(({unsigned}){a} {OPERATORS[kind]} ({unsigned}){b}))"

    def float_remainder(self, a: str, b: str, dtype: DataType) -> str:
        """The function of C's mathematics."""
        return f"{self.dialect.math('fmod', dtype)}({a}, {b})"

    def divide_naturals(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """An operator; C makes an `int` of two small operands."""
        text = f"({a} {division.sign} {b})"
        return f"(({self.dialect.register_type(dtype)}){text})" if dtype.is_uint else text

    def divide(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """A function."""
        return f"{self.helpers.divide(division, dtype)}({a}, {b})"

    def extreme(self, lesser: bool, a: str, b: str, dtype: DataType) -> str:
        """A function."""
        return f"{self.helpers.extreme(dtype, lesser)}({a}, {b})"

    def compare(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """An operator."""
        return f"({a} {OPERATORS[kind]} {b})"

    def unknown_call(self, expr: e.Call, values: list[str]) -> str:
        """An instruction of the device, if it has one of that name."""
        instruction = self.helpers.instruction(expr.name)
        if instruction is None:
            return super().unknown_call(expr, values)
        return f"{instruction}({', '.join(values)})"


def integer_text(value: int, dtype: DataType, dialect: Dialect) -> str:
    """An integer constant of a type."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.bits <= 32:
        if value == _LOW:
            return f"({_LOW + 1} - 1)"
        text = f"{value}u" if dtype.is_uint else str(value)
        if dtype.bits < 32:
            return f"(({dialect.register_type(dtype)}){text})"
        return f"({text})" if value < 0 else text
    wide = dialect.types["int64" if dtype.is_int else "uint64"]
    if value == INDEX.min_value():
        return dialect.least_int64
    return f"(({wide}){value}{'U' if dtype.is_uint else ''}{dialect.long_suffix})"


def float_text(value: float, dtype: DataType, dialect: Dialect) -> str:
    """A float constant, exact: in hexadecimal where decimal digits would be many."""
    double = dtype.bits == 64
    if math.isnan(value) or math.isinf(value):
        text = dialect.not_a_number if math.isnan(value) else dialect.infinity
        text = f"(({dialect.types['float64']}){text})" if double else text
        return f"(-{text})" if math.copysign(1.0, value) < 0 else text
    short = repr(value)
    text = short if len(short) <= 8 and ("." in short or "e" in short) else value.hex()
    return f"({text})" if double and value < 0 else text if double else f"({text}f)" if value < 0 else f"{text}f"
