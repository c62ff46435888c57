"""Requantisation in fixed point with parameters in one tensor, as EPI of the tensor processor takes them.

    t = sum + bias                                                                        wraps to 32 bits
    y = (t * multiplier + (residual * residual_multiplier << residual_shift) + half) >> shift      in 64 bits
    result = clip(y + offset, low, high)                                                  half = 2^(shift-1), or 0

The words of a channel are [bias, multiplier, residual's multiplier, shifts]; the last holds both shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.accel.config import RESIDUAL_SHIFT_AT, RESIDUAL_SHIFT_BITS, SHIFT_BITS
from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT8, INT32, INT64
from tilewright.ir.expr import PrimExpr

PARAMETERS: Final = ("bias", "multiplier", "residual_multiplier", "shifts")
"""The words of a channel, in order."""


@dataclass(frozen=True, slots=True)
class Requantization:
    """What the parameters do not say: whether there is a residual, what is added in the end, the range of results."""

    residual: bool = False
    offset: int = 0
    low: int = -128
    high: int = 127


def requantized(
    total: PrimExpr, words: Sequence[PrimExpr], residual: PrimExpr | None, form: Requantization
) -> PrimExpr:
    """The result of one sum, with the four words of its channel."""
    bias, multiplier, factor, shifts = words
    added = None if residual is None else (residual, factor, _bits(shifts, RESIDUAL_SHIFT_AT, RESIDUAL_SHIFT_BITS))
    return rescaled(total, bias, multiplier, _bits(shifts, 0, SHIFT_BITS), added, form)


def rescaled(
    total: PrimExpr,
    bias: PrimExpr,
    multiplier: PrimExpr,
    shift: PrimExpr,
    residual: tuple[PrimExpr, PrimExpr, PrimExpr] | None,
    form: Requantization,
) -> PrimExpr:
    """The result of one sum; a residual comes with its multiplier and its shift. Shifts are of int64."""
    value = cast(total + bias, INT64) * cast(multiplier, INT64)
    if residual is not None:
        number, factor, places = residual
        value = value + build.shift_left(cast(number, INT64) * cast(factor, INT64), places)
    # Half of a step: 2^(shift - 1), and 0 for shift 0.
    half = build.shift_right(build.shift_left(const(1, INT64), shift), const(1, INT64))
    rounded = build.shift_right(value + half, shift) + const(form.offset, INT64)
    kept = build.minimum(build.maximum(rounded, const(form.low, INT64)), const(form.high, INT64))
    return cast(kept, INT8)


def _bits(word: PrimExpr, low: int, count: int) -> PrimExpr:
    shifted = build.shift_right(word, const(low, INT32)) if low else word
    return cast(build.bitwise_and(shifted, const((1 << count) - 1, INT32)), INT64)
