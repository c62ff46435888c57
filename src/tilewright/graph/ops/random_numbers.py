"""Operators that draw random numbers with a key (`random_bits.py`), and the one that gives keys without a seed.

The numbers of a uniform distribution between 0 and 1 are the same on every target; what is made of bits by arithmetic
is so within rounding.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir import dimensions as sizes
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import dims, require_not_negative
from tilewright.graph.ops.host import host_operator
from tilewright.graph.ops.random_bits import WORD, require_key, words_of
from tilewright.ir.build import as_expr
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type

UNIT = 2.0**-24
"""The distance of neighbours among the numbers of [0, 1) that are drawn."""


@node()
class UniformAttributes(Attributes):
    """The shape of the result, and the bounds."""

    shape: Sizes
    low: float = 0.0
    high: float = 1.0


def _uniform(args: list[Array], attributes: UniformAttributes) -> Array:
    shape = sizes.numbers(attributes.shape)
    x, y = words_of(args[0], shape)
    share = _share(x ^ y)
    spread = np.float32(attributes.high - attributes.low)
    return (share * spread + np.float32(attributes.low)).reshape(shape)


def _share(words: Array) -> Array:
    """Words as numbers of [0, 1)."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(UNIT)


@operator(
    "random.uniform", inputs=("key",), kind=FusionKind.INJECTIVE, reference=_uniform, attributes=UniformAttributes
)
def uniform(types: Types, attributes: UniformAttributes) -> Type:
    """Numbers from `low` up to but without `high`, in a shape."""
    return _drawn(types, attributes.shape)


@node()
class NormalAttributes(Attributes):
    """The shape of the result, the mean and the standard deviation."""

    shape: Sizes
    mean: float = 0.0
    scale: float = 1.0


def _normal(args: list[Array], attributes: NormalAttributes) -> Array:
    shape = sizes.numbers(attributes.shape)
    x, y = (_share(word).astype(np.float64) for word in words_of(args[0], shape))
    drawn = np.sqrt(-2 * np.log1p(-x)) * np.cos(2 * np.pi * y)
    return np.asarray(drawn * attributes.scale + attributes.mean, np.float32).reshape(shape)


@operator("random.normal", inputs=("key",), kind=FusionKind.INJECTIVE, reference=_normal, attributes=NormalAttributes)
def normal(types: Types, attributes: NormalAttributes) -> Type:
    """Numbers of a normal distribution, in a shape, by the method of Box and Muller."""
    return _drawn(types, attributes.shape)


def _drawn(types: Types, shape: Sizes) -> Type:
    require_key(types)
    require_not_negative(shape, "the shape")
    return TensorType(dims(shape), FLOAT32)


@node()
class KeyAttributes(Attributes):
    """The number of the draw: no two draws are one."""

    draw: int


@host_operator("random.key", attributes=KeyAttributes)
def key(types: Types, attributes: KeyAttributes) -> Type:
    """A key that nothing decides: each call of the host gives another."""
    return TensorType((as_expr(2),), WORD)
