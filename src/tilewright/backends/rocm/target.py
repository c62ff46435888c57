"""AMD GPUs, as a kind of target."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import added_features, gpu_kind

_DOT4: Final = ("gfx906", "gfx908", "gfx90a", "gfx94", "gfx95", "gfx1011", "gfx1012", "gfx103", "gfx11", "gfx12")
"""How names of architectures with dot products of bytes begin."""


def _features(arch: str, cpu: str, features: str) -> frozenset[str]:
    """What an architecture has, and what is added."""
    return added_features(features) | ({"dot4"} if arch.startswith(_DOT4) else set())


_KIND: Final = gpu_kind(
    "rocm",
    "AMD GPUs",
    "gfx90a",
    # Kernels are compiled without AMD's device libraries: all mathematics is ours.
    Capabilities(
        overlapping_parameters=True,
        dot4="dot4",
        expanded_mathematics=None,
        double_steps=True,
        flat_memory=True,
        # A line of the second-level cache.
        memory_line=128,
    ),
    cores=104,
    vector_registers=256,
    l2_bytes=8 << 20,
    max_threads=1024,
    warp_size=64,
    shared_bytes=64 << 10,
)

KIND: Final = replace(_KIND, features_of=_features)
