"""Converters of operators that draw random numbers, from a generator that counts (`frontend/core/randomness.py`).

A program draws only if it is imported with a seed: compiled code has no state of its own. Each number is a function of
the seed, of which draw of the program it is, and of the element's place: the same seed gives the same numbers, whatever
the target and the number of threads. They are not torch's numbers, whose order is that of its own loops.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core import randomness
from tilewright.frontend.core.arithmetic import Number, Operand
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.frontend.torch.sorting import ordered
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT64, DataType
from tilewright.support.errors import UnsupportedError


def _key(b: TorchBuilder) -> GraphExpr:
    """The key of a draw: different for each draw of the program and for each seed."""
    if b.seed is None:
        raise UnsupportedError(
            "compiled models draw no random numbers without a seed",
            hint="call model.eval() first, or say from_torch(..., seed=0) or seed='input'",
        )
    b.draws += 1
    return randomness.key_at(b, randomness.seed_key(b, b.seed), b.draws)


def uniform(b: TorchBuilder, shape: Sizes, dtype: DataType) -> GraphExpr:
    """Numbers of [0, 1), all equally likely."""
    return randomness.uniform(b, _key(b), shape, dtype)


def normal(b: TorchBuilder, shape: Sizes, dtype: DataType) -> GraphExpr:
    """Numbers of the standard normal distribution."""
    return randomness.normal(b, _key(b), shape, dtype)


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
    return b.divide(randomness.exponential(b, _key(b), b.shape, b.dtype), lambd)


@converter("bernoulli")
def bernoulli(b: TorchBuilder, x: GraphExpr, p: Operand | None = None) -> GraphExpr:
    """1 with a probability, else 0; without one, the elements are the probabilities."""
    return b.cast(_chance(b, b.shape, x if p is None else p), b.dtype)


@converter("randint", "randint_like")
def randint(b: TorchBuilder, high: Size | GraphExpr, low: Size = 0, **_: Any) -> GraphExpr:
    """Whole numbers from low to below high."""
    if not isinstance(high, int) or not isinstance(low, int):
        raise UnsupportedError("random whole numbers between limits that vary")
    if high - low > randomness.WIDEST_RANGE:
        raise UnsupportedError(f"random whole numbers between {low} and {high}", hint="at most 2^32 different ones")
    return b.cast(randomness.integers(b, _key(b), b.shape, low, high), b.dtype)


@converter("randperm")
def randperm(b: TorchBuilder, n: Size, dtype: DataType | None = None) -> GraphExpr:
    """The numbers below n in any order: places of random numbers in the order of their size."""
    if n == 0:
        return b.empty((0,), b.dtype)
    keys = b.cast(randomness.bits(b, _key(b), (n,)), INT64)
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
