"""Random numbers of distributions, from random bits that a key decides (`graph/ops/random_bits.py`).

Keys are values: two words of uint32. Numbers that are to differ are drawn with keys that differ, which `key_at` makes
of one key. The bits are the same on every target; what is made of them by logarithms and cosines is so within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, sizes_of
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.random_bits import WORD, key_of
from tilewright.ir.dtype import FLOAT32, FLOAT64, INT64, DataType
from tilewright.support.errors import UnsupportedError

_DOUBLE = DataType.of("uint64")
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""How many bits a number between 0 and 1 has, so that none is rounded up to 1."""
WIDEST_RANGE = 1 << 32
"""The most whole numbers that one is drawn of."""


def seed_key(builder: Builder, seed: GraphExpr | int) -> GraphExpr:
    """The key of a seed: a number, or a scalar of whole numbers."""
    if isinstance(seed, int):
        return builder.constant(key_of(seed))
    wide = builder.cast(seed, _DOUBLE)
    high = builder.call("right_shift", wide, builder.constant(32, _DOUBLE))
    low = builder.call("bitwise_and", wide, builder.constant(0xFFFFFFFF, _DOUBLE))
    return builder.concatenate([builder.reshape(builder.cast(part, WORD), (1,)) for part in (high, low)], 0)


def draw_key(builder: Builder, seed: float | None) -> GraphExpr:
    """The key of an operator of a model file: that of its seed, by the bits of it, or another in every run."""
    if seed is None:
        return builder.call("random.key", draw=next(builder.numbers))
    return builder.constant(key_of(int(np.asarray(seed, np.float64).view(np.uint64))))


def key_at(builder: Builder, key: GraphExpr, number: GraphExpr | int) -> GraphExpr:
    """One of the keys that a key makes, by its number."""
    place = builder.constant(number, WORD) if isinstance(number, int) else builder.cast(number, WORD)
    return builder.call("random.fold_in", key, place)


def bits(builder: Builder, key: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
    """32 random bits for each element of a shape."""
    return builder.call("random.bits", key, shape=tuple(shape))


def uniform(builder: Builder, key: GraphExpr, shape: Sequence[Size], dtype: DataType = FLOAT32) -> GraphExpr:
    """Numbers of [0, 1), all equally likely."""
    if 0 in shape:
        return builder.filled(0, shape, dtype)
    if dtype is FLOAT64:
        high, low = (
            builder.cast(_shifted(builder, bits(builder, key_at(builder, key, n), shape), by), FLOAT64)
            for n, by in ((0, 5), (1, 6))
        )
        whole = builder.call("add", _scaled(builder, high, 2.0**26), low)
        return _scaled(builder, whole, 2.0**-53)
    digits = _DIGITS.get(dtype.name)
    if digits is None:
        raise UnsupportedError(f"random numbers of type {dtype}")
    if dtype is FLOAT32:
        return builder.call("random.uniform", key, shape=tuple(shape))
    kept = builder.cast(_shifted(builder, bits(builder, key, shape), 32 - digits), FLOAT32)
    return builder.cast(_scaled(builder, kept, 2.0**-digits), dtype)


def _shifted(builder: Builder, value: GraphExpr, by: int) -> GraphExpr:
    return builder.call("right_shift", value, builder.constant(by, WORD))


def _scaled(builder: Builder, value: GraphExpr, by: float) -> GraphExpr:
    return builder.call("multiply", value, builder.constant(by, dtype_of(value)))


def normal(builder: Builder, key: GraphExpr, shape: Sequence[Size], dtype: DataType = FLOAT32) -> GraphExpr:
    """Numbers of the standard normal distribution, by the method of Box and Muller."""
    if 0 in shape:
        return builder.filled(0, shape, dtype)
    if dtype is not FLOAT64:
        return builder.cast(builder.call("random.normal", key, shape=tuple(shape)), dtype)
    radius = builder.call("sqrt", _scaled(builder, _log_of_rest(builder, key_at(builder, key, 0), shape, dtype), -2.0))
    angle = _scaled(builder, uniform(builder, key_at(builder, key, 1), shape, dtype), 2 * math.pi)
    return builder.call("multiply", radius, builder.call("cos", angle))


def _log_of_rest(builder: Builder, key: GraphExpr, shape: Sequence[Size], dtype: DataType) -> GraphExpr:
    """Logarithms of numbers of (0, 1]."""
    drawn = uniform(builder, key, shape, dtype)
    return builder.call("log", builder.call("subtract", builder.constant(1.0, dtype), drawn))


def exponential(builder: Builder, key: GraphExpr, shape: Sequence[Size], dtype: DataType = FLOAT32) -> GraphExpr:
    """Numbers that fall off exponentially, at rate 1."""
    if 0 in shape:
        return builder.filled(0, shape, dtype)
    wide = FLOAT64 if dtype is FLOAT64 else FLOAT32
    return builder.cast(builder.call("negative", _log_of_rest(builder, key, shape, wide)), dtype)


def bernoulli(builder: Builder, key: GraphExpr, shape: Sequence[Size], chance: GraphExpr) -> GraphExpr:
    """Whether something of a probability happens, for each element; the probability fits the shape."""
    return builder.call("less", uniform(builder, key, shape, FLOAT32), builder.cast(chance, FLOAT32))


def integers(builder: Builder, key: GraphExpr, shape: Sequence[Size], low: int, high: int) -> GraphExpr:
    """Whole numbers from `low` to below `high`, of int64."""
    if 0 in shape:
        return builder.filled(0, shape, INT64)
    spread = builder.constant(np.asarray(high - low, np.uint64), _DOUBLE)
    scaled = builder.call("multiply", builder.cast(bits(builder, key, shape), _DOUBLE), spread)
    number = builder.cast(builder.call("right_shift", scaled, builder.constant(32, _DOUBLE)), INT64)
    return builder.call("add", number, builder.constant(low, INT64))


def categories(builder: Builder, key: GraphExpr, logits: GraphExpr, count: Size) -> GraphExpr:
    """For each row of logarithms of (unnormalised) probabilities, so many numbers of classes drawn by them, of int64.

    The class whose logarithm plus a number of the Gumbel distribution is largest is drawn.
    """
    rows, classes = sizes_of(logits)
    shape = (rows, count, classes)
    drawn = uniform(builder, key, shape, FLOAT32)
    # The smallest numbers stand for themselves and all below them, zero among these.
    drawn = builder.call("maximum", drawn, builder.constant(2.0**-25, FLOAT32))
    gumbel = builder.call("negative", builder.call("log", builder.call("negative", builder.call("log", drawn))))
    spread = builder.call("add", builder.expand_dims(builder.cast(logits, FLOAT32), (1,)), gumbel)
    return builder.cast(builder.call("argmax", spread, axis=2), INT64)


def dropout(builder: Builder, key: GraphExpr, x: GraphExpr, rate: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """Values of which some are 0 and the others have grown in their place, and which are kept; `rate` is a scalar."""
    kept = builder.call("logical_not", bernoulli(builder, key, sizes_of(x), rate))
    rest = builder.call("subtract", builder.constant(1.0, FLOAT32), builder.cast(rate, FLOAT32))
    grown = builder.call("divide", x, builder.cast(rest, dtype_of(x)))
    return builder.call("where", kept, grown, builder.constant_like(0, x)), kept
