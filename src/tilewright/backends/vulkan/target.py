"""GPUs through Vulkan, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import GPU_OPTIONS, TargetKind, gpu_numbers

KIND: Final = TargetKind(
    "vulkan",
    "GPUs through Vulkan",
    GPU_OPTIONS,
    is_cpu=False,
    arch="generic",
    defaults=gpu_numbers(
        cores=16, registers=128, l2_bytes=1 << 20, max_threads=256, warp_size=1, shared_bytes=16 << 10
    ),
    capabilities=Capabilities(least_shared_bytes=4, expanded_mathematics=None),
)
