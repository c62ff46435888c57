"""Calls of intrinsics as C text."""

from __future__ import annotations

from typing import Final

from tilewright.codegen.braces import BITWISE
from tilewright.codegen.c.convert import CConversions
from tilewright.codegen.operators import IntrinsicRule, by_intrinsic
from tilewright.ir.expr import Call
from tilewright.ir.intrinsics import HALF_FUNCTIONS
from tilewright.support.errors import UnsupportedError

_FUNCTIONS: Final = (
    "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "floor ceil round trunc pow atan2 copysign fma".split()
)


def _function(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"{c.dialect.math(expr.name, expr.dtype)}({', '.join(values)})"


def _test(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"({c.dialect.math(expr.name, expr.args[0].dtype)}({values[0]}) != 0)"


def _absolute(c: CConversions, expr: Call, values: list[str]) -> str:
    if expr.dtype.is_uint:
        return values[0]
    function = c.dialect.math("abs", expr.dtype) if expr.dtype.is_float else c.helpers.absolute(expr.dtype)
    return f"{function}({values[0]})"


def _sigmoid(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"{c.helpers.sigmoid(expr.dtype)}({values[0]})"


def _half_function(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"{c.helpers.half_function(expr.name)}({values[0]})"


def _bitwise(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"(({c.dialect.register_type(expr.dtype)})({values[0]} {BITWISE[expr.name]} {values[1]}))"


def _invert(c: CConversions, expr: Call, values: list[str]) -> str:
    return f"(({c.dialect.register_type(expr.dtype)})(~{values[0]}))"


def _shift(c: CConversions, expr: Call, values: list[str]) -> str:
    """The count is taken modulo the width: C leaves larger shifts undefined."""
    dtype, kind = expr.dtype, c.dialect.register_type(expr.dtype)
    count = f"({values[1]} & {dtype.bits - 1})"
    if expr.name == "shift_right":
        return f"(({kind})({values[0]} >> {count}))"
    return f"(({kind})(({c.dialect.types[f'uint{max(32, dtype.bits)}']}){values[0]} << {count}))"


def _count(c: CConversions, expr: Call, values: list[str]) -> str:
    dtype, leading = expr.dtype, expr.name == "clz"
    unsigned = c.dialect.types[f"uint{dtype.bits}"]
    text = c.dialect.count_bits(f"({unsigned}){values[0]}", dtype.bits == 64, leading)
    if leading and dtype.bits < 32:
        text = f"{text} - {32 - dtype.bits}"
    return f"(({c.dialect.register_type(dtype)})({text}))"


def _reinterpret(c: CConversions, expr: Call, values: list[str]) -> str:
    source, target = expr.args[0].dtype, expr.dtype
    value = values[0]
    if source.lanes != target.lanes:
        raise UnsupportedError(f"{c.dialect.name} kernels do not reinterpret {source} as {target}")
    if source.is_float == target.is_float:
        return f"(({c.dialect.register_type(target)}){value})" if source.bits >= 32 or not source.is_float else value
    if target.bits in (32, 64):
        return c.dialect.bits(value, source, target)
    kind = target if target.is_float else source
    if kind.name == "float16":
        function = c.helpers.half_value() if target.is_float else c.helpers.half_bits(double=False)
    elif kind.name == "bfloat16":
        function = c.helpers.bfloat16_value() if target.is_float else c.helpers.bfloat16_bits()
    else:
        raise UnsupportedError(f"{c.dialect.name} kernels do not reinterpret {source} as {target}")
    unsigned = c.dialect.types["uint16"]
    if target.is_float:
        return f"{function}(({unsigned}){value})"
    return f"(({c.dialect.register_type(target)}){function}({value}))"


INTRINSICS: Final[dict[str, IntrinsicRule]] = {
    **by_intrinsic(
        _FUNCTIONS,
        function=_function,
        test=_test,
        absolute=_absolute,
        bitwise=_bitwise,
        invert=_invert,
        shift=_shift,
        count=_count,
        same=_reinterpret,
    ),
    "sigmoid": _sigmoid,
    **dict.fromkeys((f"half_{name}" for name in HALF_FUNCTIONS), _half_function),
}
