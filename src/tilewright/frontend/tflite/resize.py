"""Converters of resampling: rows and columns each by a table of taps and weights."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.resampling import linear_at, number, plain, take_at, weighted_taps
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.dimensions import Size, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST = 1 << 24
"""The longest axis of a table."""
_ONE = 1 << 10
"""What stands for 1 among weights of integer kernels."""


def _sizes(node: NodeContext) -> list[Size]:
    data = node.input(0)
    wanted = node.sizes(1, "the size")
    if rank_of(data) != 4:
        raise UserError(f"{node.node.name} of data of shape {sizes_text(sizes_of(data))}")
    if wanted is None:
        parts = [node.builder.slice_axis(node.input(1), 0, at, at + 1) for at in range(2)]
        items = [node.builder.reshape(part, ()) for part in parts]
        return [node.computed_size(item, str(at)) for at, item in enumerate(items)]
    if len(wanted) != 2 or any(isinstance(size, int) and not 0 < size <= _LARGEST for size in wanted):
        raise UserError(f"{sizes_text(wanted)} is no size of an image")
    return list(wanted)


def _scale(node: NodeContext, old: int, new: int) -> np.float32:
    """How far apart elements of the result lie in the data."""
    if node.flag("align_corners") and new > 1:
        return np.float32(old - 1) / np.float32(new - 1)
    return np.float32(old) / np.float32(new)


@converter("RESIZE_BILINEAR")
def resize_bilinear(node: NodeContext) -> GraphExpr:
    """Values between four neighbours."""
    data, wanted = node.input(0), _sizes(node)
    is_fixed = all(isinstance(size, int) for size in (*wanted, *sizes_of(data)[1:3]))
    if dtype_of(data).is_integer and not is_fixed:
        raise UnsupportedError("RESIZE_BILINEAR of quantised images of open sizes")
    if dtype_of(data).is_integer and dtype_of(data).name != "uint8":
        return _in_integers(node, data, wanted)
    if dtype_of(data).is_integer:
        return _of_bytes(node, data, wanted)
    result = node.builder.cast(data, FLOAT32)
    for axis, new in enumerate(wanted, 1):
        old = sizes_of(data)[axis]
        if isinstance(old, int) and isinstance(new, int):
            result = weighted_taps(node.builder, result, axis, *_linear_taps(node, old, new))
        else:
            result = linear_at(node.builder, result, axis, _open_places(node, old, new))
    return node.builder.cast(result, dtype_of(data))


def _of_bytes(node: NodeContext, data: GraphExpr, wanted: list[Size]) -> GraphExpr:
    """Unsigned bytes: each of the four neighbours times both its weights in float32, in the order of the kernel."""
    builder, call = node.builder, node.call
    tables = []
    for axis, new in enumerate(wanted, 1):
        old = sizes_of(data)[axis]
        assert isinstance(old, int) and isinstance(new, int)
        tables.append(_linear_taps(node, old, new))
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


def _linear_taps(node: NodeContext, old: int, new: int) -> tuple[Array, Array]:
    scale = _scale(node, old, new)
    order = np.arange(new, dtype=np.float32)
    half = np.float32(0.5)
    places = (order + half) * scale - half if node.flag("half_pixel_centers") else order * scale
    low = np.maximum(np.floor(places), 0)
    high = np.minimum(np.ceil(places), old - 1)
    beyond = places - low
    taps = np.stack([low, np.maximum(high, 0)], axis=1).astype(np.int64)
    return np.minimum(taps, old - 1), np.stack([np.float32(1) - beyond, beyond], axis=1)


def _open_places(node: NodeContext, old: Size, new: Size) -> GraphExpr:
    """Where elements of the result lie, of sizes that only a run knows."""
    builder, call = node.builder, node.call
    numbers = builder.cast(builder.arange(new), FLOAT32)
    one = plain(builder, 1.0)
    before, after = number(builder, old), number(builder, new)
    if node.flag("align_corners"):
        before, after = call("subtract", before, one), call("maximum", call("subtract", after, one), one)
    scale = call("divide", before, after)
    if not node.flag("half_pixel_centers"):
        return call("multiply", numbers, scale)
    half = plain(builder, 0.5)
    places = call("subtract", call("multiply", call("add", numbers, half), scale), half)
    return call("maximum", places, plain(builder, 0.0))


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
    data, builder = node.input(0), node.builder
    result = data
    for axis, new in enumerate(_sizes(node), 1):
        old = sizes_of(data)[axis]
        if same(old, new):
            continue
        if isinstance(old, int) and isinstance(new, int):
            places = builder.constant(_nearest(node, old, new), INT64)
            result = node.call("take", result, places, axis=axis)
        else:
            result = take_at(builder, result, axis, _open_nearest(node, old, new))
    return result


def _nearest(node: NodeContext, old: int, new: int) -> Array:
    half = np.float32(0.5 if node.flag("half_pixel_centers") else 0.0)
    places = (np.arange(new, dtype=np.float32) + half) * _scale(node, old, new)
    chosen = np.floor(places + np.float32(0.5)) if node.flag("align_corners") else np.floor(places)
    return np.asarray(np.clip(chosen, 0, old - 1), np.int64)


def _open_nearest(node: NodeContext, old: Size, new: Size) -> GraphExpr:
    builder, call = node.builder, node.call
    numbers = builder.cast(builder.arange(new), FLOAT32)
    one, half = plain(builder, 1.0), plain(builder, 0.5)
    before, after = number(builder, old), number(builder, new)
    if node.flag("align_corners"):
        before, after = call("subtract", before, one), call("maximum", call("subtract", after, one), one)
    numbers = call("add", numbers, half) if node.flag("half_pixel_centers") else numbers
    places = call("multiply", numbers, call("divide", before, after))
    return call("floor", call("add", places, half) if node.flag("align_corners") else places)
