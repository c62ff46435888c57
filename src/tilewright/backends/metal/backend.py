"""Apple GPUs: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.gpu import GpuBackend
from tilewright.backends.metal.dialect import MetalDialect
from tilewright.backends.metal.target import KIND

BACKEND: Final = GpuBackend(kind=KIND, language=MetalDialect)
