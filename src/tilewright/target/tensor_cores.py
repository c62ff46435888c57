"""What graph passes and schedules must agree on about tensor cores."""

from __future__ import annotations

from typing import Final

from tilewright.target.target import Target

ROUNDED_PRODUCT: Final = 1 << 24
"""Multiplications from which on a float32 product may be computed by warp groups in tf32.

Their instructions read operands from shared memory and ignore the low 13 bits, which is no rounding: such operands are
rounded before (`graph/passes/round_operands.py`).
"""


def truncates_operands(target: Target) -> bool:
    """Whether a target has tensor-core instructions that cut bits off float32 operands, and may use them."""
    return target.has_warp_group_products and target.has_feature("tf32")
