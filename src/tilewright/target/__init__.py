"""Targets: what a program is compiled for, with the hardware numbers that schedules are derived from."""

from __future__ import annotations

from tilewright.target.host import HostCpu, detect_host
from tilewright.target.target import Target, target_fields

__all__ = ["HostCpu", "Target", "detect_host", "target_fields"]
