"""Requantisation in fixed point: 32-bit sums to bytes by a bias, a multiplier of 16 bits and a rounding shift.

    t = acc + bias                                              wraps to 32 bits
    y = (t * multiplier + residual * residual_multiplier + half) >> shift        in 64 bits; half = 2^(shift-1), or 0
    out = clip(y + offset, low, high)

The parameters of a block of channels are one tensor of words: [bias, multiplier, residual's multiplier, shift][channel].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilewright.ir import build
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT8, INT64
from tilewright.ir.expr import Call, PrimExpr


PARAMETERS: Final = ("bias", "multiplier", "residual_multiplier", "shift")
"""The words of a channel, in order."""


@dataclass(frozen=True, slots=True)
class Requantization:
    """What the parameters do not say: whether there is a residual, and the range of the results."""

    residual: bool = False
    offset: int = 0
    low: int = -128
    high: int = 127


def requantized(
    acc: PrimExpr, words: Sequence[PrimExpr], residual: PrimExpr | None, form: Requantization
) -> PrimExpr:
    """The result of one accumulator, with the four words of its channel."""
    bias, multiplier, other, shift = words
    amount = cast(shift, INT64)
    total = cast(acc + bias, INT64) * cast(multiplier, INT64)
    if residual is not None:
        total = total + cast(residual, INT64) * cast(other, INT64)
    half = Call("shift_right", (Call("shift_left", (const(1, INT64), amount), INT64), const(1, INT64)), INT64)
    value = Call("shift_right", (total + half, amount), INT64) + const(form.offset, INT64)
    clipped = build.minimum(build.maximum(value, const(form.low, INT64)), const(form.high, INT64))
    return cast(clipped, INT8)
