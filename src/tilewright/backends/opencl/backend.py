"""Devices with OpenCL: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.device import DeviceBackend
from tilewright.backends.opencl.dialect import OpenCLDialect
from tilewright.backends.opencl.target import KIND

BACKEND: Final = DeviceBackend(kind=KIND, language=OpenCLDialect)
