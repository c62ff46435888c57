"""Converters of what detectors use: prior boxes, decoding, and suppression with results of a fixed size."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.detection import Grid, decoded_boxes, prior_boxes
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import BOOL, FLOAT32, FLOAT64, INT64
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError


@converter("_contrib_MultiBoxPrior")
def multi_box_prior(node: Node) -> GraphExpr:
    """Boxes around the middle of each place, as shares of the image: (1, boxes, 4)."""
    _, _, height, width = shape_of(node.input(0))
    sizes, ratios = node.floats("sizes", (1.0,)), node.floats("ratios", (1.0,))
    steps, offsets = node.floats("steps", (-1.0, -1.0)), node.floats("offsets", (0.5, 0.5))
    if not sizes or not ratios or min(sizes + ratios) <= 0:
        raise UserError(f"boxes of the sizes {sizes} and the ratios {ratios}")
    aspect, first = height / width, math.sqrt(ratios[0])
    extents = [(size * aspect * first, size / first) for size in sizes]
    extents += [(sizes[0] * aspect * math.sqrt(ratio), sizes[0] / math.sqrt(ratio)) for ratio in ratios[1:]]
    down, across = (steps[0] if steps[0] > 0 else 1 / height), (steps[1] if steps[1] > 0 else 1 / width)
    grid = Grid((height, width), (down, across), (offsets[0], offsets[1]), (1.0, 1.0))
    boxes = prior_boxes(node.b, grid, extents)
    if node.flag("clip"):
        boxes = node.call("clip", boxes, minimum=0.0, maximum=1.0)
    return node.b.expand_dims(boxes, (0,))


def _survivors(
    node: Node, boxes: GraphExpr, scores: GraphExpr, labels: GraphExpr | None, valid: GraphExpr, overlap: float
) -> GraphExpr:
    """Which boxes, by falling score, no better one of their class covers too much: truths.

    Boxes of different classes are moved apart, so that one pass does for all.
    """
    b, count = node.b, size_at(scores, 0)
    wide = b.cast(boxes, FLOAT64)
    if labels is not None:
        span = b.subtract(node.call("max", wide, axes=(0, 1)), node.call("min", wide, axes=(0, 1)))
        shift = b.multiply(b.cast(labels, FLOAT64), b.add(span, 1.0))
        wide = b.add(wide, b.reshape(shift, (count, 1)))
    # Scores as numbers of their order: every valid one is above every other.
    order = b.multiply(b.cast(b.arange(count), FLOAT32), -1.0)
    ranked = b.where(valid, order, -math.inf)
    rows = node.call(
        "host.non_max_suppression",
        b.reshape(wide, (1, count, 4)),
        b.reshape(ranked, (1, 1, count)),
        b.constant(count, INT64),
        b.constant(overlap, FLOAT64),
        b.constant(-float(count + 1), FLOAT32),
        dims=(Symbol(f"{node.name}_kept"),),
    )
    kept = b.reshape(b.slice_axis(rows, 1, 2, 3), sizes_of(rows)[:1])
    ones = b.filled(1, sizes_of(kept), INT64)
    marks = node.call("scatter_elements", b.filled(0, (count,), INT64), kept, ones, axis=0)
    return b.cast(marks, BOOL)


@converter("_contrib_MultiBoxDetection")
def multi_box_detection(node: Node) -> GraphExpr:
    """Rows of class, score and box by falling score; -1 where there is none, or another covers it."""
    chances, codes, anchors = (node.input(at) for at in range(3))
    b = node.b
    images, classes, count = shape_of(chances)
    if node.integer("background_id", 0) != 0 or classes < 2:
        raise UnsupportedError("MultiBoxDetection whose background is not the first class")
    variances = b.constant(np.array(node.floats("variances", (0.1, 0.1, 0.2, 0.2))).reshape(1, 4), FLOAT32)
    prior = b.reshape(anchors, (count, 4))
    results: list[GraphExpr] = []
    for image in range(images):
        own = b.slice_axis(b.select(chances, 0, image), 0, 1, classes)
        score, label = node.call("max", own, axes=(0,)), node.call("argmax", own, axis=0)
        valid = b.compare("greater_equal", score, node.number("threshold", 0.01))
        box = decoded_boxes(b, b.reshape(b.select(codes, 0, image), (count, 4)), prior, variances, "CENTER_SIZE")
        if node.flag("clip", True):
            box = node.call("clip", box, minimum=0.0, maximum=1.0)
        results.append(_detected(node, label, score, box, valid))
    return b.stack(results, 0)


def _detected(node: Node, label: GraphExpr, score: GraphExpr, box: GraphExpr, valid: GraphExpr) -> GraphExpr:
    """The rows of one image."""
    b, count = node.b, size_at(score, 0)
    overlap, most = node.number("nms_threshold", 0.5), node.integer("nms_topk", -1)
    suppresses = 0 < overlap <= 1
    # Where nothing is suppressed the valid rows stay in their order.
    key = b.where(valid, score if suppresses else 1.0, -math.inf)
    order = b.item(node.call("topk", key, axis=0, k=count, largest=True), 1)
    label, score, box, valid = (node.call("take", value, order, axis=0) for value in (label, score, box, valid))
    named = valid
    if suppresses:
        if 0 < most < count:
            named = node.call("logical_and", valid, b.compare("less", b.arange(count), most))
        least = float(np.nextafter(np.float32(overlap), np.float32(0)))
        labels = None if node.flag("force_suppress") else label
        named = _survivors(node, box, score, labels, named, least)
    columns = [
        b.where(named, b.cast(label, FLOAT32), -1.0),
        b.where(valid, score, -1.0),
    ]
    shown = b.where(b.expand_dims(valid, (1,)), box, -1.0)
    return b.concatenate([*(b.expand_dims(column, (1,)) for column in columns), shown], 1)


def _corners(node: Node, box: GraphExpr, form: str) -> GraphExpr:
    """Boxes (centre, size) as corners, or the other way round."""
    b = node.b
    first, second = b.slice_axis(box, 1, 0, 2), b.slice_axis(box, 1, 2, 4)
    if form == "to corner":
        half = b.multiply(second, 0.5)
        return b.concatenate([b.subtract(first, half), b.add(first, half)], 1)
    return b.concatenate([b.multiply(b.add(first, second), 0.5), b.subtract(second, first)], 1)


@converter("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def box_nms(node: Node) -> GraphExpr:
    """Rows by falling score without those that a better one of their class covers; then rows of -1."""
    data, b = node.input(0), node.b
    *outer, count, width = shape_of(data)
    rows = b.reshape(data, (math.prod(outer), count, width))
    images = [_suppressed_rows(node, b.select(rows, 0, at), count) for at in range(math.prod(outer))]
    return b.reshape(b.stack(images, 0), sizes_of(data))


def _suppressed_rows(node: Node, rows: GraphExpr, count: int) -> GraphExpr:
    b = node.b
    start, place = node.integer("coord_start", 2), node.integer("score_index", 1)
    label, most = node.integer("id_index", -1), node.integer("topk", -1)
    score = b.select(rows, 1, place)
    valid = b.compare("greater", score, node.number("valid_thresh", 0.0))
    if label >= 0 and node.integer("background_id", -1) >= 0:
        named = b.compare("not_equal", b.select(rows, 1, label), float(node.integer("background_id")))
        valid = node.call("logical_and", valid, named)
    order = b.item(node.call("topk", b.where(valid, score, -math.inf), axis=0, k=count, largest=True), 1)
    rows, valid = (node.call("take", value, order, axis=0) for value in (rows, valid))
    if 0 < most < count:
        valid = node.call("logical_and", valid, b.compare("less", b.arange(count), most))
    box = b.slice_axis(rows, 1, start, start + 4)
    is_corner = node.text("in_format", "corner") == "corner"
    corners = box if is_corner else _corners(node, box, "to corner")
    labels = None if label < 0 or node.flag("force_suppress") else b.select(rows, 1, label)
    kept = _survivors(node, corners, b.select(rows, 1, place), labels, valid, node.number("overlap_thresh", 0.5))
    form = node.text("out_format", "corner")
    if form == "corner" and not is_corner:
        rows = _with_boxes(node, rows, corners, start)
    elif form != "corner" and is_corner:
        rows = _with_boxes(node, rows, _corners(node, box, "to centre"), start)
    front = b.where(kept, b.multiply(b.cast(b.arange(count), FLOAT32), -1.0), -math.inf)
    places = b.item(node.call("topk", front, axis=0, k=count, largest=True), 1)
    rows, kept = (node.call("take", value, places, axis=0) for value in (rows, kept))
    return b.where(b.expand_dims(kept, (1,)), rows, -1.0)


def _with_boxes(node: Node, rows: GraphExpr, boxes: GraphExpr, start: int) -> GraphExpr:
    b, width = node.b, size_at(rows, rank_of(rows) - 1)
    parts = [b.slice_axis(rows, 1, 0, start), boxes, b.slice_axis(rows, 1, start + 4, width)]
    return b.concatenate([part for part in parts if sizes_of(part)[1] != 0], 1)
