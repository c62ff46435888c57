"""Conversions between types, and values on their way from and to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, FLOAT64, INDEX, INT32, DataType

if TYPE_CHECKING:
    from tilewright.codegen.c.expressions import Expressions


def load_value(c: Expressions, place: str, dtype: DataType) -> str:
    """A value in a register from its place in memory."""
    name = dtype.element.name
    if name == "bool":
        return f"({place} != 0)"
    if name == "float16":
        return f"{c.helpers.half_value()}({place})"
    if name == "bfloat16":
        return f"{c.helpers.brain_value()}({place})"
    return place


def store_value(c: Expressions, text: str, dtype: DataType) -> str:
    """What goes to memory for a value in a register."""
    name = dtype.element.name
    if name == "bool":
        return f"(({c.dialect.types['uint8']}){text})"
    # A value that comes from 16 bits goes back to the same ones.
    if name == "float16":
        return _argument(text, c.helpers.half_value()) or f"{c.helpers.half_bits(double=False)}({text})"
    if name == "bfloat16":
        return _argument(text, c.helpers.brain_value()) or f"{c.helpers.brain_bits()}({text})"
    return text


def _argument(text: str, function: str) -> str | None:
    """What a function is called with, if a text is nothing but that call."""
    if not text.startswith(f"{function}(") or not text.endswith(")"):
        return None
    inner = text[len(function) + 1 : -1]
    depth = 0
    for letter in inner:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return None
    return inner


def cast(c: Expressions, expr: e.Cast) -> str:
    """A conversion."""
    source, target = expr.value.dtype.element, expr.dtype.element
    text = c.value(expr.value)
    if c.is_narrow(expr):
        return f"(({c.dialect.types['int32']}){text})"
    if source is target:
        return c.full(expr.value) if source is INDEX else text
    if target.is_bool:
        return f"({text} != 0)"
    if target.is_float:
        return _to_float(c, text, INT32 if c.is_narrow(expr.value) else source, target)
    if source.is_float:
        return f"{c.helpers.to_integer(source if source.bits == 64 else FLOAT32, target)}({text})"
    return f"(({c.dialect.register_type(target)}){text})"


def _to_float(c: Expressions, text: str, source: DataType, target: DataType) -> str:
    if target.name == "float16":
        if source is FLOAT64:
            return f"{c.helpers.half_value()}({c.helpers.half_bits(double=True)}({text}))"
        single = text if source.is_float else f"(({c.dialect.types['float32']}){_bounded(c, text, source)})"
        return f"{c.helpers.half_value()}({c.helpers.half_bits(double=False)}({single}))"
    if target.name == "bfloat16":
        single = text if source.is_float and source.bits < 64 else f"(({c.dialect.types['float32']}){text})"
        return f"{c.helpers.brain_value()}({c.helpers.brain_bits()}({single}))"
    return f"(({c.dialect.register_type(target)}){text})"


def _bounded(c: Expressions, text: str, source: DataType) -> str:
    """An integer within twice the range of a half: what is beyond is infinite, what is within is exact as a float."""
    if source.bits <= 16:
        return text
    kind = c.dialect.register_type(source)
    text = f"{c.helpers.extreme(source, lesser=True)}({text}, ({kind})131072)"
    return text if source.is_uint else f"{c.helpers.extreme(source, lesser=False)}({text}, ({kind})-131072)"
