"""Values for processors that no table knows, from their own numbers: vector width, registers, caches.

They start from the table that all others were compared with, and change what follows from a number. `docs/machines.md`
explains the formulas. Where a number says nothing, the choice that loses less when it is wrong is taken.
"""

from __future__ import annotations

from tilewright.target.machine.tables import Values, merged
from tilewright.target.target import Target

REFERENCE_CPU = "x86_64-avx512"
_REFERENCE_LANES = 16
_LARGE_CORE = 1 << 20
"""Bytes of a second cache level that cores with two pipelines for multiply-adds have."""
_LATENCY = 4
"""Cycles of a multiply-add, on nearly all processors since 2015."""
_VECTORS_FROM_L2 = 4
"""Multiply-adds in the time of which a whole vector comes from the second cache level."""


def derived_cpu(reference: Values, target: Target) -> Values:
    """The values of a CPU that no table knows."""
    lanes = target.lanes(32)
    pipes = 2 if target.l2_bytes >= _LARGE_CORE else 1
    memory = float(reference["core"]["memory_bytes_per_cycle"])
    core = {
        "fma_per_cycle": pipes,
        "fma_in_flight": pipes * _LATENCY,
        # A vector as wide as a cache line takes as long as its line; narrower ones take a part of it.
        "l2_bytes_per_fma": target.vector_bits / 8 / _VECTORS_FROM_L2,
        # Without a last cache level that holds a model's weights, each inference reads them from memory.
        "memory_bytes_per_cycle": memory if target.l3_bytes else memory / 2,
    }
    # Waking a core takes the same time everywhere, in which narrower vectors do less.
    scaled = ("least_work", "least_piece", "large_piece")
    parallel = {name: max(1, int(reference["parallel"][name]) * lanes // _REFERENCE_LANES) for name in scaled}
    return merged(reference, {"core": core, "parallel": parallel})
