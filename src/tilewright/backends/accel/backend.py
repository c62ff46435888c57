"""The open tensor processor: a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.accel.language import AccelText
from tilewright.backends.accel.lowering import accel_pipeline
from tilewright.backends.accel.target import KIND
from tilewright.backends.device import DeviceBackend
from tilewright.topi.schedule.accel.strategy import schedule_accel, unscheduled

BACKEND: Final = DeviceBackend(
    kind=KIND, language=AccelText, lowering=accel_pipeline, schedule=schedule_accel, plain_schedule=unscheduled
)
