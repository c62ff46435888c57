"""Random bits by Threefry-2x32 (`graph/ops/random_bits.py`): sums, rotations and exclusive ors of 32-bit words."""

from __future__ import annotations

from typing import Any

from tilewright.graph.ops.random_bits import GROUPS, PARITY, ROTATIONS, WORD
from tilewright.ir import build
from tilewright.ir.build import as_expr, cast, const
from tilewright.ir.dtype import INDEX
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


@compute_of("random.bits")
def _bits(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    (key,) = inputs
    shape = result_shape(result)

    def element(*i: ExprLike) -> PrimExpr:
        flat: PrimExpr = as_expr(0, INDEX)
        for index, size in zip(i, shape, strict=True):
            flat = build.add(build.mul(flat, size), index)
        x, y = _threefry(key, cast(build.shift_right(flat, const(32, INDEX)), WORD), cast(flat, WORD))
        return build.bitwise_xor(x, y)

    return compute(shape, element, "random_bits")


@compute_of("random.fold_in")
def _fold_in(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    key, numbers = inputs

    def element(*i: ExprLike) -> PrimExpr:
        x, y = _threefry(key, _word(0), numbers[i[:-1]])
        return build.select(as_expr(i[-1]).eq(0), x, y)

    return compute(result_shape(result), element, "random_keys")
