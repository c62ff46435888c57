"""AMD GPUs: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.device import DeviceBackend
from tilewright.backends.rocm.dialect import HipDialect
from tilewright.backends.rocm.target import KIND

BACKEND: Final = DeviceBackend(kind=KIND, language=HipDialect)
