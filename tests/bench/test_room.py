"""The room of models: bounds of kernels by hand-made rates, weights of steps, and limits that are believable."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bench import room as room_module
from bench.room import Limits, Loss, Rates, Room, bound, room, step_weights, together
from tests.integration.small_models import classifier
from tilewright.compiler import Compilation
from tilewright.runtime.core.artifact import KernelInfo
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.profiler import Profile, ProfileRow
from tilewright.target import Target
from tilewright.tune.peak import Peak

RATES = Rates(operations=1e6, weights=1e3)


class MadeUp(Limits):
    """A thousand bytes a second where there are more than a hundred, else ten thousand."""

    def __init__(self) -> None:
        super().__init__(Target("native"), 1)

    def now(self, weights: int) -> Rates:
        return RATES

    def bytes(self, size: int) -> float:
        return 1e3 if size > 100 else 1e4


def _bound(flops: int, moved: int, weights: int = 0, seconds: float = 9.0) -> float:
    row = ProfileRow(0, KernelInfo("kernel"), seconds, seconds, flops, moved)
    return bound(Profile("model", (row,), 1.0, 1), [weights], RATES, MadeUp())


def test_the_bound_of_a_kernel_is_its_largest_need() -> None:
    assert _bound(2_000_000, 20) == 2.0
    assert _bound(0, 50) == 50 / 1e4
    assert _bound(0, 150) == 150 / 1e3
    # Weights come from where all weights are, the rest from where it fits by itself.
    assert _bound(0, 150, weights=80) == 80 / 1e3
    assert _bound(2_000_000, 150, weights=80) == 2.0
    # Rearranged weights may be padded: no more is read than is there. What was quicker needs no bound.
    assert _bound(0, 150, weights=170) == 150 / 1e3
    assert _bound(2_000_000, 20, seconds=0.5) == 0.5
    assert _bound(0, 0) == 0.0


def test_the_bounds_of_kernels_add_up() -> None:
    rows = [ProfileRow(n, KernelInfo("kernel"), 9.0, 9.0, 1_000_000 * n, 100) for n in range(3)]
    assert bound(Profile("model", tuple(rows), 1.0, 1), [100, 0, 0], RATES, MadeUp()) == pytest.approx(0.1 + 1.0 + 2.0)


@pytest.fixture(scope="module")
def model() -> Executable:
    return Compilation(bytes(classifier().SerializeToString()), threads=1).executable()


def test_weights_of_steps(model: Executable) -> None:
    weights = step_weights(model.model)
    assert len(weights) == len(model.model.steps) and any(weights)
    constants = model.artifact.constants.nbytes
    assert 0.9 * constants < sum(weights) <= constants, "every constant is read by one kernel"


def test_for_real(model: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "_SECONDS", 0.0)
    limits = Limits(Target("native"), 1)
    inputs = [np.zeros(info.static_shape, np.float32) for info in model.input_info]
    found = room(model, inputs, limits)
    # So small a model is mostly calls.
    assert 0.5 < found.ratio < 1000
    assert len(found.losses) == len(model.model.steps)
    assert all(0 <= loss.bound <= loss.seconds < 1 for loss in found.losses)
    rates = limits.now(1 << 26)
    assert 1e8 < rates.operations < 1e13 and 1e8 < rates.weights < limits.bytes(1 << 15) < 1e13, "near is quicker"
    assert limits.bytes(1) == limits.bytes(1 << 14), "less cannot be told apart"


def test_the_kernels_that_lose_most_are_shown() -> None:
    losses = tuple(Loss(f"kernel{n}", 1e-6 * n, 5e-7 * n, "arithmetic") for n in range(1, 5))
    text = room_module.render({"dqn": Room(1.25, 2e-3, losses), "lstm": None}, 2)
    assert "1.250" in text and "2.000" in text and "lstm" in text
    assert "kernel4" in text and "kernel3" in text and "kernel2" not in text


def test_models_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert room_module.main(["--models", "none_such"]) == 2
    assert "unknown model" in capsys.readouterr().err


def test_threads_add_up() -> None:
    """Loops of a known length: two of them do twice the work."""

    def call() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.002:
            pass

    one, two = (max(together([Peak("loop", 1.0, call)] * count) for _ in range(5)) for count in (1, 2))
    assert 350 < one <= 500 and 1.5 < two / one < 2.5
