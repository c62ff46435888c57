"""Profiles of models on devices: every kernel timed by the device's own clock, and the model as a whole."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence

import numpy as np

from tilewright.runtime.core.convert import address_of, aligned_empty
from tilewright.runtime.core.profiler import Profile, ProfileRow
from tilewright.runtime.core.shapes import evaluate
from tilewright.runtime.device.model import DeviceRunner, Value
from tilewright.runtime.device.program import Scalar
from tilewright.runtime.device.steps import PlannedStep


def profile_device(runner: DeviceRunner, inputs: Sequence[Value], repeat: int) -> Profile:
    """Time each step `repeat` times by itself, and the whole model from its start until the device is done.

    Inputs and results stay on the device. A step that the host computes is timed without the copies around it.
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
        seconds = prepared.device.measure(calls, repeat) if calls else _host_seconds(step, repeat)
        flops, moved = (evaluate(work, symbols) or 0 for work in (step.kernel.flops, step.kernel.bytes))
        filled = "; ".join(prepared.device.describe(call) for call in calls) if calls else "on the host"
        times = statistics.median(seconds), min(seconds)
        rows.append(ProfileRow(step.number, step.kernel, *times, flops, moved, filled))
    return Profile(runner.model.name, tuple(rows), statistics.median(wholes), repeat)


def _host_seconds(step: PlannedStep, repeat: int) -> list[float]:
    """Seconds that a step of the host takes, on zeros; none where sizes leave a step of the device nothing to do."""
    if step.native is None:
        return [0.0]
    kept = []
    bits: list[int] = []
    for arg in step.args:
        if isinstance(arg, Scalar):
            bits.append(arg.bits)
            continue
        array = aligned_empty((arg.size,), np.dtype(np.uint8))
        array[:] = 0
        kept.append(array)
        bits.append(address_of(array))
    packed = (ctypes.c_int64 * max(len(bits), 1))(*bits)
    seconds = []
    for turn in range(repeat + 1):
        start = time.perf_counter()
        # What zeros make of a check of data is of no interest here.
        step.native(packed)
        if turn:
            seconds.append(time.perf_counter() - start)
    return seconds
