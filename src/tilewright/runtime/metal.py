"""Apple GPUs: programs are text for Metal's compiler, which this runtime does not drive."""

from __future__ import annotations

from tilewright.runtime.device_program import Device
from tilewright.support.errors import UnsupportedError


def metal_device() -> Device:
    """An `UnsupportedError`: programs for Metal are written, for others to run."""
    raise UnsupportedError(
        "this runtime does not run programs for Metal, it only writes them",
        hint="target='webgpu' runs on Apple GPUs",
    )
