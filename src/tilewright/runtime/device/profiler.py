"""Profiles of models on devices: every kernel timed by the device's own clock, and the model as a whole."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from tilewright.runtime.core.profiler import Profile, ProfileRow
from tilewright.runtime.core.shapes import evaluate
from tilewright.runtime.device.model import DeviceRunner, Value


def profile_device(runner: DeviceRunner, inputs: Sequence[Value], repeat: int) -> Profile:
    """Time each step `repeat` times by itself, and the whole model from its start until the device is done.

    Inputs and results stay on the device. A step that the host computes has no time of its own.
    """
    prepared = runner.prepare(inputs)
    bound = prepared.bound(inputs)
    wholes = []
    for turn in range(repeat + 1):
        start = time.perf_counter()
        bound.start()
        bound.wait()
        if turn:
            wholes.append(time.perf_counter() - start)
    symbols = dict(zip(prepared.part.info.symbols, prepared.values, strict=True))
    rows = []
    for step, calls in zip(prepared.steps, bound.calls(), strict=True):
        seconds = prepared.device.measure(calls, repeat) if calls else [0.0]
        flops, moved = (evaluate(work, symbols) or 0 for work in (step.kernel.flops, step.kernel.bytes))
        filled = "; ".join(prepared.device.describe(call) for call in calls) if calls else "on the host"
        times = statistics.median(seconds), min(seconds)
        rows.append(ProfileRow(step.number, step.kernel, *times, flops, moved, filled))
    return Profile(runner.model.name, tuple(rows), statistics.median(wholes), repeat)
