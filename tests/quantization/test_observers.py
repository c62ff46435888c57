"""Observers: ranges by definition, whatever the batches, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.quantization.observers import OBSERVERS, Entropy, MeanSquaredError, MinMax, MovingAverage, Percentile
from tilewright.support.errors import UserError

NORMAL = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)


def test_minmax_is_exact() -> None:
    observer = MinMax()
    for part in np.split(NORMAL, 10):
        observer.update(part)
    assert observer.range == (NORMAL.min(), NORMAL.max())


def test_moving_average_leans_to_later_batches() -> None:
    observer = MovingAverage()
    for high in (1.0, 1.0, 11.0):
        observer.update(np.asarray([-high, high]))
    assert observer.range == pytest.approx((-2.0, 2.0))


def test_percentile_leaves_outliers_out() -> None:
    observer = Percentile()
    observer.update(NORMAL)
    observer.update(np.full(1, 1000.0))
    low, high = observer.range
    assert -5.5 < low < -3.5
    assert 3.5 < high < 5.5


def test_outliers_are_worth_saturating() -> None:
    """One value at 100 among normal ones: the range ends far below it, and well above most values."""
    observer = Entropy()
    observer.update(np.append(NORMAL, 100.0))
    low, high = observer.range
    assert 2.0 < high < 60.0
    assert -60.0 < low < -2.0


def test_least_squared_error_is_least() -> None:
    """No range of a grid has a smaller error than the one that was chosen."""

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        rounded = np.clip(np.rint((values - low) / step), 0, 255) * step + low
        return float(((values - rounded) ** 2).mean())

    values = np.append(NORMAL[:20_000], np.linspace(5, 40, 40)).astype(np.float64)
    observer = MeanSquaredError()
    observer.update(values)
    best = error(*observer.range)
    for share in np.linspace(0.1, 1.0, 30):
        assert best <= error(values.min() * share, values.max() * share) * 1.05


@pytest.mark.parametrize("name", OBSERVERS)
def test_batches_do_not_matter_much(name: str) -> None:
    """A histogram that grows with the data finds nearly the range that one with all the data at once finds."""
    if name == "moving_average":
        return
    whole, parts = OBSERVERS[name](), OBSERVERS[name]()
    ordered = np.sort(NORMAL)
    whole.update(ordered)
    for part in np.split(ordered, 20):
        parts.update(part)
    np.testing.assert_allclose(parts.range, whole.range, rtol=0.15)


@pytest.mark.parametrize("name", OBSERVERS)
def test_constant_data_has_a_range(name: str) -> None:
    observer = OBSERVERS[name]()
    observer.update(np.full(100, 3.0, np.float32))
    low, high = observer.range
    assert low == pytest.approx(3.0, abs=1e-3)
    assert high == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("name", OBSERVERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match="infinite or no number"):
        OBSERVERS[name]().update(np.asarray([1.0, value]))


@pytest.mark.parametrize("name", OBSERVERS)
def test_nothing_seen(name: str) -> None:
    observer = OBSERVERS[name]()
    observer.update(np.zeros((0, 3)))
    with pytest.raises(UserError, match="saw no value"):
        assert observer.range
