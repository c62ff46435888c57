"""Images resized to a size that is an input, with channels last: shared by importers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.core.resampling import linear_at, number, plain, take_at, weighted_taps
from tilewright.graph.ir.dimensions import Size, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError

_LARGEST = 1 << 24
"""The longest axis of a table."""


@dataclass(frozen=True, slots=True)
class Places:
    """How elements of a resized image map to places of the image."""

    align_corners: bool
    half_pixel_centers: bool

    def scale(self, old: int, new: int) -> np.float32:
        """How far apart elements of the result lie in the data."""
        if self.align_corners and new > 1:
            return np.float32(old - 1) / np.float32(new - 1)
        return np.float32(old) / np.float32(new)


def image_size(node: NodeInputs) -> list[Size]:
    """The height and the width that input 1 gives; sizes that only a run knows are symbols."""
    data = node.input(0)
    wanted = node.sizes(1, "the size")
    if rank_of(data) != 4:
        raise UserError(f"{node.operator} of data of shape {sizes_text(sizes_of(data))}")
    if wanted is None:
        parts = [node.builder.slice_axis(node.input(1), 0, at, at + 1) for at in range(2)]
        items = [node.builder.reshape(part, ()) for part in parts]
        return [node.computed_size(item, str(at)) for at, item in enumerate(items)]
    if len(wanted) != 2 or any(isinstance(size, int) and not 0 < size <= _LARGEST for size in wanted):
        raise UserError(f"{sizes_text(wanted)} is no size of an image")
    return list(wanted)


def bilinear(node: NodeInputs, wanted: list[Size], mapping: Places) -> GraphExpr:
    """Values between four neighbours, in float32."""
    data = node.input(0)
    result = node.builder.cast(data, FLOAT32)
    for axis, new in enumerate(wanted, 1):
        old = sizes_of(data)[axis]
        if isinstance(old, int) and isinstance(new, int):
            result = weighted_taps(node.builder, result, axis, *linear_taps(mapping, old, new))
        else:
            result = linear_at(node.builder, result, axis, _open_places(node, mapping, old, new))
    return result


def linear_taps(mapping: Places, old: int, new: int) -> tuple[Array, Array]:
    """The two neighbours of each element, and their weights."""
    scale = mapping.scale(old, new)
    order = np.arange(new, dtype=np.float32)
    half = np.float32(0.5)
    places = (order + half) * scale - half if mapping.half_pixel_centers else order * scale
    low = np.maximum(np.floor(places), 0)
    high = np.minimum(np.ceil(places), old - 1)
    beyond = places - low
    taps = np.stack([low, np.maximum(high, 0)], axis=1).astype(np.int64)
    return np.minimum(taps, old - 1), np.stack([np.float32(1) - beyond, beyond], axis=1)


def _open_places(node: NodeInputs, mapping: Places, old: Size, new: Size) -> GraphExpr:
    """Where elements of the result lie, of sizes that only a run knows."""
    builder, call = node.builder, node.call
    numbers = builder.cast(builder.arange(new), FLOAT32)
    one = plain(builder, 1.0)
    before, after = number(builder, old), number(builder, new)
    if mapping.align_corners:
        before, after = call("subtract", before, one), call("maximum", call("subtract", after, one), one)
    scale = call("divide", before, after)
    if not mapping.half_pixel_centers:
        return call("multiply", numbers, scale)
    half = plain(builder, 0.5)
    places = call("subtract", call("multiply", call("add", numbers, half), scale), half)
    return call("maximum", places, plain(builder, 0.0))


def nearest(node: NodeInputs, mapping: Places) -> GraphExpr:
    """The nearest element, of images of any type."""
    data, builder = node.input(0), node.builder
    result = data
    for axis, new in enumerate(image_size(node), 1):
        old = sizes_of(data)[axis]
        if same(old, new):
            continue
        if isinstance(old, int) and isinstance(new, int):
            places = builder.constant(_nearest(mapping, old, new), INT64)
            result = node.call("take", result, places, axis=axis)
        else:
            result = take_at(builder, result, axis, _open_nearest(node, mapping, old, new))
    return result


def _nearest(mapping: Places, old: int, new: int) -> Array:
    half = np.float32(0.5 if mapping.half_pixel_centers else 0.0)
    places = (np.arange(new, dtype=np.float32) + half) * mapping.scale(old, new)
    chosen = np.floor(places + np.float32(0.5)) if mapping.align_corners else np.floor(places)
    return np.asarray(np.clip(chosen, 0, old - 1), np.int64)


def _open_nearest(node: NodeInputs, mapping: Places, old: Size, new: Size) -> GraphExpr:
    builder, call = node.builder, node.call
    numbers = builder.cast(builder.arange(new), FLOAT32)
    one, half = plain(builder, 1.0), plain(builder, 0.5)
    before, after = number(builder, old), number(builder, new)
    if mapping.align_corners:
        before, after = call("subtract", before, one), call("maximum", call("subtract", after, one), one)
    numbers = call("add", numbers, half) if mapping.half_pixel_centers else numbers
    places = call("multiply", numbers, call("divide", before, after))
    return call("floor", call("add", places, half) if mapping.align_corners else places)
