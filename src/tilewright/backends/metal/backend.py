"""Apple GPUs: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.device import DeviceBackend
from tilewright.backends.metal.dialect import MetalDialect
from tilewright.backends.metal.target import KIND

BACKEND: Final = DeviceBackend(kind=KIND, language=MetalDialect)
