"""Microcontrollers through C source: a back end."""

from __future__ import annotations

from functools import partial
from typing import Final

from tilewright.backends.host import HostBackend
from tilewright.backends.micro.functions import emit_kernels
from tilewright.backends.micro.target import KIND
from tilewright.tir.pipeline import cpu_pipeline

_FRAME_BYTES: Final = 1024
"""Stacks of microcontrollers are a few kilobytes: what does not fit here is a part of the arena."""

BACKEND: Final = HostBackend(
    kind=KIND,
    language="C",
    suffix=".c",
    emit=emit_kernels,
    has_entry=False,
    lowering=partial(cpu_pipeline, threads=False),
    planned_lowering=partial(cpu_pipeline, planned=True, threads=False, frame_bytes=_FRAME_BYTES),
)
