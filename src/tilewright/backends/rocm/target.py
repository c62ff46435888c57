"""AMD GPUs, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import gpu_kind

KIND: Final = gpu_kind(
    "rocm",
    "AMD GPUs",
    "gfx90a",
    # Kernels are compiled without AMD's device libraries: all mathematics is ours.
    Capabilities(expanded_mathematics=None, double_steps=True, flat_memory=True),
    cores=104,
    vector_registers=256,
    l2_bytes=8 << 20,
    max_threads=1024,
    warp_size=64,
    shared_bytes=64 << 10,
)
