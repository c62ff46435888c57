"""Devices with OpenCL, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.kinds import GPU_OPTIONS, TargetKind, gpu_numbers

KIND: Final = TargetKind(
    "opencl",
    "devices with OpenCL",
    GPU_OPTIONS,
    is_cpu=False,
    arch="generic",
    defaults=gpu_numbers(
        cores=16, registers=128, l2_bytes=1 << 20, max_threads=256, warp_size=1, shared_bytes=32 << 10
    ),
)
