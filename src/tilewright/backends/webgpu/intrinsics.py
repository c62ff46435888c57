"""Calls of intrinsics in WGSL. Functions that WGSL lacks or leaves imprecise were made arithmetic before."""

from __future__ import annotations

from typing import Final

from tilewright.backends.webgpu.convert import reinterpret, wrapped
from tilewright.backends.webgpu.types import LONG, register_type
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Call
from tilewright.support.errors import UnsupportedError

_FUNCTIONS: Final = {
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "trunc": "trunc",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "fma": "fma",
    "copysign": "tw_copysign",
    "isnan": "tw_is_nan",
    "isinf": "tw_is_inf",
    "isfinite": "tw_is_finite",
}
_BITS: Final = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}


def call(expr: Call, values: list[str]) -> str:
    """The text of a call of its arguments' texts."""
    name, dtype = expr.name, expr.dtype
    if name == "reinterpret":
        return reinterpret(values[0], expr.args[0].dtype, dtype)
    if name == "likely":
        return values[0]
    if name in _FUNCTIONS:
        return f"{_FUNCTIONS[name]}({', '.join(values)})"
    wide = register_type(dtype) == LONG
    if name == "abs":
        return _absolute(values[0], dtype, wide)
    if name in _BITS:
        return f"({values[0]} {_BITS[name]} {values[1]})"
    if name == "bitwise_not":
        return wrapped(f"(~{values[0]})", dtype)
    if name in ("shift_left", "shift_right"):
        return _shift(values, dtype, name == "shift_left", wide)
    if name in ("popcount", "clz"):
        return _count(values[0], dtype, name == "clz", wide)
    raise UnsupportedError(f"WebGPU kernels do not know the intrinsic {name!r}")


def _absolute(value: str, dtype: DataType, wide: bool) -> str:
    if dtype.is_uint:
        return value
    return f"tw_abs_int64({value})" if wide else wrapped(f"abs({value})", dtype)


def _shift(values: list[str], dtype: DataType, left: bool, wide: bool) -> str:
    if wide:
        function = "tw_shl" if left else f"tw_shr_{dtype.name}"
        return f"{function}({values[0]}, {values[1]}.x)"
    # The count is taken modulo the width.
    count = f"(u32({values[1]}) & {dtype.bits - 1}u)"
    return wrapped(f"({values[0]} << {count})", dtype) if left else f"({values[0]} >> {count})"


def _count(value: str, dtype: DataType, leading: bool, wide: bool) -> str:
    if wide:
        # The low word counts for leading zeros only where the high one is zero.
        low, high = (f"{'countLeadingZeros' if leading else 'countOneBits'}({value}.{part})" for part in "xy")
        total = f"({high} + select(0u, {low}, {value}.y == 0u))" if leading else f"({low} + {high})"
        return f"{LONG}({total}, 0u)"
    bits = value if dtype.is_uint else f"bitcast<u32>({value})"
    if dtype.bits < 32 and dtype.is_int:
        bits = f"({bits} & {(1 << dtype.bits) - 1}u)"
    text = f"countLeadingZeros({bits}) - {32 - dtype.bits}u" if leading else f"countOneBits({bits})"
    return f"i32({text})" if dtype.is_int else f"({text})"
