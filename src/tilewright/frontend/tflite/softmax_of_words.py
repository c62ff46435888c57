"""Softmax of 16-bit integers, as the reference kernel computes it: tables of 512 steps with values between them.

e = exp_table[(x - greatest) scaled so that 65535 steps are 10]          15 digits
s = sum(e), moved up to its highest bit;  r = reciprocal_table[s - 1]
result = (e * r + half) >> (31 - leading zeros of the sum)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import Multiplier, away, rescaled
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import INT32, INT64

_LEAST, _MOST = -32768, 32767
_STEPS = 512
_BITS = 31


def _table(scale: float, zero: int, function: Callable[[Array], Array]) -> Array:
    """A function of all 16-bit integers: at 512 steps, corrected at the midpoints, and linear between them."""
    one = np.float32
    low, high = one(scale) * one(_LEAST - zero), one(scale) * one(_MOST - zero)
    out = one(2.0 / 65535.0)
    step = (high - low) / one(_STEPS)
    unit = one(_MOST - _LEAST + 1) / (out * one(_MOST) - out * one(_LEAST))
    starts = low + np.arange(_STEPS, dtype=np.float32) * step
    after = low + np.arange(1, _STEPS + 1, dtype=np.float32) * step
    value, middle = function(starts) * unit, away(function(starts + step / one(2)) * unit)
    between = away((function(after) * unit + away(value)) / one(2))
    samples = np.clip(away(value) - away((between - middle) / one(2)), _LEAST, _MOST)
    last = np.clip(away(function(np.asarray(high)) * unit), _LEAST, _MOST)
    entries = np.append(samples, last).astype(np.int64)
    codes = np.arange(_LEAST, _MOST + 1)
    place, offset = _STEPS // 2 + (codes >> 7), codes & 127
    return np.asarray(entries[place] + (((entries[place + 1] - entries[place]) * offset + 64) >> 7))


@lru_cache(maxsize=1)
def _tables() -> tuple[Array, Array]:
    """exp from -10 to 0, and 1 / (1 + x) from 0 to 1."""
    powers = _table(10.0 / 65535.0, _MOST, np.exp)
    reciprocals = _table(1.0 / 65535.0, _LEAST, lambda x: np.float32(1) / (np.float32(1) + x))
    return powers, reciprocals


def softmax_of_words(node: NodeContext) -> GraphExpr:
    """Along the last axis."""
    builder, call = node.builder, node.call
    powers_table, reciprocal_table = _tables()
    wide = builder.cast(node.input(0), INT32)
    axis = rank_of(wide) - 1
    distance = call("subtract", wide, call("max", wide, axes=(axis,), keepdims=True))
    factor = np.float64(np.float32(node.levels(0).scales[0])) * np.float64(np.float32(node.number("beta")))
    moved = rescaled(builder, distance, Multiplier.of(factor / (10.0 / 65535.0)))
    place = call("clip", call("add", moved, builder.constant(2 * _MOST + 1, INT32)), minimum=0.0, maximum=65535.0)
    powers = call("take", builder.constant(powers_table, INT32), place, axis=0, mode="inside")
    total = call("sum", powers, axes=(axis,), keepdims=True)
    bits = _length(node, total)
    up = call("subtract", builder.constant(_BITS, INT64), bits)
    raised = call("left_shift", builder.cast(total, INT64), up)
    whole = call("right_shift", call("add", raised, builder.constant(1 << 13, INT64)), builder.constant(14, INT64))
    rest = call("subtract", whole, builder.constant(1 << 16, INT64))
    rest = call("clip", rest, minimum=0.0, maximum=65535.0)
    inverse = call("take", builder.constant(reciprocal_table, INT64), rest, axis=0, mode="inside")
    product = call("multiply", builder.cast(powers, INT64), inverse)
    shift = call("subtract", bits, builder.constant(1, INT64))
    half = call("left_shift", builder.constant(1, INT64), call("subtract", shift, builder.constant(1, INT64)))
    shares = call("right_shift", call("add", product, half), shift)
    return builder.cast(call("clip", shares, minimum=0.0, maximum=float(_MOST)), node.output_dtype())


def _length(node: NodeContext, value: GraphExpr) -> GraphExpr:
    """How many bits positive numbers have."""
    builder = node.builder
    powers = builder.constant(np.int64(1) << np.arange(_BITS, dtype=np.int64), INT64)
    shape = sizes_of(value)
    reaches = node.call("greater_equal", builder.reshape(builder.cast(value, INT64), (*shape, 1)), powers)
    return node.call("sum", builder.cast(reaches, INT64), axes=(len(shape),))
