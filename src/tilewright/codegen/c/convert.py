"""Conversions between types, and values on their way from and to memory."""

from __future__ import annotations

from tilewright.codegen.c.dialect import FLOAT8
from tilewright.codegen.c.values import CValues
from tilewright.ir.dtype import FLOAT32, FLOAT64, DataType


class CConversions(CValues):
    """Values that change their types."""

    def from_memory(self, place: str, dtype: DataType) -> str:
        """A value in a register from its place in memory."""
        name = dtype.element.name
        if name == "bool":
            return f"({place} != 0)"
        if name == "float16":
            return f"{self.helpers.half_value()}({place})"
        if name == "bfloat16":
            return f"{self.helpers.bfloat16_value()}({place})"
        return f"{self.helpers.float8_value(name)}({place})" if name in FLOAT8 else place

    def to_memory(self, text: str, dtype: DataType) -> str:
        """What goes to memory for a value in a register."""
        name = dtype.element.name
        if name == "bool":
            return f"(({self.dialect.types['uint8']}){text})"
        # A value that comes from 16 bits goes back to the same ones.
        if name == "float16":
            return _argument(text, self.helpers.half_value()) or f"{self.helpers.half_bits(double=False)}({text})"
        if name == "bfloat16":
            return _argument(text, self.helpers.bfloat16_value()) or f"{self.helpers.bfloat16_bits()}({text})"
        if name in FLOAT8:
            return _argument(text, self.helpers.float8_value(name)) or f"{self.helpers.float8_bits(name)}({text})"
        return text

    def to_bool(self, value: str, source: DataType) -> str:
        """A comparison with zero."""
        return f"({value} != 0)"

    def to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """A cast."""
        return f"(({self.dialect.register_type(target)}){value})"

    def float_to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """A function: C leaves what is out of range undefined."""
        return f"{self.helpers.to_integer(source if source.bits == 64 else FLOAT32, target)}({value})"

    def to_float(self, value: str, source: DataType, target: DataType) -> str:
        """A cast; half precision and 8-bit types are rounded to their bits and back."""
        if target.name == "float16":
            if source is FLOAT64:
                return f"{self.helpers.half_value()}({self.helpers.half_bits(double=True)}({value}))"
            single = value if source.is_float else f"(({self.dialect.types['float32']}){self._bounded(value, source)})"
            return f"{self.helpers.half_value()}({self.helpers.half_bits(double=False)}({single}))"
        if target.name == "bfloat16":
            single = value if source.is_float and source.bits < 64 else f"(({self.dialect.types['float32']}){value})"
            return f"{self.helpers.bfloat16_value()}({self.helpers.bfloat16_bits()}({single}))"
        if target.name in FLOAT8:
            single = value if source.is_float and source.bits < 64 else f"(({self.dialect.types['float32']}){value})"
            return f"{self.helpers.float8_value(target.name)}({self.helpers.float8_bits(target.name)}({single}))"
        return f"(({self.dialect.register_type(target)}){value})"

    def _bounded(self, text: str, source: DataType) -> str:
        """An integer within twice the range of a half: what is beyond is infinite, what is within is exact."""
        if source.bits <= 16:
            return text
        kind = self.dialect.register_type(source)
        text = f"{self.helpers.extreme(source, lesser=True)}({text}, ({kind})131072)"
        return text if source.is_uint else f"{self.helpers.extreme(source, lesser=False)}({text}, ({kind})-131072)"


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
