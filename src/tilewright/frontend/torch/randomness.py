"""Converters of operators that draw random numbers, from a generator that counts.

A program draws only if it is imported with a seed: compiled code has no state of its own. Each number is a function of
the seed, of which draw of the program it is, and of the element's place: the same seed gives the same numbers, whatever
the target and the number of threads. They are not torch's numbers, whose order is that of its own loops. The function
is "squares" (B. Widynski, 2020): four rounds of squaring a counter times a key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import Number, Operand
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.sorting import ordered
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, FLOAT64, INT64, DataType
from tilewright.support.errors import UnsupportedError

_UINT64 = DataType.of("uint64")
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Constants of the function that makes keys of seeds (splitmix64)."""
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""How many bits a number between 0 and 1 has, so that none is rounded up to 1."""
_WIDEST_RANGE = 1 << 32


def _key(b: TorchBuilder) -> GraphExpr:
    """The key of a draw: odd, and different for each draw of the program and for each seed."""
    if b.seed is None:
        raise UnsupportedError(
            "compiled models draw no random numbers without a seed",
            hint="call model.eval() first, or say from_torch(..., seed=0) or seed='input'",
        )
    b.draws += 1
    value = b.add(b.cast(b.seed, _UINT64), _number(b, b.draws * _MIX[0]))
    for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
        value = b.multiply(_xor_shifted(b, value, shift), _number(b, factor))
    return b.call("bitwise_or", _xor_shifted(b, value, 31), _number(b, 1))


def _xor_shifted(b: TorchBuilder, value: GraphExpr, shift: int) -> GraphExpr:
    return b.call("bitwise_xor", value, b.call("right_shift", value, _number(b, shift)))


def _number(b: TorchBuilder, value: int) -> GraphExpr:
    return b.constant(np.asarray(value % (1 << 64), np.uint64), _UINT64)


def random_bits(b: TorchBuilder, shape: Sizes) -> GraphExpr:
    """32 random bits for each element of a shape, in 64."""
    key = _key(b)
    count = dimensions.product(shape)
    # Counters from 1 on: 0 times a key is 0 for all of them.
    place = b.cast(b.add(b.reshape(b.arange(count), shape), 1), _UINT64)
    x = y = b.multiply(place, key)
    z = b.add(y, key)
    for step in (y, z, y):
        x = b.add(b.multiply(x, x), step)
        high, low = b.call("right_shift", x, _number(b, 32)), b.call("left_shift", x, _number(b, 32))
        x = b.call("bitwise_or", high, low)
    return b.call("right_shift", b.add(b.multiply(x, x), z), _number(b, 32))


def uniform(b: TorchBuilder, shape: Sizes, dtype: DataType) -> GraphExpr:
    """Numbers of [0, 1), all equally likely."""
    if 0 in shape:
        return b.empty(shape, dtype)
    if dtype is FLOAT64:
        high = b.call("right_shift", random_bits(b, shape), _number(b, 5))
        low = b.call("right_shift", random_bits(b, shape), _number(b, 6))
        whole = b.add(b.multiply(b.cast(high, FLOAT64), 2.0**26), b.cast(low, FLOAT64))
        return b.multiply(whole, 2.0**-53)
    digits = _DIGITS.get(dtype.name)
    if digits is None:
        raise UnsupportedError(f"random numbers of type {dtype}")
    bits = b.call("right_shift", random_bits(b, shape), _number(b, 32 - digits))
    return b.cast(b.multiply(b.cast(bits, FLOAT32), 2.0**-digits), dtype)


def normal(b: TorchBuilder, shape: Sizes, dtype: DataType) -> GraphExpr:
    """Numbers of the standard normal distribution, by the method of Box and Muller."""
    if 0 in shape:
        return b.empty(shape, dtype)
    wide = FLOAT64 if dtype is FLOAT64 else FLOAT32
    radius = b.chain(b.multiply(b.call("log", b.subtract(1.0, uniform(b, shape, wide))), -2.0), "sqrt")
    angle = b.multiply(uniform(b, shape, wide), 2 * math.pi)
    return b.cast(b.multiply(radius, b.call("cos", angle)), dtype)


def _chance(b: TorchBuilder, shape: Sizes, probability: Operand) -> GraphExpr:
    """Whether something of a probability happens, for each element."""
    return b.compare("less", uniform(b, shape, FLOAT32), probability)


@converter("rand", "rand_like")
def rand(b: TorchBuilder, **_: Any) -> GraphExpr:
    """Uniform numbers."""
    return uniform(b, b.shape, b.dtype)


@converter("randn", "randn_like")
def randn(b: TorchBuilder, **_: Any) -> GraphExpr:
    """Normal numbers."""
    return normal(b, b.shape, b.dtype)


@converter("uniform")
def uniform_between(b: TorchBuilder, x: GraphExpr, to: float = 1.0, **others: float) -> GraphExpr:
    """Uniform numbers between two."""
    start = others.get("from", 0.0)
    return b.add(b.multiply(uniform(b, b.shape, b.dtype), to - start), start)


@converter("normal")
def normal_around(b: TorchBuilder, mean: Operand = 0.0, std: Operand = 1.0, **_: Any) -> GraphExpr:
    """Normal numbers of means and deviations."""
    return b.cast(b.add(b.multiply(normal(b, b.shape, b.dtype), std), mean), b.dtype)


@converter("normal_functional")
def normal_like(b: TorchBuilder, x: GraphExpr, mean: float = 0.0, std: float = 1.0) -> GraphExpr:
    """Normal numbers in the place of others."""
    return normal_around(b, mean, std)


@converter("exponential")
def exponential(b: TorchBuilder, x: GraphExpr, lambd: float = 1.0) -> GraphExpr:
    """Numbers that fall off exponentially."""
    return b.divide(b.call("log", b.subtract(1.0, uniform(b, b.shape, b.dtype))), -lambd)


@converter("bernoulli")
def bernoulli(b: TorchBuilder, x: GraphExpr, p: Operand | None = None) -> GraphExpr:
    """1 with a probability, else 0; without one, the elements are the probabilities."""
    return b.cast(_chance(b, b.shape, x if p is None else p), b.dtype)


@converter("randint", "randint_like")
def randint(b: TorchBuilder, high: Size | GraphExpr, low: Size = 0, **_: Any) -> GraphExpr:
    """Whole numbers from low to below high."""
    if not isinstance(high, int) or not isinstance(low, int):
        raise UnsupportedError("random whole numbers between limits that vary")
    if high - low > _WIDEST_RANGE:
        raise UnsupportedError(f"random whole numbers between {low} and {high}", hint="at most 2^32 different ones")
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    scaled = b.multiply(random_bits(b, b.shape), _number(b, high - low))
    return b.cast(b.add(b.cast(b.call("right_shift", scaled, _number(b, 32)), INT64), low), b.dtype)


@converter("randperm")
def randperm(b: TorchBuilder, n: Size, dtype: DataType | None = None) -> GraphExpr:
    """The numbers below n in any order: places of random numbers in the order of their size."""
    if n == 0:
        return b.empty((0,), b.dtype)
    keys = b.cast(random_bits(b, (n,)), INT64)
    return b.cast(ordered(b, keys, 0, n, largest=False)[1], b.dtype)


def dropped(b: TorchBuilder, x: GraphExpr, p: float) -> tuple[GraphExpr, GraphExpr]:
    """Elements that are dropped with a probability, the others larger for it; and which were kept."""
    kept = _chance(b, sizes_of(x), 1.0 - p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return b.where(kept, b.multiply(x, scale), b.scalar(0, dtype_of(x))), kept


@converter("native_dropout")
def native_dropout(b: TorchBuilder, input: GraphExpr, p: float, train: bool | None = None) -> list[GraphExpr]:
    """Dropout and its mask."""
    if train is False or p == 0:
        return [input, b.filled(1, sizes_of(input), BOOL)]
    return list(dropped(b, input, p))


@converter("dropout")
def dropout(b: TorchBuilder, input: GraphExpr, p: float, train: bool) -> GraphExpr:
    """Nothing, unless it is training."""
    return dropped(b, input, p)[0] if train and p else input


@converter("feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def other_dropout(b: TorchBuilder, input: GraphExpr, p: Number, train: bool) -> GraphExpr:
    """Nothing, unless it is training."""
    if train and p:
        raise UnsupportedError("dropout of this kind draws random numbers", hint="call model.eval() first")
    return input


@converter("rrelu_with_noise_functional")
def rrelu_with_noise(
    b: TorchBuilder,
    x: GraphExpr,
    noise: GraphExpr,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
) -> tuple[GraphExpr, GraphExpr]:
    """x, or a random part of it where it is not positive; and what each element was multiplied by."""
    if not training:
        return b.call("nn.leaky_relu", x, alpha=(float(lower) + float(upper)) / 2), noise
    slope = b.add(b.multiply(uniform(b, sizes_of(x), dtype_of(x)), float(upper) - float(lower)), float(lower))
    factor = b.where(b.compare("less_equal", x, 0), slope, b.scalar(1, dtype_of(x)))
    return b.multiply(x, factor), factor
