"""Random bits as a function of a key and a counter: Threefry-2x32 with twenty rounds (Salmon and others, 2011).

A key is two words of 32 bits, a value like any other: equal keys give equal bits on every target, in any order and on
any number of threads, and programs that draw stay pure. New keys come of old ones: `random.fold_in(key, n)` is the nth,
and numbers that must differ are drawn with keys that differ. Bits and keys are those of JAX (with
`jax_threefry_partitionable`, its default since 0.5).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir import dimensions as sizes
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, NoAttributes, Types, operator
from tilewright.graph.ops.common import dims, require_not_negative, tensor
from tilewright.ir.build import as_expr
from tilewright.ir.dtype import DataType
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

WORD: Final = DataType.of("uint32")
ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY: Final = 0x1BD11BDA
GROUPS: Final = 5
"""Groups of four rounds, after each of which the key is added."""

Words = npt.NDArray[np.uint32]


def threefry(key: Words, high: Words, low: Words) -> tuple[Words, Words]:
    """The two words that a key makes of counters."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    x, y = high + keys[0], low + keys[1]
    for group in range(GROUPS):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def words_of(key: Words, shape: tuple[int, ...]) -> tuple[Words, Words]:
    """The two words that a key makes of the place of each element of a shape, in a row."""
    count = np.arange(math.prod(shape), dtype=np.uint64)
    low = (count & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    with np.errstate(over="ignore"):
        return threefry(key, (count >> np.uint64(32)).astype(np.uint32), low)


def random_bits(key: Words, shape: tuple[int, ...]) -> Words:
    """32 bits for each element of a shape."""
    x, y = words_of(key, shape)
    return (x ^ y).reshape(shape)


def key_of(seed: int) -> Words:
    """The key of a seed."""
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def folded_key(key: Words, number: npt.ArrayLike) -> Words:
    """The key that a key and a number make, or one for each of several numbers."""
    low = np.asarray(number, np.uint32)
    with np.errstate(over="ignore"):
        return np.stack(threefry(key, np.zeros_like(low), low), axis=-1)


@node()
class BitsAttributes(Attributes):
    """The shape of the result."""

    shape: Sizes


def _bits(args: list[Array], attributes: BitsAttributes) -> Array:
    return random_bits(args[0], sizes.numbers(attributes.shape))


@operator("random.bits", inputs=("key",), kind=FusionKind.INJECTIVE, reference=_bits, attributes=BitsAttributes)
def bits(types: Types, attributes: BitsAttributes) -> Type:
    """32 random bits for each element of a shape, which a key and the element's place decide."""
    require_key(types)
    require_not_negative(attributes.shape, "the shape")
    return TensorType(dims(attributes.shape), WORD)


def _fold_in(args: list[Array], attributes: NoAttributes) -> Array:
    return folded_key(args[0], args[1])


@operator("random.fold_in", inputs=("key", "numbers"), kind=FusionKind.INJECTIVE, reference=_fold_in)
def fold_in(types: Types, attributes: NoAttributes) -> Type:
    """The key (of two words, in a last dimension) that a key makes with each of some numbers of uint32."""
    require_key(types)
    numbers = tensor(types, 1, "the numbers")
    if numbers.dtype is not WORD:
        raise UserError(f"keys are made with numbers of uint32, not {numbers.dtype}")
    return TensorType(None if numbers.shape is None else (*numbers.shape, as_expr(2)), WORD)


def require_key(types: Types) -> None:
    """The first input must be a key."""
    key: Any = tensor(types, 0, "the key")
    if key.dtype is not WORD or key.static_shape != (2,):
        raise UserError(f"a key is two words of uint32, not {key!r}")
