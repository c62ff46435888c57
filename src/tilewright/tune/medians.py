"""What many noisy samples say: a typical one, and bounds of their median."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

SURELY, CLEARLY = 1.64, 2.6
"""Standard deviations that a bound allows for: one time in twenty the truth is beyond it; one in two hundred."""


def median_bound(samples: Sequence[float], deviations: float) -> float:
    """A bound of the median of what samples are taken from: so many of them are beyond it by chance at most.

    Of n samples n / 2 are expected below the median, give or take half the root of n: whatever their distribution is.
    """
    ordered = sorted(samples)
    count = len(ordered)
    place = round((count - 1) / 2 + deviations * sqrt(count) / 2)
    return ordered[max(0, min(count - 1, place))]


def lower_quartile(samples: Sequence[float]) -> float:
    """A typical sample: other load makes some samples longer, luck makes the very shortest."""
    return float(np.quantile(samples, 0.25))
