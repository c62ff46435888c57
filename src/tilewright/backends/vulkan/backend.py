"""GPUs through Vulkan: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.device import DeviceBackend
from tilewright.backends.vulkan.kernels import SpirvLanguage
from tilewright.backends.vulkan.target import KIND

BACKEND: Final = DeviceBackend(kind=KIND, language=SpirvLanguage)
