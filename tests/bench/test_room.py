"""The room of models: bounds of kernels by hand-made limits, weights of steps, and limits that are believable."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bench import room as room_module
from bench.peak import Peak
from bench.room import Limits, kernel_bound, room, step_weights, together
from tests.integration.small_models import classifier
from tilewright.compiler import Compilation
from tilewright.runtime.artifact import KernelInfo
from tilewright.runtime.executor import Executable
from tilewright.runtime.profiler import ProfileRow
from tilewright.target import Target


class MadeUp(Limits):
    """A million operations a second; a thousand bytes where there are more than a hundred, else ten thousand."""

    def __init__(self) -> None:
        super().__init__(Target("native"), 1)

    @property
    def operations(self) -> float:
        return 1e6

    def bytes(self, size: int) -> float:
        return 1e3 if size > 100 else 1e4


def _row(flops: int, moved: int, seconds: float = 9.0) -> ProfileRow:
    return ProfileRow(0, KernelInfo("kernel"), seconds, seconds, flops, moved)


def test_the_bound_of_a_kernel_is_its_largest_need() -> None:
    limits = MadeUp()
    assert kernel_bound(_row(2_000_000, 20), 0, 0, limits) == 2.0
    assert kernel_bound(_row(0, 50), 0, 0, limits) == 50 / 1e4
    assert kernel_bound(_row(0, 150), 0, 0, limits) == 150 / 1e3
    # Weights come from where all weights are, the rest from where it fits by itself.
    assert kernel_bound(_row(0, 150), 80, 5000, limits) == 80 / 1e3
    assert kernel_bound(_row(0, 150), 80, 90, limits) == 80 / 1e4
    assert kernel_bound(_row(2_000_000, 150), 80, 5000, limits) == 2.0
    # Rearranged weights may be padded: no more is read than is there. What was quicker needs no bound.
    assert kernel_bound(_row(0, 150), 170, 5000, limits) == 150 / 1e3
    assert kernel_bound(_row(2_000_000, 20, 0.5), 0, 0, limits) == 0.5
    assert kernel_bound(_row(0, 0), 0, 0, limits) == 0.0


@pytest.fixture(scope="module")
def model() -> Executable:
    return Compilation(bytes(classifier().SerializeToString()), threads=1).executable()


def test_weights_of_steps(model: Executable) -> None:
    weights = step_weights(model.model)
    assert len(weights) == len(model.model.steps) and any(weights)
    constants = model.artifact.constants.nbytes
    assert 0.9 * constants < sum(weights) <= constants, "every constant is read by one kernel"


def test_for_real(model: Executable) -> None:
    limits = Limits(Target("native"), 1)
    inputs = [np.zeros(info.static_shape, np.float32) for info in model.input_info]
    found = room(model, inputs, limits, 1e9)
    assert 0 < found.bound <= found.seconds < 1 and found.ratio >= 1.0
    assert room(model, inputs, limits, found.bound / 2).seconds == found.bound / 2, "as quick as it was seen"
    assert 1e8 < limits.operations < 1e13
    assert 1e8 < limits.bytes(1 << 26) < limits.bytes(1 << 15) < 1e13, "what is near is quicker"
    assert limits.bytes(1) == limits.bytes(1 << 14), "less cannot be told apart"


def test_limits_are_the_best_of_some_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([3.0, 5.0, 4.0, 2.0, 99.0])
    monkeypatch.setattr(room_module, "together", lambda peaks: next(rates))
    limits = Limits(Target("native"), 1)
    limits.look_again()
    assert limits.operations == 3.0, "nothing was asked for before"
    for expected in (5.0, 5.0, 5.0, 5.0):
        limits.look_again()
        assert limits.operations == expected, "the last look is not taken"


def test_threads_add_up() -> None:
    """Loops of a known length: two of them do twice the work."""

    def call() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.002:
            pass

    one, two = (together([Peak("loop", 1.0, call)] * count) for count in (1, 2))
    assert 350 < one <= 500 and 1.5 < two / one < 2.5
