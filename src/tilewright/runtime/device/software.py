"""What is to be known of drivers that play a GPU on a CPU."""

from __future__ import annotations

from typing import Final

_COUNTS_STEPS: Final = "llvmpipe"
"""Mesa's driver ends the loops of a thread after 65,535 steps in all, and says nothing."""


def driver_features(name: str) -> list[str]:
    """Features of a target that a device of a name has because of its driver."""
    return ["+few-steps"] if _COUNTS_STEPS in name.lower() else []
