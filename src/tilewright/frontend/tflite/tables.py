"""Functions of one quantised number as tables: all that a byte can be is computed while importing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of
from tilewright.frontend.tflite.fixed_point import away
from tilewright.frontend.tflite.model import Quantization
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType


def codes_of(dtype: DataType) -> Array:
    """All integers of a type, from the least on."""
    return np.arange(dtype.min_value(), dtype.max_value() + 1, dtype=np.int64)


def looked_up(builder: Builder, value: GraphExpr, table: Array, to: DataType) -> GraphExpr:
    """The entry of each integer in a table of all that its type has, from the least on.

    Integers without a sign are places as they are: those below zero come behind the others.
    """
    dtype = dtype_of(value)
    if dtype.min_value():
        value = builder.cast(value, f"uint{dtype.bits}")
        table = np.roll(table, dtype.min_value())
    return builder.call("take", builder.constant(table, to), value, axis=0, mode="inside")


def by_function(
    builder: Builder,
    value: GraphExpr,
    levels: Quantization,
    result: Quantization,
    to: DataType,
    function: Callable[[Array], Array],
    rounded: Callable[[Array], Array] = away,
) -> GraphExpr:
    """A function of the numbers that integers stand for, computed in float32 and rounded to the result's levels."""
    numbers = (codes_of(dtype_of(value)) - levels.zero).astype(np.float32) * np.float32(levels.scales[0])
    with np.errstate(all="ignore"):
        results = np.asarray(function(numbers), np.float32)
        # By the inverse, as the kernels make their tables; the one that cuts off divides.
        scale = np.float32(result.scales[0])
        steps = rounded(results / scale if rounded is np.trunc else results * (np.float32(1) / scale)) + result.zero
    kept = np.clip(np.nan_to_num(steps), to.min_value(), to.max_value())
    return looked_up(builder, value, kept.astype(to.numpy()), to)
