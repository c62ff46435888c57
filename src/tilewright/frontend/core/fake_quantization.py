"""Numbers rounded to steps between two bounds, as quantised tensors would be: shared by importers."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import Builder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UserError


def _nudged(low: float, high: float, bits: int, narrow: bool) -> tuple[np.float32, np.float32, np.float32]:
    """Bounds moved so that zero is a step, and the size of a step."""
    first, last = np.float32(low), np.float32(high)
    least, most = np.float32(1 if narrow else 0), np.float32((1 << bits) - 1)
    if not 2 <= bits <= 16 or not first <= 0 <= last or first == last:
        raise UserError(f"quantisation to {bits} bits between {low} and {high}")
    scale = (last - first) / (most - least)
    zero = least - first / scale
    step = np.float32(np.clip(np.floor(zero + np.float32(0.5)), least, most))
    return (least - step) * scale, (most - step) * scale, scale


def fake_quantized(
    builder: Builder, data: GraphExpr, lows: Array, highs: Array, bits: int, narrow: bool = False
) -> GraphExpr:
    """Data rounded to the steps between bounds: one for all, or one for each element of the last axis."""
    pairs = zip(lows.ravel().tolist(), highs.ravel().tolist(), strict=True)
    columns = np.array([_nudged(low, high, bits, narrow) for low, high in pairs], np.float32).T
    start, end, scale, inverse = (
        builder.constant(column.reshape(lows.shape), "float32") for column in (*columns, np.float32(1) / columns[2])
    )
    call = builder.call
    kept = call("maximum", call("minimum", data, end), start)
    steps = call("multiply", call("subtract", kept, start), inverse)
    rounded = call("floor", call("add", steps, builder.constant(0.5, "float32")))
    return call("add", call("multiply", rounded, scale), start)
