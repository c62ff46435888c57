"""GPUs through Vulkan: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.gpu import GpuBackend
from tilewright.backends.vulkan.kernels import SpirvLanguage
from tilewright.backends.vulkan.target import KIND

BACKEND: Final = GpuBackend(kind=KIND, language=SpirvLanguage)
