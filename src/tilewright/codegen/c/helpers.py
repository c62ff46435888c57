"""Small functions that generated programs call where C has no operator with the right meaning."""

from __future__ import annotations

from typing import Final

from tilewright.codegen.c.dialect import Dialect
from tilewright.codegen.operators import Division
from tilewright.ir.dtype import FLOAT32, DataType

UINT32: Final = DataType.of("uint32")


class Helpers:
    """The helper functions that a program needs, each once, in the order of first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.texts: dict[str, str] = {}

    def text(self) -> str:
        """All of them."""
        return "".join(f"{text}\n" for text in self.texts.values())

    def _define(self, name: str, result: str, parameters: str, body: str) -> str:
        if name not in self.texts:
            self.texts[name] = f"{self._dialect.function_prefix}{result} {name}({parameters}) {{ {body} }}"
        return name

    def divide(self, division: Division, dtype: DataType) -> str:
        """Integer division that never traps: 0 for a divisor of 0, wrap-around for the least integer by -1."""
        kind = self._dialect.register_type(dtype)
        quotient, floors = division.quotient, division.floors and not dtype.is_uint
        name = f"tw_{'floor' if floors else ''}{'div' if quotient else 'mod'}_{dtype.name}"
        parameters = f"{kind} a, {kind} b"
        if dtype.is_uint:
            return self._define(name, kind, parameters, f"return b == 0 ? 0 : ({kind})(a {division.sign} b);")
        unsigned = self._dialect.types[f"uint{max(32, dtype.bits)}"]
        negated = f"({kind})(({unsigned})0 - ({unsigned})a)" if quotient else "0"
        steps = f"if (b == 0) return 0; if (b == -1) return {negated}; {kind} r = ({kind})(a % b); "
        if quotient:
            steps += f"{kind} q = ({kind})(a / b); "
            last = f"return ({kind})(r != 0 && (r < 0) != (b < 0) ? q - 1 : q);" if floors else "return q;"
        else:
            last = f"return ({kind})(r != 0 && (r < 0) != (b < 0) ? r + b : r);" if floors else "return r;"
        return self._define(name, kind, parameters, steps + last)

    def extreme(self, dtype: DataType, lesser: bool) -> str:
        """The lesser or greater of two; NaN if either is NaN."""
        kind = self._dialect.register_type(dtype)
        name = f"tw_{'min' if lesser else 'max'}_{dtype.name}"
        body = self._dialect.extreme(dtype, lesser)
        if body is not None:
            return self._define(name, kind, f"{kind} a, {kind} b", body)
        test = "a < b" if lesser else "a > b"
        if dtype.is_float:
            test = f"{test} || a != a"
        return self._define(name, kind, f"{kind} a, {kind} b", f"return {test} ? a : b;")

    def to_integer(self, source: DataType, target: DataType) -> str:
        """The integer part of a float, kept in the range; NaN gives 0."""
        wide = self._dialect.register_type(source)
        kind = self._dialect.register_type(target)
        single = "" if source.bits == 64 else "f"
        low, high = float(target.min_value()), float(target.max_value())
        least = f"({kind})0" if target.is_uint else f"({kind})(({kind})(-{target.max_value()}L) - 1)"
        most = f"({kind}){target.max_value()}{'UL' if target.is_uint else 'L'}"
        body = (
            f"return x != x ? ({kind})0 : x <= {low.hex()}{single} ? {least} : "
            f"x >= {high.hex()}{single} ? {most} : ({kind})x;"
        )
        return self._define(f"tw_to_{target.name}_{source.bits}", kind, f"{wide} x", body)

    def rounded_byte(self, target: DataType, zero: int) -> str | None:
        """round(x) + zero as a byte, kept in its range, NaN as 0; None where conversions are as good."""
        kind = self._dialect.register_type(target)
        least, most = float(target.min_value() - zero), float(target.max_value() - zero)
        body = self._dialect.rounded_byte(least, most, zero, kind)
        name = f"tw_round_{target.name}{'' if not zero else f'_{zero}' if zero > 0 else f'_m{-zero}'}"
        return None if body is None else self._define(name, kind, "float x", body)

    def byte_value(self) -> str | None:
        """The float of a byte of a thread's own words; None where casts are as good."""
        body = self._dialect.byte_value()
        parameters = f"const {self._dialect.types['uint8']}* bytes, int n"
        return None if body is None else self._define("tw_uint8_value", "float", parameters, body)

    def absolute(self, dtype: DataType) -> str:
        """An integer without its sign; the least one wraps."""
        kind = self._dialect.register_type(dtype)
        unsigned = self._dialect.types[f"uint{max(32, dtype.bits)}"]
        body = f"return x < 0 ? ({kind})(({unsigned})0 - ({unsigned})x) : x;"
        return self._define(f"tw_abs_{dtype.name}", kind, f"{kind} x", body)

    def sigmoid(self, dtype: DataType) -> str:
        """1 / (1 + exp(-x)) without overflow."""
        kind = self._dialect.register_type(dtype)
        exp, fabs = self._dialect.math("exp", dtype), self._dialect.math("abs", dtype)
        one = f"({kind})1"
        body = f"{kind} d = {exp}(-{fabs}(x)); return x != x ? x : (x < 0 ? d : {one}) / ({one} + d);"
        return self._define(f"tw_sigmoid_{dtype.bits}", kind, f"{kind} x", body)

    def half_function(self, name: str) -> str:
        """A function of a float with the digits of half precision, where the language has one."""
        body = self._dialect.half_functions[name]
        return self._define(f"tw_{name}", self._dialect.types["float32"], "float x", body)

    def half_bits(self, double: bool) -> str:
        """The bits of the nearest half of a float or a double."""
        name = f"tw_half_bits_{'double' if double else 'float'}"
        self.texts.setdefault(name, self._dialect.half_helpers()[name])
        return name

    def half_value(self) -> str:
        """The float of the bits of a half."""
        self.texts.setdefault("tw_half_value", self._dialect.half_helpers()["tw_half_value"])
        return "tw_half_value"

    def bfloat16_bits(self) -> str:
        """The bits of the nearest bfloat16 of a float, ties to even; NaN stays NaN."""
        dialect = self._dialect
        if "tw_brain_bits" in dialect.half_helpers():
            self.texts.setdefault("tw_brain_bits", dialect.half_helpers()["tw_brain_bits"])
            return "tw_brain_bits"
        word, short = dialect.types["uint32"], dialect.types["uint16"]
        bits = dialect.bits("x", FLOAT32, UINT32)
        body = (
            f"{word} b = {bits}; return x != x ? ({short})0x7fc0 : ({short})((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);"
        )
        return self._define("tw_brain_bits", short, "float x", body)

    def bfloat16_value(self) -> str:
        """The float of the bits of a bfloat16."""
        dialect = self._dialect
        value = dialect.bits(f"(({dialect.types['uint32']})bits << 16)", UINT32, FLOAT32)
        return self._define("tw_brain_value", "float", f"{dialect.types['uint16']} bits", f"return {value};")

    def float8_bits(self, kind: str) -> str:
        """Round a float to the bits of an 8-bit type, by the processor's own conversion."""
        byte = self._dialect.types["uint8"]
        return self._define(f"tw_{kind}_bits", byte, "float x", self._dialect.float8_body(kind, rounds=True))

    def float8_value(self, kind: str) -> str:
        """The float of the bits of an 8-bit type, by the processor's own conversion."""
        parameters = f"{self._dialect.types['uint8']} bits"
        return self._define(f"tw_{kind}_value", "float", parameters, self._dialect.float8_body(kind, rounds=False))

    def instruction(self, name: str) -> str | None:
        """The function that is an instruction of the device; None where it has none of that name."""
        found = self._dialect.instruction_helper(name)
        if found is None:
            return None
        self.texts.setdefault(found[0], found[1])
        return found[0]

    def copy_async(self, size: int) -> str | None:
        """A copy of some bytes to shared memory that is not waited for; None where there is none."""
        name = f"tw_copy_async_{size}"
        text = self._dialect.copy_async_helper(size)
        if text is None:
            return None
        self.texts.setdefault(name, text)
        return name

    def cluster_load(self, element: str, lanes: int) -> str:
        """A value, or a vector, of the shared memory of another block of the cluster, by its place and number."""
        name = f"tw_cluster_load_{element.replace(' ', '_')}{lanes if lanes > 1 else ''}"
        if name not in self.texts:
            self.texts[name] = self._dialect.cluster_load_helper(name, element, lanes)
        return name

    def async_groups(self, wait: int | None) -> str | None:
        """The function that waits until some groups of copies are under way, or (None) that makes a group."""
        name = "tw_async_commit" if wait is None else f"tw_async_wait_{wait}"
        text = self._dialect.async_helper(name)
        if text is None:
            return None
        self.texts.setdefault(name, text)
        return name
