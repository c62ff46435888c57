"""AMD GPUs, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import GPU_OPTIONS, TargetKind, gpu_numbers

KIND: Final = TargetKind(
    "rocm",
    "AMD GPUs",
    GPU_OPTIONS,
    is_cpu=False,
    arch="gfx90a",
    defaults=gpu_numbers(
        cores=104, registers=256, l2_bytes=8 << 20, max_threads=1024, warp_size=64, shared_bytes=64 << 10
    ),
    # Kernels are compiled without AMD's device libraries: all mathematics is ours.
    capabilities=Capabilities(expanded_mathematics=None, double_steps=True, flat_memory=True),
)
