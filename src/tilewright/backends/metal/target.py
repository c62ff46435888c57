"""Apple GPUs, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import gpu_kind

KIND: Final = gpu_kind(
    "metal",
    "Apple GPUs",
    capabilities=Capabilities(overlapping_parameters=True, expanded_mathematics=frozenset(["erf", "expm1", "log1p"])),
    cores=8,
    vector_registers=128,
    l2_bytes=4 << 20,
    max_threads=1024,
    warp_size=32,
    shared_bytes=32 << 10,
)
