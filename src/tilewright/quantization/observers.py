"""Observers: what range an activation has, from what calibration saw of it.

    minmax          the smallest and the largest value
    moving_average  the same of each batch, averaged with more weight on later ones
    percentile      all but one value in 10,000: outliers saturate
    entropy         the range whose histogram of rounded values is nearest to that of the values (Kullback-Leibler)
    mse             the range whose rounding has the least mean squared error

The last three look at a histogram, which grows with the range of the data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
_BINS = 2048
_LEVELS = 256
_OUTLIERS = 1e-4
_MEMORY = 0.9
"""How much of the average a batch leaves in place."""


class Observer(ABC):
    """Takes the values of one activation, batch by batch; `range` is what it makes of them."""

    def __init__(self) -> None:
        self.count = 0

    def update(self, values: Array) -> None:
        """Look at one batch. A value that is no finite number has no place in any range."""
        if values.size == 0:
            return
        if not np.isfinite(values).all():
            raise UserError(
                "calibration met a value that is infinite or no number",
                hint="look at the data, or leave the layer out by name (skip)",
            )
        self.count += values.size
        self._look(values)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that is to be represented."""
        if self.count == 0:
            raise UserError("calibration saw no value", hint="the data is empty")
        return self._range()

    @abstractmethod
    def _look(self, values: Array) -> None: ...

    @abstractmethod
    def _range(self) -> tuple[float, float]: ...


class MinMax(Observer):
    """The smallest and the largest value."""

    def __init__(self) -> None:
        super().__init__()
        self._low, self._high = np.inf, -np.inf

    def _look(self, values: Array) -> None:
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))

    def _range(self) -> tuple[float, float]:
        return self._low, self._high


class MovingAverage(Observer):
    """The smallest and largest value of a batch, averaged over batches."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: tuple[float, float] | None = None

    def _look(self, values: Array) -> None:
        low, high = float(values.min()), float(values.max())
        if self._ends is not None:
            low = _MEMORY * self._ends[0] + (1 - _MEMORY) * low
            high = _MEMORY * self._ends[1] + (1 - _MEMORY) * high
        self._ends = low, high

    def _range(self) -> tuple[float, float]:
        assert self._ends is not None
        return self._ends


class _Histogram(Observer):
    """Counts of values in bins of equal width; the bins grow to twice their width when a value lies outside."""

    def __init__(self) -> None:
        super().__init__()
        self._low, self._width = 0.0, 0.0
        self._counts: Floats = np.zeros(_BINS)

    def _look(self, values: Array) -> None:
        low, high = float(values.min()), float(values.max())
        if self._width == 0.0:
            # Values that are all equal have bins too: of a millionth of their size.
            least = max(abs(low), abs(high)) * 1e-6
            self._low, self._width = low, max((high - low) / _BINS, least, float(np.finfo(np.float32).tiny))
        while low < self._low:
            self._grow(downwards=True)
        while high > self._low + self._width * _BINS * (1 + 1e-12):
            self._grow(downwards=False)
        places = ((values.astype(np.float64).ravel() - self._low) / self._width).astype(np.int64)
        self._counts += np.bincount(np.clip(places, 0, _BINS - 1), minlength=_BINS)

    def _grow(self, *, downwards: bool) -> None:
        pairs = self._counts.reshape(-1, 2).sum(axis=1)
        self._counts = np.zeros(_BINS)
        if downwards:
            self._low -= self._width * _BINS
            self._counts[_BINS // 2 :] = pairs
        else:
            self._counts[: _BINS // 2] = pairs
        self._width *= 2

    @property
    def _used(self) -> tuple[int, int]:
        """The first bin that holds something, and the one after the last."""
        (filled,) = np.nonzero(self._counts)
        return int(filled[0]), int(filled[-1]) + 1

    def _ends(self, first: int, last: int) -> tuple[float, float]:
        return self._low + first * self._width, self._low + last * self._width

    def _candidates(self) -> list[tuple[int, int]]:
        """Ranges of bins within some distance of zero: all of them, then ever fewer, down to a 50th."""
        first, last = self._used
        zero = round(-self._low / self._width)
        reach = max(zero - first, last - zero)
        ends = {
            (max(first, zero - distance), min(last, zero + distance))
            for distance in np.rint(reach * np.geomspace(1.0, 0.02, 96)).astype(int).tolist()
        }
        return sorted((a, b) for a, b in ends if b > a) or [(first, last)]


class Percentile(_Histogram):
    """The range without the rarest values at its ends."""

    def _range(self) -> tuple[float, float]:
        total = np.cumsum(self._counts)
        cut = _OUTLIERS / 2 * total[-1]
        first = int(np.searchsorted(total, cut, side="right"))
        last = int(np.searchsorted(total, total[-1] - cut, side="left")) + 1
        return self._ends(min(first, last - 1), min(last, _BINS))


class MeanSquaredError(_Histogram):
    """The range whose rounding to 256 levels has the least squared error, values outside saturating."""

    def _range(self) -> tuple[float, float]:
        centres = self._low + (np.arange(_BINS) + 0.5) * self._width

        def error(ends: tuple[int, int]) -> float:
            low, high = self._ends(*ends)
            low, high = min(low, 0.0), max(high, 0.0)
            step = (high - low) / (_LEVELS - 1)
            if step == 0.0:
                return float((self._counts * centres**2).sum())
            rounded = np.clip(np.rint((centres - low) / step), 0, _LEVELS - 1) * step + low
            # Within a step, rounding errors are spread evenly whatever the bins are.
            inside = (centres >= low) & (centres <= high)
            squares = np.where(inside, step**2 / 12, (centres - rounded) ** 2)
            return float((self._counts * squares).sum())

        return self._ends(*min(self._candidates(), key=error))


class Entropy(_Histogram):
    """The range for which the values, rounded to 256 levels, have the histogram nearest to their own."""

    def _range(self) -> tuple[float, float]:
        return self._ends(*min(self._candidates(), key=self._divergence))

    def _divergence(self, ends: tuple[int, int]) -> float:
        first, last = ends
        kept = self._counts[first:last].copy()
        kept[0] += self._counts[:first].sum()
        kept[-1] += self._counts[last:].sum()
        inside = self._counts[first:last]
        filled = inside > 0
        if not filled.any():
            return np.inf
        levels = np.minimum(np.arange(last - first) * _LEVELS // max(last - first, _LEVELS), _LEVELS - 1)
        mass = np.bincount(levels, weights=inside, minlength=_LEVELS)
        bins = np.bincount(levels, weights=filled, minlength=_LEVELS)
        spread = np.where(filled, mass[levels] / np.maximum(bins[levels], 1), 0.0)
        p, q = kept / kept.sum(), spread / max(spread.sum(), 1e-300)
        some = p > 0
        return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-12))).sum())


OBSERVERS: dict[str, type[Observer]] = {
    "minmax": MinMax,
    "moving_average": MovingAverage,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MeanSquaredError,
}
"""Observers by the name that options give them."""
