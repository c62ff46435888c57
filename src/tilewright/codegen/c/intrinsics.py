"""Calls of intrinsics as C text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Call
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.codegen.c.expressions import Expressions

_MATH: Final = frozenset(
    "exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "floor ceil round trunc pow atan2 copysign fma".split()
)
_TESTS: Final = frozenset(["isnan", "isinf", "isfinite"])
_BITS: Final = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}


def call(c: Expressions, expr: Call) -> str:
    """The value of a call."""
    name, dtype = expr.name, expr.dtype
    if name == "reinterpret":
        return _reinterpret(c, expr)
    if name in ("likely", "async_copy"):
        return c.value(expr.args[0])
    # Indices that are ints in the text become what their type says: functions are chosen by types.
    values = [c.full(arg) for arg in expr.args]
    if name in _MATH:
        return f"{c.dialect.math(name, dtype)}({', '.join(values)})"
    if name in _TESTS:
        return f"({c.dialect.math(name, expr.args[0].dtype)}({values[0]}) != 0)"
    if name == "abs":
        if dtype.is_uint:
            return values[0]
        function = c.dialect.math("abs", dtype) if dtype.is_float else c.helpers.absolute(dtype)
        return f"{function}({values[0]})"
    if name == "sigmoid":
        return f"{c.helpers.sigmoid(dtype)}({values[0]})"
    kind = c.dialect.register_type(dtype)
    if name in _BITS:
        return f"(({kind})({values[0]} {_BITS[name]} {values[1]}))"
    if name == "bitwise_not":
        return f"(({kind})(~{values[0]}))"
    if name in ("shift_left", "shift_right"):
        # The count is taken modulo the width: C leaves larger shifts undefined.
        count = f"({values[1]} & {dtype.bits - 1})"
        if name == "shift_right":
            return f"(({kind})({values[0]} >> {count}))"
        return f"(({kind})(({c.dialect.types[f'uint{max(32, dtype.bits)}']}){values[0]} << {count}))"
    if name in ("popcount", "clz"):
        return _count(c, values[0], dtype, name == "clz")
    instruction = c.helpers.instruction(name)
    if instruction is not None:
        return f"{instruction}({', '.join(values)})"
    raise UnsupportedError(f"{c.dialect.name} kernels do not know the intrinsic {name!r}")


def _count(c: Expressions, value: str, dtype: DataType, leading: bool) -> str:
    unsigned = c.dialect.types[f"uint{dtype.bits}"]
    text = c.dialect.count_bits(f"({unsigned}){value}", dtype.bits == 64, leading)
    if leading and dtype.bits < 32:
        text = f"{text} - {32 - dtype.bits}"
    return f"(({c.dialect.register_type(dtype)})({text}))"


def _reinterpret(c: Expressions, expr: Call) -> str:
    source, target = expr.args[0].dtype, expr.dtype
    value = c.full(expr.args[0])
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
        function = c.helpers.brain_value() if target.is_float else c.helpers.brain_bits()
    else:
        raise UnsupportedError(f"{c.dialect.name} kernels do not reinterpret {source} as {target}")
    unsigned = c.dialect.types["uint16"]
    if target.is_float:
        return f"{function}(({unsigned}){value})"
    return f"(({c.dialect.register_type(target)}){function}({value}))"
