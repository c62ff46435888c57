"""Results that may be written over inputs, as asked for: those stay that the schedule left possible.

    f(A, B), in_place ((0, 1),):                              f(A, B), in_place ():
        B[0] = A[0]                                   ->          ...
        for i in range(1, n): B[i] = A[i] + A[i - 1]

The code relies on distinct memory for all other parameters.
"""

from __future__ import annotations

from tilewright.tir.analysis.in_place import in_place_pairs, may_share, with_in_place
from tilewright.tir.function import PrimFunc


def keep_in_place(func: PrimFunc) -> PrimFunc:
    """A lowered function whose attribute `IN_PLACE` lists only pairs of parameters that may be the same memory."""
    asked = in_place_pairs(func)
    return with_in_place(func, tuple(pair for pair in asked if may_share(func, pair))) if asked else func
