"""Converters of resampling: rows and columns each by a table of taps and weights."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.images import Places, bilinear, image_size, linear_taps, nearest
from tilewright.frontend.core.resampling import plain, weighted_taps
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.support.errors import UnsupportedError

_ONE = 1 << 10
"""What stands for 1 among weights of integer kernels."""


def _mapping(node: NodeContext) -> Places:
    return Places(node.flag("align_corners"), node.flag("half_pixel_centers"))


@converter("RESIZE_BILINEAR")
def resize_bilinear(node: NodeContext) -> GraphExpr:
    """Values between four neighbours."""
    data, wanted = node.input(0), image_size(node)
    is_fixed = all(isinstance(size, int) for size in (*wanted, *sizes_of(data)[1:3]))
    if dtype_of(data).is_integer and not is_fixed:
        raise UnsupportedError("RESIZE_BILINEAR of quantised images of open sizes")
    if dtype_of(data).is_integer and dtype_of(data).name != "uint8":
        return _in_integers(node, data, wanted)
    if dtype_of(data).is_integer:
        return _of_bytes(node, data, wanted)
    return node.builder.cast(bilinear(node, wanted, _mapping(node)), dtype_of(data))


def _of_bytes(node: NodeContext, data: GraphExpr, wanted: list[Size]) -> GraphExpr:
    """Unsigned bytes: each of the four neighbours times both its weights in float32, in the order of the kernel."""
    builder, call = node.builder, node.call
    tables = []
    for axis, new in enumerate(wanted, 1):
        old = sizes_of(data)[axis]
        assert isinstance(old, int) and isinstance(new, int)
        tables.append(linear_taps(_mapping(node), old, new))
    (rows, down), (columns, across) = tables
    total: GraphExpr | None = None
    for right, below in ((0, 0), (0, 1), (1, 0), (1, 1)):
        taken = call("take", data, builder.constant(rows[:, below], INT64), axis=1)
        taken = builder.cast(call("take", taken, builder.constant(columns[:, right], INT64), axis=2), FLOAT32)
        first = builder.constant(down[:, below].reshape(-1, 1, 1), FLOAT32)
        second = builder.constant(across[:, right].reshape(-1, 1), FLOAT32)
        part = call("multiply", call("multiply", taken, first), second)
        total = part if total is None else call("add", total, part)
    assert total is not None
    return builder.cast(call("add", total, plain(builder, 0.5)), dtype_of(data))


def _in_integers(node: NodeContext, data: GraphExpr, wanted: list[Size]) -> GraphExpr:
    """Weights of 10 bits; sums are exact, and rounded once, halves away from zero."""
    builder, call = node.builder, node.call
    working = INT64 if dtype_of(data).bits > 8 else INT32
    result = builder.cast(data, working)
    for axis, new in enumerate(wanted, 1):
        old = sizes_of(data)[axis]
        assert isinstance(old, int) and isinstance(new, int)
        result = weighted_taps(builder, result, axis, *_integer_taps(node, old, new))
    half = builder.constant(_ONE * _ONE // 2, working)
    above = call("greater", result, builder.constant(0, working))
    nudged = call("where", above, call("add", result, half), call("subtract", result, half))
    return builder.cast(call("divide", nudged, builder.constant(_ONE * _ONE, working)), dtype_of(data))


def _integer_taps(node: NodeContext, old: int, new: int) -> tuple[Array, Array]:
    scale = (_ONE * old + new // 2) // new
    if node.flag("align_corners") and new > 1:
        scale = (_ONE * (old - 1) + (new - 1) // 2) // (new - 1)
    places = np.arange(new, dtype=np.int64) * scale
    if node.flag("half_pixel_centers"):
        places = places + scale // 2 - _ONE // 2
    # Divisions toward zero, as in the kernels.
    low = np.maximum(np.trunc(places / _ONE).astype(np.int64), 0)
    high = np.minimum(np.trunc((places + _ONE - 1) / _ONE).astype(np.int64), old - 1)
    beyond = places - _ONE * low
    taps = np.minimum(np.stack([low, np.maximum(high, 0)], axis=1), old - 1)
    return taps, np.stack([_ONE - beyond, beyond], axis=1)


@converter("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(node: NodeContext) -> GraphExpr:
    """The nearest element, of quantised images too."""
    return nearest(node, _mapping(node))
