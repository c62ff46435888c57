"""Converters of random bits: the counter-based generators Threefry and Philox, to the bit as XLA computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, shape_of
from tilewright.frontend.stablehlo.builder import StableBuilder
from tilewright.frontend.stablehlo.elementwise import bitcast_to
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter, refuse
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_WORD, _DOUBLE = DataType.of("uint32"), DataType.of("uint64")
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_ROUNDS = 10

refuse(
    "its numbers come from a generator that the program does not name",
    "rng",
)


@converter("rng_bit_generator")
def random_bits(b: StableBuilder, operation: Operation, state: GraphExpr) -> list[GraphExpr]:
    """The state after, and bits of a shape."""
    algorithm = b.word_of("rng_algorithm", "DEFAULT")
    spec = operation.results[1].tensor
    if None in spec.shape:
        raise UnsupportedError("random bits of an open shape", hint="give the dimension a size")
    shape = [size for size in spec.shape if size is not None]
    words = bitcast_to(b, state, _DOUBLE) if dtype_of(state) is not _DOUBLE else state
    count = math.prod(shape_of(words))
    if count not in (2, 3):
        raise UserError(f"a generator's state of {count} numbers")
    parts = [b.select(b.reshape(words, (count,)), 0, at) for at in range(count)]
    if algorithm in ("THREE_FRY", "THREEFRY"):
        made, counters = _threefry_bits(b, parts[0], parts[1], shape, spec.dtype)
    else:
        # Of a state of two numbers, the key is the upper half of the counter too.
        high = parts[2] if count == 3 else parts[0]
        made, counters = _philox_bits(b, parts[0], parts[1], high, shape, spec.dtype)
    after = b.stack([parts[0], *counters[: count - 1]], 0)
    if dtype_of(state) is not _DOUBLE:
        after = bitcast_to(b, after, dtype_of(state))
    return [b.reshape(after, shape_of(state)), made]


def _halves(b: StableBuilder, value: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """The low and the high word of 64 bits."""
    low = b.call("bitwise_and", value, b.scalar(0xFFFFFFFF, _DOUBLE))
    return b.cast(low, _WORD), b.cast(b.call("right_shift", value, b.scalar(32, _DOUBLE)), _WORD)


def _whole(b: StableBuilder, low: GraphExpr, high: GraphExpr) -> GraphExpr:
    shifted = b.call("left_shift", b.cast(high, _DOUBLE), b.scalar(32, _DOUBLE))
    return b.call("bitwise_or", b.cast(low, _DOUBLE), shifted)


# Threefry


def _threefry(
    b: StableBuilder, key: tuple[GraphExpr, GraphExpr], counter: tuple[GraphExpr, GraphExpr]
) -> tuple[GraphExpr, GraphExpr]:
    """Twenty rounds of additions, rotations and exclusive ors."""
    parity = b.call("bitwise_xor", b.call("bitwise_xor", b.scalar(_PARITY, _WORD), key[0]), key[1])
    keys = (*key, parity)
    x, y = b.call("add", counter[0], keys[0]), b.call("add", counter[1], keys[1])
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = b.call("add", x, y)
            left = b.call("left_shift", y, b.scalar(distance, _WORD))
            right = b.call("right_shift", y, b.scalar(32 - distance, _WORD))
            y = b.call("bitwise_xor", x, b.call("bitwise_or", left, right))
        x = b.call("add", x, keys[(group + 1) % 3])
        y = b.call("add", b.call("add", y, keys[(group + 2) % 3]), b.scalar(group + 1, _WORD))
    return x, y


def _threefry_bits(
    b: StableBuilder, key: GraphExpr, counter: GraphExpr, shape: Sequence[int], dtype: DataType
) -> tuple[GraphExpr, list[GraphExpr]]:
    if dtype.bits == 64:
        total = math.prod(shape)
        low, high = _threefry(b, _halves(b, key), _halves(b, _counted(b, counter, total)))
        made = b.reshape(_whole(b, low, high), shape)
        return _as_type(b, made, dtype), [b.add(counter, b.scalar(total, _DOUBLE))]
    # Both words of a pair lie next to each other along one dimension: the first that is even, or the longest.
    axis = next((at for at, size in enumerate(shape) if size % 2 == 0), None)
    if axis is None and shape:
        axis = max(range(len(shape)), key=lambda at: (shape[at], -at))
    halved = [-(-size // 2) if at == axis else size for at, size in enumerate(shape)] if shape else [1]
    total = math.prod(halved)
    low, high = _threefry(b, _halves(b, key), _halves(b, _counted(b, counter, total)))
    moved = [b.add(counter, b.scalar(total, _DOUBLE))]
    if axis is None:
        return _as_type(b, b.reshape(low, ()), dtype), moved
    pairs = [b.expand_dims(b.reshape(part, halved), (axis + 1,)) for part in (low, high)]
    wide = [2 * size if at == axis else size for at, size in enumerate(halved)]
    made = b.slice_axis(b.reshape(b.concatenate(pairs, axis + 1), wide), axis, 0, shape[axis])
    return _as_type(b, made, dtype), moved


def _counted(b: StableBuilder, start: GraphExpr, count: int) -> GraphExpr:
    """start, start + 1, ..."""
    return b.call("add", b.reshape(start, (1,)), b.cast(b.arange(count), _DOUBLE))


# Philox


def _philox(b: StableBuilder, key: tuple[GraphExpr, GraphExpr], state: list[GraphExpr]) -> list[GraphExpr]:
    """Ten rounds of products of words."""
    for turn in range(_PHILOX_ROUNDS):
        keys = [
            b.call("add", part, b.scalar(turn * step & 0xFFFFFFFF, _WORD))
            for part, step in zip(key, _PHILOX_KEYS, strict=True)
        ]
        products = [
            _halves(b, b.call("multiply", b.cast(state[at], _DOUBLE), b.scalar(factor, _DOUBLE)))
            for at, factor in zip((0, 2), _PHILOX_FACTORS, strict=True)
        ]
        state = [
            b.call("bitwise_xor", b.call("bitwise_xor", products[1][1], state[1]), keys[0]),
            products[1][0],
            b.call("bitwise_xor", b.call("bitwise_xor", products[0][1], state[3]), keys[1]),
            products[0][0],
        ]
    return state


def _philox_bits(
    b: StableBuilder, key: GraphExpr, low: GraphExpr, high: GraphExpr, shape: Sequence[int], dtype: DataType
) -> tuple[GraphExpr, list[GraphExpr]]:
    total = math.prod(shape)
    words = 2 * total if dtype.bits == 64 else total
    count = -(-words // 4)
    counters = _counted(b, low, count)
    carried = b.call("add", b.reshape(high, (1,)), b.cast(b.call("less", counters, b.reshape(low, (1,))), _DOUBLE))
    found = _philox(b, _halves(b, key), [*_halves(b, counters), *_halves(b, carried)])
    if dtype.bits == 64:
        found = [_whole(b, found[0], found[1]), _whole(b, found[2], found[3])]
    rows = b.concatenate([b.reshape(part, (count, 1)) for part in found], 1)
    flat = b.slice_axis(b.reshape(rows, (count * len(found),)), 0, 0, total)
    after = b.add(low, b.scalar(count, _DOUBLE))
    return _as_type(b, b.reshape(flat, shape), dtype), [
        after,
        b.add(high, b.cast(b.call("less", after, low), _DOUBLE)),
    ]


def _as_type(b: StableBuilder, bits: GraphExpr, dtype: DataType) -> GraphExpr:
    """Words as a type of as many bits or fewer, of which the low ones stay."""
    if dtype_of(bits).bits > dtype.bits:
        kept = b.call("bitwise_and", bits, b.scalar((1 << dtype.bits) - 1, dtype_of(bits)))
        bits = b.cast(kept, DataType.of(f"uint{dtype.bits}"))
    return bits if dtype_of(bits) is dtype else b.call("reinterpret", bits, dtype=dtype)
