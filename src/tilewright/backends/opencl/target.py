"""Devices with OpenCL, as a kind of target."""

from __future__ import annotations

from typing import Final

from tilewright.target.capabilities import Capabilities
from tilewright.target.kinds import gpu_kind

KIND: Final = gpu_kind(
    "opencl",
    "devices with OpenCL",
    # Every device takes 1 KiB of arguments: addresses of 8 bytes.
    capabilities=Capabilities(overlapping_parameters=True, dot4="dot4", horizontal_buffers=120),
    cores=16,
    vector_registers=128,
    l2_bytes=1 << 20,
    max_threads=256,
    warp_size=1,
    shared_bytes=32 << 10,
)
