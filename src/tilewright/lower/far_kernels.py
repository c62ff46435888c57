"""Kernels that are far from what the processor can do, and matter in their model: whoever compiles hears of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.lower.bounds import FAR, Bound
from tilewright.support import trace
from tilewright.support.text import plural

_LEAST_SHARE = 0.05
"""The part of a model's time that a kernel wastes at least to be worth a word."""
_LEAST_CYCLES = 30_000
"""The cycles that it wastes at least: some microseconds."""


@dataclass(frozen=True, slots=True)
class FarKernel:
    """A kernel that is estimated to take many times longer than it must."""

    symbol: str
    nodes: tuple[str, ...]
    """The user's nodes that it computes."""
    factor: float
    share: float
    """The part of the model's estimated time that all its calls take."""
    reason: str

    def __str__(self) -> str:
        """One line, beginning with the user's node."""
        names = ", ".join(self.nodes[:2]) + (", ..." if len(self.nodes) > 2 else "")
        where = f"{names or 'no node of the model'} (kernel {self.symbol})"
        slow = f"about {self.factor:.0f} times slower than it could be, {self.share:.0%} of the time"
        return f"{where}: {slow}: {self.reason}"


def find_far_kernels(
    bounds: Mapping[str, Bound], uses: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]]
) -> tuple[FarKernel, ...]:
    """The kernels of a model that waste a good part of its time, the worst first; all mappings are by symbol."""
    total = sum(bound.estimate * uses.get(symbol, 0) for symbol, bound in bounds.items())
    far: list[tuple[float, FarKernel]] = []
    for symbol, bound in bounds.items():
        wasted = (bound.estimate - bound.least) * uses.get(symbol, 0)
        if bound.factor > FAR and wasted >= max(_LEAST_CYCLES, _LEAST_SHARE * total):
            share = bound.estimate * uses.get(symbol, 0) / total
            far.append((wasted, FarKernel(symbol, nodes.get(symbol, ()), bound.factor, share, bound.reason)))
    return tuple(kernel for _, kernel in sorted(far, key=lambda pair: -pair[0]))


def warn_of_far_kernels(kernels: tuple[FarKernel, ...]) -> None:
    """Say once a model which kernels are slow, and why: nothing is wrong with what they compute."""
    for kernel in kernels:
        trace.LOGGER.warning("%s", kernel)
    if kernels:
        warnings.warn(
            f"{plural(len(kernels), 'kernel')} will be slow on this processor: {kernels[0]} (all: "
            "Compilation.far_kernels, or `tilewright inspect --stage bounds`)",
            RuntimeWarning,
            stacklevel=2,
        )
