"""Devices with OpenCL: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.gpu import GpuBackend
from tilewright.backends.opencl.dialect import OpenCLDialect
from tilewright.backends.opencl.target import KIND

BACKEND: Final = GpuBackend(kind=KIND, language=OpenCLDialect)
