"""Boxes around what is seen in images: they move with the images that a layer makes larger or smaller.

All ways to write a box down are linear in its corners (`xyxy`: left, top, right, bottom): a matrix says which. Relative
ones count in widths and heights of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.values import Value
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError

_CORNERS: Final[dict[str, Sequence[Sequence[float]]]] = {
    "xyxy": ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
    "yxyx": ((0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)),
    "xywh": ((1, 0, 0, 0), (0, 1, 0, 0), (1, 0, 1, 0), (0, 1, 0, 1)),
    "center_xywh": ((1, 0, -0.5, 0), (0, 1, 0, -0.5), (1, 0, 0.5, 0), (0, 1, 0, 0.5)),
    "center_yxhw": ((0, 1, 0, -0.5), (1, 0, -0.5, 0), (0, 1, 0, 0.5), (1, 0, 0.5, 0)),
}
"""The corners of a box from its four numbers, by their format."""
_RELATIVE: Final = "rel_"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an image comes to lie in another one: sizes as (height, width), places scaled and then moved (x, y)."""

    before: tuple[int, int]
    after: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]


def stretched(before: tuple[int, int], after: tuple[int, int]) -> Placement:
    """An image that fills the other one."""
    return Placement(before, after, (after[1] / before[1], after[0] / before[0]), (0.0, 0.0))


def padded(before: tuple[int, int], after: tuple[int, int]) -> Placement:
    """An image in its proportions, with a border."""
    ratio = min(after[0] / before[0], after[1] / before[1])
    return Placement(before, after, (ratio, ratio), _middle(after, (before[0] * ratio, before[1] * ratio)))


def cropped(before: tuple[int, int], after: tuple[int, int]) -> Placement:
    """An image in its proportions, of which the middle is seen."""
    ratio = before[1] / before[0]
    is_wide = ratio > after[1] / after[0]
    size = (after[0], after[0] * ratio) if is_wide else (after[1] / ratio, after[1])
    left, top = _middle(size, after)
    return Placement(before, after, (size[1] / before[1], size[0] / before[0]), (-left, -top))


def _middle(outer: Sequence[float], inner: Sequence[float]) -> tuple[float, float]:
    """How far from the left and the top the inner one lies in the outer one: whole pixels."""
    return (outer[1] - inner[1]) // 2, (outer[0] - inner[0]) // 2


def moved_boxes(call: LayerCall, given: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """Boxes in the other image, cut at its edges. Labels of boxes of which nothing is left are -1.

    Boxes of four zeros, or of -1, fill up rows: they become zeros.
    """
    b, value = call.builder, given.get("boxes")
    if not isinstance(value, Value) or size_at(value.expr, rank_of(value.expr) - 1) != 4:
        raise UserError("bounding boxes have no 'boxes' of four numbers each")
    boxes = b.cast(value.expr, FLOAT32)
    filling = b.call("logical_or", _all_equal(call, boxes, 0.0), _all_equal(call, boxes, -1.0))
    corners = _times(call, boxes, _matrix(call, placement.before))
    scale, offset = (np.array([*pair, *pair], np.float32) for pair in (placement.scale, placement.offset))
    corners = b.add(b.multiply(corners, b.constant(scale)), b.constant(offset))
    edges = np.array([placement.after[1], placement.after[0]] * 2, np.float32)
    corners = b.call("minimum", b.call("maximum", corners, b.constant(np.float32(0))), b.constant(edges))
    result = dict(given)
    labels = given.get("labels")
    if isinstance(labels, Value):
        result["labels"] = _labels(call, labels.expr, corners)
    corners = b.call("where", filling, b.filled(0.0, sizes_of(corners), FLOAT32), corners)
    result["boxes"] = _times(call, corners, np.linalg.inv(_matrix(call, placement.after)))
    return result


def _matrix(call: LayerCall, size: tuple[int, int]) -> Array:
    """From the numbers of a box to its corners in pixels."""
    name = call.layer.option("bounding_box_format")
    plain = str(name).lower().removeprefix(_RELATIVE)
    if name is None or plain not in _CORNERS:
        known = ", ".join([*_CORNERS, f"or one with {_RELATIVE} in front"])
        raise UserError(f"bounding boxes of the format {name!r}", hint=f"bounding_box_format: {known}")
    matrix = np.array(_CORNERS[plain], np.float64)
    if str(name).lower().startswith(_RELATIVE):
        matrix = np.diag([size[1], size[0], size[1], size[0]]) @ matrix
    return matrix


def _times(call: LayerCall, boxes: GraphExpr, matrix: Array) -> GraphExpr:
    """Each box by a matrix; sums of products, so that what a matrix leaves as it is stays so to the bit."""
    b, last = call.builder, rank_of(boxes) - 1
    parts = [b.slice_axis(boxes, last, number, number + 1) for number in range(4)]
    rows = []
    for row in matrix:
        terms = [
            parts[n] if row[n] == 1 else b.multiply(parts[n], b.constant(np.float32(row[n])))
            for n in range(4)
            if row[n]
        ]
        total = terms[0]
        for term in terms[1:]:
            total = b.add(total, term)
        rows.append(total)
    return b.concatenate(rows, last)


def _all_equal(call: LayerCall, boxes: GraphExpr, value: float) -> GraphExpr:
    b, last = call.builder, rank_of(boxes) - 1
    return b.call("all", b.call("equal", boxes, b.constant(np.float32(value))), axes=(last,), keepdims=True)


def _labels(call: LayerCall, labels: GraphExpr, corners: GraphExpr) -> GraphExpr:
    b, last = call.builder, rank_of(corners) - 1
    left, top, right, bottom = (b.slice_axis(corners, last, number, number + 1) for number in range(4))
    area = b.multiply(b.subtract(right, left), b.subtract(bottom, top))
    is_seen = b.call("greater", b.reshape(area, sizes_of(area)[:-1]), b.constant(np.float32(0)))
    return b.call("where", is_seen, labels, b.constant_like(-1, labels))
