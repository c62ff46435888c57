"""Activations of quantised tensors, in the integers of the reference kernels."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.fixed_point import (
    Multiplier,
    as_steps,
    bounds_of,
    finished,
    rescaled,
    rounded_away,
)
from tilewright.frontend.tflite.softmax_of_words import softmax_of_words
from tilewright.frontend.tflite.tables import by_function, codes_of, looked_up
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.support.errors import UnsupportedError


def _ratio(node: NodeContext, factor: float = 1.0) -> Multiplier:
    """Steps of the input in steps of the result: a quotient in float32, as these kernels compute it."""
    scale = np.float32(node.levels(0).scales[0]) * np.float32(factor)
    return Multiplier.of(scale / np.float32(node.output_levels().scales[0]))


def quantized_relu(node: NodeContext, name: str) -> GraphExpr:
    """Rescaled, then kept within bounds."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    value = rescaled(builder, as_steps(builder, node.input(0), node.levels(0).zero), _ratio(node))
    return finished(builder, value, result.zero, bounds_of(name, result, to), to)


def quantized_leaky_relu(node: NodeContext) -> GraphExpr:
    """Positive and negative steps have multipliers of their own."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    steps = as_steps(builder, node.input(0), node.levels(0).zero)
    above = rescaled(builder, steps, _ratio(node))
    below = _signed(node, steps, node.number("alpha"))
    is_above = builder.call("greater_equal", steps, builder.constant_like(0, steps))
    return finished(builder, builder.call("where", is_above, above, below), result.zero, _range(to), to)


def _signed(node: NodeContext, steps: GraphExpr, factor: float) -> GraphExpr:
    """Steps times a factor that may be negative, in steps of the result."""
    if factor < 0:
        raise UnsupportedError(f"a quantised activation with the slope {factor}")
    return rescaled(node.builder, steps, _ratio(node, factor))


def quantized_prelu(node: NodeContext) -> GraphExpr:
    """Negative steps are multiplied with those of the slope."""
    builder, to, result = node.builder, node.output_dtype(), node.output_levels()
    steps = as_steps(builder, node.input(0), node.levels(0).zero)
    slope = as_steps(builder, node.input(1), node.levels(1).zero)
    above = rescaled(builder, steps, _ratio(node))
    scale = np.float32(node.levels(0).scales[0]) * np.float32(node.levels(1).scales[0])
    by = Multiplier.of(scale / np.float32(result.scales[0]))
    below = rescaled(builder, builder.call("multiply", steps, slope), by)
    is_above = builder.call("greater_equal", steps, builder.constant_like(0, steps))
    return finished(builder, builder.call("where", is_above, above, below), result.zero, _range(to), to)


def quantized_logistic(node: NodeContext) -> GraphExpr:
    """A table."""
    if dtype_of(node.input(0)).name == "int16":
        return _by_sixteen_bits(node, _sigmoid_of_words)
    return _by_table(node, _sigmoid)


def quantized_tanh(node: NodeContext) -> GraphExpr:
    """A table."""
    if dtype_of(node.input(0)).name == "int16":
        return _by_sixteen_bits(node, _tanh_of_words)
    return _by_table(node, np.tanh)


def _sigmoid(x: Array) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _by_table(node: NodeContext, function: object) -> GraphExpr:
    assert callable(function)
    return by_function(node.builder, node.input(0), node.levels(0), node.output_levels(), node.output_dtype(), function)


def _by_sixteen_bits(node: NodeContext, function: object) -> GraphExpr:
    assert callable(function)
    codes = codes_of(dtype_of(node.input(0)))
    table = np.asarray(function(codes, node.levels(0).scale))
    return looked_up(node.builder, node.input(0), table.astype(np.int16), dtype_of(node.input(0)))


def _words_multiplier(scale: float) -> tuple[int, int]:
    """What 16-bit kernels multiply steps with so that 4096 of theirs are one: a multiplier and a right shift."""
    factor = np.float64(np.float32(scale)) * 4096.0 * 3.0
    shift = 0
    while factor <= 32767.0 / 2.0 and shift <= 30:
        shift += 1
        factor *= 2
    return int(factor), shift


_ONE_MORE = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46,
    49, 50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip
"""Where the table that the kernels store is one above the nearest integer."""


def _table_of_sigmoid() -> Array:
    """sigmoid(i / 24) * 65536 from 0 up, as the kernels store it."""
    values = 65536.0 / (1.0 + np.exp(-np.arange(256) / 24.0))
    table = np.floor(values + 0.5).astype(np.int64)
    table[list(_ONE_MORE)] += 1
    return np.minimum(table, 65535)


def _interpolated(codes: Array, scale: float) -> tuple[Array, Array]:
    multiplier, shift = _words_multiplier(scale)
    rounding = (1 << shift) >> 1
    moved = (codes * multiplier + rounding) >> shift
    return moved, np.abs(moved)


def _sigmoid_of_words(codes: Array, scale: float) -> Array:
    moved, size = _interpolated(codes, scale)
    table = _table_of_sigmoid()
    place = size >> 9
    fraction = size & 0x1FF
    low, high = table[np.minimum(place, 255)], table[np.minimum(place + 1, 255)]
    inside = (low << 9) + fraction * (high - low)
    result = np.where(place >= 255, 0x7FFF << 10, inside)
    up = (result + (1 << 9)) >> 10
    down = ((1 << (16 + 9)) - result + (1 << 9) - 1) >> 10
    return np.where(moved >= 0, up, down)


def _tanh_of_words(codes: Array, scale: float) -> Array:
    moved, size = _interpolated(codes, scale)
    table = _table_of_sigmoid()
    place = size >> 8
    fraction = size & 0xFF
    low, high = table[np.minimum(place, 255)], table[np.minimum(place + 1, 255)]
    inside = (low << 8) + fraction * (high - low)
    result = np.where(place >= 255, 0xFFFF << 8, inside)
    up = (result - (1 << (14 + 9)) + (1 << (9 - 2))) >> (9 - 1)
    down = (-result + (1 << (14 + 9)) + (1 << (9 - 2)) - 1) >> (9 - 1)
    return np.where(moved >= 0, up, down)


def quantized_hard_swish(node: NodeContext) -> GraphExpr:
    """A table, of the kernel's arithmetic in 16 bits."""
    dtype, to = dtype_of(node.input(0)), node.output_dtype()
    steps = codes_of(dtype) - node.levels(0).zero
    fine = np.float32(1.0 / 128.0) * np.float32(node.levels(0).scales[0])
    preshift, shift = _word_multiplier(float(fine / np.float32(node.output_levels().scales[0])))
    ramp, ramp_shift = _word_multiplier(float(fine / np.float32(3.0 / 32768.0)))
    fine_steps = steps << 7
    on_output = _high_product(fine_steps, preshift)
    value = fine_steps
    if ramp_shift > 0:
        value = np.clip(value << (ramp_shift - 1), -32768, 32767)
    value = _high_product(value, ramp)
    if ramp_shift > 0:
        value = np.clip(value << 1, -32768, 32767)
    if ramp_shift < 0:
        value = _divided(value, -ramp_shift)
    value = (value + (1 << 15)) >> 1
    product = np.trunc(value * on_output / (1 << 15)).astype(np.int64)
    result = _divided(product, -shift) if shift < 0 else product << shift
    kept = np.clip(result + node.output_levels().zero, to.min_value(), to.max_value())
    return looked_up(node.builder, node.input(0), kept.astype(to.numpy()), to)


def _word_multiplier(number: float) -> tuple[int, int]:
    """A multiplier of 15 digits and a shift."""
    by = Multiplier.of(np.float64(number))
    digits, shift = int(by.multiplier), int(by.shift)
    return (32767 if digits >= (1 << 31) - 1 - (1 << 15) else (digits + (1 << 15)) >> 16), shift


def _high_product(value: Array, by: int) -> Array:
    """Twice the product's upper half, of 16-bit numbers, rounded."""
    return np.asarray(np.minimum((value * by + (1 << 14)) >> 15, 32767))


def _divided(value: Array, places: int) -> Array:
    """Divided by a power of two, halves away from zero."""
    return value if not places else (value + (1 << (places - 1)) - (value < 0)) >> places


def quantized_softmax(node: NodeContext) -> GraphExpr:
    """exp from a table by the distance to the greatest, sums in float32, one rounding."""
    builder, call = node.builder, node.call
    data, to, result = node.input(0), node.output_dtype(), node.output_levels()
    if dtype_of(data).name == "int16":
        return softmax_of_words(node)
    axis = rank_of(data) - 1
    scale = -np.float32(node.levels(0).scales[0]) * np.float32(node.number("beta"))
    _, powers = _powers(node, float(scale))
    total = call("multiply", call("sum", powers, axes=(axis,), keepdims=True), builder.constant(result.scale, FLOAT32))
    share = call("multiply", powers, call("divide", builder.constant(1.0, FLOAT32), total))
    rounded = rounded_away(builder, share)
    return finished(builder, rounded, result.zero, _range(to), to)


def quantized_log_softmax(node: NodeContext) -> GraphExpr:
    """exp from a table by the distance to the greatest, the logarithm of the sum in float32, as the default kernel."""
    builder, call = node.builder, node.call
    data, to, result = node.input(0), node.output_dtype(), node.output_levels()
    if to.bits != 8:
        raise UnsupportedError("LOG_SOFTMAX of quantised tensors of more than 8 bits")
    axis = rank_of(data) - 1
    scale, step = np.float32(node.levels(0).scales[0]), np.float32(result.scales[0])
    greatest, powers = _powers(node, -float(scale))
    logarithm = call("log", call("sum", powers, axes=(axis,), keepdims=True))
    peak = call("multiply", builder.cast(greatest, FLOAT32), builder.constant(scale, FLOAT32))
    offset = call("divide", call("add", peak, logarithm), builder.constant(step, FLOAT32))
    scaled = call("multiply", builder.cast(data, FLOAT32), builder.constant(scale / step, FLOAT32))
    return finished(builder, call("round", call("subtract", scaled, offset)), result.zero, _range(to), to)


def _powers(node: NodeContext, scale: float) -> tuple[GraphExpr, GraphExpr]:
    """The greatest integer along the last axis, and exp(scale * distance to it) from a table of all distances."""
    builder, call = node.builder, node.call
    table = np.exp((scale * np.arange(256, dtype=np.float32)).astype(np.float32)).astype(np.float32)
    wide = builder.cast(node.input(0), "int32")
    greatest = call("max", wide, axes=(rank_of(wide) - 1,), keepdims=True)
    return greatest, call(
        "take", builder.constant(table, FLOAT32), call("subtract", greatest, wide), axis=0, mode="inside"
    )


def _range(dtype: DataType) -> tuple[int, int]:
    return dtype.min_value(), dtype.max_value()
