"""Calls of intrinsics in WGSL. Functions that WGSL lacks or leaves imprecise were made arithmetic before."""

from __future__ import annotations

from typing import Final

from tilewright.backends.webgpu.convert import WgslConversions, from_bits, to_bits, wrapped
from tilewright.backends.webgpu.types import LONG, register_type
from tilewright.codegen.braces import BITWISE
from tilewright.codegen.operators import IntrinsicRule, by_intrinsic
from tilewright.ir.expr import Call
from tilewright.support.errors import UnsupportedError
from tilewright.tir.machine import DOT4

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


def _function(c: WgslConversions, expr: Call, values: list[str]) -> str:
    return f"{_FUNCTIONS[expr.name]}({', '.join(values)})"


def _absolute(c: WgslConversions, expr: Call, values: list[str]) -> str:
    if expr.dtype.is_uint:
        return values[0]
    wide = register_type(expr.dtype) == LONG
    return f"tw_abs_int64({values[0]})" if wide else wrapped(f"abs({values[0]})", expr.dtype)


def _bitwise(c: WgslConversions, expr: Call, values: list[str]) -> str:
    return f"({values[0]} {BITWISE[expr.name]} {values[1]})"


def _invert(c: WgslConversions, expr: Call, values: list[str]) -> str:
    return wrapped(f"(~{values[0]})", expr.dtype)


def _shift(c: WgslConversions, expr: Call, values: list[str]) -> str:
    """The count is taken modulo the width."""
    dtype, left = expr.dtype, expr.name == "shift_left"
    if register_type(dtype) == LONG:
        function = "tw_shl" if left else f"tw_shr_{dtype.name}"
        return f"{function}({values[0]}, {values[1]}.x)"
    count = f"(u32({values[1]}) & {dtype.bits - 1}u)"
    return wrapped(f"({values[0]} << {count})", dtype) if left else f"({values[0]} >> {count})"


def _count(c: WgslConversions, expr: Call, values: list[str]) -> str:
    dtype, value, leading = expr.dtype, values[0], expr.name == "clz"
    if register_type(dtype) == LONG:
        # The low word counts for leading zeros only where the high one is zero.
        low, high = (f"{'countLeadingZeros' if leading else 'countOneBits'}({value}.{part})" for part in "xy")
        total = f"({high} + select(0u, {low}, {value}.y == 0u))" if leading else f"({low} + {high})"
        return f"{LONG}({total}, 0u)"
    bits = value if dtype.is_uint else f"bitcast<u32>({value})"
    if dtype.bits < 32 and dtype.is_int:
        bits = f"({bits} & {(1 << dtype.bits) - 1}u)"
    text = f"countLeadingZeros({bits}) - {32 - dtype.bits}u" if leading else f"countOneBits({bits})"
    return f"i32({text})" if dtype.is_int else f"({text})"


def _reinterpret(c: WgslConversions, expr: Call, values: list[str]) -> str:
    source, target = expr.args[0].dtype, expr.dtype
    if source.bits == 64 and source.is_integer and target.is_integer:
        return values[0]
    if source.lanes != 1 or target.lanes != 1 or source.bits > 32:
        raise UnsupportedError(f"WebGPU kernels do not reinterpret {source} as {target}")
    if source.is_integer and target.is_integer:
        return c.convert(values[0], source, target)
    return from_bits(to_bits(values[0], source), target)


def _dot4(c: WgslConversions, expr: Call, values: list[str]) -> str:
    """A function of the language feature `packed_4x8_integer_dot_product`."""
    total, a, b = values
    return f"({total} + dot4I8Packed(bitcast<u32>({a}), bitcast<u32>({b})))"


INTRINSICS: Final[dict[str, IntrinsicRule]] = {
    **by_intrinsic(
        _FUNCTIONS,
        function=_function,
        test=_function,
        absolute=_absolute,
        bitwise=_bitwise,
        invert=_invert,
        shift=_shift,
        count=_count,
        same=_reinterpret,
    ),
    DOT4: _dot4,
}
