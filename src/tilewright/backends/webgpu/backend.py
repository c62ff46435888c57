"""GPUs through WebGPU: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.device import DeviceBackend
from tilewright.backends.webgpu.kernels import WgslLanguage
from tilewright.backends.webgpu.target import KIND

BACKEND: Final = DeviceBackend(kind=KIND, language=WgslLanguage)
