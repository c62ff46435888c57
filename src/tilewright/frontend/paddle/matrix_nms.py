"""The converter of `matrix_nms`: scores lowered by the overlap with better boxes, all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, size_at, sizes_of
from tilewright.frontend.core.indexing import gather_batched
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size, multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, INT32


@converter("matrix_nms", inputs="BBoxes Scores", outputs="Out Index RoisNum")
def matrix_nms(node: NodeContext) -> Sequence[GraphExpr]:
    """The best boxes of each image (class, score, corners), where they were, and how many an image has."""
    b, boxes, scores = node.builder, node.input(0), node.input(1)
    images, (classes, count) = sizes_of(scores)[0], (size_at(scores, at) for at in (1, 2))
    most = node.integer("nms_top_k", default=-1)
    taken = count if most < 0 else min(most, count)
    best = b.call("topk", scores, axis=2, k=taken, largest=True)
    value, place = b.item(best, 0), b.item(best, 1)
    chosen = gather_batched(b, boxes, place, 1, 1)
    hidden = b.scalar(-math.inf, dtype_of(scores))
    is_counted = b.compare("greater", value, node.number("score_threshold", default=0.0))
    background = node.integer("background_label", default=0)
    if background >= 0:
        ids = b.reshape(b.arange(classes), (1, classes, 1))
        is_counted = b.call("logical_and", is_counted, b.compare("not_equal", ids, background))
    lowered = b.multiply(value, _decay(node, chosen, taken))
    is_kept = b.compare("greater_equal", lowered, node.number("post_threshold", default=0.0))
    lowered = b.where(b.call("logical_and", is_counted, is_kept), lowered, hidden)
    return _listed(
        node, boxes, b.reshape(lowered, (images, classes * taken)), b.reshape(place, (images, classes * taken)), taken
    )


def _decay(node: NodeContext, boxes: GraphExpr, taken: int) -> GraphExpr:
    """By how much each box (images, classes, boxes in falling order) is lowered by those before it."""
    b = node.builder
    extra = 0.0 if node.flag("normalized", default=True) else 1.0
    down, across = (b.expand_dims(boxes, (axis,)) for axis in (3, 2))

    def side(value: GraphExpr, at: int) -> GraphExpr:
        return b.select(value, 4, at)

    shared: GraphExpr | None = None
    areas: list[GraphExpr | None] = [None, None]
    for at in range(2):
        low = b.call("maximum", side(down, at), side(across, at))
        high = b.call("minimum", side(down, at + 2), side(across, at + 2))
        length = b.call("maximum", b.add(b.subtract(high, low), extra), b.scalar(0.0, dtype_of(boxes)))
        shared = length if shared is None else b.multiply(shared, length)
        for place, value in enumerate((down, across)):
            extent = b.add(b.subtract(side(value, at + 2), side(value, at)), extra)
            known = areas[place]
            areas[place] = extent if known is None else b.multiply(known, extent)
    assert shared is not None and areas[0] is not None and areas[1] is not None
    overlap = b.divide(shared, b.subtract(b.add(areas[0], areas[1]), shared))
    before = b.constant(~np.tri(taken, dtype=bool), BOOL)  # the row is the better box
    overlap = b.where(before, overlap, 0.0)
    own = b.expand_dims(b.reduce("max", overlap, (2,)), (3,))
    if node.flag("use_gaussian"):
        squares = b.subtract(b.multiply(own, own), b.multiply(overlap, overlap))
        factor = b.call("exp", b.multiply(squares, node.number("gaussian_sigma", default=2.0)))
    else:
        factor = b.divide(b.subtract(1.0, overlap), b.subtract(1.0, own))
    return b.reduce("min", b.where(before, factor, 1.0), (2,))


def _listed(node: NodeContext, boxes: GraphExpr, scores: GraphExpr, places: GraphExpr, taken: int) -> list[GraphExpr]:
    """The candidates of each image in falling order, without those that do not count."""
    b, (images, total) = node.builder, (sizes_of(scores)[0], size_at(scores, 1))
    limit = node.integer("keep_top_k", default=-1)
    width = total if limit < 0 else min(limit, total)
    best = b.call("topk", scores, axis=1, k=width, largest=True)
    value, candidate = b.item(best, 0), b.item(best, 1)
    shown = b.compare("greater", value, -math.inf)
    place = gather_batched(b, places, candidate, 1, 1)
    corners = gather_batched(b, boxes, place, 1, 1)
    label = b.cast(b.binary("floor_divide", candidate, taken), FLOAT32)
    parts = [b.expand_dims(item, (2,)) for item in (label, b.cast(value, FLOAT32))]
    rows: Size = multiply(images, width)
    table = b.reshape(b.concatenate([*parts, corners], 2), (rows, 6))
    start = b.multiply(b.arange(images), b.reshape(b.shape_tensor([sizes_of(boxes)[1]]), ()))
    number = b.cast(b.add(place, b.reshape(start, (images, 1))), INT32)
    mask = b.reshape(shown, (rows,))
    results = [node.onnx("Compress", item, mask, axis=0) for item in (table, b.reshape(number, (rows, 1)))]
    return [*results, b.reduce("sum", b.cast(shown, INT32), (1,))]
