"""Apple GPUs, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import GPU_OPTIONS, TargetKind, gpu_numbers

KIND: Final = TargetKind(
    "metal",
    "Apple GPUs",
    GPU_OPTIONS,
    is_cpu=False,
    arch="generic",
    defaults=gpu_numbers(
        cores=8, registers=128, l2_bytes=4 << 20, max_threads=1024, warp_size=32, shared_bytes=32 << 10
    ),
    capabilities=Capabilities(expanded_mathematics=frozenset(["erf", "expm1", "log1p"])),
)
