"""Back ends, a folder each: one is added by its folder (`slices.py` says what is in it) and by its name here."""

from __future__ import annotations

from typing import Final

SLICES: Final = ("llvm", "c", "wasm", "micro", "cuda", "rocm", "opencl", "metal", "vulkan", "webgpu", "accel")
"""The back ends, as targets name them."""
