"""Conversions to types of eight bits and fewer as ONNX's Cast says: saturation, and rounding of powers of two."""

from __future__ import annotations

from tilewright.frontend.core.builder import Builder, dtype_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, UINT8, DataType
from tilewright.ir.small_floats import FORMATS, value_of
from tilewright.support.errors import UserError

_UINT32 = DataType.of("uint32")
_ROUND_MODES = ("up", "down", "nearest")
_LEAST_POWER = 0x400000
"""The bits of 2 ** -127 in float32, half-way between two of its exponents."""


def converted(
    builder: Builder, value: GraphExpr, to: DataType, saturate: bool = True, round_mode: str = "up"
) -> GraphExpr:
    """A value converted to a type: floats beyond the range of a small float saturate, or not."""
    source = dtype_of(value)
    if source is to:
        return value
    if to.is_small_float:
        single = builder.cast(value, FLOAT32)
        if not FORMATS[to.name].has_minus:
            return _power(builder, single, to, saturate, round_mode)
        if saturate:
            largest = value_of(FORMATS[to.name].largest, to.name)
            single = builder.call("clip", single, minimum=-largest, maximum=largest)
        return builder.cast(single, to)
    if to.is_small_integer and source.is_float:
        # Whole numbers keep their low bits.
        value = builder.cast(value, INT32)
    return builder.cast(value, to)


def _power(builder: Builder, value: GraphExpr, to: DataType, saturate: bool, round_mode: str) -> GraphExpr:
    """The power of two not below a value, not above it, or nearest (halves up); the sign is dropped."""
    if round_mode not in _ROUND_MODES:
        raise UserError(f"round_mode {round_mode!r} of a conversion to {to}", hint=f"one of {', '.join(_ROUND_MODES)}")

    def number(item: int) -> GraphExpr:
        return builder.constant(item, _UINT32)

    call = builder.call
    magnitude = call("bitwise_and", call("reinterpret", value, dtype=_UINT32), number(0x7FFFFFFF))
    code = call("right_shift", magnitude, number(23))
    if round_mode == "up":
        between = call("greater", call("bitwise_and", magnitude, number(0x7FFFFF)), number(0))
        above = call("logical_and", between, call("greater", magnitude, number(_LEAST_POWER)))
        code = call("add", code, builder.cast(above, _UINT32))
    elif round_mode == "nearest":
        rounded = call("right_shift", call("add", magnitude, number(_LEAST_POWER)), number(23))
        code = call("where", call("equal", magnitude, number(_LEAST_POWER)), number(0), rounded)
    code = call("minimum", code, number(254 if saturate else 255))
    undefined = call("greater", magnitude, number(0x7F800000))
    if not saturate:
        undefined = call("logical_or", undefined, call("less", magnitude, number(_LEAST_POWER)))
    return call("reinterpret", call("cast", call("where", undefined, number(255), code), dtype=UINT8), dtype=to)
