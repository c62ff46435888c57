"""Random bits by Threefry-2x32 (`graph/ops/random_bits.py`): sums, rotations and exclusive ors; and numbers of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.graph.ops.random_bits import GROUPS, PARITY, ROTATIONS, WORD
from tilewright.graph.ops.random_numbers import UNIT
from tilewright.ir import build, intrinsics
from tilewright.ir.build import as_expr, cast, const
from tilewright.ir.dtype import FLOAT32, INDEX
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te.language import compute
from tilewright.te.tensor import Tensor
from tilewright.topi.registry import compute_of, result_shape


def _word(value: int) -> PrimExpr:
    return const(value, WORD)


def _threefry(key: Tensor, high: PrimExpr, low: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    first, second = key[0], key[1]
    keys = (first, second, build.bitwise_xor(build.bitwise_xor(first, second), _word(PARITY)))
    x, y = build.add(high, keys[0]), build.add(low, keys[1])
    for group in range(GROUPS):
        for distance in ROTATIONS[group % 2]:
            x = build.add(x, y)
            left, right = build.shift_left(y, _word(distance)), build.shift_right(y, _word(32 - distance))
            y = build.bitwise_xor(x, build.bitwise_or(left, right))
        x = build.add(x, keys[(group + 1) % 3])
        y = build.add(build.add(y, keys[(group + 2) % 3]), _word(group + 1))
    return x, y


def _words(key: Tensor, shape: Sequence[ExprLike], indices: Sequence[ExprLike]) -> tuple[PrimExpr, PrimExpr]:
    """The two words of an element, by its place among all."""
    flat: PrimExpr = as_expr(0, INDEX)
    for index, size in zip(indices, shape, strict=True):
        flat = build.add(build.mul(flat, size), index)
    return _threefry(key, cast(build.shift_right(flat, const(32, INDEX)), WORD), cast(flat, WORD))


@compute_of("random.bits")
def _bits(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (key,), shape = inputs, result_shape(result)
    return compute(shape, lambda *i: build.bitwise_xor(*_words(key, shape, i)), "random_bits")


def _share(word: PrimExpr) -> PrimExpr:
    """A word as a number of [0, 1)."""
    return build.mul(cast(build.shift_right(word, _word(8)), FLOAT32), const(UNIT, FLOAT32))


@compute_of("random.uniform")
def _uniform(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (key,), shape = inputs, result_shape(result)
    low, spread = const(attributes.low, FLOAT32), const(attributes.high - attributes.low, FLOAT32)

    def element(*i: ExprLike) -> PrimExpr:
        share = _share(build.bitwise_xor(*_words(key, shape, i)))
        if (attributes.low, attributes.high) == (0.0, 1.0):
            return share
        return build.add(build.mul(share, spread), low)

    return compute(shape, element, "random_uniform")


@compute_of("random.normal")
def _normal(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (key,), shape = inputs, result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        x, y = (_share(word) for word in _words(key, shape, i))
        radius = intrinsics.sqrt(build.mul(intrinsics.log(build.sub(const(1.0, FLOAT32), x)), const(-2.0, FLOAT32)))
        drawn = build.mul(radius, intrinsics.cos(build.mul(y, const(2 * math.pi, FLOAT32))))
        if (attributes.mean, attributes.scale) == (0.0, 1.0):
            return drawn
        return build.add(build.mul(drawn, const(attributes.scale, FLOAT32)), const(attributes.mean, FLOAT32))

    return compute(shape, element, "random_normal")


@compute_of("random.fold_in")
def _fold_in(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    key, numbers = inputs

    def element(*i: ExprLike) -> PrimExpr:
        x, y = _threefry(key, _word(0), numbers[i[:-1]])
        return build.select(as_expr(i[-1]).eq(0), x, y)

    return compute(result_shape(result), element, "random_keys")
