"""GPUs through WebGPU: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.gpu import GpuBackend
from tilewright.backends.webgpu.kernels import WgslLanguage
from tilewright.backends.webgpu.target import KIND

BACKEND: Final = GpuBackend(kind=KIND, language=WgslLanguage)
