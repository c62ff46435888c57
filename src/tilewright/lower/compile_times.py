"""Which kernels of a model took longest to compile: what to look at where a compilation takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.lower.kernel import CompiledKernel
from tilewright.support.text import human_bytes, human_seconds

WORTH_SAYING = 3.0
"""Seconds of a compilation's kernels from which on the slowest are said."""
_SAID = 3


@dataclass(frozen=True, slots=True)
class SlowKernel:
    """A kernel that took long to compile: the processor's seconds, the size of its code, and what it computes."""

    symbol: str
    seconds: float
    code_bytes: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        nodes = ", ".join(self.nodes[:2]) + (", ..." if len(self.nodes) > 2 else "")
        return f"{self.symbol} {human_seconds(self.seconds)}, {human_bytes(self.code_bytes)} of code ({nodes})"


def slowest_kernels(
    compiled: Mapping[str, CompiledKernel], nodes: Mapping[str, Sequence[str]]
) -> tuple[SlowKernel, ...]:
    """The kernels that took longest to compile, the slowest first; none where compiling them took little time."""
    if sum(kernel.seconds for kernel in compiled.values()) < WORTH_SAYING:
        return ()
    order = sorted(compiled.items(), key=lambda item: -item[1].seconds)[:_SAID]
    return tuple(
        SlowKernel(symbol, kernel.seconds, len(kernel.code), tuple(nodes.get(symbol, ()))) for symbol, kernel in order
    )
