"""NVIDIA GPUs: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.cuda.dialect import CudaDialect
from tilewright.backends.cuda.target import KIND
from tilewright.backends.gpu import GpuBackend

BACKEND: Final = GpuBackend(kind=KIND, language=CudaDialect)
