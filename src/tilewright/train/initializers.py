"""First values of weights, drawn by the generator that counts (`graph/ops/random_bits.py`): a seed decides them all.

Shapes are those of layers: (outputs, inputs, ...) for convolutions and dense layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ops.random_bits import Words, folded_key, key_of, random_bits
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Initializer = Callable[[Words, Shape], Array]
"""A key and a shape -> the values."""


def _uniform(key: Words, shape: Shape) -> Array:
    """Numbers of [0, 1)."""
    return (random_bits(key, shape) >> np.uint32(8)).astype(np.float64) * 2.0**-24


def normal(key: Words, shape: Shape, deviation: float = 1.0) -> Array:
    """Numbers of a normal distribution around 0."""
    radius = np.sqrt(-2 * np.log1p(-_uniform(folded_key(key, 0), shape)))
    angle = 2 * math.pi * _uniform(folded_key(key, 1), shape)
    return np.asarray(radius * np.cos(angle) * deviation, np.float32)


def _between(key: Words, shape: Shape, limit: float) -> Array:
    return np.asarray((2 * _uniform(key, shape) - 1) * limit, np.float32)


def _fans(shape: Shape) -> tuple[int, int]:
    """How many numbers an output is computed from, and how many outputs an input goes to."""
    if len(shape) < 2:
        raise UserError(f"weights of shape {shape} have no inputs and outputs", hint="use normal for them")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def kaiming_normal(key: Words, shape: Shape) -> Array:
    """For layers before a ReLU (He and others, 2015): normal, of deviation sqrt(2 / inputs)."""
    return normal(key, shape, math.sqrt(2 / _fans(shape)[0]))


def kaiming_uniform(key: Words, shape: Shape) -> Array:
    """For layers before a ReLU: uniform, of the same deviation."""
    return _between(key, shape, math.sqrt(6 / _fans(shape)[0]))


def xavier_normal(key: Words, shape: Shape) -> Array:
    """For layers before tanh and the like (Glorot and Bengio, 2010): normal, sqrt(2 / (inputs + outputs))."""
    return normal(key, shape, math.sqrt(2 / sum(_fans(shape))))


def xavier_uniform(key: Words, shape: Shape) -> Array:
    """For layers before tanh and the like: uniform, of the same deviation."""
    return _between(key, shape, math.sqrt(6 / sum(_fans(shape))))


def initialize(parameters: Mapping[str, Array], seed: int, weights: Initializer = kaiming_uniform) -> dict[str, Array]:
    """New values of all weights: `step.assign(initialize(step.parameters(), seed=0))`.

    Tensors of two dimensions and more are drawn by `weights`, each with a key of its own; vectors stay as they are:
    biases are zeros and scales ones in a model that was never trained.
    """
    names: Sequence[str] = list(parameters)
    keys = folded_key(key_of(seed), np.arange(len(names)))
    return {
        name: weights(key, parameters[name].shape) if parameters[name].ndim > 1 else parameters[name]
        for name, key in zip(names, keys, strict=True)
    }
