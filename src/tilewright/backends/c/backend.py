"""CPUs through C source: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.c.functions import emit_source
from tilewright.backends.c.target import KIND
from tilewright.backends.host import HostBackend

BACKEND: Final = HostBackend(kind=KIND, language="C", suffix=".c", emit=emit_source)
