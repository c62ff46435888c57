"""Runs that only decide how kernels are started change no result: random programs whose values share places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.core.artifact import ArgKind, DeviceKernelInfo, KernelInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.frame import Frame, Gate
from tilewright.runtime.device.program import BoundCall, Device, Recording
from tilewright.runtime.device.steps import Place, PlannedLaunch, PlannedStep
from tilewright.runtime.device.trials import overwritten

CELL = 8
CELLS = 5
ONE = (1, 1, 1)


class Trying(Recording):
    """Launches that run a few times to see how they are started best, as CUDA graphs do."""

    @property
    def will_try(self) -> bool:
        return True

    def bound(self) -> Callable[[], None]:
        trial = Recording(self._device, self.calls[: self.tried]).bound()
        for _ in range(3):
            self.before_trial()
            trial()
        return super().bound()


class Cells(Device):
    """A device whose memory is arrays of bytes, and whose kernels are functions of cells."""

    flat_memory = True

    def __init__(self, recording: type[Recording]) -> None:
        super().__init__()
        self._recording = recording

    def load(self, code: bytes, launches: Sequence[Any]) -> dict[str, Any]:
        raise NotImplementedError

    def allocate(self, size: int) -> Any:
        return np.zeros(size, np.uint8)

    def view(self, memory: Any, offset: int, size: int) -> Any:
        return memory[offset : offset + size]

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        target[target_offset : target_offset + size] = source[source_offset : source_offset + size]

    def upload(self, array: Array) -> Any:
        return np.frombuffer(array.tobytes(), np.uint8).copy()

    def download(self, memory: Any, array: Array) -> None:
        array[...] = memory.view(array.dtype).reshape(array.shape)

    def launch(self, kernel: Any, grid: Any, block: Any, args: list[Any]) -> None:
        *operands, result = [arg[:CELL].view(np.int64) for arg in args]
        result[0] = kernel(*(int(item[0]) for item in operands))

    def record(self, calls: Sequence[BoundCall]) -> Recording:
        return self._recording(self, calls)

    def wait(self) -> None:
        pass


def cell(number: int) -> Place:
    return Place(ArgKind.WORKSPACE, 0, number * CELL, CELL)


def step(number: int, reads: Sequence[Place], written: Place) -> PlannedStep:
    def kernel(*values: int) -> int:
        return (sum((3 + n) * value for n, value in enumerate(values)) + number) % 1_000_003

    info = DeviceKernelInfo(f"k{number}", (), (CELL,) * (len(reads) + 1), (len(reads),))
    launch = PlannedLaunch(kernel, ONE, ONE, (*reads, written))
    return PlannedStep(number, KernelInfo(f"k{number}"), info, (launch,), launch.args)


X, STATE = Place(ArgKind.INPUT, 0, 0, CELL), Place(ArgKind.INPUT, 1, 0, CELL)
RESULT, NEXT = Place(ArgKind.OUTPUT, 0, 0, CELL), Place(ArgKind.OUTPUT, 1, 0, CELL)


def program(draw: np.random.Generator) -> list[PlannedStep]:
    """Steps that read what was written, with the new state somewhere in the second half."""
    steps = [step(0, [X, STATE], cell(0))]
    known = [cell(0), X, STATE]
    count = int(draw.integers(4, 20))
    at = int(draw.integers(count // 2, count))
    for number in range(1, count):
        reads = [known[int(draw.integers(len(known)))] for _ in range(2)]
        written = cell(int(draw.integers(CELLS)))
        if number == at:
            steps.append(step(number, reads, NEXT))
            known.remove(STATE)
            continue
        steps.append(step(number, reads, written))
        known = [place for place in known if place != written] + [written]
    return [*steps, step(count, [known[-1], known[0]], RESULT)]


def results(recording: type[Recording], steps: Sequence[PlannedStep], gate: int) -> list[tuple[int, int]]:
    """What three runs give, and the state after each."""
    device = Cells(recording)
    frame = Frame(
        device, steps, [CELLS * CELL], lambda *_: None, [CELL] * 2, [CELL] * 2, gate=Gate(gate, lambda frame: None)
    )
    state, found = device.upload(np.array([5])), []
    for x in (1, 2, 3):
        result = device.allocate(CELL)
        frame.run([device.upload(np.array([x])), state], [result, state])
        found.append((int(result.view(np.int64)[0]), int(state.view(np.int64)[0])))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_trials_change_nothing(seed: int) -> None:
    draw = np.random.default_rng(seed)
    steps = program(draw)
    gate = int(draw.integers(len(steps)))
    assert results(Trying, steps, gate) == results(Recording, steps, gate)


def test_only_what_would_be_missing_is_kept() -> None:
    earlier = [step(0, [X], cell(0)), step(1, [X], cell(1)), step(2, [X], cell(2))]
    tried = [
        step(3, [cell(0), cell(1)], cell(3)),  # both are read
        step(4, [cell(3)], cell(2)),  # what was there is not read any more
        step(5, [cell(2)], cell(0)),  # in the place of one that was
    ]
    assert overwritten(earlier, tried) == [cell(0)]
    assert overwritten([], tried) == []
