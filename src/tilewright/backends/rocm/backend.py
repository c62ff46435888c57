"""AMD GPUs: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.gpu import GpuBackend
from tilewright.backends.rocm.dialect import HipDialect
from tilewright.backends.rocm.target import KIND

BACKEND: Final = GpuBackend(kind=KIND, language=HipDialect)
