"""Host functions that draw random numbers.

With a seed every call draws the same numbers (those of numpy's `RandomState`), without one no two calls do.
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.shaping import shape_of_entries
from tilewright.runtime.host.values import Array, Attributes, number, tensor
from tilewright.support.errors import UserError

_DRAWS = np.random.default_rng()
"""What draws numbers without a seed; its methods hold a lock."""


def _seeded(attributes: Attributes) -> np.random.RandomState | None:
    seed = attributes["seed"]
    return None if seed is None else np.random.RandomState(int(number(attributes, "seed")) & 0xFFFFFFFF)


@register("random.uniform")
def uniform(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A float32 tensor of numbers from `low` up to but without `high`."""
    shape, low, high = shape_of_entries(values[0]), number(attributes, "low"), number(attributes, "high")
    drawn = (_seeded(attributes) or _DRAWS).uniform(low, high, shape)
    return [np.asarray(drawn, np.float32)]


@register("random.normal")
def normal(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """A float32 tensor of numbers of a normal distribution."""
    shape, mean, scale = shape_of_entries(values[0]), number(attributes, "mean"), number(attributes, "scale")
    drawn = (_seeded(attributes) or _DRAWS).normal(mean, scale, shape)
    return [np.asarray(drawn, np.float32)]


@register("random.categories")
def categories(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """For each row of logarithms of (unnormalised) probabilities, numbers of classes drawn by them."""
    logits = tensor(values[0]).astype(np.float64)
    count = shape_of_entries(values[1])
    if len(count) != 1 or not logits.size:
        raise UserError(f"classes are drawn so many a row, from rows of logits, not {count} from {logits.shape}")
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    limits: Array = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    drawn = (_seeded(attributes) or _DRAWS).uniform(0.0, 1.0, (len(logits), count[0]))
    chosen = [np.searchsorted(row, places, side="right") for row, places in zip(limits, drawn, strict=True)]
    # The last sum may be a little less than 1.
    return [np.minimum(np.stack(chosen), logits.shape[1] - 1).astype(np.int64)]
